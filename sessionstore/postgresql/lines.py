"""Who waits in this process: a line for each conversation, in which the order is kept, and threads that work them off.

Two transactions on one conversation would only wait for each other in the server. So one thread at a time is at a conversation,
and takes along in one transaction what waits for the same one; different conversations go side by side.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sessionstore.errors import Busy, Closed
from sessionstore.items import Item, Key, Lane, ThreadItem, answer, folded

log = logging.getLogger(__name__)
GROUP_ITEMS = 64
GROUP_BYTES = 1024 * 1024
RESERVED_PLACES = 64
WAITING_BYTES = 64 * 1024 * 1024


class Lines:
    """Thread-safe. `run` makes the calls of a group, and notes in each what became of it."""

    def __init__(self, run: Callable[[Sequence[Item]], None], places: int, threads: int, name: str) -> None:
        self._run, self._places, self._most, self._name = run, places, threads, name
        self._lines: dict[Key, deque[Item]] = {}
        self._taken: set[Key] = set()
        self._ready: deque[Key] = deque()
        # By itself it is quicker than its condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: set[threading.Thread] = set()
        self._waiting = self._bytes = self._idle = 0
        self._closing = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting

    def enter(self, key: Key) -> bool:
        """Be the one who is at this conversation, if nobody else is, nor waits for it. Raises `Closed`."""
        with self._lock:
            if self._closing:
                raise Closed
            if key in self._taken or key in self._lines:
                return False
            self._taken.add(key)
            return True

    def leave(self, key: Key) -> None:
        """Let the next one go there."""
        with self._lock:
            self._leave(key)

    def _leave(self, key: Key) -> None:
        self._taken.discard(key)
        if key in self._lines:
            # Without a thread they wait until they give up. Whoever leaves has done what he came for.
            with suppress(Busy):
                self._offer(key, first=False)
        elif self._closing:
            self._changed.notify_all()

    def join(self, item: Item) -> None:
        """Stand in the line of its conversation. Raises `Busy` when too many wait, or no thread is to be had, and `Closed`."""
        key = item.keys[0]
        places = self._places + RESERVED_PLACES if item.lane is Lane.FIRST else self._places
        with self._changed:
            if self._closing:
                raise Closed
            if self._waiting >= places or (self._bytes and self._bytes + item.bytes > WAITING_BYTES):
                raise Busy
            line = self._lines.setdefault(key, deque())
            line.append(item)
            self._waiting, self._bytes = self._waiting + 1, self._bytes + item.bytes
            try:
                if key not in self._taken:
                    self._offer(key, first=item.lane is Lane.FIRST)
            except Busy:
                self._drop(key, item)
                raise

    def run(self, item: ThreadItem) -> Any:
        """Have a call run, and wait for what becomes of it."""
        self.join(item)
        return item.wait()

    def close(self, seconds: float) -> None:
        """Run what waits, and end the threads; after that time they are left to themselves."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            threads = list(self._threads)
        end = time.monotonic() + seconds
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0, end - time.monotonic()))
        with self._changed:
            # And whoever is at a conversation by himself.
            self._changed.wait_for(lambda: not (self._taken or self._lines), max(0, end - time.monotonic()))

    def _offer(self, key: Key, *, first: bool) -> None:
        if key not in self._ready:
            (self._ready.appendleft if first else self._ready.append)(key)
        elif first:
            self._ready.remove(key)
            self._ready.appendleft(key)
        # Who was woken up before may not be awake yet: each one that is ready needs a thread of its own.
        if len(self._ready) > self._idle and len(self._threads) < self._most:
            self._start()
        else:
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise Busy from None
            return
        self._threads.add(thread)

    def _drop(self, key: Key, item: Item) -> None:
        line = self._lines[key]
        line.remove(item)
        self._waiting, self._bytes = self._waiting - 1, self._bytes - item.bytes
        if not line:
            del self._lines[key]
            if key in self._ready:
                self._ready.remove(key)

    def _serve(self) -> None:
        try:
            while (taken := self._next()) is not None:
                self._work_off(*taken)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _work_off(self, key: Key, group: list[Item]) -> None:
        try:
            self._run(group)
        except Exception:
            log.exception("a writer stumbled")
        finally:
            self.leave(key)
        for item in group:
            try:
                answer([item])
            except Exception:
                # The others are waiting as well.
                log.exception("a writer stumbled over an answer")

    def _next(self) -> tuple[Key, list[Item]] | None:
        """A conversation and who goes there now, together; None when nobody will any more."""
        with self._changed:
            while not self._ready:
                if self._closing and not self._lines:
                    return None
                self._idle += 1
                try:
                    # Somebody may be at the last conversations that have lines, and leaves without a word.
                    self._changed.wait(0.05 if self._closing else None)
                finally:
                    self._idle -= 1
            key = self._ready.popleft()
            self._taken.add(key)
            return key, folded(self._group(key))

    def _group(self, key: Key) -> list[Item]:
        line, size = self._lines[key], 0
        group = [line.popleft()]
        while line and len(group) < GROUP_ITEMS and Lane.ALONE not in (group[0].lane, line[0].lane):
            size += group[-1].bytes
            if size > GROUP_BYTES:
                break
            group.append(line.popleft())
        if not line:
            del self._lines[key]
        self._waiting, self._bytes = self._waiting - len(group), self._bytes - sum(item.bytes for item in group)
        return group
