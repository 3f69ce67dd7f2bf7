"""What a change gets to run statements with on PostgreSQL: the server's clock, and numbers for what it changes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sessionstore.dialect import NTH_CHANGE, Statement
from sessionstore.errors import Dead, SchemaChanged, SessionStoreError
from sessionstore.postgresql.connections import CLOCK, LOCKED, REVISION
from sessionstore.postgresql.wire import Wire
from sessionstore.room import Room
from sessionstore.transaction import Statements, Transaction

PAGE = """
    SELECT * FROM (
        SELECT page.*, row_number() OVER filled AS place,
            sum(coalesce(octet_length(content), 0) + coalesce(octet_length(metadata), 0)) OVER filled AS filled,
            count(*) OVER () AS found
        FROM ({}) page WINDOW filled AS (ROWS UNBOUNDED PRECEDING)
    ) page WHERE place = 1 OR (place <= %(rows)s AND filled <= %(octets)s)"""
ADDED = 3
"""Columns, after those of the rows themselves."""

T = TypeVar("T")


class Schema:
    """Which schema it has to be, and which clock decides. `clock` is for tests; else the server's."""

    def __init__(self, database: str, clock: Callable[[], int] | None, changed: Callable[[SchemaChanged], None]) -> None:
        self._database, self._clock, self._expected = database, clock, ""
        self._changed = changed
        self.question = f"SELECT {CLOCK}, NULL"

    def expect(self, revision: str) -> None:
        """From now on it has to be this one."""
        self._expected = revision
        self.question = f"SELECT {CLOCK}, {REVISION}"

    def judge(self, now: int, revision: str | None) -> int:
        """The time, by the answer to the question. Raises `SchemaChanged` when another process has migrated."""
        if self._expected and revision != self._expected:
            error = SchemaChanged(database=self._database, revision=revision or "nothing")
            self._changed(error)
            raise error
        return int(now) if self._clock is None else self._clock()


class PostgreSQLTransaction(Transaction):
    """See `Transaction`."""

    __slots__ = ("_changes", "_now", "_schema")

    def __init__(
        self, wire: Wire, statements: Statements, schema: Schema, *, before: "PostgreSQLTransaction | None" = None
    ) -> None:
        super().__init__(wire, statements)
        self._schema, self._changes = schema, 0
        self._now: int | None = None
        if before is not None:
            # The same transaction, and so the same lock.
            self._now, self._changes = before._now, before._changes  # noqa: SLF001

    def now(self) -> int:
        """See `Transaction`. Told with what was locked first, together with the schema."""
        if self._now is None:
            self._now = self._schema.judge(*self._done(self._sent(self._schema.question, None)).fetchone())
        return self._now

    def row(self, statement: Statement, **parameters: Any) -> Any:
        """See `Transaction`."""
        found = self._done(self._run(statement, parameters)).fetchone()
        if found is None or not self._statements[statement][0].startswith(LOCKED[:11]):
            return found
        *row, now, revision = found
        # Whoever waited for it again is judged by the time after that.
        self._now = self._schema.judge(now, revision)
        return row

    def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        """See `Transaction`."""
        return self._done(self._run(statement, parameters)).fetchall()  # type: ignore[no-any-return]

    def run(self, statement: Statement, **parameters: Any) -> int:
        """See `Transaction`."""
        return int(self._done(self._run(statement, parameters)).rowcount)

    def many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """See `Transaction`."""
        sql, constants = self._statements[statement]
        wire = self._wire()
        self._answered(lambda: wire.send_many(sql, [{**constants, **row} for row in rows]))

    def each(self, statement: Statement, **parameters: Any) -> Iterator[Any]:
        """See `Transaction`."""
        sql, constants = self._statements[statement]
        yield from self._wire().each(sql, {**constants, **parameters})

    def page(self, statement: Statement, room: Room, **parameters: Any) -> tuple[list[Any], bool]:
        """See `Transaction`. The server sends nothing of what there is no room for."""
        sql, constants = self._statements[statement]
        asked = {**constants, **parameters, "count": room.rows + 1, "rows": room.rows, "octets": room.octets}
        found = self._done(self._sent(PAGE.format(sql), asked)).fetchall()
        return [row[:-ADDED] for row in found], bool(found) and len(found) < found[0][-1]

    def use(self, action: Callable[[Any], T]) -> T:
        """See `Transaction`."""
        wire = self._wire()
        return self._answered(lambda: action(wire))

    def attempt(self, change: Callable[[Transaction], T]) -> T | SessionStoreError:
        """See `Transaction`."""
        wire = self._wire()
        wire.send("SAVEPOINT part")
        result: T | SessionStoreError
        try:
            result = change(self)
        except SessionStoreError as error:
            wire.send("ROLLBACK TO SAVEPOINT part")
            self.forget_time()
            result = error
        wire.send("RELEASE SAVEPOINT part")
        return result

    def forget_time(self) -> None:
        """What was rolled back has given its locks back: others may have come in, and time has passed."""
        self._now = None

    def settle(self) -> None:
        """Wait for what was sent, and have met the schema that is known here: also who asked for no time."""
        self.now()
        self._answered(self._wire().settle)

    def _run(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        sql, constants = self._statements[statement]
        if NTH_CHANGE in constants:
            constants = {**constants, NTH_CHANGE: self._changes}
            self._changes += 1
        return self._sent(sql, {**constants, **parameters} if constants else parameters)

    def _sent(self, sql: str, parameters: Any) -> Any:
        wire = self._wire()
        return self._answered(lambda: wire.send(sql, parameters))

    def _done(self, sent: Any) -> Any:
        """What was sent, when all of it is done. The server takes the time of who says nothing only from there on."""
        self._answered(self._wire().settle)
        return sent

    def _wire(self) -> Any:
        if self.failed is not None:
            raise self.failed
        if self._connection is None:
            raise Dead
        return self._connection

    def _answered(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except self._statements.errors as error:
            self.failed = error
            raise
