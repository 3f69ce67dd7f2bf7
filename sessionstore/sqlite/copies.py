"""Copies of a database file: made while others write, looked through, and given numbers of their own.

Another engine's backups are its own tools'.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sessionstore.engine import sqlite3
from sessionstore.schema import EVERYBODY
from sessionstore.sqlite import fulltext
from sessionstore.sqlite.connections import DRIVER_ERRORS, connect, known
from sessionstore.sqlite.invariants import INVARIANTS


def copy_live(source: Path, target: Path) -> None:
    """Write the state of one moment of a database into a file that is empty. Nobody waits for it.

    What is free in the source is not copied, so nothing that was deleted is in the copy. By VACUUM INTO and not by the backup
    API in steps, which begins anew whenever somebody writes (facts, 1.8).
    """
    with _opened(source) as connection:
        connection.execute(_COPY, (str(target),))


def copy_still(source: Path, target: Path) -> None:
    """The same of a file that nobody uses. It may be read-only, and nothing is left beside it."""
    with _looking_at(source) as connection:
        connection.execute(_COPY, (str(target),))


_COPY = "VACUUM INTO ?"


def damage(path: Path) -> list[str]:
    """What is wrong with a file itself, as the engine sees it, or with what it is."""
    with _looking_at(path) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
        found += [f"{row[0]} refers to nothing in {row[2]}" for row in connection.execute("PRAGMA foreign_key_check")]
        ours = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0]
        return found or ([] if ours else ["it is no database of sessionstore"])


def faults(path: Path) -> list[str]:
    """What is in a file of the newest schema that breaks an invariant."""
    with _looking_at(path) as connection:
        rows = ((one.name, found) for one in INVARIANTS for _, found in connection.execute(f"{one.sql} LIMIT 10"))
        return [f"{name}: {found}" for name, found in rows]


def begin_anew(path: Path, now: int, *, keep_keys: bool) -> int:
    """Make a copy that will be used again the beginning of something new. Answers how many keys were revoked.

    Since it was made, lives, turns and states were given numbers that it does not know of. None of them is ever given again:
    they go on from the microsecond in which this is called. So whoever comes with a tag, a cursor or a token from then is told
    that it is another life, and reads anew. What was being generated is interrupted. The search index, which has the numbers in
    it, is made anew.
    """
    with _opened(path, foreign_keys=False) as connection:
        # It is made durable when it is whole.
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("BEGIN IMMEDIATE")
        base = now * 1_000 + secrets.randbelow(1_000)
        life, change = (_shift(connection, column, base) for column in ("pk", "change"))
        values = {"now": now, "base": base, "life": life, "change": change}
        for statement in _BEGIN_ANEW:
            connection.execute(statement, values)
        revoked = 0 if keep_keys else connection.execute(_REVOKE_KEYS, values).rowcount
        fulltext.forget_all(connection)
        while fulltext.catch_up(connection):
            pass
        connection.execute("COMMIT")
        return int(revoked)


def _shift(connection: sqlite3.Connection, column: str, base: int) -> int:
    """How far the numbers go, so that the first is at the base, and none meets another one on its way."""
    ends = f"SELECT coalesce(min({column}), 0), coalesce(max({column}), 0) FROM conversations"
    least, most = connection.execute(ends).fetchone()
    return max(base - least, most - least + 1)  # type: ignore[no-any-return]


_REVOKE_KEYS = "UPDATE keys SET revoked_at = :now WHERE revoked_at IS NULL"
_LAST = "(SELECT max(:base, coalesce(max(pk), 0)) FROM conversations)"
_FENCE = "(SELECT max(:base, coalesce(max(number), 0)) FROM generations)"
_NEWEST = "(SELECT coalesce(min(change), :base) - 1 FROM conversations)"
_BEGIN_ANEW = (
    "UPDATE conversations SET version = version + 1 WHERE generation IS NOT NULL",
    """UPDATE messages SET status = 'interrupted', updated_at = :now, version =
       (SELECT version FROM conversations c WHERE c.pk = conversation_pk) WHERE status = 'partial'""",
    "UPDATE generations SET ended_at = :now, outcome = 'interrupted' WHERE ended_at IS NULL",
    """UPDATE conversations SET generation = NULL, lease_token = NULL, lease_ttl_ms = NULL, lease_expires_at = NULL,
       interrupt_requested_at = NULL WHERE generation IS NOT NULL""",
    "UPDATE messages SET conversation_pk = conversation_pk + :life",
    "UPDATE generations SET conversation_pk = conversation_pk + :life",
    "UPDATE conversations SET pk = pk + :life, parent_pk = parent_pk + :life, change = change + :change",
    # Where there is none, the order of changes needs one to go on from: a tombstone under an id that nobody can have.
    """INSERT INTO conversations (owner, id, metadata, created_at, updated_at, version, change, next_position, message_count,
       queued_count, deleted_at) SELECT '', '', '{}', :now, :now, 1, :base, 0, 0, 0, :now
       WHERE NOT EXISTS (SELECT 1 FROM conversations)""",
    "DELETE FROM sqlite_sequence WHERE name IN ('conversations', 'generations')",
    f"INSERT INTO sqlite_sequence (name, seq) SELECT 'conversations', {_LAST} UNION ALL SELECT 'generations', {_FENCE}",
    f"""INSERT INTO pruned (owner, change) SELECT DISTINCT owner, {_NEWEST} FROM conversations WHERE true
       ON CONFLICT (owner) DO UPDATE SET change = excluded.change""",
    f"""INSERT INTO pruned (owner, change) VALUES ('{EVERYBODY}', {_NEWEST})
       ON CONFLICT (owner) DO UPDATE SET change = excluded.change""",
)


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
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            yield connection
    except DRIVER_ERRORS as error:
        raise known(error, path) from error
