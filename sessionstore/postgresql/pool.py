"""Connections that are kept open: as many as may be used at once, and none that was open when the server went away."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.pool import QueuePool

from sessionstore.errors import Busy
from sessionstore.postgresql.wire import Wire


class Pool:
    """Thread-safe. Connections are made when they are first needed, and the last one used is the next one used."""

    def __init__(self, connect: Callable[[], Any], size: int, timeout: float) -> None:
        self._pool = QueuePool(connect, pool_size=size, max_overflow=0, timeout=timeout, use_lifo=True, reset_on_return=None)
        self._lost_at, self._closed = 0.0, False

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """A wire outside of any transaction; what is still open at the end is rolled back. Raises `Busy` if none is free."""
        checked_out = self._connected()
        wire = Wire(checked_out.driver_connection)
        try:
            yield wire
        finally:
            clear = wire.clear()
            if not clear:
                self._lost_at = time.monotonic()
            if clear and not self._closed:
                checked_out.close()
            else:
                checked_out.invalidate()

    def _connected(self) -> Any:
        try:
            while True:
                checked_out = self._pool.connect()
                if checked_out.info.setdefault("since", time.monotonic()) >= self._lost_at:
                    return checked_out
                checked_out.invalidate()
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None

    def close(self) -> None:
        """Close those that nobody uses. Who uses one closes it on giving it back."""
        self._closed = True
        self._pool.dispose()
