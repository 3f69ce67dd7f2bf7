"""Statements on their way to the server. Piped, what is sent waits for no answer until somebody asks for one.

Each wait costs a trip there and back. So BEGIN and the look at the conversation go together, and so do the last statements and
COMMIT (libpq's pipeline mode). But a pipeline costs more of the processor than waiting does; so where many are at work at once,
and the processor is what they wait for, each statement goes by itself.
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

    __slots__ = ("_cursor", "_named", "_pipeline", "_waiting", "session")

    def __init__(self, session: Session, *, piped: bool) -> None:
        self.session, self._named, self._waiting = session, 0, False
        self._pipeline = session.piped() if piped else None
        if not piped:
            session.plain()
        self._cursor = None if piped else session.cursor()

    def send(self, sql: str, parameters: Any = None) -> psycopg.Cursor[Any]:
        """Have it done."""
        if self._cursor is not None:
            return self._cursor.execute(sql, parameters)
        self._waiting = True
        return self.session.cursor().execute(sql, parameters)

    def send_many(self, sql: str, rows: Sequence[Any]) -> None:
        """The same for each of these parameters."""
        self._waiting = True
        (self._cursor or self.session.cursor()).executemany(sql, rows)

    def settle(self) -> None:
        """Wait until all of it is done. Raises the first error."""
        if self._waiting and self._pipeline is not None:
            self._pipeline.sync()
            self._waiting = False

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
                self._waiting = True
                self.session.cursor().execute(f"CLOSE {name}", prepare=False)
                return
