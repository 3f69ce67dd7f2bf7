"""The statements of upkeep: what is forgotten, what is exported, what is imported."""

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, literal_column, or_, select, union_all, update

from sessionstore.dialect import Upsert, Variants, next_change
from sessionstore.queries import living_view
from sessionstore.schema import LIVING, conversations, generations, messages, pruned, search_pending
from sessionstore.statements import alive, one_conversation, within

c, m, g = conversations.c, messages.c, generations.c
b = bindparam
_parent = conversations.alias("parent")

# What is forgotten. A family is a root with all that came from it; it is as young as the youngest of them.
_dead: ColumnElement[bool] = literal_column("conversations.deleted_at IS NOT NULL")
_is_child: ColumnElement[bool] = literal_column("conversations.parent_pk IS NOT NULL")
_roots = (
    select(c.pk.label("root"), c.pk, c.change, c.updated_at, c.message_count)
    .where(c.owner == b("owner"), living_view, c.parent_pk.is_(None))
    .cte("families", recursive=True)
)
_families = _roots.union_all(
    select(_roots.c.root, c.pk, c.change, c.updated_at, c.message_count)
    .where(c.parent_pk == _roots.c.pk, _is_child, living_view)
)  # fmt: skip
_newest = func.max(_families.c.change)
_ranked = select(
    _families.c.root,
    _newest.label("newest"),
    func.max(_families.c.updated_at).label("updated_at"),
    func.count().label("members"),
    func.sum(_families.c.message_count).label("messages"),
    func.row_number().over(order_by=(func.max(_families.c.updated_at).desc(), _newest.desc())).label("rank"),
).group_by(_families.c.root)
_ranked_families = _ranked.subquery("ranked")
_r = _ranked_families.c
FAMILIES = (
    select(_r.root, c.id, _r.newest, _r.members, _r.messages)
    .where(c.pk == _r.root, or_(_r.updated_at < b("old"), _r.rank > b("keep")))
    .order_by(_r.newest)
)
_member = select(c.pk, c.change).where(c.pk == b("pk")).cte("members", recursive=True)
_members = _member.union(
    select(c.pk, c.change).where(c.parent_pk == _member.c.pk, _is_child, living_view)
)  # fmt: skip
FAMILY = select(_members.c.pk, _members.c.change)

IS_TOMBSTONE = select(c.pk, c.owner, c.change).where(c.pk == b("pk"), _dead)
# What still has messages, though nobody sees them: of a tombstone, or of an import that was not heard of for long.
ABANDONED = select(c.pk).where(
    c.owner == b("owner"),
    _dead,
    func.coalesce(c.arriving_at, 0) < b("until"),
    select(m.pk).where(m.conversation_pk == c.pk).exists(),
)
CHANGE_ANEW = one_conversation.values(change=next_change())
GIVE_UP_ARRIVAL = one_conversation.where(_dead).values(arriving_at=None)
ERASE_MESSAGES = delete(messages).where(m.pk.in_(select(m.pk).where(within).limit(b("count"))))
OLD_TOMBSTONES = (
    select(c.pk)
    .where(c.owner == b("owner"), _dead, c.arriving_at.is_(None), c.deleted_at < b("until"))
    .where(c.change < select(func.max(c.change)).scalar_subquery())
    .order_by(c.pk)
)
_left = select(m.pk).where(within)
_noted = select(search_pending.c.message_pk).where(search_pending.c.conversation_pk == b("pk"))
HAS_TRACES = Variants(sqlite=union_all(_left, _noted).limit(1), postgresql=_left.limit(1))
NOTE_PRUNED = Upsert(pruned, key=("owner",), update=("change",), rising=True)
FORGET_PARENT = update(conversations).where(c.parent_pk == b("pk"), _is_child).values(parent_pk=None)
FORGET_LOG = delete(generations).where(g.number.in_(select(g.number).where(g.conversation_pk == b("pk")).limit(b("count"))))
FORGET_CONVERSATION = delete(conversations).where(c.pk == b("pk"), _dead)

COUNTS = select(
    func.count().filter(alive, m.status != "queued"), func.count().filter(m.status == "queued")
).where(within)  # fmt: skip
NEXT_POSITION = select(func.max(m.position) + 1).where(within)
NEWEST_VERSION = select(func.max(m.version)).where(within)
_leased = select(c.generation).where(c.pk == b("pk")).scalar_subquery()
CLOSE_TURNS = (
    update(generations)
    .where(g.conversation_pk == b("pk"), g.ended_at.is_(None), g.number.is_distinct_from(_leased))
    .values(ended_at=b("now"), outcome="expired")
)

_shown_now = and_(within, m.position.is_not(None), alive, m.summary_through.is_(None))
LONG_OR_OLD = select(c.pk, c.id).where(
    c.owner == b("owner"), living_view, or_(c.message_count > b("keep"), b("old") >= 0), c.message_count > 0
)
VERSION = select(c.version).where(c.pk == b("pk"), living_view)
FIRST_POSITION = select(m.position).where(_shown_now).order_by(m.position).limit(1)
LAST_POSITION = select(m.position).where(_shown_now).order_by(m.position.desc()).limit(1)
NTH_NEWEST = LAST_POSITION.offset(b("skipped"))
FIRST_YOUNG = FIRST_POSITION.where(m.created_at >= b("old"))
COUNT_THROUGH = select(func.count()).where(_shown_now, m.position <= b("through"))
# What is exported and imported. A conversation arrives under a tombstone of another name, where nobody sees it.
EXPORTED_CONVERSATION = (
    select(
        c.id, c.created_at, c.updated_at, c.version, c.next_position, c.title, _parent.c.id, c.forked_from_id,
        c.forked_from_position, c.create_digest, c.metadata, c.updated_at,
    )
    .select_from(conversations.outerjoin(_parent, _parent.c.pk == c.parent_pk))
    .where(c.pk == b("pk"), living_view)
)  # fmt: skip
EXPORTED_TURNS = (
    select(g.number, g.holder, g.phase, g.first_position, g.acquired_at, g.ended_at, g.outcome, g.usage)
    .where(g.conversation_pk == b("pk"))
    .order_by(g.number)
)
_exported = select(
    m.position, m.id, m.role, m.status, m.mode, m.summary_through, m.generation, m.created_version, m.version, m.created_at,
    m.updated_at, m.digest, m.metadata, m.content,
).where(within)  # fmt: skip
COUNT_MESSAGES = select(func.count()).where(within)
EXPORTED_MESSAGES = _exported.where(m.position >= 0).order_by(m.position)
EXPORTED_INPUTS = _exported.where(m.position.is_(None)).order_by(m.pk)
OWNERS = select(c.owner).distinct().order_by(c.owner)
LIVES = select(c.pk).where(c.owner == b("owner"), LIVING).order_by(c.pk)
INSERT_HIDDEN = (
    insert(conversations)
    .values(
        owner=b("owner"), id=b("id"), created_at=b("now"), updated_at=b("now"), change=next_change(), deleted_at=b("now"),
        arriving_at=b("now"),
        metadata="{}", next_position=0, message_count=0, queued_count=0, version=1,
    )
    .returning(c.pk)
)  # fmt: skip
_arriving: ColumnElement[bool] = literal_column("conversations.arriving_at IS NOT NULL")
TOUCH_HIDDEN = one_conversation.where(_dead, _arriving).values(arriving_at=b("now"))
SHOW_HIDDEN = one_conversation.where(_dead, _arriving).values(
    arriving_at=None,
    deleted_at=None, change=next_change(), id=b("id"), title=b("title"), metadata=b("metadata"), created_at=b("created_at"),
    updated_at=b("updated_at"), version=b("version"), next_position=b("next_position"), message_count=b("message_count"),
    queued_count=b("queued_count"), create_digest=b("create_digest"), parent_pk=b("parent_pk"),
    forked_from_id=b("forked_from_id"), forked_from_position=b("forked_from_position"),
)  # fmt: skip
INSERT_MESSAGE = insert(messages).values({column.name: b(column.name) for column in m if not column.primary_key})
INSERT_TURN = (
    insert(generations)
    .values(
        conversation_pk=b("pk"), token_hash=b("token_hash"), holder=b("holder"), phase=b("phase"),
        first_position=b("first_position"), acquired_at=b("acquired_at"), ended_at=b("ended_at"), outcome=b("outcome"),
        usage=b("usage"),
    )
    .returning(g.number)
)  # fmt: skip
