"""How Alembic reaches the database: over the connection of `sessionstore.migrate`, or one of its own from the command line."""

from alembic import context
from sqlalchemy import Connection

from sessionstore.engines import migration
from sessionstore.schema import metadata
from sessionstore.settings import Settings


def is_ours(name: str | None, kind: str, _: object) -> bool:
    """The search index is FTS5's: neither it nor what it keeps itself in is a table of the models."""
    return kind != "table" or name in ("search_pending", "search_state") or not (name or "").startswith("search")


OPTIONS = {
    "include_name": is_ours,
    "target_metadata": metadata,
    "transactional_ddl": True,
    "transaction_per_migration": False,
    "render_as_batch": True,
    "compare_server_default": True,
}


def run(connection: Connection) -> None:
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    context.configure(dialect_name="sqlite", literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()
elif "connection" in context.config.attributes:
    run(context.config.attributes["connection"])
else:
    url = context.get_x_argument(as_dictionary=True).get("url") or Settings.from_environment().database_url
    with migration(url) as own_connection:
        run(own_connection)
