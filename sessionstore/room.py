"""What a page has room for: so many rows, and so many bytes of messages."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Room(msgspec.Struct, frozen=True):
    """At most so many rows, and bytes of contents and metadata. There is room for one row, however large it is."""

    rows: int
    octets: int

    def fill(self, items: Iterable[T], size: Callable[[T], int]) -> tuple[list[T], bool]:
        """The first of these, as many as there is room for, and whether there are more. At most one more is looked at."""
        kept: list[T] = []
        filled = 0
        for item in items:
            filled += size(item)
            if kept and (len(kept) == self.rows or filled > self.octets):
                return kept, True
            kept.append(item)
        return kept, False


def octets(text: str | None) -> int:
    """How many bytes it is as it is stored, in UTF-8."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())
