"""What an operator wants to see of a database while it works: counted in this process, from when it was opened."""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from sessionstore.model import Engine

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CALLS = (1, 2, 4, 8, 16, 32, 64)


class Counts(NamedTuple):
    """How many values were at most each of the bounds, the last of which is without end, and their sum."""

    up_to: Sequence[tuple[float, int]]
    sum: float


class Measured(NamedTuple):
    """Of a database, as of one moment: how many calls wait, the seconds of the longest read, how many leases there are."""

    engine: Engine
    measures: "Measures"
    waiting: int
    oldest_read: float
    live: int
    expired: int


class Histogram:
    """How often which values came. Thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0
        self._counting = threading.Lock()

    def observe(self, value: float) -> None:
        """One more."""
        place = bisect_left(self._bounds, value)
        with self._counting:
            self._counts[place] += 1
            self._sum += value

    def read(self) -> Counts:
        """All so far."""
        with self._counting:
            counts, total = list(self._counts), self._sum
        up_to, so_far = [], 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            so_far += count
            up_to.append((bound, so_far))
        return Counts(up_to, total)


class Measures:
    """Of one database.

    `waits`: seconds from a call's coming to the beginning of its transaction. `commits`: seconds that a COMMIT took, with the
    disk. `groups`: calls that shared one. `takeovers`: expired leases that others ended. `lost_leases`: calls whose token
    held no lease any more. The last two count what was judged: a transaction that is run again judges again.
    """

    def __init__(self) -> None:
        self.waits, self.commits, self.groups = Histogram(SECONDS), Histogram(SECONDS), Histogram(CALLS)
        self.takeovers = self.lost_leases = 0
        self._reads: dict[int, float] = {}

    def reading(self, read: object, since: float) -> None:
        """A read has begun."""
        self._reads[id(read)] = since

    def read(self, read: object) -> None:
        """It is over."""
        self._reads.pop(id(read), None)

    @property
    def oldest_read(self) -> float | None:
        """When the read began that has been going on for longest, on the monotonic clock."""
        return min(tuple(self._reads.values()), default=None)
