"""What a change gets to run statements with, as long as its transaction is open."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sessionstore.dialect import Statement
from sessionstore.errors import Dead, SessionStoreError
from sessionstore.items import Key, Keys
from sessionstore.measures import Measures
from sessionstore.room import Room, octets

T = TypeVar("T")
Compiled = tuple[str, dict[str, Any]]
"""The text of a statement, and the values of its constants."""


def size_of_row(row: Sequence[Any]) -> int:
    """How many bytes a row of messages fills: its content and metadata (see `statements.MESSAGE_COLUMNS`)."""
    return octets(row[4]) + octets(row[5])


def system_clock() -> int:
    """Milliseconds UTC."""
    return time.time_ns() // 1_000_000


class Counted(NamedTuple):
    """How many conversations an owner had when one of that number had been made. Each later one has a higher number.

    `full_until`: before that moment on the monotonic clock he has too many, unless he deletes one here.
    """

    living: int
    life: int
    full_until: float = 0.0


class Statements(dict[Statement, Compiled]):
    """Each statement's text, made when it is first asked for; what the clock says, what the driver raises, what is counted."""

    def __init__(
        self, compile: Callable[[Statement], Compiled], clock: Callable[[], int], errors: tuple[type[Exception], ...]
    ) -> None:
        super().__init__()
        self._compile, self.clock, self.errors = compile, clock, errors
        self.measures = Measures()
        self.counted: dict[str, Counted] = {}
        """What is known of owners in this process; never too little."""

    def __missing__(self, statement: Statement) -> Compiled:
        found = self[statement] = self._compile(statement)
        return found


class Each(Generic[T]):
    """Changes of several conversations, each kept or refused by itself: in one transaction, or in one for each conversation."""

    def __init__(self, parts: Sequence[tuple[Key, Callable[["Transaction"], T]]]) -> None:
        self.parts = parts

    @property
    def keys(self) -> Keys:
        """Which conversations these are."""
        return [key for key, _ in self.parts]

    def __call__(self, transaction: "Transaction") -> list[T | SessionStoreError]:
        """Make them all, one after the other."""
        return [transaction.attempt(change) for _, change in self.parts]


class Transaction:
    """Runs statements inside the transaction that is open. A statement that failed dooms it, even if the error is caught."""

    __slots__ = ("_connection", "_statements", "failed", "removed")

    def __init__(self, connection: Any, statements: Statements) -> None:
        # A cursor does as well as its connection, and is not made anew for each statement.
        self._connection, self._statements = connection, statements
        self.failed: Exception | None = None
        self.removed = False
        """Whether something was removed, or replaced, that must not stay anywhere else."""

    def row(self, statement: Statement, **parameters: Any) -> Any:
        """The first row, or None."""
        return self._run(statement, parameters).fetchone()

    def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        """All rows."""
        return self._run(statement, parameters).fetchall()  # type: ignore[no-any-return]

    def run(self, statement: Statement, **parameters: Any) -> int:
        """How many rows were changed."""
        return self._run(statement, parameters).rowcount  # type: ignore[no-any-return]

    def do(self, statement: Statement, **parameters: Any) -> None:
        """Nobody wants to know how many rows were changed, so nobody has to wait for it."""
        self._run(statement, parameters)

    def many(self, statement: Statement, rows: Sequence[dict[str, Any]]) -> None:
        """The same statement for each of these parameters."""
        for parameters in rows:
            self._run(statement, parameters)

    def each(self, statement: Statement, **parameters: Any) -> Iterator[Any]:
        """All rows, one by one as they are read."""
        yield from self._run(statement, parameters)

    def page(self, statement: Statement, room: Room, **parameters: Any) -> tuple[list[Any], bool]:
        """The first rows of messages, as many as there is room for, and whether there are more. No others are kept."""
        return room.fill(self._run(statement, {"count": room.rows + 1, **parameters}), size_of_row)

    def use(self, action: Callable[[Any], T]) -> T:
        """What something answers that speaks to the database in words of its own."""
        if self.failed is not None:
            raise self.failed
        if self._connection is None:
            raise Dead
        try:
            return action(getattr(self._connection, "connection", self._connection))
        except self._statements.errors as error:
            self.failed = error
            raise

    def attempt(self, change: Callable[["Transaction"], T]) -> T | SessionStoreError:
        """What a part of the change returns, or the error of ours that it raised, and then nothing of that part is kept."""
        self._connection.execute("SAVEPOINT part")
        result: T | SessionStoreError
        try:
            result = change(self)
        except SessionStoreError as error:
            self._connection.execute("ROLLBACK TO part")
            result = error
        self._connection.execute("RELEASE part")
        return result

    @property
    def measures(self) -> Measures:
        """What is counted of the database."""
        return self._statements.measures

    @property
    def counted(self) -> dict[str, Counted]:
        """See `Statements`."""
        return self._statements.counted

    def now(self) -> int:
        """Milliseconds UTC. Asked by a change, it is a moment at which the change holds what it has locked."""
        return self._statements.clock()

    def over(self) -> None:
        """Nothing more runs here: whoever kept it has nothing."""
        self._connection = None

    def _run(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        if self.failed is not None:
            raise self.failed
        if self._connection is None:
            raise Dead
        sql, constants = self._statements[statement]
        try:
            return self._connection.execute(sql, {**constants, **parameters} if constants else parameters)
        except self._statements.errors as error:
            self.failed = error
            raise
