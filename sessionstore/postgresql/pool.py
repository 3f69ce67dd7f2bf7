"""Connections that are kept open: as many as may be used at once, and none that was open when the server went away."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from sessionstore.errors import Busy
from sessionstore.postgresql.connections import Session
from sessionstore.postgresql.wire import Wire

MOST_PIPED = 2


class Pool:
    """Thread-safe. Connections are made when they are first needed, and the last one used is the next one used.

    SQLAlchemy's own does the same by locks in Python, which many threads wait for; here they are the interpreter's.
    """

    def __init__(self, connect: Callable[[], Session], size: int, timeout: float) -> None:
        self._connect, self._size, self._timeout = connect, size, timeout
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(size):
            self._permits.put(None)
        self._idle: deque[tuple[Session, float]] = deque()
        self._lost_at, self._closed = 0.0, False

    @contextmanager
    def wire(self, *, piped: bool = False) -> Iterator[Wire]:
        """A wire outside of any transaction; what is still open at the end is rolled back. Raises `Busy` if none is free."""
        try:
            self._permits.get(timeout=self._timeout)
        except Empty:
            raise Busy from None
        try:
            with self._lent(piped=piped) as wire:
                yield wire
        finally:
            self._permits.put(None)

    @contextmanager
    def _lent(self, *, piped: bool) -> Iterator[Wire]:
        session, since = self._session()
        wire, clear = None, False
        try:
            wire = Wire(session, piped=piped or self._size - self._permits.qsize() <= MOST_PIPED)
            yield wire
        finally:
            try:
                clear = wire is not None and wire.clear()
            finally:
                self._give_back(session, since, clear=clear)

    def _session(self) -> tuple[Session, float]:
        with suppress(IndexError):
            while True:
                session, since = self._idle.pop()
                if since >= self._lost_at:
                    return session, since
                session.close()
        return self._connect(), time.monotonic()

    def _give_back(self, session: Session, since: float, *, clear: bool) -> None:
        if not clear:
            self._lost_at = time.monotonic()
        if not clear or self._closed:
            session.close()
            return
        self._idle.append((session, since))
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close those that nobody uses. Who uses one closes it on giving it back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop()[0].close()
