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
        try:
            return await waiter
        except asyncio.CancelledError:
            self._forget(seen)
            raise

    def end(self) -> None:
        """Tell everybody that it is over, also those who come later."""
        self._ended = True
        for seen in {*self._waiting, *self._looking}:
            self._fail(self._waiting.pop(seen, []), Closed())

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
        for seen in {*self._waiting, *self._looking}:
            self._look_after(seen)

    def _forget(self, seen: S) -> None:
        """Let go of those who wait no more."""
        left = [waiter for waiter in self._waiting.pop(seen, ()) if not waiter.done()]
        if left:
            self._waiting[seen] = left

    def _look_after(self, seen: S) -> None:
        # What is being read may be older than what happened just now, and than whoever came just now.
        again = seen in self._looking
        self._looking[seen] = again
        if not again:
            task = self._loop.create_task(self._find(seen))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _find(self, seen: S) -> None:
        """Look until there is something, or nothing more has happened. Answers those who had come before the look."""
        while True:
            self._looking[seen], waiting = False, self._waiting.pop(seen, [])
            try:
                found = await self._look(seen)
            except BaseException as error:  # noqa: BLE001  # it is what everybody is told
                self._fail(waiting, error)
            else:
                self._answer(seen, waiting, found)
            if not self._looking[seen]:
                break
        del self._looking[seen]

    def _answer(self, seen: S, waiting: list[asyncio.Future[tuple[V, S]]], found: tuple[V, S] | None) -> None:
        living = [waiter for waiter in waiting if not waiter.done()]
        if self._ended:
            self._fail(living, Closed())
        elif found is None:
            if living:
                self._waiting[seen] = [*living, *self._waiting.get(seen, [])]
        else:
            for waiter in living:
                waiter.set_result(found)

    def _fail(self, waiting: list[asyncio.Future[tuple[V, S]]], error: BaseException) -> None:
        for waiter in waiting:
            if waiter.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                waiter.cancel()
            else:
                waiter.set_exception(copy.copy(error) if isinstance(error, SessionStoreError) else error)


Channels = dict[tuple[asyncio.AbstractEventLoop, Any, Any], Channel[Any, Any]]
