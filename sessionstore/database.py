"""The two doors to the database.

A write is a function that `Database.write` calls inside one transaction that holds the write lock from its first statement; a
read is a function that `Database.read` calls in one snapshot, on a connection on which the database itself refuses writes.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Connection

from sessionstore import dialect
from sessionstore.dialect import DRIVER_ERRORS, SQLite, Statement, Synchronous
from sessionstore.errors import Busy, Closed, Dead, Nested, OutcomeUnknown, StorageFailed, Unavailable
from sessionstore.model import Engine
from sessionstore.turn import Turn, in_a_change, refuse_inherited

T = TypeVar("T")


class Transaction:
    """Runs statements inside the transaction that is open. A statement that failed dooms it, even if the error is caught."""

    __slots__ = ("_compiled", "_connection", "failed")

    def __init__(self, connection: Any, compiled: Callable[[Statement], tuple[str, dict[str, Any]]]) -> None:
        self._connection = connection
        self._compiled = compiled
        self.failed: Exception | None = None

    def row(self, statement: Statement, **parameters: Any) -> Any:
        """The first row, or None."""
        return self._run(statement, parameters).fetchone()

    def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        """All rows."""
        return self._run(statement, parameters).fetchall()  # type: ignore[no-any-return]

    def run(self, statement: Statement, **parameters: Any) -> int:
        """How many rows were changed."""
        return self._run(statement, parameters).rowcount  # type: ignore[no-any-return]

    def settings(self) -> dict[str, Any]:
        """The settings of this connection, as they are in force."""
        return {name: dialect.setting(self._connection, name) for name in dialect.SETTINGS}

    def over(self) -> None:
        """Nothing more runs here: whoever kept it has nothing."""
        self.failed = Dead()

    def _run(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        if self.failed is not None:
            raise self.failed
        sql, constants = self._compiled(statement)
        try:
            return self._connection.execute(sql, {**constants, **parameters} if constants else parameters)
        except DRIVER_ERRORS as error:
            self.failed = error
            raise


class Database:
    """One database file: one writer, several readers, and what is known about the engine.

    Thread-safe. A forked child's copy is closed, and the child cannot open the same file.
    """

    def __init__(self, url: str, *, synchronous: Synchronous = "full", busy_timeout_ms: int = 5_000, readers: int = 8) -> None:
        self._sqlite = SQLite(url, synchronous, busy_timeout_ms)
        self.path, self._timeout = self._sqlite.path, busy_timeout_ms / 1000
        refuse_inherited(self.path)
        self._writes, self._reads = self._sqlite.write_engine(), self._sqlite.read_engine(readers)
        self._turn = Turn(self.path)
        self._statements: dict[Statement, tuple[str, dict[str, Any]]] = {}
        self._checked_out: Any = None
        self._writer: Any = None
        self._checkpointer: Any = None
        self._tried_at_bytes = 0
        self.refusal: Unavailable | None = None

    def write(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in one transaction under the write lock, commit, and answer what it returned.

        Raises what `change` raises, `Busy`, `DiskFull` or `StorageFailed` with nothing stored, and `OutcomeUnknown`.
        """
        self._check_place()
        try:
            try:
                self._take_turn()
                return self._transact(change)
            except DRIVER_ERRORS as error:
                raise self._translated(error) from error
            finally:
                self._end_turn()
        finally:
            # Once more, for an interrupt that came in the first.
            self._end_turn()

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot, on a connection that refuses writes. Raises `Busy` when no connection is free in time."""
        self._check_place()
        pooled = transaction = None
        try:
            pooled = self._reads.raw_connection()
            connection: Any = pooled.driver_connection
            connection.execute("BEGIN")
            transaction = Transaction(connection, self._compiled)
            return look(transaction)
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error
        finally:
            if transaction is not None:
                transaction.over()
            if pooled is not None:
                pooled.close()
            self._close_if_refused()

    @contextmanager
    def sqlalchemy_reads(self) -> Iterator[Connection]:
        """A reading SQLAlchemy connection, for Alembic's questions."""
        self._check_place()
        try:
            with self._reads.connect() as connection:
                yield connection
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Wait for the running write, then close every connection. Calls after it raise `Closed`.

        Inside a change, or in a signal handler that interrupted one, it is closed when that change has ended.
        """
        self.refusal = self.refusal or Closed()
        if self._turn.inherited or self._turn.mine:
            return
        try:
            self._turn.take(-1)
        finally:
            self._end_turn()

    def _transact(self, change: Callable[[Transaction], T]) -> T:
        transaction = Transaction(self._begin(), self._compiled)
        try:
            result = change(transaction)
            if transaction.failed is not None:
                raise transaction.failed
            self._commit()
        finally:
            transaction.over()
        self._bound_log()
        return result

    def _take_turn(self) -> None:
        """The only way to the writing connection."""
        if not self._turn.take(self._timeout):
            raise Busy
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    def _end_turn(self) -> None:
        """Leave nothing open behind, whatever interrupts it."""
        interrupted: BaseException | None = None
        while self._turn.mine:
            try:
                self._settle()
                self._turn.give_back()
            except BaseException as error:  # noqa: BLE001  # it is raised when the turn has been given back
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def _check_place(self) -> None:
        """Refuse a call from inside a change, which would wait for itself, and every call once we are closed."""
        if self._turn.inherited:
            raise Closed
        if in_a_change():
            raise Nested
        if self.refusal is not None:
            raise copy.copy(self.refusal)

    def _begin(self) -> Any:
        if self._writer is None:
            self._checked_out = self._writes.raw_connection()
            self._writer = self._checked_out.driver_connection
        self._writes.dialect.do_begin(self._writer)
        return self._writer

    def _commit(self) -> None:
        lost = not self._writer.in_transaction
        try:
            self._writes.dialect.do_commit(self._writer)
        except DRIVER_ERRORS as error:
            known = self._translated(error)
            if lost or isinstance(known, Busy):
                raise known from error
            raise OutcomeUnknown from error

    def _settle(self) -> None:
        """Roll back what is still open, and close everything once the store is closed or the storage is not to be trusted."""
        if self.refusal is not None:
            self._close_connections()
        elif self._writer is not None and self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except DRIVER_ERRORS:
                self._checked_out.invalidate()
                self._writer = None

    def _close_if_refused(self) -> None:
        """After a read: what was closed or failed meanwhile keeps no connection, neither this one nor the writer's."""
        if self.refusal is None or self._turn.inherited:
            return
        self._reads.dispose()
        if self._turn.take(0):
            self._end_turn()

    def _translated(self, error: BaseException) -> BaseException:
        known = self._sqlite.known(error)
        if isinstance(known, StorageFailed):
            self.refusal = known
        return known

    def _compiled(self, statement: Statement) -> tuple[str, dict[str, Any]]:
        found = self._statements.get(statement)
        if found is None:
            found = self._statements[statement] = self._sqlite.compiled(statement, self._reads)
        return found

    def _bound_log(self) -> None:
        """On an engine with the fault, copy the log back while no commit can happen (DESIGN.md, rule 9).

        Waits for nobody: if another process writes, it does the same in its turn. If a reader holds the log, it is tried again
        when the log has grown by as much once more.
        """
        size = self._sqlite.log_to_copy()
        if size <= dialect.LOG_LIMIT_BYTES:
            self._tried_at_bytes = 0
        elif size >= self._tried_at_bytes + dialect.LOG_LIMIT_BYTES:
            self._tried_at_bytes = size
            self._copy_log_back()

    def _copy_log_back(self) -> None:
        try:
            if self._checkpointer is None:
                self._checkpointer = self._sqlite.connect_writer()
            with dialect.without_waiting(self._writer, self._timeout):
                self._begin()
            self._checkpointer.execute(dialect.CHECKPOINT).fetchall()
        except DRIVER_ERRORS as error:
            # The commit before it stands, whatever becomes of the checkpoint.
            self._translated(error)

    def _close_connections(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._writer is not None:
            self._checked_out.close()
        self._writer = self._checkpointer = None
        self._writes.dispose()
        self._reads.dispose()
        if isinstance(self.refusal, Closed):
            self._turn.retire()

    def engine(self) -> Engine:
        """Which engine this is. Never touches the disk."""
        return self._sqlite.engine()

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        return self._sqlite.log_bytes()

    def settings(self) -> dict[str, Any]:
        """The settings that the file itself carries, looked up without touching them, and our own durability."""
        found = self.read(lambda transaction: transaction.settings())
        return {**found, "synchronous": self._sqlite.synchronous}

    def check_writable(self) -> None:
        """Raise `DatabaseUnusable` for a file that we may not write. Takes no lock."""
        self._sqlite.check_writable()

    def integrity(self) -> str:
        """The engine's own verdict on the file: "ok", or the first thing that is wrong. Reads the whole file."""
        return self.read(lambda transaction: str(transaction.row(dialect.INTEGRITY)[0]))
