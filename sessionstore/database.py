"""What a store asks of a database: two doors, a pulse, and a few questions. `engines` opens the one that a URL means.

A write is a function that `Database.write` calls inside one transaction, in which the first statement locks what is changed; a
read is a function that `Database.read` calls in one snapshot, on a connection on which the database itself refuses writes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection

from sessionstore.errors import Unavailable
from sessionstore.invariants import Invariant
from sessionstore.items import Fold, Keys, Lane, LoopItem
from sessionstore.matching import Hit
from sessionstore.measures import Measures
from sessionstore.model import BackedUp, Engine
from sessionstore.transaction import Transaction

T = TypeVar("T")


class Pulse(Protocol):
    """A reading connection of its own, for one thread that follows what happens."""

    def beats(self) -> bool:
        """Whether anybody else may have committed since this was asked last. Costs next to nothing."""

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot."""


class Counters(NamedTuple):
    """Numbers that are never given twice."""

    life: int
    turn: int


class Database(ABC):
    """A database that is open. Thread-safe."""

    name: str
    """What it is called in what people read: never with a password."""
    contradictions: tuple[type[Exception], ...]
    """What the driver raises for rows that break a constraint."""
    invariants: Sequence[Invariant]
    """What is always true of its tables, in its own words."""
    measures: Measures
    """What it counts of itself."""

    @abstractmethod
    def write(
        self,
        change: Callable[[Transaction], T],
        lane: Lane = Lane.GROUPED,
        keys: Keys = (),
        size: int = 0,
        fold: Fold | None = None,
    ) -> T:
        """Run `change` in one transaction, commit, and answer what it returned.

        In this thread if nobody else is in the way, else in another one, with what others have waiting. `keys` are the
        conversations whose order is kept, `size` is about how many bytes are written, `fold` says what makes the call needless.
        Raises what `change` raises, the children of `Unavailable` with nothing stored, and `OutcomeUnknown`.
        """

    @abstractmethod
    def submit(
        self,
        change: Callable[[Transaction], T],
        lane: Lane = Lane.GROUPED,
        keys: Keys = (),
        size: int = 0,
        fold: Fold | None = None,
    ) -> LoopItem:
        """Have `change` run in a thread; the `future` of what this answers is awaited on the running event loop."""

    @abstractmethod
    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot, on a connection that refuses writes. Raises `Busy` when no connection is free in time."""

    @abstractmethod
    def pulse(self) -> AbstractContextManager[Pulse]:
        """A connection that knows when somebody may have committed, for a thread that follows what happens."""

    @abstractmethod
    def on_commit(self, tell: Callable[[], None] | None) -> None:
        """Have `tell` called after each commit of this process, in the thread that made it."""

    @abstractmethod
    def sqlalchemy_reads(self) -> AbstractContextManager[Connection]:
        """A reading SQLAlchemy connection, for Alembic's questions."""

    @abstractmethod
    def close(self) -> None:
        """Run what waits, then close every connection. Calls after it raise `Closed`."""

    @property
    @abstractmethod
    def refusal(self) -> Unavailable | None:
        """Why no call is taken any more, if none is."""

    def now(self) -> int:
        """Milliseconds UTC, by the clock that decides when a lease has expired."""
        return self.read(lambda transaction: transaction.now())

    @abstractmethod
    def expect(self, revision: str) -> None:
        """Refuse everything, with `SchemaChanged`, as soon as the schema is another one than this."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many calls of this process wait for their turn to write."""

    # Health ---------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def engine(self) -> Engine:
        """Which engine this is, and how long its log."""

    @abstractmethod
    def check_usable(self) -> None:
        """Raise what keeps it from being written: `DatabaseUnusable` or `Unavailable`. Takes no lock."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What an operator wants to know about it, besides its rows."""

    @abstractmethod
    def ailments(self, facts: dict[str, Any]) -> list[str]:
        """What is wrong, by those facts."""

    @abstractmethod
    def integrity_faults(self) -> list[str]:
        """All that the engine itself finds wrong, or the first hundred of each kind. May read everything."""

    # Upkeep ---------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def search(
        self, transaction: Transaction, words: Sequence[str], owner: str, within: int | None, before: int, count: int
    ) -> list[Hit]:
        """The newest messages that have all the words, from before that one on; of one conversation if `within` names it."""

    @abstractmethod
    def catch_search_up(self) -> None:
        """Let the search index forget what was removed, and learn what was added."""

    @abstractmethod
    def make_search_anew(self) -> None:
        """Make the search index again from what there is."""

    @abstractmethod
    def erase_traces(self) -> bool:
        """Make sure that what was deleted is nowhere any more. False while somebody still may see it: try again then."""

    @abstractmethod
    def counters(self, transaction: Transaction) -> Counters:
        """The last numbers that were given to lives and turns, whether those still are there or not."""

    @abstractmethod
    def go_on_from(self, transaction: Transaction, counters: Counters) -> None:
        """Give numbers behind these, and behind all that are there, from now on."""

    @abstractmethod
    def back_up(self, folder: Path, keep: int | None) -> BackedUp:
        """Write a backup into a folder. Raises `BackupUnusable`, also where the engine has tools of its own for that."""
