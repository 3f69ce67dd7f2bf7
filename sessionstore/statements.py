"""Every statement of the product, built once at import with bound parameters and compiled once per database.

Building them for each call costs seven times the CPU (facts/performance.md, B).
"""

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    tuple_,
    update,
)

from sessionstore.dialect import Upsert
from sessionstore.model import CLOCK_TOLERANCE_MS
from sessionstore.schema import CHANGED as CHANGED_ROW
from sessionstore.schema import LIVING, PARTIAL, conversations, generations, messages

c, m, g = conversations.c, messages.c, generations.c
b = bindparam

# Conversations, inside a write -----------------------------------------------------------------------------------------

LIFE_COLUMNS = (
    c.pk, c.id, c.version, c.next_position, c.message_count, c.queued_count, c.parent_pk,
    c.generation, c.lease_token, c.lease_ttl_ms, c.lease_expires_at, c.interrupt_requested_at,
)  # fmt: skip
_lives = select(*LIFE_COLUMNS)
LIFE = _lives.where(c.owner == b("owner"), c.id == b("id"), LIVING).with_for_update()
LIFE_BY_PK = _lives.where(c.pk == b("pk"), LIVING).with_for_update()
TOMBSTONE = (
    select(func.max(c.pk)).where(c.owner == b("owner"), c.id == b("id"), literal_column("deleted_at IS NOT NULL"))
)  # fmt: skip
CHILDREN = select(c.pk).where(c.parent_pk == b("pk"), literal_column("parent_pk IS NOT NULL"), LIVING).order_by(c.pk)
CREATE_DIGEST = select(c.create_digest).where(c.pk == b("pk"))
LABELS = select(c.title, c.metadata).where(c.pk == b("pk"))

# One counter for the whole store gives lists and their feed an order. The row with the highest is never pruned.
_next_change: ColumnElement[int] = literal_column("(SELECT coalesce(max(change), 0) + 1 FROM conversations)")

INSERT_CONVERSATION = (
    insert(conversations)
    .values(
        owner=b("owner"), id=b("id"), title=b("title"), metadata=b("metadata"), created_at=b("now"), updated_at=b("now"),
        version=1, change=_next_change, next_position=b("next_position"), message_count=b("message_count"), queued_count=0,
        create_digest=b("create_digest"), parent_pk=b("parent_pk"),
        forked_from_id=b("forked_from_id"), forked_from_position=b("forked_from_position"),
    )
    .returning(c.pk)
)  # fmt: skip
_one = update(conversations).where(c.pk == b("at"))
ADVANCE = _one.values(
    version=b("version"), change=_next_change, updated_at=b("now"), next_position=b("next_position"),
    message_count=b("message_count"), queued_count=b("queued_count"), lease_expires_at=b("lease_expires_at"),
)  # fmt: skip
SET_LEASE = _one.values(
    generation=b("generation"), lease_token=b("lease_token"), lease_ttl_ms=b("lease_ttl_ms"),
    lease_expires_at=b("lease_expires_at"), interrupt_requested_at=b("interrupt_requested_at"),
)  # fmt: skip
RENEW = _one.values(lease_expires_at=b("lease_expires_at"))
SET_LABELS = _one.values(title=b("title"), metadata=b("metadata"))
ORPHAN = _one.values(parent_pk=None)
BURY = _one.values(title=None, metadata="{}", create_digest=None, deleted_at=b("now"))

# Messages --------------------------------------------------------------------------------------------------------------

MESSAGE_COLUMNS = (
    m.conversation_pk, m.id, m.position, m.role, m.content, m.metadata, m.status, m.summary_through, m.generation,
    m.version, m.created_at, m.updated_at,
)  # fmt: skip
_messages = select(*MESSAGE_COLUMNS)
_of = m.conversation_pk == b("pk")
_alive = m.status != "deleted"

MESSAGE = _messages.where(_of, m.id == b("id"))
MESSAGE_DIGEST = select(m.digest, m.mode).where(_of, m.id == b("id"))
MESSAGES_AT = _messages.where(_of, m.position >= b("first"), m.position < b("end")).order_by(m.position)
NEWEST_OF_GENERATION = (
    _messages.where(_of, m.generation == b("generation"), m.position >= b("first"))
    .order_by(m.position.desc())
    .limit(b("count"))
)
PUT_MESSAGE = Upsert(
    messages,
    key=("conversation_pk", "id"),
    update=("role", "content", "metadata", "status", "version", "updated_at"),
)
_queued: ColumnElement[bool] = m.position.is_(None) & (m.status == "queued")
QUEUED = select(m.id).where(_of, _queued).order_by(m.pk)
INPUTS = (
    select(*MESSAGE_COLUMNS, m.mode, m.pk).where(_of, _queued, m.pk > b("after")).order_by(m.pk).limit(b("count"))
)  # fmt: skip
CLAIM = (
    update(messages)
    .where(m.conversation_pk == b("at"), m.id == b("message_id"))
    .values(
        position=b("position"), status="complete", generation=b("generation"), version=b("version"), updated_at=b("now")
    )
)  # fmt: skip
# What a generation has claimed waits again, in its old order.
UNCLAIM = (
    update(messages)
    .where(_of, m.generation == b("claimed_by"), m.mode.is_not(None), m.position >= b("first"), m.status != "deleted")
    .values(position=None, status="queued", generation=None, version=b("version"), updated_at=b("now"))
)  # fmt: skip
_tombstone: dict[str, Any] = {
    "status": "deleted",
    "content": None,
    "metadata": None,
    "digest": None,
    "version": b("version"),
    "updated_at": b("now"),
}
DELETE_MESSAGE = update(messages).where(m.conversation_pk == b("pk"), m.id == b("message_id")).values(_tombstone)
TRUNCATE = (
    update(messages).where(_of, m.position > b("after"), m.position <= b("through"), _alive).values(_tombstone)
)  # fmt: skip
LIVES_IN_RANGE = select(m.position).where(_of, m.position > b("after"), m.position <= b("through"), _alive).limit(1)
SETTLE_PARTIAL = (
    update(messages).where(_of, PARTIAL).values(status=b("status"), version=b("version"), updated_at=b("now"))
)  # fmt: skip
FORGET_MESSAGES = delete(messages).where(_of)

_settled = m.position <= b("through")
FORK_POINT = select(func.max(m.position), func.count()).where(_of, _alive, _settled)
USER_MESSAGE = (
    select(m.position)
    .where(_of, _alive, m.position.is_not(None), m.role == "user", m.summary_through.is_(None))
    .order_by(m.position)
    .limit(1)
    .offset(b("ordinal"))
)
COPY_MESSAGES = insert(messages).from_select(
    ["conversation_pk", "id", "position", "role", "status", "mode", "summary_through", "generation", "created_version",
     "version", "created_at", "updated_at", "digest", "metadata", "content"],
    select(
        b("target", type_=c.pk.type), m.id, m.position, m.role,
        case((m.status == "partial", "interrupted"), else_=m.status), m.mode, m.summary_through,
        literal_column("NULL"), literal_column("1"), literal_column("1"), m.created_at, m.updated_at, m.digest,
        m.metadata, m.content,
    ).where(_of, _alive, m.position > b("after"), _settled),
)  # fmt: skip

# Generations -----------------------------------------------------------------------------------------------------------

GENERATION_COLUMNS = (
    g.number, g.holder, g.phase, g.first_position, g.acquired_at, g.ended_at, g.outcome, g.begin_digest, g.end_digest
)  # fmt: skip
GENERATION = select(*GENERATION_COLUMNS).where(g.number == b("number"))
GENERATION_OF_TOKEN = select(*GENERATION_COLUMNS).where(g.conversation_pk == b("pk"), g.token_hash == b("token_hash"))
BEGIN_GENERATION = (
    insert(generations)
    .values(
        conversation_pk=b("pk"), token_hash=b("token_hash"), holder=b("holder"), phase="",
        first_position=b("first_position"), acquired_at=b("now"), begin_digest=b("begin_digest"),
    )
    .returning(g.number)
)  # fmt: skip
_turn = update(generations).where(g.number == b("at"))
END_GENERATION = _turn.values(ended_at=b("now"), outcome=b("outcome"), end_digest=b("end_digest"), usage=b("usage"))
SET_PHASE = _turn.values(phase=b("phase"))
FORGET_TURNS = (
    update(generations).where(g.conversation_pk == b("pk")).values(begin_digest=None, end_digest=None, metadata=None, phase="")
)  # fmt: skip

# Reads -----------------------------------------------------------------------------------------------------------------

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
_living_view: ColumnElement[bool] = literal_column("conversations.deleted_at IS NULL")
VIEW = _views.where(c.pk == b("pk"))
LIVING_VIEW = VIEW.where(_living_view)
VIEW_OF_ID = _views.where(c.owner == b("owner"), c.id == b("id"), _living_view)
NEWEST_CHANGE = select(func.coalesce(func.max(c.change), 0))
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


@cache
def list_conversations(*, generating: bool | None, of_parent: bool, containing: bool) -> Select[Any]:
    """The list with those filters, newest change first, from before `before`."""
    # The few that are leased, or have that parent, are found first and sorted then: the plus keeps the list's index out of it.
    few = generating or of_parent
    change: ColumnElement[Any] = literal_column("+conversations.change") if few else c.change
    found = _views.where(c.owner == b("owner"), _living_view, change < b("before", type_=c.change.type))
    if generating:
        found = found.where(_leased)
    if of_parent:
        found = found.where(c.parent_pk == _parent_pk, literal_column("conversations.parent_pk IS NOT NULL"))
    if generating is not None:
        found = found.where(_generating if generating else or_(c.generation.is_(None), not_(_generating)))
    if containing:
        part = b("part", type_=c.title.type)
        found = found.where(or_(*(func.lower(text).contains(part, escape=LIKE_ESCAPE) for text in (c.title, c.id))))
    return found.order_by(change.desc()).limit(b("count"))


@cache
def list_messages(*, descending: bool) -> Select[Any]:
    """The transcript between two positions, in either order."""
    found = _messages.where(_of, _alive, m.position > b("after"), m.position < b("before"))
    return found.order_by(m.position.desc() if descending else m.position).limit(b("count"))


# Changes since a version: rows that were changed, by their own index; new rows, from the first that is younger on; queued ones.
_later = tuple_(m.version, m.pk) > tuple_(b("version"), b("row"))
_unchanged = m.version == m.created_version
_shown = or_(_alive, m.version > b("hidden"))
_versioned = select(*MESSAGE_COLUMNS, m.pk)
CHANGED_AT = (
    _versioned.where(_of, CHANGED_ROW, m.version == b("version"), m.pk > b("row"), _shown).order_by(m.pk).limit(b("count"))
)  # fmt: skip
CHANGED = (
    _versioned.where(_of, CHANGED_ROW, m.version > b("version"), _shown).order_by(m.version, m.pk).limit(b("count"))
)  # fmt: skip
APPENDED = (
    _versioned.where(_of, m.position > b("after"), _unchanged, _later, _shown).order_by(m.position).limit(b("count"))
)  # fmt: skip
YOUNGEST_KNOWN = (
    select(m.position)
    .where(_of, m.position.is_not(None), m.mode.is_(None), m.created_version < b("version"))
    .order_by(m.position.desc())
    .limit(1)
)  # fmt: skip
WAITING = (
    _versioned.where(_of, _queued, _unchanged, _later).order_by(m.version, m.pk).limit(b("count"))
)  # fmt: skip

TURNS = (
    select(g.number, g.holder, g.phase, g.acquired_at, g.ended_at, g.outcome, g.usage)
    .where(g.conversation_pk == b("pk"), g.number < b("before"))
    .order_by(g.number.desc())
    .limit(b("count"))
)  # fmt: skip

# What is followed: who has changed, whose lease has run out, and the list since a change, tombstones with it.
NEWS = (
    select(c.owner, c.id, c.change, c.generation, c.interrupt_requested_at, c.queued_count)
    .where(c.change > b("after"))
    .order_by(c.change)
    .limit(b("count"))
)  # fmt: skip
_expired = and_(_leased, not_(_generating))
EXPIRED = select(c.owner, c.id, c.generation, c.pk).where(_expired)
LIST_CHANGED = (
    select(*VIEW_COLUMNS, c.deleted_at)
    .select_from(_joined)
    .where(c.owner == b("owner"), c.change > b("after"), or_(_living_view, b("deleted") == 1))
    .order_by(c.change)
    .limit(b("count"))
)  # fmt: skip
LEASES = _views.where(c.owner == b("owner"), _leased).order_by(c.generation)
