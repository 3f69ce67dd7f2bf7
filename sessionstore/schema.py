"""The three tables, and small ones beside them. `migrations/` builds them; a test holds the two together.

The SQL views, the search index and its triggers live in the migrations alone.

Columns are integers and text only, so statements run compiled on the driver's own connection (DESIGN.md, rule 10). JSON is
not checked by the database: every value comes from one encoder, and parsing 16 MiB again inside the write lock helps nobody.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
)

Number = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits everywhere."""
Words = Text(collation="C").with_variant(Text(), "sqlite")
"""Compared byte by byte everywhere."""
ONLY_IN = "only in"
"""In the `info` of a table that one engine alone needs: which."""
EVERYBODY = "*"
"""Who is no owner: what is pruned for all of them."""
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# A partial index serves only a statement that says its condition in the same words, so constants are never bound.
LIVING: ColumnElement[bool] = literal_column("deleted_at IS NULL")
PARTIAL: ColumnElement[bool] = literal_column("status = 'partial'")
TITLED: ColumnElement[bool] = literal_column("deleted_at IS NULL AND title IS NOT NULL")
SUMMARY: ColumnElement[bool] = literal_column("summary_through IS NOT NULL")
USED: ColumnElement[bool] = literal_column("usage IS NOT NULL")
REMOVED: ColumnElement[bool] = literal_column("said IS NOT NULL")

conversations = Table(
    "conversations",
    metadata,
    Column("pk", Number, primary_key=True),
    Column("owner", Words, nullable=False),
    Column("id", Words, nullable=False),
    Column("title", Words),
    Column("metadata", Words, nullable=False),
    Column("created_at", Number, nullable=False),
    Column("updated_at", Number, nullable=False),
    Column("version", Number, nullable=False),
    Column("change", Number, nullable=False),
    Column("next_position", Number, nullable=False),
    Column("message_count", Number, nullable=False),
    Column("queued_count", Number, nullable=False),
    Column("create_digest", Words),
    Column("parent_pk", Number, ForeignKey("conversations.pk")),
    Column("forked_from_id", Words),
    Column("forked_from_position", Number),
    Column("generation", Number),
    Column("lease_token", Words),
    Column("lease_ttl_ms", Number),
    Column("lease_expires_at", Number),
    Column("interrupt_requested_at", Number),
    Column("deleted_at", Number),
    # Being imported: nobody sees it yet. When its importer was heard of last.
    Column("arriving_at", Number),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint("next_position >= 0 AND message_count >= 0 AND queued_count >= 0", name="counts"),
    CheckConstraint("(forked_from_id IS NULL) = (forked_from_position IS NULL)", name="forked_from"),
    CheckConstraint(
        "CASE WHEN generation IS NULL THEN lease_token IS NULL AND lease_ttl_ms IS NULL AND lease_expires_at IS NULL"
        " AND interrupt_requested_at IS NULL"
        " ELSE lease_token IS NOT NULL AND lease_ttl_ms > 0 AND lease_expires_at IS NOT NULL END",
        name="lease",
    ),
    CheckConstraint(
        "deleted_at IS NULL OR (generation IS NULL AND title IS NULL AND metadata = '{}' AND create_digest IS NULL"
        " AND message_count = 0 AND queued_count = 0)",
        name="tombstone",
    ),
    Index("ix_conversations_change", "change"),
    # All that a list is filtered by, so that what is not shown is stepped over inside the index.
    Index("ix_conversations_list", "owner", "change", "parent_pk", "updated_at", sqlite_where=LIVING, postgresql_where=LIVING),
    Index("ix_conversations_created", "owner", "pk", sqlite_where=LIVING, postgresql_where=LIVING),
    Index("uq_conversations_living", "owner", "id", unique=True, sqlite_where=LIVING, postgresql_where=LIVING),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)
_tombstone: ColumnElement[bool] = literal_column("deleted_at IS NOT NULL")
_child: ColumnElement[bool] = literal_column("parent_pk IS NOT NULL")
_queued: ColumnElement[bool] = literal_column("queued_count > 0")
_leased: ColumnElement[bool] = literal_column("generation IS NOT NULL")
Index(
    "ix_conversations_tombstones",
    conversations.c.owner,
    conversations.c.id,
    sqlite_where=_tombstone,
    postgresql_where=_tombstone,
)
# What an owner is told of changes: no more than his own.
Index(
    "ix_conversations_gone",
    conversations.c.owner,
    conversations.c.change,
    sqlite_where=_tombstone,
    postgresql_where=_tombstone,
)
Index(
    "ix_conversations_queued",
    conversations.c.owner,
    conversations.c.queued_count,
    sqlite_where=_queued,
    postgresql_where=_queued,
)
Index(
    "ix_conversations_children",
    conversations.c.parent_pk,
    conversations.c.change,
    sqlite_where=_child,
    postgresql_where=_child,
)
# A server's index has room for the beginning of a title only.
TITLE_BEGINS = 200
title_begins = func.left(conversations.c.title, literal_column(str(TITLE_BEGINS)))
Index("ix_conversations_title", conversations.c.owner, conversations.c.title, sqlite_where=TITLED).ddl_if(dialect="sqlite")
Index(
    "ix_conversations_leased",
    conversations.c.owner,
    conversations.c.generation,
    sqlite_where=_leased,
    postgresql_where=_leased,
)

CHANGED: ColumnElement[bool] = literal_column("version > created_version")
messages = Table(
    "messages",
    metadata,
    Column("pk", Number, primary_key=True),
    Column("conversation_pk", Number, ForeignKey("conversations.pk"), nullable=False),
    Column("id", Words, nullable=False),
    Column("position", Number),
    Column("role", Words, nullable=False),
    Column("status", Words, nullable=False),
    Column("mode", Words),
    Column("summary_through", Number),
    Column("generation", Number),
    Column("created_version", Number, nullable=False),
    Column("version", Number, nullable=False),
    Column("created_at", Number, nullable=False),
    Column("updated_at", Number, nullable=False),
    Column("digest", Words),
    Column("metadata", Words),
    # Last, so that a row is read without walking through the pages of a long text.
    Column("content", Words),
    UniqueConstraint("conversation_pk", "id"),
    UniqueConstraint("conversation_pk", "position"),
    CheckConstraint("status IN ('complete', 'partial', 'interrupted', 'queued', 'deleted')", name="status"),
    CheckConstraint("mode IS NULL OR mode IN ('steer', 'follow_up')", name="mode"),
    CheckConstraint("position >= 0", name="position"),
    CheckConstraint(
        "CASE WHEN status = 'queued' THEN position IS NULL ELSE status = 'deleted' OR position IS NOT NULL END",
        name="queued",
    ),
    CheckConstraint("version >= created_version", name="version"),
    CheckConstraint(
        "CASE WHEN status = 'deleted' THEN content IS NULL AND metadata IS NULL AND digest IS NULL"
        " ELSE content IS NOT NULL AND metadata IS NOT NULL AND digest IS NOT NULL END",
        name="tombstone",
    ),
    Index(
        "ix_messages_changed",
        "conversation_pk",
        "version",
        sqlite_where=CHANGED,
        postgresql_where=CHANGED,
    ),
    Index("ix_messages_partial", "conversation_pk", sqlite_where=PARTIAL, postgresql_where=PARTIAL),
    Index("ix_messages_summaries", "conversation_pk", "position", sqlite_where=SUMMARY, postgresql_where=SUMMARY),
    sqlite_strict=True,
)

generations = Table(
    "generations",
    metadata,
    Column("number", Number, primary_key=True),
    Column("conversation_pk", Number, ForeignKey("conversations.pk"), nullable=False),
    Column("token_hash", Words, nullable=False),
    Column("holder", Words, nullable=False),
    Column("phase", Words, nullable=False),
    Column("first_position", Number, nullable=False),
    Column("acquired_at", Number, nullable=False),
    Column("ended_at", Number),
    Column("outcome", Words),
    Column("begin_digest", Words),
    Column("end_digest", Words),
    Column("usage", Words),
    Column("metadata", Words),
    UniqueConstraint("conversation_pk", "token_hash"),
    CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name="ended"),
    CheckConstraint(
        "outcome IN ('completed', 'failed', 'waiting', 'released', 'expired', 'interrupted', 'deleted')", name="outcome"
    ),
    Index("ix_generations_log", "conversation_pk", "number"),
    Index("ix_generations_used", "ended_at", sqlite_where=USED, postgresql_where=USED),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)

# What the list's feed cannot tell any more: the newest change of each owner's tombstones that were pruned.
pruned = Table(
    "pruned",
    metadata,
    Column("owner", Words, primary_key=True),
    Column("change", Number, nullable=False),
    sqlite_strict=True,
)

# Who may speak to a server. See `keys`.
VALID: ColumnElement[bool] = literal_column("revoked_at IS NULL")
keys = Table(
    "keys",
    metadata,
    Column("hash", Words, primary_key=True),
    Column("name", Words, nullable=False),
    Column("owner", Words, nullable=False),
    Column("read_only", Number, nullable=False),
    Column("admin", Number, nullable=False),
    Column("created_at", Number, nullable=False),
    Column("expires_at", Number),
    Column("revoked_at", Number),
    CheckConstraint("read_only IN (0, 1) AND admin IN (0, 1)", name="rights"),
    Index("uq_keys_name", "name", unique=True, sqlite_where=VALID, postgresql_where=VALID),
    sqlite_strict=True,
)

# Up to which message the search index knows them, save those of which it is out of date. See `fulltext`.
search_state = Table(
    "search_state", metadata, Column("through", Number, nullable=False), sqlite_strict=True, info={ONLY_IN: "sqlite"}
)

# Messages of which the search index is out of date, and what it still says of each (NULL: nothing). See `fulltext`.
search_pending = Table(
    "search_pending",
    metadata,
    Column("message_pk", Number, primary_key=True),
    Column("conversation_pk", Number, nullable=False),
    Column("said", Words),
    Index("ix_search_pending_said", "message_pk", sqlite_where=REMOVED, postgresql_where=REMOVED),
    sqlite_strict=True,
    info={ONLY_IN: "sqlite"},
)

# What is added to the number of a transaction, so that changes go on rising when the rows come to another server.
change_epoch = Table("change_epoch", metadata, Column("base", Number, nullable=False), info={ONLY_IN: "postgresql"})
