"""Which engine a database URL means. Nobody else asks.

PostgreSQL's room is opened when somebody comes with such a URL: its driver is the extra `postgres`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from sqlalchemy import Connection

from sessionstore.database import Database
from sessionstore.errors import UnsupportedUrl
from sessionstore.invariants import Invariant
from sessionstore.sqlite.connections import Synchronous, path_of
from sessionstore.sqlite.connections import migration as sqlite_migration
from sessionstore.sqlite.database import SQLiteDatabase
from sessionstore.sqlite.invariants import INVARIANTS


def open_database(
    url: str,
    *,
    synchronous: Synchronous = "full",
    busy_timeout_ms: int = 5_000,
    max_waiting: int = 1_024,
    clock: Callable[[], int] | None = None,
) -> Database:
    """Open the database of a URL, whatever its schema. See `Store.open`."""
    kind: Any = _postgresql("database").PostgreSQLDatabase if is_postgresql(url) else SQLiteDatabase
    return kind(  # type: ignore[no-any-return]
        url, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms, max_waiting=max_waiting, clock=clock
    )


def migration(url: str, busy_timeout_ms: int = 60_000) -> AbstractContextManager[Connection]:
    """One transaction for all of a migration, that nobody else is in; creates a database file where there is none."""
    if is_postgresql(url):
        return _postgresql("connections").migration(url, busy_timeout_ms)  # type: ignore[no-any-return]
    return sqlite_migration(url, busy_timeout_ms)


def exists(url: str) -> bool:
    """Whether there is a database, or might be: a server's is there, or it is an error of its own."""
    return is_postgresql(url) or path_of(url).exists()


def name_of(url: str) -> str:
    """What a database is called in what people read: never with a password."""
    if is_postgresql(url):
        connections = _postgresql("connections")
        return str(connections.name_of(connections.parameters_of(url)))
    return str(path_of(url))


def invariants_of(url: str) -> Sequence[Invariant]:
    """What is always true of its tables, in the engine's own words."""
    if is_postgresql(url):
        return _postgresql("invariants").INVARIANTS  # type: ignore[no-any-return]
    return INVARIANTS


def is_postgresql(url: str) -> bool:
    """Whether it is a server's."""
    return str(url).startswith(("postgresql://", "postgresql+psycopg://", "postgres://"))


def _postgresql(module: str) -> Any:
    try:
        return import_module(f"sessionstore.postgresql.{module}")
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise UnsupportedUrl(reason="PostgreSQL needs a driver: pip install 'sessionstore[postgres]'") from None


__all__ = ["Synchronous", "exists", "invariants_of", "migration", "name_of", "open_database"]
