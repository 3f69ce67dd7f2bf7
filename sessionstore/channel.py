"""Everybody on one event loop who follows the same thing: what one of them has to read is read once for all."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from sessionstore.errors import Closed, SessionStoreError
from sessionstore.watch import News

S = TypeVar("S")
V = TypeVar("V")


class Channel(Generic[S, V]):
    """Followers who wait, by the state that they know. Used on its loop only, but for `tell`."""

    def __init__(self, look: Callable[[S], Awaitable[tuple[V, S] | None]]) -> None:
        self._look, self._loop = look, asyncio.get_running_loop()
        self._waiting: dict[S, list[asyncio.Future[tuple[V, S]]]] = {}
        self._looking: dict[S, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = self._ended = False
        self.followers = 0

    async def after(self, seen: S) -> tuple[V, S]:
        """What comes after that state, and the state then; at once, if it is there already."""
        if self._ended:
            raise Closed
        waiter: asyncio.Future[tuple[V, S]] = self._loop.create_future()
        waiting = self._waiting.setdefault(seen, [])
        waiting.append(waiter)
        if len(waiting) == 1:
            self._look_after(seen)
        return await waiter

    def end(self) -> None:
        """Tell everybody that it is over, also those who come later."""
        self._ended = True
        for seen in list(self._waiting):
            self._fail(seen, Closed())

    def tell(self, _: News | None) -> None:
        """There may be news. From any thread."""
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The loop is closed: nobody waits there any more.
            return

    def _wake(self) -> None:
        self._told = False
        for seen, waiting in list(self._waiting.items()):
            if all(waiter.done() for waiter in waiting):
                del self._waiting[seen]
            else:
                self._look_after(seen)

    def _look_after(self, seen: S) -> None:
        if seen in self._looking:
            # What is being read may be older than this.
            self._looking[seen] = True
            return
        self._looking[seen] = False
        task = self._loop.create_task(self._find(seen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find(self, seen: S) -> None:
        try:
            found = await self._look(seen)
            while found is None and self._looking[seen]:
                self._looking[seen] = False
                found = await self._look(seen)
        except BaseException as error:  # noqa: BLE001  # it is what everybody is told
            self._fail(seen, error)
        else:
            if found is not None:
                self._answer(seen, found)
        del self._looking[seen]

    def _answer(self, seen: S, found: tuple[V, S]) -> None:
        for waiter in self._waiting.pop(seen, ()):
            if not waiter.done():
                waiter.set_result(found)

    def _fail(self, seen: S, error: BaseException) -> None:
        for waiter in self._waiting.pop(seen, ()):
            if waiter.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            else:
                waiter.set_exception(copy.copy(error) if isinstance(error, SessionStoreError) else error)


Channels = dict[tuple[asyncio.AbstractEventLoop, Any, Any], Channel[Any, Any]]
