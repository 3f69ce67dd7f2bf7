"""What waits for the writer: calls, each with a deadline, each answered once."""

import asyncio
import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any, NamedTuple

from sessionstore.errors import Busy, SessionStoreError

Key = Hashable
"""A conversation: its owner and its id."""
Keys = Sequence[Key]
"""The conversations of a call, whose order is kept."""


class Lane(Enum):
    """How a call waits."""

    FIRST = auto()
    """In front of other conversations' calls, and with places of its own: what keeps a turn alive or stops it."""
    GROUPED = auto()
    """In line, together with others in one transaction."""
    ALONE = auto()
    """In line, in a transaction of its own: what may take long."""


class Fold(NamedTuple):
    """Says that a later call with the same key, next in its conversation, makes this one needless.

    `superseded` makes the answer of this one out of the later one's.
    """

    key: Hashable
    superseded: Callable[[Any], Any]


class Item:
    """A call on its way to the writer: what it does, and what became of it."""

    __slots__ = ("_begun", "bytes", "came", "change", "deadline", "error", "fold", "keys", "lane", "result", "running")

    def __init__(
        self,
        change: Callable[[Any], Any],
        lane: Lane,
        keys: Keys,
        size: int,
        timeout: float,
        fold: Fold | None = None,
    ) -> None:
        self.change, self.lane, self.keys, self.bytes, self.fold = change, lane, keys, size, fold
        self.came = time.monotonic()
        self.deadline = self.came + timeout
        self.result: Any = None
        self.error: BaseException | None = None
        self.running = False
        self._begun = threading.Lock()

    def begin(self) -> bool:
        """Decide, once, between running it and giving it up: only who is told True may do either."""
        return self._begun.acquire(blocking=False)


class ThreadItem(Item):
    """A call whose thread waits for it."""

    __slots__ = ("_answered",)

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        self._answered = threading.Lock()
        self._answered.acquire()

    def answer(self) -> None:
        """Wake the thread."""
        self._answered.release()

    def wait(self) -> Any:
        """What became of it. Raises `Busy` when it has not begun by its deadline; what has begun is waited for."""
        try:
            if not self._answered.acquire(timeout=max(0, self.deadline - time.monotonic())):
                if self.begin():
                    raise Busy
                self._answered.acquire()
        except BaseException:
            self.begin()
            raise
        if self.error is not None:
            raise self.error
        return self.result


class LoopItem(Item):
    """A call that is awaited on an event loop. When the one who awaits it is cancelled, what has not begun never will."""

    __slots__ = ("future", "loop")

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def begin(self) -> bool:
        """See `Item`."""
        return not self.future.cancelled() and super().begin()

    def resolve(self) -> None:
        """Answer, on the loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):
            # No future takes one, and a coroutine makes this of it.
            self.future.set_exception(RuntimeError("the change raised StopIteration"))
        else:
            self.future.set_exception(self.error)

    def expire(self) -> None:
        """Give it up when it has not begun, on the loop."""
        if not self.future.done() and self.begin():
            self.future.set_exception(Busy())


class Latest(Item):
    """Calls of which the newest makes the others needless: it alone is run, and all are answered."""

    __slots__ = ("_wanted", "calls")

    def __init__(self, calls: Sequence[Item]) -> None:
        newest = calls[-1]
        super().__init__(newest.change, newest.lane, newest.keys, sum(call.bytes for call in calls), 0, newest.fold)
        self.calls, self._wanted = calls, list[Item]()
        self.came, self.deadline = calls[0].came, max(call.deadline for call in calls)

    def begin(self) -> bool:
        """See `Item`. The newest that is still wanted is the one that is run."""
        self._wanted = [call for call in self.calls if call.begin()]
        if self._wanted:
            self.change = self._wanted[-1].change
        return bool(self._wanted)

    def spread(self) -> Sequence[Item]:
        """Note in each of the calls what became of it, and answer them."""
        for call in self.calls:
            error, fold = self.error, call.fold
            call.error = copy.copy(error) if isinstance(error, SessionStoreError) else error
            newest = not self._wanted or call is self._wanted[-1]
            call.result = self.result if error or newest or fold is None else fold.superseded(self.result)
        return self.calls


def folded(group: Sequence[Item]) -> list[Item]:
    """The group with one item for those that follow each other in their conversation and of which the newest is enough."""
    if not any(item.fold for item in group):
        return list(group)
    kept: list[Item] = []
    last: dict[Key, int] = {}
    for item in group:
        place = last.get(item.keys[0])
        before = None if place is None else kept[place].fold
        if place is not None and before and item.fold and before.key == item.fold.key:
            kept[place] = Latest([*_calls(kept[place]), *_calls(item)])
            continue
        last.update(dict.fromkeys(item.keys, len(kept)))
        kept.append(item)
    return kept


def _calls(item: Item) -> Sequence[Item]:
    return item.calls if isinstance(item, Latest) else [item]


def answer(items: Iterable[Item]) -> None:
    """Tell everybody who waits: threads one by one, an event loop once for all of its calls."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopItem]] = {}
    for item in chain.from_iterable(item.spread() if isinstance(item, Latest) else (item,) for item in items):
        if isinstance(item, LoopItem):
            loops.setdefault(item.loop, []).append(item)
        elif isinstance(item, ThreadItem):
            item.answer()
    for loop, awaited in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, awaited)
        except RuntimeError:
            # The loop is closed: nobody awaits anything there any more.
            continue


def _resolve(items: list[LoopItem]) -> None:
    for item in items:
        item.resolve()


def may_begin(item: Item, now: float) -> bool:
    """Whether it is still wanted; what is past its deadline is told so."""
    item.running = item.begin()
    if item.running and item.deadline < now:
        item.running, item.error = False, Busy()
    return item.running


def fail(items: Sequence[Item], error: BaseException) -> None:
    """Tell everybody the same, each with an exception of its own where it is one of ours."""
    for item in items:
        item.error = copy.copy(error) if len(items) > 1 and isinstance(error, SessionStoreError) else error


class Patience:
    """Gives calls of one event loop up at their deadlines: the writer may be held up itself, so that is not left to it.

    All wait equally long, so their deadlines come in the order in which they came, and one timer is enough.
    """

    def __init__(self) -> None:
        self._waiting: deque[LoopItem] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, item: LoopItem) -> None:
        """Give this one up as well."""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()
        waiting.append(item)
        if self._timer is None:
            self._arm(item)

    def _arm(self, first: LoopItem) -> None:
        self._timer = first.loop.call_later(max(0, first.deadline - time.monotonic()), self._look)

    def _look(self) -> None:
        now, waiting = time.monotonic(), self._waiting
        while waiting and (waiting[0].future.done() or waiting[0].deadline <= now):
            waiting.popleft().expire()
        self._timer = None
        if waiting:
            self._arm(waiting[0])
