"""Events for programs that may wait: an iterator of what has become different."""

import threading
import time
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from sessionstore.errors import ConversationDeleted
from sessionstore.following import Followed
from sessionstore.reads import Reads
from sessionstore.watch import Tell, Watch

V = TypeVar("V")


class Events(Generic[V]):
    """What has become different, for as long as you like: the state as it is now first, then each change when it comes.

    Iterating ends when the conversation is deleted, or after `close`, which any thread may call. For one thread at a time.
    """

    def __init__(self, reads: Reads, watch: Watch, followed: Followed[Any, V]) -> None:
        self._reads, self._watch, self._followed = reads, watch, followed
        self._seen, self._begun, self._over = followed.start, False, False
        self._news = news = threading.Event()
        # It knows the bell and not us: events that nobody wants any more are not kept for being told.
        self._tell: Tell = lambda _: news.set()
        watch.subscribe(followed.topic, self._tell)

    def wait(self, seconds: float | None = None) -> V | None:
        """The next change; None when there is none in that time. Raises `StopIteration` at the end."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            self._news.clear()
            found = self._look()
            if found is not None:
                return found
            left = None if end is None else end - time.monotonic()
            if (left is not None and left <= 0) or not self._news.wait(left):
                return None

    def _look(self) -> V | None:
        if self._over:
            raise StopIteration
        try:
            found = self._followed.look(self._reads, self._seen)
        except ConversationDeleted:
            self.close()
            if self._begun:
                raise StopIteration from None
            raise
        except BaseException:
            if not self._begun:
                self.close()
            raise
        if found is None:
            return None
        self._begun, (value, self._seen) = True, found
        return value

    def close(self) -> None:
        """Be told of nothing more."""
        self._over = True
        self._watch.unsubscribe(self._followed.topic, self._tell)
        self._news.set()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V:
        found = self.wait()
        if found is None:
            raise StopIteration
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
