"""The line in front of the writer: who waits there, in which order they go, and how many go together."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from sessionstore.errors import Busy, Closed
from sessionstore.items import Item, Key, Lane, folded

GROUP_ITEMS = 64
GROUP_BYTES = 1024 * 1024
RESERVED_PLACES = 64
WAITING_BYTES = 64 * 1024 * 1024


class Lanes:
    """The line in front of the writer. Anybody may join; only the writer's thread takes.

    The order within a conversation is kept: what goes first passes the calls of other conversations only.
    """

    def __init__(self, places: int) -> None:
        self._places, self._counting = places, threading.Lock()
        self._bytes = 0
        self._arrivals: SimpleQueue[Item | None] = SimpleQueue()
        self._again: deque[Item] = deque()
        self._first: deque[Item] = deque()
        self._line: deque[Item] = deque()
        self._passed = self._closing = False
        self.closed = False

    def __len__(self) -> int:
        return self._arrivals.qsize() + len(self._line) + len(self._first) + len(self._again)

    def join(self, item: Item) -> None:
        """Stand in line. Raises `Busy` when there is no place left, or no room for so many bytes, and `Closed`."""
        places = self._places + RESERVED_PLACES if item.lane is Lane.FIRST else self._places
        with self._counting:
            if self._closing:
                raise Closed
            waiting = len(self)
            if not waiting:
                self._bytes = 0
            if waiting >= places or (self._bytes and self._bytes + item.bytes > WAITING_BYTES):
                raise Busy
            self._bytes += item.bytes
            self._arrivals.put(item)

    def close(self) -> None:
        """Let nobody in any more."""
        with self._counting:
            self._closing = True
        self._arrivals.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until somebody stands here. False when that time has passed, or when the line is closed and empty."""
        if self._again or self._first or self._line:
            return True
        if self.closed:
            return False
        try:
            self._sort([self._arrivals.get(timeout=seconds)])
        except Empty:
            return False
        self._sort_arrivals()
        return bool(self._first or self._line)

    def take(self) -> list[Item]:
        """Who goes next, in one transaction: somebody who goes alone, or a group of at most 64 and about 1 MiB."""
        self._sort_arrivals()
        group = [self._line.popleft()] if self._alone_may_go() else self._group()
        with self._counting:
            self._bytes -= sum(item.bytes for item in group)
        return folded(group)

    def _group(self) -> list[Item]:
        group = list(self._again)
        self._again.clear()
        line, size = self._line, sum(item.bytes for item in group)
        # Those who go first leave half of the group to the others.
        most = GROUP_ITEMS if not line or line[0].lane is Lane.ALONE else GROUP_ITEMS // 2
        while self._first and len(group) < most:
            group.append(self._first.popleft())
        while line and len(group) < GROUP_ITEMS and size < GROUP_BYTES:
            if line[0].lane is Lane.ALONE:
                break
            group.append(line.popleft())
            size += group[-1].bytes
        # Who goes alone lets one group pass, and not also those who come first meanwhile.
        self._passed = bool(line) and line[0].lane is Lane.ALONE
        return group

    def put_back(self, items: Sequence[Item]) -> None:
        """Those whom the group had no time for go before everybody else, in their order."""
        self._again.extend(items)
        with self._counting:
            self._bytes += sum(item.bytes for item in items)

    def leave(self, leaves: Callable[[Item], bool]) -> list[Item]:
        """Take those out of the line who have no business here any more."""
        self._sort_arrivals()
        left: list[Item] = []
        for lane in (self._again, self._first, self._line):
            everybody = list(lane)
            lane.clear()
            for item in everybody:
                (left if leaves(item) else lane).append(item)
        return left

    def _alone_may_go(self) -> bool:
        line, first = self._line, self._first
        if self._again or not line or line[0].lane is not Lane.ALONE:
            return False
        # Those of its own conversation who go first came before it.
        return not first or (self._passed and not any(item.keys[0] in line[0].keys for item in first))

    def _sort_arrivals(self) -> None:
        self._sort([self._arrivals.get_nowait() for _ in range(self._arrivals.qsize())])

    def _sort(self, arrived: Sequence[Item | None]) -> None:
        in_line: set[Key] | None = None
        for item in arrived:
            if item is None:
                self.closed = True
                continue
            if item.lane is Lane.FIRST:
                if in_line is None:
                    in_line = {key for other in (*self._again, *self._line) for key in other.keys}
                if item.keys[0] not in in_line:
                    self._first.append(item)
                    continue
            self._line.append(item)
            if in_line is not None:
                in_line.update(item.keys)
