"""Statements on their way to the server: what is sent waits for no answer until somebody asks for one.

Each wait costs a trip there and back, and two changes of threads. So BEGIN, the look at the conversation and the question for
the time go together, and so do the last statements and COMMIT (libpq's pipeline mode).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from sessionstore.postgresql.connections import DRIVER_ERRORS, Session

FETCHED_AT_ONCE = 500


class Wire:
    """A session's statements, in their order. What they answered is there once they are settled, and so are their errors."""

    __slots__ = ("_named", "_waiting", "session")

    def __init__(self, session: Session) -> None:
        self.session, self._named, self._waiting = session, 0, False

    def send(self, sql: str, parameters: Any = None) -> psycopg.Cursor[Any]:
        """Have it done."""
        self.session.piped()
        self._waiting = True
        return self.session.cursor().execute(sql, parameters)

    def send_many(self, sql: str, rows: Sequence[Any]) -> None:
        """The same for each of these parameters."""
        self._waiting = True
        self.session.cursor().executemany(sql, rows)

    def settle(self) -> None:
        """Wait until all of it is done. Raises the first error."""
        if self._waiting:
            self._waiting = False
            self.session.piped().sync()

    def clear(self) -> bool:
        """Bring it back to where no transaction is open. Answers whether that is so."""
        session = self.session
        # What was still on its way may have failed, and nobody wants to know any more.
        with suppress(*DRIVER_ERRORS):
            self.settle()
        if session.closed or session.broken:
            return False
        try:
            if session.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                session.rollback()
        except DRIVER_ERRORS:
            return False
        return session.info.transaction_status is TransactionStatus.IDLE

    def each(self, sql: str, parameters: Any) -> Iterator[Any]:
        """All rows, some hundreds at a time. Only within a transaction."""
        self._named += 1
        name = f"each_{self._named}"
        cursor = self.session.cursor()
        cursor.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {sql}", parameters, prepare=False)
        while True:
            fetched = self.session.cursor()
            self._waiting = True
            fetched.execute(f"FETCH FORWARD {FETCHED_AT_ONCE} FROM {name}", prepare=False)
            self.settle()
            rows = fetched.fetchall()
            yield from rows
            if len(rows) < FETCHED_AT_ONCE:
                self.session.cursor().execute(f"CLOSE {name}", prepare=False)
                return
