"""Conversations, messages and generations, and the views for people with a SQL prompt."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORDS = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    create_conversations()
    create_messages()
    create_generations()
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query.format(**WORDS_OF_VIEWS[op.get_context().dialect.name])}")


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    for table in ("generations", "messages", "conversations"):
        op.drop_table(table)


def create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("pk", NUMBER, nullable=False),
        sa.Column("owner", WORDS, nullable=False),
        sa.Column("id", WORDS, nullable=False),
        sa.Column("title", WORDS),
        sa.Column("metadata", WORDS, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("updated_at", NUMBER, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("change", NUMBER, nullable=False),
        sa.Column("next_position", NUMBER, nullable=False),
        sa.Column("message_count", NUMBER, nullable=False),
        sa.Column("queued_count", NUMBER, nullable=False),
        sa.Column("create_digest", WORDS),
        sa.Column("parent_pk", NUMBER),
        sa.Column("forked_from_id", WORDS),
        sa.Column("forked_from_position", NUMBER),
        sa.Column("generation", NUMBER),
        sa.Column("lease_token", WORDS),
        sa.Column("lease_ttl_ms", NUMBER),
        sa.Column("lease_expires_at", NUMBER),
        sa.Column("interrupt_requested_at", NUMBER),
        sa.Column("deleted_at", NUMBER),
        sa.PrimaryKeyConstraint("pk", name="pk_conversations"),
        sa.ForeignKeyConstraint(["parent_pk"], ["conversations.pk"], name="fk_conversations_parent_pk"),
        sa.CheckConstraint("version >= 1", name=op.f("ck_conversations_version")),
        sa.CheckConstraint(
            "next_position >= 0 AND message_count >= 0 AND queued_count >= 0", name=op.f("ck_conversations_counts")
        ),
        sa.CheckConstraint(
            "(forked_from_id IS NULL) = (forked_from_position IS NULL)", name=op.f("ck_conversations_forked_from")
        ),
        sa.CheckConstraint(
            "CASE WHEN generation IS NULL THEN lease_token IS NULL AND lease_ttl_ms IS NULL AND lease_expires_at IS NULL"
            " AND interrupt_requested_at IS NULL"
            " ELSE lease_token IS NOT NULL AND lease_ttl_ms > 0 AND lease_expires_at IS NOT NULL END",
            name=op.f("ck_conversations_lease"),
        ),
        sa.CheckConstraint(
            "deleted_at IS NULL OR (generation IS NULL AND title IS NULL AND metadata = '{}' AND create_digest IS NULL"
            " AND message_count = 0 AND queued_count = 0)",
            name=op.f("ck_conversations_tombstone"),
        ),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_conversations_change", "conversations", ["change"])
    partial_index("ix_conversations_list", "conversations", ["owner", "change"], "deleted_at IS NULL")
    partial_index("uq_conversations_living", "conversations", ["owner", "id"], "deleted_at IS NULL", unique=True)
    partial_index("ix_conversations_tombstones", "conversations", ["owner", "id"], "deleted_at IS NOT NULL")
    partial_index("ix_conversations_parent_pk", "conversations", ["parent_pk"], "parent_pk IS NOT NULL")
    partial_index("ix_conversations_leased", "conversations", ["owner", "generation"], "generation IS NOT NULL")


def create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("pk", NUMBER, nullable=False),
        sa.Column("conversation_pk", NUMBER, nullable=False),
        sa.Column("id", WORDS, nullable=False),
        sa.Column("position", NUMBER),
        sa.Column("role", WORDS, nullable=False),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("mode", WORDS),
        sa.Column("summary_through", NUMBER),
        sa.Column("generation", NUMBER),
        sa.Column("created_version", NUMBER, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("created_at", NUMBER, nullable=False),
        sa.Column("updated_at", NUMBER, nullable=False),
        sa.Column("digest", WORDS),
        sa.Column("metadata", WORDS),
        sa.Column("content", WORDS),
        sa.PrimaryKeyConstraint("pk", name="pk_messages"),
        sa.ForeignKeyConstraint(["conversation_pk"], ["conversations.pk"], name="fk_messages_conversation_pk"),
        sa.UniqueConstraint("conversation_pk", "id", name="uq_messages_conversation_pk_id"),
        sa.UniqueConstraint("conversation_pk", "position", name="uq_messages_conversation_pk_position"),
        sa.CheckConstraint(
            "status IN ('complete', 'partial', 'interrupted', 'queued', 'deleted')", name=op.f("ck_messages_status")
        ),
        sa.CheckConstraint("mode IS NULL OR mode IN ('steer', 'follow_up')", name=op.f("ck_messages_mode")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_messages_position")),
        sa.CheckConstraint(
            "CASE WHEN status = 'queued' THEN position IS NULL ELSE status = 'deleted' OR position IS NOT NULL END",
            name=op.f("ck_messages_queued"),
        ),
        sa.CheckConstraint("version >= created_version", name=op.f("ck_messages_version")),
        sa.CheckConstraint(
            "CASE WHEN status = 'deleted' THEN content IS NULL AND metadata IS NULL AND digest IS NULL"
            " ELSE content IS NOT NULL AND metadata IS NOT NULL AND digest IS NOT NULL END",
            name=op.f("ck_messages_tombstone"),
        ),
        sqlite_strict=True,
    )
    partial_index("ix_messages_changed", "messages", ["conversation_pk", "version"], "version > created_version")
    partial_index("ix_messages_partial", "messages", ["conversation_pk"], "status = 'partial'")


def create_generations() -> None:
    op.create_table(
        "generations",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("conversation_pk", NUMBER, nullable=False),
        sa.Column("token_hash", WORDS, nullable=False),
        sa.Column("holder", WORDS, nullable=False),
        sa.Column("phase", WORDS, nullable=False),
        sa.Column("first_position", NUMBER, nullable=False),
        sa.Column("acquired_at", NUMBER, nullable=False),
        sa.Column("ended_at", NUMBER),
        sa.Column("outcome", WORDS),
        sa.Column("begin_digest", WORDS),
        sa.Column("end_digest", WORDS),
        sa.Column("usage", WORDS),
        sa.Column("metadata", WORDS),
        sa.PrimaryKeyConstraint("number", name="pk_generations"),
        sa.ForeignKeyConstraint(["conversation_pk"], ["conversations.pk"], name="fk_generations_conversation_pk"),
        sa.UniqueConstraint("conversation_pk", "token_hash", name="uq_generations_conversation_pk_token_hash"),
        sa.CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name=op.f("ck_generations_ended")),
        sa.CheckConstraint(
            "outcome IN ('completed', 'failed', 'waiting', 'released', 'expired', 'interrupted', 'deleted')",
            name=op.f("ck_generations_outcome"),
        ),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index("ix_generations_log", "generations", ["conversation_pk", "number"])


def partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


# What the views say in each engine's words.
WORDS_OF_VIEWS = {
    "sqlite": {
        "moment": "strftime('%Y-%m-%dT%H:%M:%fZ', ",
        "of": " / 1000.0, 'unixepoch')",
        "now": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    },
    "postgresql": {
        "moment": "to_char(to_timestamp(",
        "of": " / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
        "now": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    },
}
EXPIRED = "(c.lease_expires_at <= {now} OR c.lease_expires_at > {now} + c.lease_ttl_ms + 1000)"
VIEWS = {
    "v_conversations": f"""
        SELECT c.owner, c.id, c.pk AS incarnation, c.title, c.message_count, c.queued_count, c.version,
               CASE WHEN c.deleted_at IS NOT NULL THEN 'deleted' WHEN c.generation IS NULL THEN 'idle'
                    WHEN {EXPIRED} THEN 'expired' ELSE 'generating' END AS state,
               p.id AS parent_id, c.forked_from_id, c.forked_from_position, {{moment}}c.created_at{{of}} AS created_at,
               {{moment}}c.updated_at{{of}} AS updated_at, {{moment}}c.deleted_at{{of}} AS deleted_at, c.metadata
        FROM conversations c LEFT JOIN conversations p ON p.pk = c.parent_pk""",
    "v_transcripts": """
        SELECT c.owner, c.id AS conversation_id, m.position, m.id AS message_id, m.role, m.status, m.content, m.metadata,
               m.generation, m.version, {moment}m.created_at{of} AS created_at, {moment}m.updated_at{of} AS updated_at
        FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
        WHERE c.deleted_at IS NULL AND m.status NOT IN ('deleted', 'queued') ORDER BY m.conversation_pk, m.position""",
    "v_contexts": """
        SELECT c.owner, c.id AS conversation_id, m.position, m.id AS message_id, m.role, m.status, m.content,
               m.summary_through, {moment}m.created_at{of} AS created_at
        FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
        LEFT JOIN messages s ON s.conversation_pk = c.pk AND s.position =
            (SELECT max(position) FROM messages
             WHERE conversation_pk = c.pk AND summary_through IS NOT NULL AND status <> 'deleted')
        WHERE c.deleted_at IS NULL AND m.status NOT IN ('deleted', 'queued') AND
              (m.pk = s.pk OR (m.summary_through IS NULL AND m.position > coalesce(s.summary_through, -1)))
        ORDER BY m.conversation_pk, m.summary_through IS NULL, m.position""",
    "v_leases": f"""
        SELECT c.owner, c.id AS conversation_id, g.number AS generation, g.holder, g.phase,
               CASE WHEN {EXPIRED} THEN 'expired' ELSE 'live' END AS state,
               {{moment}}g.acquired_at{{of}} AS acquired_at, {{moment}}c.lease_expires_at{{of}} AS expires_at,
               {{moment}}c.interrupt_requested_at{{of}} AS interrupt_requested_at
        FROM conversations c JOIN generations g ON g.number = c.generation ORDER BY g.number""",
    "v_generations": """
        SELECT c.owner, c.id AS conversation_id, c.pk AS incarnation, g.number AS generation, g.holder, g.phase, g.outcome,
               {moment}g.acquired_at{of} AS acquired_at, {moment}g.ended_at{of} AS ended_at, g.usage
        FROM generations g JOIN conversations c ON c.pk = g.conversation_pk ORDER BY g.number""",
    "v_inputs": """
        SELECT c.owner, c.id AS conversation_id, m.id AS message_id, m.mode, m.role, m.content,
               {moment}m.created_at{of} AS queued_at
        FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
        WHERE m.status = 'queued' ORDER BY m.conversation_pk, m.pk""",
}
