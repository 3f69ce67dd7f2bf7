"""The store for asyncio programs: the same names, arguments, answers and errors as `Store`, awaited."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sessionstore.errors import Closed
from sessionstore.limits import Limits
from sessionstore.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def _off_the_loop(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate["AsyncStore", P], Awaitable[T]]:
    @functools.wraps(method)
    async def call(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(functools.partial(method, self.store, *args, **kwargs))

    return call


class AsyncStore:
    """A session store whose calls never block the event loop. A call that is cancelled still ends its transaction."""

    def __init__(self, store: Store, *, threads: int = 16) -> None:
        self.store, self._closed = store, False
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sessionstore")

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a database; see `Store.open`. Close the store when done: `async with await AsyncStore.open(…) as store`."""
        return cls(await asyncio.to_thread(Store.open, url, **options))

    @property
    def limits(self) -> Limits:
        """The limits of this store."""
        return self.store.limits

    async def run(self, action: Callable[[], T]) -> T:
        """Run something that may wait for the disk, in a thread. It runs to its end even if the caller is cancelled."""
        if self._closed:
            raise Closed
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._threads, action))

    async def close(self) -> None:
        """Finish the running transactions and close every connection. Later calls raise `Closed`."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
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
    get = _off_the_loop(Store.get)
    conversations = _off_the_loop(Store.conversations)
    messages = _off_the_loop(Store.messages)
    message = _off_the_loop(Store.message)
    leases = _off_the_loop(Store.leases)
    check_ready = _off_the_loop(Store.check_ready)

    async def transact(self, id: str, change: Callable[..., T], **options: Any) -> Any:
        """Run several mutations in one transaction, see `Store.transact`. `change` is no coroutine; it runs in a thread."""
        return await self.run(functools.partial(self.store.transact, id, change, **options))
