"""The statements of what only reads: lists, pages, changes, what is followed, what was used.

Like all statements built once at import, or once for each combination of filters.
"""

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, literal, literal_column, not_, or_, select, tuple_

from sessionstore.dialect import any_case, json_has, json_number, settled
from sessionstore.limits import USED
from sessionstore.model import CLOCK_TOLERANCE_MS, ListOrder, UsageBy
from sessionstore.schema import CHANGED as CHANGED_ROW
from sessionstore.schema import EVERYBODY, LIVING, SUMMARY, conversations, generations, messages, pruned
from sessionstore.statements import MESSAGE_COLUMNS, alive, is_queued, message_rows, within

c, m, g = conversations.c, messages.c, generations.c
b = bindparam

_parent, _ended = conversations.alias("parent"), generations.alias("ended")
_newest_ended = (
    select(func.max(g.number)).where(g.conversation_pk == c.pk, g.ended_at.is_not(None)).correlate(conversations)
).scalar_subquery()
VIEW_COLUMNS = (
    c.id, c.pk, c.title, c.metadata, c.created_at, c.updated_at, c.version, c.message_count, c.queued_count,
    _parent.c.id, c.forked_from_id, c.forked_from_position, c.generation, generations.c.holder, generations.c.phase,
    generations.c.acquired_at, c.lease_expires_at, c.lease_ttl_ms, c.interrupt_requested_at,
    _ended.c.number, _ended.c.outcome, _ended.c.ended_at, _ended.c.usage, c.change,
)  # fmt: skip
_joined = (
    conversations.outerjoin(_parent, _parent.c.pk == c.parent_pk)
    .outerjoin(generations, g.number == c.generation)
    .outerjoin(_ended, _ended.c.number == _newest_ended)
)
_views = select(*VIEW_COLUMNS).select_from(_joined)
living_view: ColumnElement[bool] = literal_column("conversations.deleted_at IS NULL")
VIEW = _views.where(c.pk == b("pk"))
LIVING_VIEW = VIEW.where(living_view)
VIEW_OF_ID = _views.where(c.owner == b("owner"), c.id == b("id"), living_view)
NEWEST_CHANGE = select(settled(func.coalesce(func.max(c.change), 0)))
"""Of everybody."""
_gone: ColumnElement[bool] = literal_column("deleted_at IS NOT NULL")
_own = [select(func.max(c.change)).where(c.owner == b("owner"), state).scalar_subquery() for state in (LIVING, _gone)]
_pruned = (
    select(func.max(pruned.c.change))
    .where(pruned.c.owner.in_((b("owner"), literal_column(f"'{EVERYBODY}'"))))
    .scalar_subquery()
)
OWN_CHANGES = select(*(settled(func.coalesce(change, 0)) for change in (*_own, _pruned)), func.coalesce(_pruned, 0))
"""The newest change of an owner's conversations, and of what he has deleted; and what was pruned of it, twice."""
INCARNATION = select(c.pk).where(c.owner == b("owner"), c.id == b("id"), LIVING)

_generating = and_(
    c.generation.is_not(None),
    c.lease_expires_at > b("now"),
    c.lease_expires_at <= b("now") + c.lease_ttl_ms + CLOCK_TOLERANCE_MS,
)


# An id never has it, so a pattern seldom needs it.
LIKE_ESCAPE = "/"


_parents = conversations.alias("parents")
_parent_pk = (
    select(_parents.c.pk)
    .where(_parents.c.owner == b("owner"), _parents.c.id == b("parent_id"), literal_column("parents.deleted_at IS NULL"))
    .scalar_subquery()
)
_leased: ColumnElement[bool] = literal_column("conversations.generation IS NOT NULL")


class Filters(NamedTuple):
    """What a list is of: `asked` are the names of the parameters that are given."""

    generating: bool | None
    roots: bool
    asked: frozenset[str]
    by: ListOrder


_part = b("part", type_=c.title.type)
_FILTERS: dict[str, ColumnElement[bool]] = {
    "parent_id": and_(c.parent_pk == _parent_pk, literal_column("conversations.parent_pk IS NOT NULL")),
    "part": or_(*(any_case(text).contains(_part, escape=LIKE_ESCAPE) for text in (c.title, c.id))),
    "changed_since": c.updated_at >= b("changed_since"),
    "changed_before": c.updated_at < b("changed_before"),
}
_HAS_KEY = json_has(c.metadata, b("metadata_key", type_=c.title.type))
_HAS_VALUE = json_has(c.metadata, b("metadata_key", type_=c.title.type), b("metadata_value", type_=c.title.type))


@cache
def list_conversations(filters: Filters) -> Select[Any]:
    """The list with those filters, the newest change or the newest conversation first, from before `before`."""
    place: ColumnElement[Any] = c.change if filters.by == "changed" else c.pk
    if filters.generating:
        # The few that are leased are found first and sorted then: the plus keeps the list's index out of it.
        place = literal_column("+conversations.change" if filters.by == "changed" else "+conversations.pk")
    found = _views.where(c.owner == b("owner"), living_view, place < b("before", type_=c.change.type))
    if filters.roots:
        found = found.where(c.parent_pk.is_(None))
    if filters.generating:
        found = found.where(_leased)
    if filters.generating is not None:
        found = found.where(_generating if filters.generating else or_(c.generation.is_(None), not_(_generating)))
    if "metadata_key" in filters.asked:
        found = found.where(_HAS_VALUE if "metadata_value" in filters.asked else _HAS_KEY)
    return (
        found.where(*(_FILTERS[name] for name in sorted(filters.asked & set(_FILTERS))))
        .order_by(place.desc())
        .limit(b("count"))
    )


@cache
def list_messages(*, descending: bool, summaries: bool = True) -> Select[Any]:
    """The transcript between two positions, in either order, with or without its summaries."""
    found = message_rows.where(within, alive, m.position > b("after"), m.position < b("before"))
    if not summaries:
        found = found.where(m.summary_through.is_(None))
    return found.order_by(m.position.desc() if descending else m.position).limit(b("count"))


NEWEST_SUMMARY = message_rows.where(within, SUMMARY, alive).order_by(m.position.desc()).limit(1)

# Changes since a version: rows that were changed, by their own index; new rows, from the first that is younger on; queued ones.
_later = tuple_(m.version, m.pk) > tuple_(b("version"), b("row"))
_unchanged = m.version == m.created_version
_shown = or_(alive, m.version > b("hidden"))
_versioned = select(*MESSAGE_COLUMNS, m.pk)
CHANGED_AT = (
    _versioned.where(within, CHANGED_ROW, m.version == b("version"), m.pk > b("row"), _shown).order_by(m.pk).limit(b("count"))
)  # fmt: skip
CHANGED = (
    _versioned.where(within, CHANGED_ROW, m.version > b("version"), _shown).order_by(m.version, m.pk).limit(b("count"))
)  # fmt: skip
APPENDED = (
    _versioned.where(within, m.position > b("after"), _unchanged, _later, _shown).order_by(m.position).limit(b("count"))
)  # fmt: skip
YOUNGEST_KNOWN = (
    select(m.position)
    .where(within, m.position.is_not(None), m.mode.is_(None), m.created_version < b("version"))
    .order_by(m.position.desc())
    .limit(1)
)  # fmt: skip
# Without their contents, which would all be read to be sorted.
WAITING = (
    select(m.version, m.pk).where(within, is_queued, _unchanged, _later).order_by(m.version, m.pk).limit(b("count"))
)  # fmt: skip
VERSIONED = _versioned.where(m.pk == b("row"))

TURNS = (
    select(g.number, g.holder, g.phase, g.acquired_at, g.ended_at, g.outcome, g.usage)
    .where(g.conversation_pk == b("pk"), g.number < b("before"))
    .order_by(g.number.desc())
    .limit(b("count"))
)  # fmt: skip

# What was used: of all, or of a conversation, or of it and what came from it; in one sum, by day, or by conversation.
DAY_MS = 86_400_000
_usage_keys: dict[UsageBy, ColumnElement[Any]] = {
    "total": literal_column("0 * generations.number"),
    "day": g.ended_at // literal_column(str(DAY_MS), type_=c.pk.type),
    "conversation": c.pk,
}


@cache
def usage(by: UsageBy, *, of_one: bool, descendants: bool) -> Select[Any]:
    """The key of each sum, a conversation's id, how many turns, and the sums in the order of `USED`."""
    key = _usage_keys[by]
    sums = [func.coalesce(func.sum(json_number(g.usage, literal(name))), 0) for name in USED]
    found = (
        select(key, func.max(c.id), func.count(), *sums)
        .select_from(generations.join(conversations, c.pk == g.conversation_pk))
        .where(literal_column("generations.usage IS NOT NULL"), g.ended_at >= b("since"), g.ended_at < b("until"))
        .where(c.owner == b("owner"), key > b("after", type_=c.pk.type))
    )
    if descendants:
        found = found.where(g.conversation_pk.in_(select(_family.c.pk)))
    elif of_one:
        found = found.where(g.conversation_pk == b("pk"))
    return found.group_by(key).order_by(key).limit(b("count"))


_family = select(b("pk", type_=c.pk.type).label("pk")).cte("family", recursive=True)
_family = _family.union(select(c.pk).where(c.parent_pk == _family.c.pk, literal_column("parent_pk IS NOT NULL")))

FOUND = select(c.id, *MESSAGE_COLUMNS).where(m.pk == b("message_pk"), c.pk == m.conversation_pk)

# What is followed: who has changed, whose lease has run out, and the list since a change, tombstones with it.
NEWS = (
    select(c.owner, c.id, c.change, c.generation, c.interrupt_requested_at, c.queued_count)
    .where(c.change > b("after"))
    .order_by(c.change)
    .limit(b("count"))
)  # fmt: skip
_expired = and_(_leased, not_(_generating))
COUNT_LEASES = select(func.coalesce(func.sum(case((_generating, 1), else_=0)), 0), func.count()).where(_leased)
"""How many are live, and how many there are."""
EXPIRED = select(c.owner, c.id, c.generation, c.pk).where(_expired)
_moved = and_(c.owner == b("owner"), c.change > b("after"), c.change <= b("newest"))
LIST_CHANGED = _views.where(_moved, living_view).order_by(c.change).limit(b("count"))
LIST_GONE = select(c.id, c.pk, c.change).where(_moved, _gone, c.arriving_at.is_(None)).order_by(c.change).limit(b("count"))
LEASES = _views.where(c.owner == b("owner"), _leased).order_by(c.generation)
