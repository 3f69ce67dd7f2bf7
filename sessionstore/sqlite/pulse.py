"""Whether anybody has committed: what a process asks that waits for other processes' changes."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from sessionstore.sqlite import connections
from sessionstore.sqlite.connections import SQLite
from sessionstore.transaction import Statements, Transaction

T = TypeVar("T")


class Pulse:
    """A reading connection of its own. For one thread; it costs two microseconds to ask, whatever there is to follow."""

    def __init__(self, sqlite: SQLite, statements: Statements) -> None:
        self._statements, self._connection = statements, sqlite.connect_reader()
        self._commits: Any = None

    def beats(self) -> bool:
        """Whether another connection, of any process, has committed since this was asked last."""
        before, self._commits = self._commits, self._connection.execute(connections.COMMITS).fetchone()
        return bool(before != self._commits)

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot."""
        self._connection.execute("BEGIN")
        transaction = Transaction(self._connection, self._statements)
        try:
            return look(transaction)
        finally:
            transaction.over()
            # What has failed may have ended it already, and is not to be hidden by a second error.
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()
