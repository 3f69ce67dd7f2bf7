"""How Alembic reaches the database: over the connection of `sessionstore.migrate`, or one of its own from the command line."""

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.schema import SchemaItem

from sessionstore.engines import is_postgresql, migration
from sessionstore.schema import ONLY_IN, metadata
from sessionstore.settings import Settings

BESIDE = ("ix_messages_words", "ix_conversations_title")
"""Indexes of expressions, which no table of the models has."""


def is_ours(name: str | None, kind: str, _: object) -> bool:
    """SQLite's search index is FTS5's: neither it nor what it keeps itself in is a table of the models."""
    if kind != "table":
        return context.get_context().dialect.name == "sqlite" or name not in BESIDE
    return name in ("search_pending", "search_state") or not (name or "").startswith("search")


def is_here(found: SchemaItem, *_: object) -> bool:
    """Some tables, and indexes by columns, are there for one engine alone."""
    here = context.get_context().dialect.name
    return found.info.get(ONLY_IN) in (None, here) and (here == "sqlite" or getattr(found, "name", "") not in BESIDE)


OPTIONS = {
    "include_name": is_ours,
    "include_object": is_here,
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


def url_of() -> str:
    return context.get_x_argument(as_dictionary=True).get("url") or Settings.from_environment().database_url


if context.is_offline_mode():
    context.configure(dialect_name="postgresql" if is_postgresql(url_of()) else "sqlite", literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()
elif "connection" in context.config.attributes:
    run(context.config.attributes["connection"])
else:
    with migration(url_of()) as own_connection:
        run(own_connection)
