"""What a change gets to run statements with, as long as its transaction is open."""

from collections.abc import Callable
from typing import Any

from sessionstore import dialect
from sessionstore.dialect import DRIVER_ERRORS, Statement
from sessionstore.errors import Dead


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
