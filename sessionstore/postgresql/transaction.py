"""What a change gets to run statements with on PostgreSQL: the server's clock, and numbers for what it changes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sessionstore.dialect import NTH_CHANGE, Statement
from sessionstore.errors import Dead, SchemaChanged
from sessionstore.transaction import Statements, Transaction

# In a statement of its own behind the lock: what is asked in the statement that waits is answered before it waits.
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
REVISION = "(SELECT version_num FROM alembic_version)"


class Schema:
    """Which schema it has to be, and which clock decides. `clock` is for tests; else the server's."""

    def __init__(self, database: str, clock: Callable[[], int] | None) -> None:
        self._database, self._clock, self._expected = database, clock, ""
        self.question = f"SELECT {CLOCK}, NULL"

    def expect(self, revision: str) -> None:
        """From now on it has to be this one."""
        self._expected = revision
        self.question = f"SELECT {CLOCK}, {REVISION}"

    def judge(self, row: Any) -> int:
        """The time, by the answer to the question. Raises `SchemaChanged` when another process has migrated."""
        now, revision = row
        if self._expected and revision != self._expected:
            raise SchemaChanged(database=self._database, revision=revision or "nothing")
        return int(now) if self._clock is None else self._clock()


class PostgreSQLTransaction(Transaction):
    """See `Transaction`."""

    __slots__ = ("_changes", "_now", "_schema")

    def __init__(
        self,
        cursor: Any,
        statements: Statements,
        schema: Schema,
        *,
        now: int | None = None,
        before: "PostgreSQLTransaction | None" = None,
    ) -> None:
        super().__init__(cursor, statements)
        self._schema, self._now, self._changes = schema, now, 0
        if before is not None:
            # The same transaction, and so the same lock.
            self._now, self._changes = before._now, before._changes  # noqa: SLF001

    def now(self) -> int:
        """See `Transaction`. Asked once, by the statement that also looks for the schema."""
        if self._now is None:
            self._now = self._schema.judge(self._asked(self._schema.question, {}).fetchone())
        return self._now

    def many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """See `Transaction`: without waiting for each of them."""
        sql, constants = self._statements[statement]
        if self.failed is not None:
            raise self.failed
        if self._connection is None:
            raise Dead
        try:
            self._connection.executemany(sql, [{**constants, **row} for row in rows])
        except self._statements.errors as error:
            self.failed = error
            raise

    def each(self, statement: Statement, **parameters: Any) -> Iterator[Any]:
        """See `Transaction`."""
        if self._connection is None:
            raise Dead
        sql, constants = self._statements[statement]
        with self._connection.connection.cursor() as cursor:
            yield from cursor.stream(sql, {**constants, **parameters})

    def _run(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        sql, constants = self._statements[statement]
        if NTH_CHANGE in constants:
            constants = {**constants, NTH_CHANGE: self._changes}
            self._changes += 1
        return self._asked(sql, {**constants, **parameters} if constants else parameters)

    def _asked(self, sql: str, parameters: dict[str, Any]) -> Any:
        if self.failed is not None:
            raise self.failed
        if self._connection is None:
            raise Dead
        try:
            return self._connection.execute(sql, parameters)
        except self._statements.errors as error:
            self.failed = error
            raise
