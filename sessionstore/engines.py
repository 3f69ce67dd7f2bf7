"""Which engine a database URL means. Nobody else asks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from sessionstore.database import Database
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
    return SQLiteDatabase(url, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms, max_waiting=max_waiting, clock=clock)


def migration(url: str, busy_timeout_ms: int = 60_000) -> AbstractContextManager[Connection]:
    """One transaction for all of a migration, that nobody else is in; creates a database file where there is none."""
    return sqlite_migration(url, busy_timeout_ms)


def exists(url: str) -> bool:
    """Whether there is a database, or might be: a server's is there, or it is an error of its own."""
    return path_of(url).exists()


def name_of(url: str) -> str:
    """What a database is called in what people read: never with a password."""
    return str(path_of(url))


def invariants_of(url: str) -> Sequence[Invariant]:
    """What is always true of its tables, in the engine's own words."""
    path_of(url)
    return INVARIANTS


__all__ = ["Synchronous", "exists", "invariants_of", "migration", "name_of", "open_database"]
