"""What an AsyncStore waits with: threads for what may wait for the disk, calls that are under way, what is followed."""

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sessionstore.channel import Channel, Channels
from sessionstore.database import Database
from sessionstore.errors import Busy, Closed
from sessionstore.following import Followed
from sessionstore.items import Fold, Keys, Lane, Patience
from sessionstore.reads import Reads
from sessionstore.transaction import Transaction
from sessionstore.watch import Topic, Watch

T = TypeVar("T")
V = TypeVar("V")
LARGE_CALLS = 64


class Awaiting:
    """One for all owners of a database, on any event loops."""

    def __init__(self, database: Database, watch: Watch, threads: int) -> None:
        self._database, self._watch, self.closed = database, watch, False
        self._patience: dict[asyncio.AbstractEventLoop, Patience] = {}
        self.channels: Channels = {}
        self._following_ended = False
        self._another_loop, self._preparations = threading.Lock(), 0
        # Apart, so that no read waits behind writes that are large to prepare.
        self._writers = ThreadPoolExecutor(threads, thread_name_prefix="sessionstore-prepare")
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="sessionstore-reader")

    async def run(self, action: Callable[[], T], *, reading: bool = False) -> T:
        """Run something that may wait for the disk, in a thread.

        When the caller is cancelled, what has not begun never will, and what runs, runs to its end.
        """
        if self.closed:
            raise Closed
        future = (self._readers if reading else self._writers).submit(action)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.cancel()
            raise

    def submit(self, change: Callable[[Transaction], Any], lane: Lane, keys: Keys, size: int, fold: Fold | None) -> Any:
        """What answers the change when it is awaited."""
        patience = self._patience_of(asyncio.get_running_loop())
        item = self._database.submit(change, lane, keys, size, fold)
        patience.watch(item)
        return item.future

    def _patience_of(self, loop: asyncio.AbstractEventLoop) -> Patience:
        found = self._patience.get(loop)
        if found is None:
            found = Patience()
            with self._another_loop:
                open_ones = {other: patience for other, patience in self._patience.items() if not other.is_closed()}
                self._patience = {**open_ones, loop: found}
        return found

    async def prepare(self, prepare: Callable[[], Any]) -> Any:
        """What is to be submitted. Raises `Busy` when many large calls are being prepared already."""
        if self._preparations >= LARGE_CALLS:
            raise Busy
        self._preparations += 1
        try:
            return await self.run(prepare)
        finally:
            self._preparations -= 1

    def join(self, reads: Reads, followed: Followed[Any, V], render: Callable[[V], T]) -> Channel[Any, T]:
        """The channel of what is followed: one for all who follow the same on one loop. `leave` it."""
        if self.closed or self._following_ended:
            raise Closed
        key = (asyncio.get_running_loop(), followed.topic, (type(followed), render))
        with self._another_loop:
            channel = self.channels.get(key)
            if channel is None:

                def look(seen: Any) -> tuple[T, Any] | None:
                    found = followed.look(reads, seen)
                    return None if found is None else (render(found[0]), found[1])

                channel = Channel(lambda seen: self.run(functools.partial(look, seen), reading=True))
                self._watch.subscribe(followed.topic, channel.tell)
                self.channels[key] = channel
            channel.followers += 1
            return channel

    def leave(self, topic: Topic, channel: Channel[Any, Any]) -> None:
        """Follow it no more."""
        with self._another_loop:
            channel.followers -= 1
            if not channel.followers:
                self._watch.unsubscribe(topic, channel.tell)
                self.channels = {key: other for key, other in self.channels.items() if other is not channel}

    def end_events(self) -> None:
        """Tell whoever follows that it is over. On the followers' event loop."""
        self._following_ended = True
        for channel in list(self.channels.values()):
            channel.end()

    def close(self) -> None:
        """Finish what runs. Blocks."""
        self._writers.shutdown()
        self._readers.shutdown()
