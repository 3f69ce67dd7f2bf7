"""The store for asyncio programs: the same names, arguments, answers and errors as `Store`, awaited."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sessionstore.errors import Closed
from sessionstore.limits import Limits
from sessionstore.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def _off_the_loop(
    method: Callable[Concatenate[Store, P], T], *, reading: bool = False
) -> Callable[Concatenate["AsyncStore", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(functools.partial(method, self.store, *args, **kwargs), reading=reading)

    return call


class AsyncStore:
    """A session store whose calls never block the event loop. A call that is cancelled still ends its transaction."""

    def __init__(self, store: Store, *, threads: int = 16) -> None:
        self.store, self._closed = store, False
        # Apart, so that no read waits behind writes that wait for the lock.
        self._writers = ThreadPoolExecutor(threads, thread_name_prefix="sessionstore-writer")
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="sessionstore-reader")

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a database; see `Store.open`. Close the store when done: `async with await AsyncStore.open(…) as store`."""
        return cls(await asyncio.to_thread(Store.open, url, **options))

    @property
    def limits(self) -> Limits:
        """The limits of this store."""
        return self.store.limits

    async def run(self, action: Callable[[], T], *, reading: bool = False) -> T:
        """Run something that may wait for the disk, in a thread.

        When the caller is cancelled, what has not begun never will, and what runs, runs to its end.
        """
        if self._closed:
            raise Closed
        future = (self._readers if reading else self._writers).submit(action)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.cancel()
            raise

    async def close(self) -> None:
        """Finish the running transactions and close every connection. Later calls raise `Closed`."""
        self._closed = True
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self.store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create = _off_the_loop(Store.create)
    label = _off_the_loop(Store.label)
    delete = _off_the_loop(Store.delete)
    append = _off_the_loop(Store.append)
    put = _off_the_loop(Store.put)
    label_message = _off_the_loop(Store.label_message)
    delete_message = _off_the_loop(Store.delete_message)
    truncate = _off_the_loop(Store.truncate)
    fork = _off_the_loop(Store.fork)
    acquire = _off_the_loop(Store.acquire)
    renew = _off_the_loop(Store.renew)
    release = _off_the_loop(Store.release)
    finish = _off_the_loop(Store.finish)
    interrupt = _off_the_loop(Store.interrupt)
    get = _off_the_loop(Store.get, reading=True)
    conversations = _off_the_loop(Store.conversations, reading=True)
    messages = _off_the_loop(Store.messages, reading=True)
    message = _off_the_loop(Store.message, reading=True)
    leases = _off_the_loop(Store.leases, reading=True)
    check_ready = _off_the_loop(Store.check_ready, reading=True)

    async def transact(self, id: str, change: Callable[..., T], **options: Any) -> Any:
        """Run several mutations in one transaction, see `Store.transact`. `change` is no coroutine; it runs in a thread."""
        return await self.run(functools.partial(self.store.transact, id, change, **options))
