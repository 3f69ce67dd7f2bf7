"""One database file: one writer for each process, several readers, and what is known about the engine."""

import atexit
import copy
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection

from sessionstore.database import Counters, Database
from sessionstore.errors import Busy, Closed, Nested, SchemaChanged, StorageFailed, Unavailable
from sessionstore.items import Fold, Keys, Lane, LoopItem, ThreadItem
from sessionstore.matching import Hit
from sessionstore.model import BackedUp, Engine
from sessionstore.nesting import in_a_change
from sessionstore.sqlite import backups, connections, fulltext
from sessionstore.sqlite.connections import CONTRADICTIONS, DRIVER_ERRORS, SQLite, Synchronous
from sessionstore.sqlite.groups import Groups
from sessionstore.sqlite.invariants import INVARIANTS
from sessionstore.sqlite.log import LOG_ALARM_BYTES
from sessionstore.sqlite.pulse import Pulse
from sessionstore.sqlite.revision import Revision
from sessionstore.sqlite.turn import refuse_inherited
from sessionstore.sqlite.writer import Writer
from sessionstore.transaction import Statements, Transaction, system_clock

T = TypeVar("T")
EMPTY_EVERY_SECONDS = 0.02


class SQLiteDatabase(Database):
    """See `Database`. A forked child's copy is closed, and the child cannot open the same file."""

    contradictions = CONTRADICTIONS
    invariants = INVARIANTS

    def __init__(
        self,
        url: str,
        *,
        synchronous: Synchronous = "full",
        busy_timeout_ms: int = 5_000,
        readers: int = 10,
        max_waiting: int = 1_024,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._sqlite = SQLite(url, synchronous, busy_timeout_ms)
        self.path, self._timeout = self._sqlite.path, busy_timeout_ms / 1000
        refuse_inherited(self.path)
        self._reads = self._sqlite.read_engine(readers)
        self.name = str(self.path)
        self.statements = Statements(
            lambda statement: self._sqlite.compiled(statement, self._reads), clock or system_clock, DRIVER_ERRORS
        )
        self.measures = self.statements.measures
        self._revision = Revision(self.path.name)
        self._writer = Writer(self._sqlite, self.statements, self._revision, self._timeout)
        self._groups = Groups(self._writer, max_waiting, f"sessionstore-writer {self.path.name}")
        self._closing = False
        _open.add(self)

    def write(
        self,
        change: Callable[[Transaction], T],
        lane: Lane = Lane.GROUPED,
        keys: Keys = (),
        size: int = 0,
        fold: Fold | None = None,
    ) -> T:
        """See `Database`: in this thread if nobody else writes, else in the writer's, with what others have waiting."""
        self._check_place()
        try:
            try:
                if self._groups.idle and self._writer.enter():
                    return self._writer.transact(change)
            except (*DRIVER_ERRORS, SchemaChanged, StorageFailed) as error:
                raise self._told(error) from error
            finally:
                self._writer.leave()
        except BaseException:
            # Once more, for an interrupt that came in there.
            self._writer.leave()
            raise
        return self._groups.run(ThreadItem(change, lane, keys, size, self._timeout, fold))  # type: ignore[no-any-return]

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
        item = LoopItem(change, lane, keys, size, self._timeout, fold)
        self._groups.join(item)
        return item

    def read(self, look: Callable[[Transaction], T]) -> T:
        """See `Database`."""
        self._check_place()
        pooled = transaction = None
        try:
            self._sqlite.files.look()
            pooled = self._reads.raw_connection()
            connection: Any = pooled.driver_connection
            self.measures.reading(pooled, time.monotonic())
            connection.execute("BEGIN")
            self._revision.check(connection)
            transaction = Transaction(connection, self.statements)
            return look(transaction)
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except (*DRIVER_ERRORS, SchemaChanged, StorageFailed) as error:
            raise self._told(error) from error
        finally:
            if transaction is not None:
                transaction.over()
            if pooled is not None:
                self.measures.read(pooled)
                pooled.close()
            self._close_if_refused()

    def _told(self, error: BaseException) -> BaseException:
        """What is said of an error: what looks like a damaged file may be a log that was taken away."""
        try:
            self._sqlite.files.check()
        except StorageFailed as lost:
            error = lost
        return self._writer.known(error)

    @contextmanager
    def pulse(self) -> Iterator[Pulse]:
        """See `Database`."""
        self._check_place()
        try:
            with Pulse(self._sqlite, self.statements) as pulse:
                yield pulse
        except (*DRIVER_ERRORS, StorageFailed) as error:
            raise self._told(error) from error

    def on_commit(self, tell: Callable[[], None] | None) -> None:
        """See `Database`."""
        self._writer.committed = tell

    @contextmanager
    def sqlalchemy_reads(self) -> Iterator[Connection]:
        """See `Database`."""
        self._check_place()
        try:
            with self._reads.connect() as connection:
                yield connection
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except (*DRIVER_ERRORS, StorageFailed) as error:
            raise self._told(error) from error

    def close(self) -> None:
        """See `Database`.

        Inside a change, or in a signal handler that interrupted one, it is closed when that change has ended.
        """
        self._closing = True
        if self._writer.turn.inherited:
            return
        self._groups.close(0 if self._writer.turn.mine else self._timeout)
        self._writer.close(self._timeout)
        self._reads.dispose()

    def _check_place(self) -> None:
        """Refuse a call from inside a change, which would wait for itself, and every call once we are closed."""
        if self._writer.turn.inherited:
            raise Closed
        if in_a_change():
            raise Nested
        if self._closing or self._writer.refusal is not None:
            raise copy.copy(self.refusal or Closed())

    def _close_if_refused(self) -> None:
        """After a read: what was closed or failed meanwhile keeps no connection, neither this one nor the writer's."""
        if self.refusal is not None and not self._writer.turn.inherited:
            self._reads.dispose()
            self._writer.close_if_free()

    @property
    def refusal(self) -> Unavailable | None:
        """See `Database`."""
        return self._writer.refusal or (Closed() if self._closing or self._writer.turn.inherited else None)

    @property
    def waiting(self) -> int:
        """See `Database`."""
        return self._groups.waiting

    def engine(self) -> Engine:
        """See `Database`."""
        return self._sqlite.engine()

    def empty_log(self) -> bool:
        """Copy the write-ahead log back and cut it to nothing. False while somebody reads, or writes without end.

        It is tried again and again, and nobody waits for it in between.
        """
        end = time.monotonic() + self._timeout
        while not self._try_to_empty_log():
            if time.monotonic() > end:
                return False
            time.sleep(EMPTY_EVERY_SECONDS)
        return True

    def _try_to_empty_log(self) -> bool:
        self._check_place()
        try:
            self._writer.wait()
            return self._writer.empty_log()
        except DRIVER_ERRORS as error:
            known = self._writer.known(error)
            if isinstance(known, Busy):
                return False
            raise known from error
        finally:
            self._writer.leave()

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        return self._sqlite.files.log_bytes()

    def settings(self) -> dict[str, Any]:
        """The settings that the file itself carries, looked up without touching them, and our own durability."""
        found = self.read(lambda transaction: transaction.use(connections.settings))
        return {**found, "synchronous": self._sqlite.synchronous}

    def check_usable(self) -> None:
        """See `Database`. From now on `StorageFailed` when the database or its log was removed or replaced under us."""
        self._check_files()
        self._sqlite.check_writable()

    def _check_files(self) -> None:
        self._check_place()
        try:
            self._sqlite.files.check()
        except StorageFailed as error:
            raise self._writer.known(error) from error

    def expect(self, revision: str) -> None:
        """See `Database`."""
        self._revision.expect(revision)

    def facts(self) -> dict[str, Any]:
        """See `Database`."""
        return {
            "file": self.name,
            "file_bytes": self.path.stat().st_size,
            "wal_bytes": self.log_bytes(),
            "settings": self.settings(),
            "integrity": self.read(lambda transaction: str(transaction.row(connections.INTEGRITY)[0])),
        }

    def ailments(self, facts: dict[str, Any]) -> list[str]:
        """See `Database`."""
        settings = facts["settings"]
        wrong = {
            f"the file is damaged: {facts['integrity']}": facts["integrity"] != "ok",
            f"the journal mode is {settings['journal_mode']}, not wal": settings["journal_mode"] != "wal",
            "synchronous is normal: the last commits may go with the power": settings["synchronous"] != "full",
            f"the write-ahead log has {facts['wal_bytes']} bytes: a reader may be holding it": (
                facts["wal_bytes"] > LOG_ALARM_BYTES
            ),
        }
        return [problem for problem, is_so in wrong.items() if is_so]

    def integrity_faults(self) -> list[str]:
        """See `Database`. Reads the whole file."""

        def look(transaction: Transaction) -> list[str]:
            found = [str(row[0]) for row in transaction.rows(connections.INTEGRITY_FAULTS)]
            broken = transaction.rows(connections.BROKEN_REFERENCES)
            lost = [f"row {row[1]} of {row[0]} refers to nothing in {row[2]}" for row in broken]
            return [fault for fault in found if fault != "ok"] + lost

        return self.read(look)

    def search(
        self, transaction: Transaction, words: Sequence[str], owner: str, within: int | None, before: int, count: int
    ) -> list[Hit]:
        """See `Database`."""
        return transaction.use(lambda connection: fulltext.search(connection, words, owner, within, before, count))

    def catch_search_up(self) -> None:
        """See `Database`: in pieces that let others write."""
        while self.write(partial(Transaction.use, action=fulltext.catch_up), Lane.ALONE):
            pass

    def make_search_anew(self) -> None:
        """See `Database`."""
        self.write(partial(Transaction.use, action=fulltext.forget_all), Lane.ALONE)
        self.catch_search_up()

    def erase_traces(self) -> bool:
        """See `Database`: the search index is rewritten without what was removed from it, and the log cut to nothing."""
        self.catch_search_up()
        more, begin = True, True
        while more:
            more = self.write(partial(Transaction.use, action=partial(fulltext.merge, begin=begin)), Lane.ALONE)
            begin = False
        return self.empty_log()

    def counters(self, transaction: Transaction) -> Counters:
        """See `Database`."""
        found = dict(transaction.use(lambda connection: connection.execute(connections.NUMBERS).fetchall()))
        return Counters(life=found.get("conversations", 0), turn=found.get("generations", 0))

    def go_on_from(self, transaction: Transaction, counters: Counters) -> None:
        """See `Database`."""
        numbers = {"conversations": counters.life, "generations": counters.turn}

        def change(connection: Any) -> None:
            connection.execute(connections.FORGET_NUMBERS)
            connection.executemany(connections.NOTE_NUMBERS, numbers.items())

        transaction.use(change)

    def back_up(self, folder: Path, keep: int | None) -> BackedUp:
        """See `Database`."""
        self._check_files()
        return backups.back_up(self.path, folder, self.now(), keep)


def _close_all() -> None:
    for database in list(_open):
        with suppress(Exception):
            database.close()


_open: weakref.WeakSet[SQLiteDatabase] = weakref.WeakSet()
atexit.register(_close_all)
