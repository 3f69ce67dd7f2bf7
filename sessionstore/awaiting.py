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
# As many as there are connections that read; each owner has half of them.
READERS, READERS_OF_ONE, KEY_READERS = 8, 4, 2


class Share:
    """What an owner has of the readers, as long as he wants something."""

    def __init__(self) -> None:
        self.places, self.wanted = asyncio.Semaphore(READERS_OF_ONE), 0


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
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sessionstore-reader")
        # Who may come in is never a matter of how much those inside read.
        self._keys = ThreadPoolExecutor(KEY_READERS, thread_name_prefix="sessionstore-keys")
        self._shares: dict[tuple[asyncio.AbstractEventLoop, str], Share] = {}

    async def run(self, action: Callable[[], T], *, reading: bool = False) -> T:
        """Run something that may wait for the disk, in a thread.

        When the caller is cancelled, what has not begun never will, and what runs, runs to its end.
        """
        if self.closed:
            raise Closed
        return await self._run(self._readers if reading else self._writers, action)

    async def read(self, owner: str, action: Callable[[], T]) -> T:
        """Run something that reads for an owner. One owner has half of the readers at most: others want some as well."""
        key = (asyncio.get_running_loop(), owner)
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Share()
        share.wanted += 1
        try:
            async with share.places:
                return await self.run(action, reading=True)
        finally:
            share.wanted -= 1
            if not share.wanted:
                self._shares.pop(key, None)

    async def look_up(self, action: Callable[[], T]) -> T:
        """Run a look at the keys."""
        if self.closed:
            raise Closed
        return await self._run(self._keys, action)

    async def _run(self, pool: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        future = pool.submit(action)
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

                channel = Channel(lambda seen: self.read(followed.topic.owner, functools.partial(look, seen)))
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
        self._keys.shutdown()
