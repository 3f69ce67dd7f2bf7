"""Copies of a database file: made while others write, looked through, and given numbers of their own.

With `dialect`, `fulltext` and `sqljson` it knows SQLite; another engine's backups are its own tools'.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sessionstore import fulltext
from sessionstore.dialect import DRIVER_ERRORS, connect, known
from sessionstore.engine import sqlite3
from sessionstore.invariants import INVARIANTS

GAP = 1_000_000_000
"""More conversations, turns and changes than there were since a copy was made."""


def copy(source: Path, target: Path) -> None:
    """Write the state of one moment into a file that is empty, or not there. Nobody waits for it.

    What is free in the source is not copied, so nothing that was deleted is in the copy. By VACUUM INTO and not by the backup
    API in steps, which begins anew whenever somebody writes (facts, 1.8).
    """
    with _opened(source) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))


def faults(path: Path, *, only_the_file: bool = False) -> list[str]:
    """What is wrong with a copy: as the engine sees it, and by every invariant of the newest schema."""
    found: list[str] = []
    try:
        with _looking_at(path) as connection:
            found += [row[0] for row in connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
            found += [f"{row[0]} refers to nothing in {row[2]}" for row in connection.execute("PRAGMA foreign_key_check")]
            for invariant in () if found or only_the_file else INVARIANTS:
                found += [f"{invariant.name}: {what}" for _, what in connection.execute(f"{invariant.sql} LIMIT 10")]
    except DRIVER_ERRORS as error:
        found.append(str(error))
    return found


def begin_anew(path: Path, now: int) -> None:
    """Make a copy that will be used again the beginning of something new.

    Since it was made, lives, turns and states were given numbers that it does not know of. None of them is ever given again:
    whoever comes with a tag, a cursor or a token from then is told that it is another life, and reads anew. What was being
    generated is interrupted. The search index, which has the numbers in it, is made anew.
    """
    with _opened(path, foreign_keys=False) as connection:
        # It is made durable when it is whole.
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN IMMEDIATE")
        last = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()[0]
        gap = (last // GAP + 1) * GAP
        for statement in _BEGIN_ANEW:
            connection.execute(statement, {"gap": gap, "now": now})
        fulltext.forget_all(connection)
        while fulltext.catch_up(connection):
            pass
        connection.execute("COMMIT")


_BEGIN_ANEW = (
    "UPDATE conversations SET version = version + 1 WHERE generation IS NOT NULL",
    """UPDATE messages SET status = 'interrupted', updated_at = :now, version =
       (SELECT version FROM conversations c WHERE c.pk = conversation_pk) WHERE status = 'partial'""",
    "UPDATE generations SET ended_at = :now, outcome = 'interrupted' WHERE ended_at IS NULL",
    """UPDATE conversations SET generation = NULL, lease_token = NULL, lease_ttl_ms = NULL, lease_expires_at = NULL,
       interrupt_requested_at = NULL WHERE generation IS NOT NULL""",
    "UPDATE messages SET conversation_pk = conversation_pk + :gap",
    "UPDATE generations SET conversation_pk = conversation_pk + :gap",
    "UPDATE conversations SET pk = pk + :gap, parent_pk = parent_pk + :gap, change = change + :gap",
    """INSERT INTO pruned (owner, change) SELECT DISTINCT owner, :gap FROM conversations WHERE true
       ON CONFLICT (owner) DO UPDATE SET change = excluded.change""",
    "UPDATE sqlite_sequence SET seq = seq + :gap WHERE name IN ('conversations', 'generations')",
)


def fold(path: Path) -> None:
    """Copy the log back, so that the file alone is all of it. For a copy that nobody else uses."""
    with _opened(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").fetchone()


def sync(path: Path) -> None:
    """Make a copy durable. Never for a file that SQLite has open in this process: closing it would drop its locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path, *, foreign_keys: bool = True) -> Iterator[sqlite3.Connection]:
    try:
        with closing(connect(path, 60, foreign_keys=foreign_keys)) as connection:
            yield connection
    except DRIVER_ERRORS as error:
        raise known(error, path) from error


@contextmanager
def _looking_at(path: Path) -> Iterator[sqlite3.Connection]:
    # Immutable: nobody changes a copy, and looking at it shall leave nothing beside it.
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        yield connection
