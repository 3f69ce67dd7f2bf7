"""A call for several conversations, on an engine where each transaction is about one of them."""

import copy
import threading
from collections.abc import Iterator
from typing import Any

from sessionstore.errors import Busy, SessionStoreError
from sessionstore.items import Item, Key, Lane, ThreadItem, answer
from sessionstore.transaction import Each


class Part(ThreadItem):
    """What of it is about one conversation."""

    __slots__ = ("places", "whole")

    def __init__(self, whole: "Whole", places: list[int], change: Each[Any], size: int, timeout: float) -> None:
        super().__init__(change, Lane.GROUPED, change.keys[:1], size, timeout)
        self.whole, self.places = whole, places

    def begin(self) -> bool:
        """See `Item`. The first part decides for all of them."""
        return super().begin() and self.whole.begin()

    def answer(self) -> None:
        """It is done: when it was the last one, so is the call."""
        self.whole.arrived(self)


class Whole:
    """The call: its answer is put together of those of its parts."""

    def __init__(self, item: Item, change: Each[Any], size: int, timeout: float) -> None:
        self._item, self._deciding = item, threading.Lock()
        self._begun = False
        places: dict[Key, list[int]] = {}
        for place, (key, _) in enumerate(change.parts):
            places.setdefault(key, []).append(place)
        self._left = len(places)
        self._answers: list[Any] = [None] * len(change.parts)
        self.parts = [
            Part(self, own, Each([change.parts[place] for place in own]), size // len(places), timeout)
            for own in places.values()
        ]

    def begin(self) -> bool:
        """Decide, once, whether it is still wanted."""
        with self._deciding:
            self._begun = self._begun or self._item.begin()
            return self._begun

    def arrived(self, part: Part) -> None:
        """Note what became of a part, and answer after the last one."""
        for place, found in zip(part.places, _answers(part), strict=True):
            self._answers[place] = found
        with self._deciding:
            self._left -= 1
            last = self._left == 0
        if last:
            bugs = (one for one in self._answers if isinstance(one, BaseException) and not isinstance(one, SessionStoreError))
            self._item.result, self._item.error = self._answers, next(bugs, None)
            answer([self._item])


def _answers(part: Part) -> Iterator[Any]:
    if part.error is None and part.result is not None:
        return iter(part.result)
    # Without either it was given up before it began.
    return (copy.copy(part.error or Busy()) for _ in part.places)
