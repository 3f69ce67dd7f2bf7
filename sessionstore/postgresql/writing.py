"""Transactions that write: one change or a group of calls, made again as long as that can help and nothing was stored."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sessionstore.errors import OutcomeUnknown, StorageFailed, Unavailable, Unreachable
from sessionstore.items import Item, fail, may_begin
from sessionstore.postgresql.connections import AGAIN, DRIVER_ERRORS, Lost, PostgreSQL
from sessionstore.postgresql.pool import Pool
from sessionstore.postgresql.transaction import PostgreSQLTransaction, Schema
from sessionstore.postgresql.wire import Wire
from sessionstore.transaction import Statements, Transaction

T = TypeVar("T")
ATTEMPTS = 12
LOST_ATTEMPTS = 3
PAUSE_SECONDS = 0.002


class Undone(Exception):
    """One call of a group has undone them all."""


class Within:
    """Whether a thread is inside a change."""

    def __init__(self) -> None:
        self._threads = threading.local()

    @property
    def mine(self) -> bool:
        """Whether this thread is."""
        return getattr(self._threads, "inside", False)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is, meanwhile."""
        self._threads.inside = True
        try:
            yield
        finally:
            self._threads.inside = False


class Writing:
    """Makes changes. For as many threads at once as the pool has connections."""

    def __init__(
        self, postgresql: PostgreSQL, pool: Pool, statements: Statements, schema: Schema, committed: Callable[[], None]
    ) -> None:
        self._postgresql, self._pool, self._committed = postgresql, pool, committed
        self._statements, self._schema = statements, schema
        self.within = Within()

    def transact(self, change: Callable[[Transaction], T], deadline: float) -> T:
        """Make one change in one transaction, and again where the database asks for that, until the deadline."""
        return again(lambda: self._once(change), deadline)

    def run(self, items: Sequence[Item]) -> None:
        """Make the calls of one conversation in one transaction, and note in each what became of it."""
        now = time.monotonic()
        wanted = [item for item in items if may_begin(item, now)]
        for item in wanted:
            self._statements.measures.waits.observe(now - item.came)
        if len(wanted) == 1:
            self._alone(wanted[0])
        elif wanted:
            self._together(wanted)

    def _alone(self, item: Item) -> None:
        item.error = None
        try:
            item.result = self.transact(item.change, item.deadline)
        except BaseException as error:  # noqa: BLE001  # it is this call's answer
            item.error = error

    def _together(self, items: Sequence[Item]) -> None:
        try:
            again(lambda: self._group(items), min(item.deadline for item in items))
        except Undone:
            for item in items:
                self._alone(item)
        except BaseException as error:  # noqa: BLE001  # it is what everybody is told
            fail(items, error)

    def _once(self, change: Callable[[Transaction], T]) -> T:
        with self._transaction() as wire:
            result = self._apply(change, PostgreSQLTransaction(wire, self._statements, self._schema))
            self._commit(wire, 1)
        self._committed()
        return result

    def _group(self, items: Sequence[Item]) -> None:
        """Each in a savepoint: what one of them raises undoes that one alone."""
        with self._transaction(piped=True) as wire:
            before: PostgreSQLTransaction | None = None
            for item in items:
                wire.send("SAVEPOINT item")
                before = PostgreSQLTransaction(wire, self._statements, self._schema, before=before)
                self._try(item, before, wire)
                wire.send("RELEASE SAVEPOINT item")
            self._commit(wire, len(items))
        self._committed()

    def _try(self, item: Item, transaction: PostgreSQLTransaction, wire: Wire) -> None:
        item.error = None
        try:
            item.result = self._apply(item.change, transaction, settled=True)
        except (*DRIVER_ERRORS, Unavailable) as error:
            if isinstance(self._postgresql.known(error), Lost):
                raise
            raise Undone from error
        except BaseException as error:  # noqa: BLE001  # it is this call's answer
            item.error = error
            self._undo(wire)
            transaction.forget_time()

    def _undo(self, wire: Wire) -> None:
        """Undo one call of a group. What the server still had to say against it is not for the next one to hear."""
        try:
            wire.send("ROLLBACK TO SAVEPOINT item")
            wire.settle()
        except DRIVER_ERRORS as late:
            if isinstance(self._postgresql.known(late), Lost):
                raise
            raise Undone from late

    @contextmanager
    def _transaction(self, *, piped: bool = False) -> Iterator[Wire]:
        try:
            with self._pool.wire(piped=piped) as wire:
                yield wire
        except DRIVER_ERRORS as error:
            raise self._postgresql.known(error) from error

    def _apply(self, change: Callable[[Transaction], T], transaction: PostgreSQLTransaction, *, settled: bool = False) -> T:
        with self.within.entered():
            try:
                result = change(transaction)
                if transaction.failed is not None:
                    raise transaction.failed
                if settled:
                    # What is wrong in this one shall not be found in the next one.
                    transaction.settle()
                else:
                    # Also who asks for no time has to have met the schema that he knows, as long as he holds his locks.
                    transaction.now()
            finally:
                transaction.over()
        return result

    def _end(self, wire: Wire) -> Any:
        ended = wire.send("COMMIT")
        wire.settle()
        return ended

    def _commit(self, wire: Wire, calls: int) -> None:
        session, began = wire.session, time.monotonic()
        session.warned = False
        try:
            ended = self._end(wire)
        except DRIVER_ERRORS as error:
            if isinstance(self._postgresql.known(error), Lost) and getattr(error, "sqlstate", None) not in AGAIN:
                raise OutcomeUnknown from error
            raise
        self._statements.measures.commits.observe(time.monotonic() - began)
        self._statements.measures.groups.observe(calls)
        if ended.statusmessage != "COMMIT":
            raise StorageFailed(reason="a transaction was rolled back by the server")
        if session.warned:
            # It is committed here, and no standby has said that it has it.
            raise OutcomeUnknown


def again(make: Callable[[], T], deadline: float) -> T:
    """Make it, and once more after a while where that can help. Raises what was in the way in the end."""
    attempt = 0
    while True:
        try:
            return make()
        except Lost as lost:
            attempt += 1
            most = LOST_ATTEMPTS if isinstance(lost.error, Unreachable) else ATTEMPTS
            if attempt >= most or time.monotonic() >= deadline:
                raise lost.error from lost
            time.sleep(random.uniform(0, PAUSE_SECONDS * 2 ** min(attempt, 6)))  # noqa: S311  # not to meet again
