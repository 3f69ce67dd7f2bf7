"""Every statement of the product, built once at import with bound parameters and compiled once per database.

Building them for each call costs seven times the CPU (facts/performance.md, B).
"""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from sessionstore.dialect import InsertIfVacant, Upsert, Variants, next_change
from sessionstore.schema import CHANGED as CHANGED_ROW
from sessionstore.schema import (
    LIVING,
    PARTIAL,
    SUMMARY,
    TITLE_BEGINS,
    TITLED,
    conversations,
    generations,
    messages,
    title_begins,
)

c, m, g = conversations.c, messages.c, generations.c
b = bindparam

# Conversations, inside a write -----------------------------------------------------------------------------------------

LIFE_COLUMNS = (
    c.pk, c.id, c.version, c.next_position, c.message_count, c.queued_count, c.parent_pk,
    c.generation, c.lease_token, c.lease_ttl_ms, c.lease_expires_at, c.interrupt_requested_at,
)  # fmt: skip
_lives = select(*LIFE_COLUMNS)
# Both no longer than the limits that they are compared with.
COUNT_LIVING = select(func.count()).select_from(
    select(c.pk).where(c.owner == b("owner"), LIVING).order_by(c.pk).limit(b("most")).subquery()
)
COUNT_QUEUED = select(func.coalesce(func.sum(c.queued_count), 0)).where(
    c.owner == b("owner"), literal_column("queued_count > 0")
)
LIFE = _lives.where(c.owner == b("owner"), c.id == b("id"), LIVING).with_for_update()
LIFE_BY_PK = _lives.where(c.pk == b("pk"), LIVING).with_for_update()
TOMBSTONE = (
    select(func.max(c.pk)).where(c.owner == b("owner"), c.id == b("id"), literal_column("deleted_at IS NOT NULL"))
)  # fmt: skip
CHILDREN = select(c.pk).where(c.parent_pk == b("pk"), literal_column("parent_pk IS NOT NULL"), LIVING).order_by(c.pk)
CREATE_DIGEST = select(c.create_digest).where(c.pk == b("pk"))
LABELS = select(c.title, c.metadata).where(c.pk == b("pk"))
_titles = select(c.title).where(c.owner == b("owner"), c.title >= b("first"), c.title < b("end"), TITLED)
_begins: ColumnElement[int] = literal_column(str(TITLE_BEGINS))
TITLES = Variants(
    sqlite=_titles,
    postgresql=_titles.where(
        title_begins >= func.left(b("first"), _begins), title_begins <= func.left(b("end"), _begins)
    ),
)  # fmt: skip

INSERT_CONVERSATION = InsertIfVacant(
    conversations,
    {
        "owner": b("owner"), "id": b("id"), "title": b("title"), "metadata": b("metadata"), "created_at": b("now"),
        "updated_at": b("now"), "version": 1, "change": next_change(), "next_position": b("next_position"),
        "message_count": b("message_count"), "queued_count": 0, "create_digest": b("create_digest"),
        "parent_pk": b("parent_pk"), "forked_from_id": b("forked_from_id"), "forked_from_position": b("forked_from_position"),
    },
    key=("owner", "id"),
    where=LIVING,
    returning=c.pk,
)  # fmt: skip
one_conversation = update(conversations).where(c.pk == b("at"))
ADVANCE = one_conversation.values(
    version=b("version"), change=next_change(), updated_at=b("now"), next_position=b("next_position"),
    message_count=b("message_count"), queued_count=b("queued_count"), lease_expires_at=b("lease_expires_at"),
)  # fmt: skip
# What upkeep does is no change of the conversation's own.
ADVANCE_QUIETLY = one_conversation.values(
    version=b("version"), change=next_change(), next_position=b("next_position"), message_count=b("message_count"),
    queued_count=b("queued_count"), lease_expires_at=b("lease_expires_at"),
)  # fmt: skip
SET_LEASE = one_conversation.values(
    generation=b("generation"), lease_token=b("lease_token"), lease_ttl_ms=b("lease_ttl_ms"),
    lease_expires_at=b("lease_expires_at"), interrupt_requested_at=b("interrupt_requested_at"),
)  # fmt: skip
RENEW = one_conversation.values(lease_expires_at=b("lease_expires_at"))
SET_LABELS = one_conversation.values(title=b("title"), metadata=b("metadata"))
ORPHAN = one_conversation.values(parent_pk=None)
BURY = one_conversation.values(title=None, metadata="{}", create_digest=None, deleted_at=b("now"))

# Messages --------------------------------------------------------------------------------------------------------------

MESSAGE_COLUMNS = (
    m.conversation_pk, m.id, m.position, m.role, m.content, m.metadata, m.status, m.summary_through, m.generation,
    m.version, m.created_at, m.updated_at,
)  # fmt: skip
message_rows = select(*MESSAGE_COLUMNS)
within = m.conversation_pk == b("pk")
alive = m.status != "deleted"

MESSAGE = message_rows.where(within, m.id == b("id"))
MESSAGE_DIGEST = select(m.digest, m.mode).where(within, m.id == b("id"))
MESSAGES_AT = message_rows.where(within, m.position >= b("first"), m.position < b("end")).order_by(m.position)
NEWEST_OF_GENERATION = (
    message_rows.where(within, m.generation == b("generation"), m.position >= b("first"))
    .order_by(m.position.desc())
    .limit(b("count"))
)
PUT_MESSAGE = Upsert(
    messages,
    key=("conversation_pk", "id"),
    update=("role", "content", "metadata", "status", "version", "updated_at"),
)
is_queued: ColumnElement[bool] = m.position.is_(None) & (m.status == "queued")
QUEUED = select(m.id).where(within, is_queued).order_by(m.pk)
INPUTS = (
    select(*MESSAGE_COLUMNS, m.mode, m.pk).where(within, is_queued, m.pk > b("after")).order_by(m.pk).limit(b("count"))
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
    .where(within, m.generation == b("claimed_by"), m.mode.is_not(None), m.position >= b("first"), m.status != "deleted")
    .values(position=None, status="queued", generation=None, version=b("version"), updated_at=b("now"))
)  # fmt: skip
tombstone: dict[str, Any] = {
    "status": "deleted",
    "content": None,
    "metadata": None,
    "digest": None,
    "version": b("version"),
    "updated_at": b("now"),
}
DELETE_MESSAGE = update(messages).where(m.conversation_pk == b("pk"), m.id == b("message_id")).values(tombstone)
TRUNCATE = (
    update(messages).where(within, m.position > b("after"), m.position <= b("through"), alive).values(tombstone)
)  # fmt: skip
LIVES_IN_RANGE = (
    select(m.position)
    .where(within, m.position > b("after"), m.position <= b("through"), alive)
    .order_by(m.position)
    .limit(1)
)  # fmt: skip
# Summaries, and what speaks against one: messages that it covers were changed or added since, or another one covers them.
FORGET_SUMMARIES = (
    update(messages).where(within, SUMMARY, m.summary_through >= b("first"), alive).values(tombstone)
)  # fmt: skip
CHANGED_THROUGH = (
    select(m.pk).where(within, CHANGED_ROW, m.version > b("seen"), m.position <= b("through")).limit(1)
)  # fmt: skip
# Whoever came later stands later. Only inputs are older than their place, but whoever claims one changes it.
YOUNGEST_THROUGH = (
    select(m.created_version)
    .where(within, m.position <= b("through"))
    .order_by(m.position.desc())
    .limit(1)
)  # fmt: skip
# Another summary came, or one went that may have been read.
_came = and_(alive, m.summary_through >= b("through"), m.created_version > b("seen"))
_went = and_(m.status == "deleted", m.summary_through <= b("through"), m.version > b("seen"))
COVERED_SINCE = select(m.pk).where(within, SUMMARY, or_(_came, _went)).limit(1)
FORGET_RANGE = (
    update(messages)
    .where(within, m.position > b("after"), m.position <= b("through"), alive, m.summary_through.is_(None))
    .values(tombstone)
)  # fmt: skip
SETTLE_PARTIAL = (
    update(messages).where(within, PARTIAL).values(status=b("status"), version=b("version"), updated_at=b("now"))
)  # fmt: skip
FORGET_MESSAGES = delete(messages).where(within)

_settled = m.position <= b("through")
FORK_POINT = select(func.max(m.position), func.count()).where(within, alive, _settled)
USER_MESSAGE = (
    select(m.position)
    .where(within, alive, m.position.is_not(None), m.role == "user", m.summary_through.is_(None))
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
    )
    .where(within, alive, m.position > b("after"), _settled)
    # Who reads the changes of the copy relies on it: younger rows stand further behind.
    .order_by(m.position),
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
