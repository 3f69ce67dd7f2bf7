"""What history needs: indexes for lists, summaries and usage, the search index, and what was pruned; views of what was used."""

import sqlalchemy as sa
from alembic import op

# As long as nothing is released; the first release puts its words here.
from sessionstore.postgresql.functions import FUNCTIONS
from sessionstore.postgresql.functions import INDEX as GIN
from sessionstore.sqlite.fulltext import INDEX as FTS

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORDS = sa.Text(collation="C").with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    op.drop_index("ix_conversations_list", "conversations")
    op.drop_index("ix_conversations_parent_pk", "conversations")
    op.add_column("conversations", sa.Column("arriving_at", NUMBER))
    living = "deleted_at IS NULL"
    partial_index("ix_conversations_list", "conversations", ["owner", "change", "parent_pk", "updated_at"], living)
    partial_index("ix_conversations_created", "conversations", ["owner", "pk"], living)
    partial_index("ix_conversations_children", "conversations", ["parent_pk", "change"], "parent_pk IS NOT NULL")
    # A server's index has room for the beginning of a title only.
    titles = sa.text('"left"(title, 200)') if is_postgresql() else "title"
    partial_index("ix_conversations_title", "conversations", ["owner", titles], f"{living} AND title IS NOT NULL")
    partial_index("ix_messages_summaries", "messages", ["conversation_pk", "position"], "summary_through IS NOT NULL")
    partial_index("ix_generations_used", "generations", ["ended_at"], "usage IS NOT NULL")
    create_pruned()
    (create_functions if is_postgresql() else create_search)()
    op.execute(f"CREATE VIEW v_usage AS {usage()}")
    replace_inputs("c.deleted_at IS NULL AND")


def downgrade() -> None:
    replace_inputs("")
    op.execute("DROP VIEW v_usage")
    for name in reversed((*FUNCTIONS, *GIN) if is_postgresql() else (*FTS,)):
        op.execute(f"DROP {name}")
    for table in ("change_epoch", "pruned") if is_postgresql() else ("search_pending", "search_state", "pruned"):
        op.drop_table(table)
    op.drop_index("ix_generations_used", "generations")
    op.drop_index("ix_messages_summaries", "messages")
    for name in ("title", "children", "created", "list"):
        op.drop_index(f"ix_conversations_{name}", "conversations")
    partial_index("ix_conversations_parent_pk", "conversations", ["parent_pk"], "parent_pk IS NOT NULL")
    partial_index("ix_conversations_list", "conversations", ["owner", "change"], "deleted_at IS NULL")
    op.execute("ALTER TABLE conversations DROP COLUMN arriving_at")


def create_pruned() -> None:
    op.create_table(
        "pruned",
        sa.Column("owner", WORDS, nullable=False),
        sa.Column("change", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_pruned"),
        sqlite_strict=True,
    )


def is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def create_functions() -> None:
    op.create_table("change_epoch", sa.Column("base", NUMBER, nullable=False))
    op.execute("INSERT INTO change_epoch VALUES (0)")
    for statement in (*FUNCTIONS.values(), *GIN.values()):
        op.execute(sa.text(statement.replace(":", r"\:")))


def create_search() -> None:
    op.create_table("search_state", sa.Column("through", NUMBER, nullable=False), sqlite_strict=True)
    op.execute("INSERT INTO search_state VALUES (0)")
    op.create_table(
        "search_pending",
        sa.Column("message_pk", NUMBER, nullable=False),
        sa.Column("conversation_pk", NUMBER, nullable=False),
        sa.Column("said", WORDS),
        sa.PrimaryKeyConstraint("message_pk", name="pk_search_pending"),
        sqlite_strict=True,
    )
    partial_index("ix_search_pending_said", "search_pending", ["message_pk"], "said IS NOT NULL")
    for statement in FTS.values():
        op.execute(sa.text(statement.replace(":", r"\:")))


def replace_inputs(condition: str) -> None:
    # A deleted conversation's messages may be erased a little later.
    op.execute("DROP VIEW v_inputs")
    moment = MOMENTS[op.get_context().dialect.name]
    op.execute(f"CREATE VIEW v_inputs AS {INPUTS.format(condition=condition, moment=moment)}")


def partial_index(name: str, table: str, columns: list[str | sa.TextClause], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def used(name: str) -> str:
    if is_postgresql():
        number = f"(sessionstore_json(g.usage) ->> '{name}')::numeric"
        return f"CASE WHEN json_typeof(sessionstore_json(g.usage) -> '{name}') = 'number' THEN {number} END AS {name}"
    number = f"json_type(g.usage, '$.{name}') IN ('integer', 'real')"
    return f"CASE WHEN {number} THEN json_extract(g.usage, '$.{name}') END AS {name}"


def usage() -> str:
    return f"""
    SELECT c.owner, c.id AS conversation_id, c.pk AS incarnation, g.number AS generation, g.holder, g.outcome,
           {DAYS[op.get_context().dialect.name]} AS day, {", ".join(map(used, NAMES))}, g.usage
    FROM generations g JOIN conversations c ON c.pk = g.conversation_pk WHERE g.usage IS NOT NULL ORDER BY g.number"""


MOMENTS = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', m.created_at / 1000.0, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(m.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
}
DAYS = {
    "sqlite": "strftime('%Y-%m-%d', g.ended_at / 1000.0, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(g.ended_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}
INPUTS = """
        SELECT c.owner, c.id AS conversation_id, m.id AS message_id, m.mode, m.role, m.content,
               {moment} AS queued_at
        FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
        WHERE {condition} m.status = 'queued' ORDER BY m.conversation_pk, m.pk"""
NAMES = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost")
