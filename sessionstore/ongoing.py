"""The turns that a store keeps alive, so that none of them outlives it: others need not wait for their leases to run out."""

import threading
from typing import Protocol

from sessionstore.errors import Closed


class Kept(Protocol):
    """A turn whose lease is kept."""

    def give_back(self) -> bool:
        """Release its lease, and tell its holder that it is over. Answers whether the database had time for that."""

    def end(self, error: Closed) -> None:
        """Tell its holder that it is over."""


class Ongoing:
    """Turns that go on, from any thread."""

    def __init__(self) -> None:
        self._turns: set[Kept] = set()
        self._changing = threading.Lock()

    def add(self, turn: Kept) -> None:
        """It has begun."""
        with self._changing:
            self._turns.add(turn)

    def discard(self, turn: Kept) -> None:
        """It is over."""
        with self._changing:
            self._turns.discard(turn)

    def end(self) -> None:
        """Give all leases back, as long as the database has time; the others run out by themselves."""
        with self._changing:
            turns, self._turns = self._turns, set()
        answers = True
        for turn in turns:
            answers = answers and turn.give_back()
            turn.end(Closed())
