"""Whether a thread is inside a change: another call to any store would wait for that change, which waits for it."""

from typing import Protocol


class Inside(Protocol):
    """Something that a thread can be inside of."""

    @property
    def mine(self) -> bool:
        """Whether this thread is."""


insides: list[Inside] = []
"""Of all stores of this process that are open."""


def in_a_change() -> bool:
    """Whether this thread is inside a change of any store."""
    for inside in insides:  # noqa: SIM110  # asked before every call; a generator costs three times as much
        if inside.mine:
            return True
    return False
