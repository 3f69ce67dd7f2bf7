"""The one connection of this process that writes to a file: who may use it, what a transaction on it is, and how it ends."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sessionstore.errors import (
    Busy,
    Closed,
    DiskFull,
    OutcomeUnknown,
    SchemaChanged,
    SessionStoreError,
    StorageFailed,
    Unavailable,
)
from sessionstore.items import Item, fail, may_begin
from sessionstore.sqlite import connections, fulltext
from sessionstore.sqlite.connections import DRIVER_ERRORS, SQLite
from sessionstore.sqlite.gate import Gate
from sessionstore.sqlite.log import Log
from sessionstore.sqlite.revision import Revision
from sessionstore.sqlite.room import Room
from sessionstore.sqlite.turn import Turn
from sessionstore.transaction import Statements, Transaction

T = TypeVar("T")
GROUP_SECONDS = 0.005
# A message is at least two changed rows: its own, and its conversation's.
LOOK_EVERY_CHANGES = 2 * fulltext.PIECE_ROWS
CHORE_SECONDS = 0.02
# So many times as long as a piece took, the index rests, as long as a search can still look through what it does not know.
PACE = 9
FAR_BEHIND = 20_000
NOTHING: Sequence[Callable[[], None]] = ()


class Writer:
    """A writing connection. Who has entered may use it: one thread of this process, and one process of those at the gate."""

    def __init__(self, sqlite: SQLite, statements: Statements, revision: Revision, timeout: float) -> None:
        self._sqlite, self._statements, self._revision, self._timeout = sqlite, statements, revision, timeout
        self._measures = statements.measures
        self.turn, self._gate = Turn(sqlite.path), Gate(sqlite.path)
        self._engine = sqlite.write_engine()
        self._dialect = self._engine.dialect
        self._checked_out: Any = None
        self._connection: Any = None
        self._cursor: Any = None
        self._checkpointer: Any = None
        self._room = Room(sqlite.path)
        self._log = Log(sqlite.files, ours=sqlite.fault is not None)
        self._index_due_at, self._index_after, self._removed = 0, 0.0, False
        self._closed = False
        self.refusal: Unavailable | None = None
        self.committed: Callable[[], None] | None = None
        """Called after each commit, if somebody wants to know."""

    # Who may write --------------------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Enter if that needs no waiting. Raises what the store refuses with."""
        if not self.turn.take(0):
            return False
        self._check()
        return self._gate.enter()

    def wait(self) -> None:
        """Enter, however long it takes. Raises what the store refuses with."""
        self.turn.take(-1)
        self._check()
        self._gate.wait(self._timeout)

    def _check(self) -> None:
        if self.refusal is not None:
            raise copy.copy(self.refusal)
        self._room.check()

    def leave(self) -> None:
        """Leave nothing open behind, whatever interrupts it. Does nothing for who has not entered."""
        interrupted: BaseException | None = None
        while self.turn.mine:
            try:
                self._settle()
                self._gate.leave()
            except Exception as error:  # noqa: BLE001  # a connection that cannot even be closed is nobody's any more
                interrupted, self._connection = error, None
            except BaseException as error:  # noqa: BLE001  # it is raised when the turn has been given back
                interrupted = error
                continue
            try:
                self.turn.give_back()
            except BaseException as error:  # noqa: BLE001  # see above
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def close(self, timeout: float) -> None:
        """Close the connections for good when nobody is inside any more. Who is inside does it on leaving."""
        self._closed = True
        self.refusal = self.refusal or Closed()
        if self.turn.mine:
            return
        try:
            self.turn.take(timeout)
        finally:
            self.leave()

    def close_if_free(self) -> None:
        """Close the connections unless somebody is inside, who does it on leaving."""
        if self.turn.take(0):
            self.leave()

    # Transactions ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction that holds the write lock. Raises the driver's error for a lock that is not to be had.

        Raises `SchemaChanged` when another process has brought the file to another schema, and the store refuses from then on.
        """
        if self._connection is None:
            self._checked_out = self._engine.raw_connection()
            self._connection = self._checked_out.driver_connection
            self._cursor = self._connection.cursor()
        self._dialect.do_begin(self._connection)
        self._revision.check(self._cursor)

    def transact(self, change: Callable[[Transaction], T]) -> T:
        """Run one change in one transaction."""
        self.begin()
        result = self._apply(change)
        self._commit(1)
        for chore in self.chores():
            chore()
        return result

    def run(self, items: Sequence[Item]) -> list[Item]:
        """Run calls in the transaction that has begun, commit it, and note in each what became of it.

        One that fails is undone by itself. Answers those for whom there was no time.
        """
        ran: Sequence[Item] = items
        try:
            ran = items[: self._alone(items[0]) if len(items) == 1 else self._group(items)]
            self._commit(len(ran))
        except _Undone:
            self._one_by_one(items)
        except BaseException as error:  # noqa: BLE001  # it is what everybody is told
            fail(ran, self.known(error))
        return list(items[len(ran) :])

    def _alone(self, item: Item) -> int:
        now = time.monotonic()
        if may_begin(item, now):
            self._measures.waits.observe(now - item.came)
            item.result = self._apply(item.change)
        return 1

    def _group(self, items: Sequence[Item]) -> int:
        """Run each in a savepoint until the time is over, and answer how many had their turn."""
        execute, end = self._cursor.execute, time.monotonic() + GROUP_SECONDS
        for count, item in enumerate(items):
            now = time.monotonic()
            if count and now > end:
                return count
            if not may_begin(item, now):
                continue
            self._measures.waits.observe(now - item.came)
            execute("SAVEPOINT item")
            try:
                item.result = self._apply(item.change)
            except BaseException as error:  # noqa: BLE001  # it is this item's answer
                self._undo(item, error)
            execute("RELEASE item")
        return len(items)

    def _undo(self, item: Item, error: BaseException) -> None:
        item.error = self.known(error)
        # A full disk, for one, rolls back everything and says so nowhere else; the next item would run in autocommit.
        if not self._connection.in_transaction:
            raise _Undone
        self._connection.execute("ROLLBACK TO item")

    def _one_by_one(self, items: Sequence[Item]) -> None:
        """Each in a transaction of its own, after one of them has undone them all."""
        for item in items:
            if item.running or may_begin(item, time.monotonic()):
                item.error = None
                try:
                    item.result = self.transact(item.change)
                except BaseException as error:  # noqa: BLE001  # it is this item's answer
                    item.error = self.known(error)
                self._settle()

    def _apply(self, change: Callable[[Transaction], T]) -> T:
        transaction = Transaction(self._cursor, self._statements)
        try:
            result = change(transaction)
            if transaction.failed is not None:
                raise transaction.failed
        finally:
            self._removed = self._removed or transaction.removed
            transaction.over()
        return result

    def _commit(self, calls: int) -> None:
        """Commit so many calls' work. A COMMIT that finds the database busy did nothing, and is tried again for a while."""
        if isinstance(self.refusal, StorageFailed):
            # Whoever met it, nothing is to be trusted now.
            raise copy.copy(self.refusal)
        end: float | None = None
        began = time.monotonic()
        while not self._committed(end):
            end = time.monotonic() + self._timeout if end is None else end
            time.sleep(0.001)
        self._measures.commits.observe(time.monotonic() - began)
        self._measures.groups.observe(calls)
        try:
            self._log.look()
        except StorageFailed as error:
            self.refusal = error
            raise OutcomeUnknown from error
        if self.committed is not None:
            self.committed()

    def _committed(self, end: float | None) -> bool:
        lost = not self._connection.in_transaction
        try:
            self._dialect.do_commit(self._connection)
        except DRIVER_ERRORS as error:
            known = self.known(error)
            if isinstance(known, Busy) and not lost and (end is None or time.monotonic() < end):
                return False
            if lost or isinstance(known, Busy):
                raise known from error
            if isinstance(known, DiskFull):
                self._room.ran_out()
            raise OutcomeUnknown from error
        return True

    def _settle(self) -> None:
        """Roll back what is still open, and close everything once the store is closed or the storage is not to be trusted."""
        if self.refusal is not None:
            self._close_connections()
        elif self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except DRIVER_ERRORS:
                self._checked_out.invalidate()
                self._connection = None

    def _close_connections(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._connection is not None:
            self._checked_out.close()
        self._connection = self._checkpointer = None
        self._engine.dispose()
        if self._closed:
            self._gate.close()
            self.turn.retire()

    def known(self, error: BaseException) -> BaseException:
        """Our error for the driver's. After an I/O error, and on another schema, the store refuses everything."""
        known = self._sqlite.known(error)
        if isinstance(known, StorageFailed | SchemaChanged):
            self.refusal = self.refusal or known
        return known

    # Chores ---------------------------------------------------------------------------------------------------------------

    def chores(self) -> Sequence[Callable[[], None]]:
        """What is to be done for everybody, now that a commit is done. None of it raises: the commit stands."""
        log, index = self._log.is_due, self._index_is_due()
        if not (log or index):
            return NOTHING
        return [chore for is_due, chore in ((log, self.copy_log_back), (index, self.catch_index_up)) if is_due]

    def _index_is_due(self) -> bool:
        # What was removed may not stay in the notes for the index until somebody writes as much as that.
        if self._connection is None or not (self._removed or self._connection.total_changes >= self._index_due_at):
            return False
        return self._removed or time.monotonic() >= self._index_after

    def catch_index_up(self) -> None:
        """Let the search index catch up by a piece, in a transaction of its own that waits for nobody.

        It is a small part of the time, unless the index is far behind; what was removed goes at once.
        """
        began = time.monotonic()
        try:
            self._settle()
            if self._connection is not None:
                self._removed, self._index_due_at = False, self._connection.total_changes + LOOK_EVERY_CHANGES
                self._index_in_pieces(began)
        except (*DRIVER_ERRORS, SessionStoreError) as error:
            # It is tried again after another commit.
            self._removed = True
            self.known(error)
        finally:
            self._settle()

    def _index_in_pieces(self, began: float) -> None:
        far = urgent = True
        began_far = fulltext.behind(self._connection) > FAR_BEHIND
        while (far or urgent) and fulltext.is_due(self._connection):
            with connections.without_waiting(self._connection, self._timeout):
                self.begin()
            fulltext.catch_up(self._connection, fulltext.PIECE_ROWS)
            self._dialect.do_commit(self._connection)
            far, urgent = fulltext.behind(self._connection) > FAR_BEHIND, fulltext.keeps_removed(self._connection)
            now = time.monotonic()
            self._index_after = now if began_far else now + PACE * (now - began)
            if now > began + CHORE_SECONDS:
                self._removed, self._index_due_at = urgent, 0
                return

    # The log --------------------------------------------------------------------------------------------------------------

    def copy_log_back(self) -> None:
        """Copy it while no commit can happen. Waits for nobody: if another process writes, it does the same in its turn."""
        self._log.tried()
        try:
            self._settle()
            if self._connection is None:
                return
            if self._checkpointer is None:
                self._checkpointer = self._sqlite.connect_writer()
            with connections.without_waiting(self._connection, self._timeout):
                self.begin()
            self._checkpointer.execute(connections.CHECKPOINT).fetchall()
            self._settle()
        except (*DRIVER_ERRORS, SessionStoreError) as error:
            # The commit before it stands, whatever becomes of the checkpoint.
            self.known(error)

    def empty_log(self) -> bool:
        """Cut the log to nothing, if nobody needs it: for who has entered, and no other process meanwhile (rule 9)."""
        if not self._gate.inside:
            return False
        self.begin()
        self._settle()
        with connections.without_waiting(self._connection, self._timeout):
            return bool(self._connection.execute(connections.EMPTY_LOG).fetchone()[0] == 0)


class _Undone(Exception):
    """The database has rolled back the whole transaction by itself."""
