"""The two doors to the database.

A write is a function that `Database.write` calls inside one transaction that holds the write lock from its first statement; a
read is a function that `Database.read` calls in one snapshot, on a connection on which the database itself refuses writes.
"""

import atexit
import copy
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection

from sessionstore import dialect
from sessionstore.dialect import DRIVER_ERRORS, SQLite, Synchronous
from sessionstore.errors import Busy, Closed, Nested, SchemaChanged, StorageFailed, Unavailable
from sessionstore.groups import Groups
from sessionstore.items import Fold, Keys, Lane, LoopItem, ThreadItem
from sessionstore.model import Engine
from sessionstore.pulse import Pulse
from sessionstore.revision import Revision
from sessionstore.transaction import Statements, Transaction
from sessionstore.turn import in_a_change, refuse_inherited
from sessionstore.writer import Writer

T = TypeVar("T")
EMPTY_EVERY_SECONDS = 0.02


class Database:
    """One database file: one writer, several readers, and what is known about the engine.

    Thread-safe. A forked child's copy is closed, and the child cannot open the same file.
    """

    def __init__(
        self,
        url: str,
        *,
        synchronous: Synchronous = "full",
        busy_timeout_ms: int = 5_000,
        readers: int = 8,
        max_waiting: int = 1_024,
    ) -> None:
        self._sqlite = SQLite(url, synchronous, busy_timeout_ms)
        self.path, self._timeout = self._sqlite.path, busy_timeout_ms / 1000
        refuse_inherited(self.path)
        self._reads = self._sqlite.read_engine(readers)
        self.statements = Statements(lambda statement: self._sqlite.compiled(statement, self._reads))
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
        """Run `change` in one transaction under the write lock, commit, and answer what it returned.

        In this thread if nobody else writes, else in the writer's, with what others have waiting. `keys` are the conversations
        whose order is kept, `size` is about how many bytes are written, `fold` says what makes the call needless. Raises what
        `change` raises, `Busy`, `DiskFull` or `StorageFailed` with nothing stored, and `OutcomeUnknown`.
        """
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
        """Have the writer run `change`; its `future` is awaited on the running event loop."""
        self._check_place()
        item = LoopItem(change, lane, keys, size, self._timeout, fold)
        self._groups.join(item)
        return item

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot, on a connection that refuses writes. Raises `Busy` when no connection is free in time."""
        self._check_place()
        pooled = transaction = None
        try:
            self._sqlite.files.look()
            pooled = self._reads.raw_connection()
            connection: Any = pooled.driver_connection
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
        """A connection that knows when somebody has committed, for a thread that follows what happens."""
        self._check_place()
        try:
            with Pulse(self._sqlite, self.statements) as pulse:
                yield pulse
        except (*DRIVER_ERRORS, StorageFailed) as error:
            raise self._told(error) from error

    def on_commit(self, tell: Callable[[], None] | None) -> None:
        """Have `tell` called after each commit of this process, in the thread that made it."""
        self._writer.committed = tell

    @contextmanager
    def sqlalchemy_reads(self) -> Iterator[Connection]:
        """A reading SQLAlchemy connection, for Alembic's questions."""
        self._check_place()
        try:
            with self._reads.connect() as connection:
                yield connection
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except (*DRIVER_ERRORS, StorageFailed) as error:
            raise self._told(error) from error

    def close(self) -> None:
        """Run what waits, then close every connection. Calls after it raise `Closed`.

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
        """Why no call is taken any more, if none is."""
        return self._writer.refusal or (Closed() if self._closing or self._writer.turn.inherited else None)

    def engine(self) -> Engine:
        """Which engine this is, and how long its log."""
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
        found = self.read(lambda transaction: transaction.settings())
        return {**found, "synchronous": self._sqlite.synchronous}

    def check_writable(self) -> None:
        """Raise `DatabaseUnusable` for a file that we may not write. Takes no lock."""
        self._sqlite.check_writable()

    def check_files(self) -> None:
        """Raise `StorageFailed`, from now on, when the database or its log was removed or replaced under us."""
        self._check_place()
        try:
            self._sqlite.files.check()
        except StorageFailed as error:
            raise self._writer.known(error) from error

    def expect(self, revision: str) -> None:
        """Refuse everything, with `SchemaChanged`, as soon as the schema is another one than this."""
        self._revision.expect(revision)

    def integrity(self) -> str:
        """The engine's own verdict on the file: "ok", or the first thing that is wrong. Reads the whole file."""
        return self.read(lambda transaction: str(transaction.row(dialect.INTEGRITY)[0]))

    def integrity_faults(self) -> list[str]:
        """All that the engine finds wrong with the file, or the first hundred of each kind. Reads the whole file."""

        def look(transaction: Transaction) -> list[str]:
            found = [str(row[0]) for row in transaction.rows(dialect.INTEGRITY_FAULTS)]
            broken = [
                f"row {row[1]} of {row[0]} refers to nothing in {row[2]}" for row in transaction.rows(dialect.BROKEN_REFERENCES)
            ]
            return [fault for fault in found if fault != "ok"] + broken

        return self.read(look)


def _close_all() -> None:
    for database in list(_open):
        with suppress(Exception):
            database.close()


_open: weakref.WeakSet[Database] = weakref.WeakSet()
atexit.register(_close_all)
