"""A database on PostgreSQL: transactions that lock a conversation's row first, and snapshots in which nobody can write."""

import atexit
import copy
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from sessionstore.database import Counters, Database
from sessionstore.dialect import CHANGES_PER_TRANSACTION
from sessionstore.errors import (
    BackupUnusable,
    Closed,
    DatabaseUnusable,
    Nested,
    SchemaChanged,
    SessionStoreError,
    Unavailable,
)
from sessionstore.items import Fold, Item, Keys, Lane, LoopItem, ThreadItem
from sessionstore.matching import Hit
from sessionstore.model import BackedUp, Engine
from sessionstore.nesting import in_a_change, insides
from sessionstore.postgresql import words
from sessionstore.postgresql.connections import CONTRADICTIONS, DRIVER_ERRORS, PostgreSQL, plain
from sessionstore.postgresql.invariants import INVARIANTS
from sessionstore.postgresql.lines import Lines
from sessionstore.postgresql.parts import Whole
from sessionstore.postgresql.pool import Pool
from sessionstore.postgresql.pulse import Pulse, Teller, read
from sessionstore.postgresql.transaction import Schema
from sessionstore.postgresql.writing import Writing, again
from sessionstore.transaction import Each, Statements, Transaction, system_clock

T = TypeVar("T")
CONNECTIONS = 16


class PostgreSQLDatabase(Database):
    """See `Database`. A forked child's copy is closed."""

    contradictions = CONTRADICTIONS
    invariants = INVARIANTS

    def __init__(
        self,
        url: str,
        *,
        synchronous: str = "full",
        busy_timeout_ms: int = 5_000,
        max_waiting: int = 1_024,
        connections: int = CONNECTIONS,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._postgresql = PostgreSQL(url, synchronous, busy_timeout_ms)
        self.name, self._timeout = self._postgresql.name, busy_timeout_ms / 1000
        self.statements = Statements(self._postgresql.compiled, clock or system_clock, DRIVER_ERRORS)
        self.measures = self.statements.measures
        self._schema = Schema(self.name, clock, self._refuse)
        self._writers = Pool(self._postgresql.writer, connections, self._timeout)
        self._readers = Pool(self._postgresql.reader, max(1, connections // 2) + 2, self._timeout)
        self._teller = Teller(self._postgresql)
        self._writing = Writing(self._postgresql, self._writers, self.statements, self._schema, self._committed)
        self._lines = Lines(self._writing.run, max_waiting, connections, f"sessionstore-writer {self.name}")
        self._tell: Callable[[], None] | None = None
        self._refusal: Unavailable | None = None
        self._process = os.getpid()
        insides.append(self._writing.within)
        _open.add(self)

    # The doors -----------------------------------------------------------------------------------------------------------

    def write(
        self,
        change: Callable[[Transaction], T],
        lane: Lane = Lane.GROUPED,
        keys: Keys = (),
        size: int = 0,
        fold: Fold | None = None,
    ) -> T:
        """See `Database`: in this thread, unless another one is at the same conversation."""
        self._check_place()
        if isinstance(change, Each):
            whole = ThreadItem(change, lane, keys, size, self._timeout)
            self._join(whole)
            return whole.wait()  # type: ignore[no-any-return]
        if not keys:
            return self._transact(change)
        mine = False
        try:
            mine = self._lines.enter(keys[0])
            if mine:
                return self._transact(change)
        finally:
            if mine:
                self._lines.leave(keys[0])
        return self._lines.run(ThreadItem(change, lane, keys, size, self._timeout, fold))  # type: ignore[no-any-return]

    def _transact(self, change: Callable[[Transaction], T]) -> T:
        return self._writing.transact(change, time.monotonic() + self._timeout)

    def submit(
        self,
        change: Callable[[Transaction], T],
        lane: Lane = Lane.GROUPED,
        keys: Keys = (),
        size: int = 0,
        fold: Fold | None = None,
    ) -> LoopItem:
        """See `Database`."""
        self._check_place()
        item = LoopItem(change, lane, keys or (("", ""),), size, self._timeout, fold)
        self._join(item)
        return item

    def _join(self, item: Item) -> None:
        """Have it run in its line, or its parts each in theirs."""
        if not isinstance(item.change, Each):
            self._lines.join(item)
            return
        for part in Whole(item, item.change, item.bytes, self._timeout).parts:
            try:
                self._lines.join(part)
            except SessionStoreError as error:
                part.error = error
                part.answer()

    def read(self, look: Callable[[Transaction], T]) -> T:
        """See `Database`."""
        self._check_place()
        return again(lambda: self._read(look), time.monotonic() + self._timeout)

    def _read(self, look: Callable[[Transaction], T]) -> T:
        try:
            with self._readers.wire() as wire:
                self.measures.reading(wire, time.monotonic())
                try:
                    return read(wire, look, self.statements, self._schema)
                finally:
                    self.measures.read(wire)
        except DRIVER_ERRORS as error:
            raise self._postgresql.known(error) from error

    @contextmanager
    def pulse(self) -> Iterator[Pulse]:
        """See `Database`."""
        self._check_place()
        try:
            with Pulse(self._postgresql, self.statements, self._schema) as pulse:
                yield pulse
        except DRIVER_ERRORS as error:
            raise plain(self._postgresql.known(error)) from error

    @property
    def waiting(self) -> int:
        """See `Database`."""
        return self._lines.waiting

    def on_commit(self, tell: Callable[[], None] | None) -> None:
        """See `Database`."""
        self._tell = tell

    def _refuse(self, error: SchemaChanged) -> None:
        self._refusal = self._refusal or error

    def _committed(self) -> None:
        self._teller.committed()
        if self._tell is not None:
            self._tell()

    @contextmanager
    def sqlalchemy_reads(self) -> Iterator[Connection]:
        """See `Database`."""
        self._check_place()
        try:
            with self._postgresql.engine().connect() as connection:
                yield connection
        except DRIVER_ERRORS as error:
            raise plain(self._postgresql.known(error)) from error

    def _check_place(self) -> None:
        if os.getpid() != self._process:
            raise Closed
        if in_a_change():
            raise Nested
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    @property
    def refusal(self) -> Unavailable | None:
        """See `Database`."""
        return self._refusal

    def close(self) -> None:
        """See `Database`. Inside a change, that one is ended first."""
        if os.getpid() != self._process:
            return
        self._refusal = self._refusal or Closed()
        self._lines.close(0 if self._writing.within.mine else self._timeout)
        self._teller.close(self._timeout)
        for pool in (self._writers, self._readers):
            pool.close()
        if self._writing.within in insides:
            insides.remove(self._writing.within)

    def expect(self, revision: str) -> None:
        """See `Database`."""
        self._schema.expect(revision)
        if self.read(lambda transaction: transaction.row(IS_BEHIND)[0]):
            self.write(_catch_up)

    # Health ---------------------------------------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """See `Database`."""
        version = self.read(lambda transaction: str(transaction.row(VERSION)[0]))
        return Engine(name=f"PostgreSQL {version.partition(' ')[0]}", fault=None, log_bytes=None)

    def check_usable(self) -> None:
        """See `Database`."""
        if self.read(lambda transaction: transaction.row(IS_STANDBY)[0]):
            raise DatabaseUnusable(reason=f"{self.name} is a standby, and cannot be written")

    def facts(self) -> dict[str, Any]:
        """See `Database`."""

        def look(transaction: Transaction) -> dict[str, Any]:
            settings = {name: str(transaction.row(SETTING, name=name)[0]) for name in SETTINGS}
            size = int(transaction.row(SIZE)[0])
            return {"server": self.name, "database_bytes": size, "settings": settings}

        return self.read(look)

    def ailments(self, facts: dict[str, Any]) -> list[str]:
        """See `Database`."""
        settings = facts["settings"]
        wrong = {
            "fsync is off: a crash of the machine may destroy everything": settings["fsync"] == "off",
            "full_page_writes is off: a crash of the machine may destroy everything": settings["full_page_writes"] == "off",
            "synchronous_commit is off: the last commits may go with the power": settings["synchronous_commit"] == "off",
        }
        return [problem for problem, is_so in wrong.items() if is_so]

    def integrity_faults(self) -> list[str]:
        """See `Database`. A server checks itself: by its checksums, and by `pg_amcheck`."""
        return []

    # Upkeep ---------------------------------------------------------------------------------------------------------------

    def search(
        self, transaction: Transaction, words: Sequence[str], owner: str, within: int | None, before: int, count: int
    ) -> list[Hit]:
        """See `Database`."""
        return _search(transaction, words, owner, within, before, count)

    def catch_search_up(self) -> None:
        """See `Database`. The server does it with each commit."""

    def make_search_anew(self) -> None:
        """See `Database`."""
        self._outside("REINDEX INDEX ix_messages_words")

    def erase_traces(self) -> bool:
        """See `Database`. What the server has written to its log stays there until it writes over it."""
        for table in ("messages", "conversations", "generations"):
            self._outside(f"VACUUM {table}")
        return True

    def _outside(self, statement: str) -> None:
        """Run what runs in no transaction, however long it takes."""
        self._check_place()
        try:
            with self._postgresql.connect() as session:
                session.execute("SET statement_timeout = 0")
                session.execute(statement)
        except DRIVER_ERRORS as error:
            raise plain(self._postgresql.known(error)) from error

    def counters(self, transaction: Transaction) -> Counters:
        """See `Database`."""
        life, turn = transaction.row(NUMBERS)
        return Counters(life=int(life), turn=int(turn))

    def go_on_from(self, transaction: Transaction, counters: Counters) -> None:
        """See `Database`. It may take long, and so may what follows in its transaction."""
        transaction.run(WITHOUT_LIMIT)
        transaction.rows(NOTE_NUMBERS, life=counters.life, turn=counters.turn)
        _catch_up(transaction)

    def back_up(self, folder: Path, keep: int | None) -> BackedUp:  # noqa: ARG002
        """See `Database`."""
        raise BackupUnusable(
            reason="A server's database is backed up by the server's tools, pg_dump and pg_basebackup;"
            " `sessionstore copy` makes a file of it"
        )


_search = words.search
VERSION = text("SHOW server_version")
IS_STANDBY = text("SELECT pg_is_in_recovery()")
SETTINGS = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "max_connections")
SETTING = text("SELECT current_setting(:name)")
SIZE = text("SELECT pg_database_size(current_database())")
# A sequence of which nothing was taken yet has a last value too, and is not called.
NUMBERS = text("""
    SELECT (SELECT last_value - 1 + is_called::int FROM conversations_pk_seq),
           (SELECT last_value - 1 + is_called::int FROM generations_number_seq)""")
WITHOUT_LIMIT = text("SET LOCAL statement_timeout = 0")
NOTE_NUMBERS = text("""
    SELECT setval('conversations_pk_seq', :life + 1, false), setval('generations_number_seq', :turn + 1, false),
           setval('messages_pk_seq', (SELECT coalesce(max(pk), 0) FROM messages) + 1, false)""")
# Rows that came from a server whose transactions have higher numbers than this one's. Its own are never ahead of the next one.
_NEXT = f"pg_snapshot_xmax(pg_current_snapshot())::text::bigint * {CHANGES_PER_TRANSACTION}"
_AHEAD = f"coalesce(max(change), 0) + 1 - {_NEXT}"
# Whoever has a number by the old base, and has not committed yet, would come in behind what is taken for complete.
NOBODY_WRITES = text("LOCK TABLE conversations IN SHARE MODE")
IS_BEHIND = text(f"SELECT {_AHEAD} > (SELECT base FROM change_epoch) FROM conversations")
CATCH_UP = text(f"UPDATE change_epoch SET base = greatest(base, (SELECT {_AHEAD} FROM conversations))")


def _catch_up(transaction: Transaction) -> None:
    transaction.run(NOBODY_WRITES)
    transaction.run(CATCH_UP)


def _close_all() -> None:
    for database in list(_open):
        with suppress(Exception):
            database.close()


_open: weakref.WeakSet[PostgreSQLDatabase] = weakref.WeakSet()
atexit.register(_close_all)
