"""Whether anybody has committed: servers tell each other by LISTEN and NOTIFY, and look for themselves now and then.

A NOTIFY inside of the transactions themselves would make all commits of the database wait for each other (PostgreSQL takes one
lock for the queue). So each process tells after its commits, once for many; who dies in between is found by looking.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from sessionstore.errors import SessionStoreError
from sessionstore.postgresql.connections import DRIVER_ERRORS, PostgreSQL
from sessionstore.postgresql.transaction import PostgreSQLTransaction, Schema
from sessionstore.postgresql.wire import Wire
from sessionstore.transaction import Statements, Transaction

log = logging.getLogger(__name__)
T = TypeVar("T")
CHANNEL = "sessionstore"
LOOK_EVERY_SECONDS = 1.0
TELL_EVERY_SECONDS = 0.005


class Pulse:
    """A connection that listens. For one thread."""

    def __init__(self, postgresql: PostgreSQL, statements: Statements, schema: Schema) -> None:
        self._statements, self._schema = statements, schema
        self._connection = postgresql.reader()
        self._heard, self._look_at = False, 0.0
        self._connection.add_notify_handler(self._hear)
        self._connection.execute(f"LISTEN {CHANNEL}")
        self._connection.commit()

    def _hear(self, _: Any) -> None:
        self._heard = True

    def beats(self) -> bool:
        """Whether anybody may have committed since this was asked last."""
        libpq = self._connection.pgconn
        libpq.consume_input()
        while libpq.notifies() is not None:
            self._heard = True
        heard, self._heard = self._heard or time.monotonic() >= self._look_at, False
        if heard:
            self._look_at = time.monotonic() + LOOK_EVERY_SECONDS
        return heard

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot."""
        wire = Wire(self._connection, piped=True)
        try:
            return read(wire, look, self._statements, self._schema)
        finally:
            wire.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()


def read(wire: Wire, look: Callable[[Transaction], T], statements: Statements, schema: Schema) -> T:
    """Run `look` in one snapshot, that of a `reader`."""
    transaction = PostgreSQLTransaction(wire, statements, schema)
    try:
        found = look(transaction)
        transaction.now()
        return found
    finally:
        transaction.over()


class Teller:
    """Tells other processes that this one has committed. Its thread begins with the first commit."""

    def __init__(self, postgresql: PostgreSQL) -> None:
        self._postgresql = postgresql
        self._committed, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def committed(self) -> None:
        """There is something to tell."""
        if not self._committed.is_set():
            self._committed.set()
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._serve, name="sessionstore-tell", daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:
                        # The others look for themselves.
                        return
                    self._thread = thread

    def close(self, seconds: float) -> None:
        """Tell what there is to tell, and end."""
        self._stopping.set()
        self._committed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _serve(self) -> None:
        connection = None
        while True:
            self._committed.wait()
            self._committed.clear()
            last = self._stopping.is_set()
            try:
                if connection is None:
                    connection = self._postgresql.connect()
                connection.execute(f"NOTIFY {CHANNEL}")
            except (*DRIVER_ERRORS, SessionStoreError) as error:
                log.warning("other processes were not told of a commit: %s", type(error).__name__)
                connection = None
            if last:
                break
            time.sleep(TELL_EVERY_SECONDS)
        if connection is not None:
            connection.close()
