"""The client for asyncio programs."""

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from sessionstore.aioturn import AsyncLiveTurn
from sessionstore.client import compaction, finding, mutations, reads, turns
from sessionstore.client.blocking import CONNECT_SECONDS, CONNECTIONS, TIMEOUT, Client, headers_of
from sessionstore.client.exchange import Exchange, Reply, Steps
from sessionstore.client.persistence import Persistence
from sessionstore.client.problems import error_of
from sessionstore.client.stream import BROKEN_OFF, SILENCE_SECONDS, Stream, conversation_stream, list_stream
from sessionstore.drafts import Draft
from sessionstore.errors import Closed, ConversationDeleted, SessionStoreError
from sessionstore.limits import Limits
from sessionstore.liveturn import Alarm
from sessionstore.model import Answer, Changes, IfBusy, IfMatch, ListChanges, Tag, Undone
from sessionstore.store import DEFAULT_LIMITS, Store
from sessionstore.undoing import run_awaited, undo

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


def _call(
    like: Callable[Concatenate[Store, P], T], steps: Callable[Concatenate[Limits, P], Steps[T]]
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    @functools.wraps(like)
    async def call(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(steps(self.limits, *args, **kwargs))

    return call


class AsyncClient:
    """A session store behind a server, for asyncio programs: the names, arguments, answers and errors of `Client`, awaited.

    Turns are kept by threads with connections of their own: bring a `keeper` as well when you bring an `http` of your own.
    """

    final = Client.final

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        patience: float = 20.0,
        limits: Limits = DEFAULT_LIMITS,
        http: httpx2.AsyncClient | None = None,
        keeper: httpx2.Client | None = None,
    ) -> None:
        self.url, self.limits, self._patience = url.rstrip("/"), limits, patience
        self._headers, self._own = headers_of(key), http is None
        self._http = http or httpx2.AsyncClient(timeout=TIMEOUT, limits=CONNECTIONS)
        # Apart, since each is busy for as long as somebody follows.
        self._streams = http or httpx2.AsyncClient(timeout=TIMEOUT, limits=CONNECTIONS)
        self._closed = False
        self._keeper = Client(url, key=key, patience=patience, limits=limits, http=keeper)

    async def close(self) -> None:
        """Give back the leases of turns that go on, end the events, and close the connections. Later calls raise `Closed`."""
        self._closed = True
        await asyncio.to_thread(self._keeper.close)
        if self._own:
            await self._http.aclose()
            await self._streams.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create = _call(Store.create, mutations.create)
    label = _call(Store.label, mutations.label)
    delete = _call(Store.delete, mutations.delete)
    append = _call(Store.append, mutations.append)
    put = _call(Store.put, mutations.put)
    save_all = _call(Store.save_all, mutations.save_all)
    label_message = _call(Store.label_message, mutations.label_message)
    delete_message = _call(Store.delete_message, mutations.delete_message)
    truncate = _call(Store.truncate, mutations.truncate)
    compact = _call(Store.compact, compaction.compact)
    fork = _call(Store.fork, mutations.fork)
    acquire = _call(Store.acquire, turns.acquire)
    renew = _call(Store.renew, turns.renew)
    release = _call(Store.release, turns.release)
    finish = _call(Store.finish, turns.finish)
    interrupt = _call(Store.interrupt, turns.interrupt)
    queue_inputs = _call(Store.queue_inputs, turns.queue_inputs)
    cancel_input = _call(Store.cancel_input, turns.cancel_input)
    claim_inputs = _call(Store.claim_inputs, turns.claim_inputs)
    get = _call(Store.get, reads.get)
    conversations = _call(Store.conversations, finding.conversations)
    list_changes = _call(Store.list_changes, finding.list_changes)
    usage = _call(Store.usage, finding.usage)
    search = _call(Store.search, finding.search)
    messages = _call(Store.messages, reads.messages)
    context = _call(Store.context, reads.context)
    message = _call(Store.message, reads.message)
    inputs = _call(Store.inputs, reads.inputs)
    changes = _call(Store.changes, reads.changes)
    generations = _call(Store.generations, reads.generations)
    leases = _call(Store.leases, finding.leases)
    check_ready = _call(Store.check_ready, reads.check_ready)

    async def undo(self, id: str, backup: str | None = None, **options: Any) -> Answer[Undone]:
        """See `Store.undo`."""
        return await run_awaited(self, undo(id, backup, **options))

    def events(self, id: str, since: Tag | None = None, *, incarnation: int | None = None) -> AsyncGenerator[Changes]:
        """See `Client.events`."""
        return self._follow(conversation_stream(self.limits, id, since, incarnation))

    def list_events(self, since: int | None = None) -> AsyncGenerator[ListChanges]:
        """See `Client.list_events`."""
        return self._follow(list_stream(self.limits, since))

    def generate(
        self,
        id: str,
        holder: str,
        *,
        messages: Sequence[Draft] = (),
        if_busy: IfBusy = "reject",
        ttl_ms: int | None = None,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> AsyncLiveTurn:
        """A turn, from its first message to its last, for `async with`; see `Store.generate`."""
        ttl = self.limits.ttl_or_default(ttl_ms)
        return AsyncLiveTurn(
            self, self._keeper.impatient(ttl), id, holder, token=token, ttl_ms=ttl, messages=messages, if_busy=if_busy,
            incarnation=incarnation, if_match=if_match,
        )  # fmt: skip

    def heed(self, id: str, generation: int, alarm: Alarm) -> Callable[[], None]:
        """See `Store.heed`; in a thread that follows the conversation."""
        return self._keeper.heed(id, generation, alarm)

    async def _run(self, steps: Steps[T]) -> T:
        try:
            exchange = next(steps)
            while True:
                try:
                    reply = await self._send(exchange)
                except SessionStoreError as error:
                    exchange = steps.throw(error)
                else:
                    exchange = steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def _send(self, exchange: Exchange) -> Reply:
        persistence = Persistence(exchange, self._patience)
        while True:
            if self._closed:
                raise Closed
            try:
                response = await self._http.request(
                    exchange.method,
                    self.url + exchange.path,
                    params=exchange.query,
                    headers=exchange.headers | self._headers,
                    content=exchange.content,
                )
            except httpx2.RequestError as failure:
                delay = persistence.after_silence(failure)
            else:
                await self._give_back(response)
                if response.is_success:
                    return Reply(response.status_code, response.headers, response.content)
                error = error_of(response.status_code, response.headers, response.content)
                delay = persistence.after_refusal(error, response.headers.get("retry-after"))
            await asyncio.sleep(delay)

    async def _follow(self, stream: Stream[V]) -> AsyncGenerator[V]:
        persistence: Persistence | None = None
        while not stream.over:
            exchange = stream.exchange()
            failure: Exception = BROKEN_OFF
            try:
                async with aclosing(self._events(stream, exchange)) as events:
                    async for event in events:
                        persistence = None
                        value = stream.take(event)
                        if value is not None:
                            yield value
            except ConversationDeleted:
                if stream.begun:
                    return
                raise
            except (httpx2.RequestError, SessionStoreError) as error:
                failure = error
            if self._closed:
                raise Closed
            if not stream.over:
                # Patience begins with the break, however long it was quiet before.
                persistence = persistence or Persistence(exchange, self._patience)
                await asyncio.sleep(persistence.after(failure))

    async def _events(self, stream: Stream[V], exchange: Exchange) -> AsyncGenerator[httpx2.ServerSentEvent]:
        async with self._connect(exchange) as source:
            async for event in source:
                yield event
                if stream.over or stream.broken:
                    return

    @asynccontextmanager
    async def _connect(self, exchange: Exchange) -> AsyncIterator[httpx2.EventSource]:
        if self._closed:
            raise Closed
        async with self._streams.sse(
            self.url + exchange.path,
            params=exchange.query,
            headers=exchange.headers | self._headers,
            timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            max_event_size=None,
        ) as source:
            try:
                if self._closed:
                    raise Closed
                if not source.response.is_success:
                    raise error_of(source.response.status_code, source.response.headers, await source.response.aread())
                yield source
            finally:
                await self._give_back(source.response)

    async def _give_back(self, response: httpx2.Response) -> None:
        """See `Client`."""
        if self._closed and self._own:
            await response.extensions["network_stream"].aclose()
