"""Connections that are kept open: as many as may be used at once, and none that was open when the server went away."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from sessionstore.errors import Busy
from sessionstore.postgresql.connections import DRIVER_ERRORS, PostgreSQL


class Pool:
    """Thread-safe. Connections are made when they are first needed, and the last one used is the next one used."""

    def __init__(self, postgresql: PostgreSQL, size: int, timeout: float) -> None:
        connect: Any = postgresql.connect
        self._pool = QueuePool(connect, pool_size=size, max_overflow=0, timeout=timeout, use_lifo=True, reset_on_return=None)
        self._lost_at = 0.0

    @contextmanager
    def cursor(self) -> Iterator[psycopg.Cursor[Any]]:
        """A cursor outside of any transaction; what is still open at the end is rolled back. Raises `Busy` if none is free."""
        checked_out = self._connected()
        connection: Any = checked_out.driver_connection
        try:
            with connection.cursor() as cursor:
                yield cursor
        finally:
            if _settled(connection):
                checked_out.close()
            else:
                self._lost_at = time.monotonic()
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

    def engine(self) -> sqlalchemy.Engine:
        """The same connections for SQLAlchemy."""
        return sqlalchemy.create_engine(
            URL.create("postgresql+psycopg"), pool=self._pool, hide_parameters=True, use_native_hstore=False
        )

    def close(self) -> None:
        """Close those that nobody uses. Who uses one closes it on giving it back."""
        self._lost_at = time.monotonic()
        self._pool.dispose()


def _settled(connection: psycopg.Connection[Any]) -> bool:
    """Whether it is as it was, or could be brought back to that."""
    if connection.closed or connection.broken:
        return False
    try:
        if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            connection.execute("ROLLBACK")
    except DRIVER_ERRORS:
        return False
    return connection.info.transaction_status is TransactionStatus.IDLE
