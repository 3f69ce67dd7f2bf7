"""The turns that a store keeps alive, so that none of them outlives it: others need not wait for their leases to run out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from sessionstore.errors import Closed

ENTERING_SECONDS = 10.0


class Kept(Protocol):
    """A turn whose lease is kept."""

    def give_back(self) -> bool:
        """Release its lease, and tell its holder that it is over. Answers whether the database had time for that."""

    def end(self, error: Closed) -> None:
        """Tell its holder that it is over."""


class Ongoing:
    """Turns that go on, from any thread, and also from a signal handler that interrupts one of these methods."""

    def __init__(self) -> None:
        self._turns: set[Kept] = set()
        self._entering: list[int] = []
        self._changing = threading.Condition(threading.RLock())
        self._ended = False

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Meanwhile a turn may come to hold a lease. Raises `Closed` when no more are kept."""
        with self._changing:
            if self._ended:
                raise Closed
            self._entering.append(threading.get_ident())
        try:
            yield
        finally:
            with self._changing:
                self._entering.remove(threading.get_ident())
                self._changing.notify_all()

    def add(self, turn: Kept) -> None:
        """It has begun."""
        with self._changing:
            self._turns.add(turn)

    def discard(self, turn: Kept) -> None:
        """It is over."""
        with self._changing:
            self._turns.discard(turn)

    def end(self) -> None:
        """Give all leases back, as long as the database has time; the others run out by themselves. No turn begins any more."""
        with self._changing:
            self._ended = True
            # Who enters in this very thread would wait for himself.
            self._changing.wait_for(lambda: set(self._entering) <= {threading.get_ident()}, ENTERING_SECONDS)
            turns, self._turns = self._turns, set()
        answers = True
        for turn in turns:
            answers = answers and turn.give_back()
            turn.end(Closed())
