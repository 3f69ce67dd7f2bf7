"""The client for programs that may wait."""

import copy
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from sessionstore.client import compaction, finding, mutations, reads, turns
from sessionstore.client.events import ClientEvents
from sessionstore.client.exchange import Exchange, Reply, Steps
from sessionstore.client.persistence import Persistence
from sessionstore.client.problems import error_of
from sessionstore.client.stream import SILENCE_SECONDS, Stream, conversation_stream, list_stream, turn_stream
from sessionstore.drafts import Draft
from sessionstore.errors import Closed, SessionStoreError
from sessionstore.limits import Limits
from sessionstore.liveturn import Alarm, LiveTurn
from sessionstore.model import Answer, Changes, IfBusy, IfMatch, ListChanges, Tag, Undone
from sessionstore.ongoing import Ongoing
from sessionstore.store import DEFAULT_LIMITS, Store
from sessionstore.undoing import run, undo

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
# Of one try. The server itself gives up a call that it has no time for after 5 seconds.
READ_SECONDS, CONNECT_SECONDS = 8.0, 5.0
TIMEOUT = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


def _call(
    like: Callable[Concatenate[Store, P], T], steps: Callable[Concatenate[Limits, P], Steps[T]]
) -> Callable[Concatenate["Client", P], T]:
    @functools.wraps(like)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(steps(self.limits, *args, **kwargs))

    return call


class Client:
    """A session store behind a server: the names, arguments, answers and errors of `Store`. Safe to use from any thread.

    A call that gets no answer, or that the server has no time for (503), is tried again for `patience` seconds, each time for 8
    seconds at most. That is safe whatever happened to the first one: ids and tokens are made here, so a call that was done is
    found done. After that it raises `Unreachable` when nothing can have been stored, and `OutcomeUnknown` when something may
    have been.

    A server that wants keys gets `key` with every call; it raises `Unauthorized` for one that is none, and `Forbidden` for what
    the key may not do. Over a network that others can listen to, use https.

    Values are checked here, by `limits`, before they are sent; give it your server's if they are not the default ones. Bring an
    `httpx2.Client` for another transport, certificates, or headers of your own; it stays yours to close, and needs a connection
    for each turn and each stream of events beside those of the calls.
    """

    final: tuple[type[SessionStoreError], ...] = (Closed,)
    """What ends every turn of this client: it was closed. A server that stops may start again."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        patience: float = 20.0,
        limits: Limits = DEFAULT_LIMITS,
        http: httpx2.Client | None = None,
    ) -> None:
        self.url, self.limits, self.patience = url.rstrip("/"), limits, patience
        self._headers, self._own = headers_of(key), http is None
        self._http = http or httpx2.Client(timeout=TIMEOUT, limits=CONNECTIONS)
        # Apart, since each is busy for as long as somebody follows.
        self._streams = http or httpx2.Client(timeout=TIMEOUT, limits=CONNECTIONS)
        self.timeout: Any = httpx2.USE_CLIENT_DEFAULT
        self._open, self.turns = Open(), Ongoing()

    def close(self) -> None:
        """Give back the leases of turns that go on, end the events, and close the connections. Later calls raise `Closed`."""
        self.turns.end()
        self._open.close()
        if self._own:
            self._http.close()
            self._streams.close()

    def impatient(self, ttl_ms: int) -> "Client":
        """The same client in a hurry: for renewals, which are worth something only in time."""
        hurried = copy.copy(self)
        hurried.patience = min(self.patience, ttl_ms / 6_000)
        hurried.timeout = httpx2.Timeout(min(READ_SECONDS, max(0.5, hurried.patience)))
        return hurried

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

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

    def undo(self, id: str, backup: str | None = None, **options: Any) -> Answer[Undone]:
        """See `Store.undo`."""
        return run(self, undo(id, backup, **options))

    def events(self, id: str, since: Tag | None = None, *, incarnation: int | None = None) -> ClientEvents[Changes]:
        """Follow a conversation, see `Store.events`; a connection that breaks is made again, and nothing is missed."""
        return self._follow(conversation_stream(self.limits, id, since, incarnation))

    def list_events(self, since: int | None = None) -> ClientEvents[ListChanges]:
        """Follow the list of conversations, see `Store.list_events`."""
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
    ) -> LiveTurn:
        """A turn, from its first message to its last; see `Store.generate`."""
        ttl = self.limits.ttl_or_default(ttl_ms)
        return LiveTurn(
            self, self.impatient(ttl), id, holder, token=token, ttl_ms=ttl, messages=messages, if_busy=if_busy,
            incarnation=incarnation, if_match=if_match,
        )  # fmt: skip

    def heed(self, id: str, generation: int, alarm: Alarm) -> Callable[[], None]:
        """See `Store.heed`; in a thread that follows the turn."""
        events = self._follow(turn_stream(self.limits, id), math.inf)

        def follow() -> None:
            with suppress(SessionStoreError):
                for changes in events:
                    turn = changes.conversation.generation
                    told = turn and (turn.number, turn.expired, turn.interrupt_requested)
                    if told != (generation, False, False) or changes.conversation.queued_inputs:
                        alarm()
            alarm()

        threading.Thread(target=follow, name="sessionstore-heed", daemon=True).start()
        return events.close

    @contextmanager
    def _connect(self, exchange: Exchange) -> Iterator[httpx2.EventSource]:
        self._open.check()
        with self._streams.sse(
            self.url + exchange.path,
            params=exchange.query,
            headers=exchange.headers | self._headers,
            timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            max_event_size=None,
        ) as source:
            try:
                self._open.check()
                if not source.response.is_success:
                    raise error_of(source.response.status_code, source.response.headers, source.response.read())
                yield source
            finally:
                self._give_back(source.response)

    def _give_back(self, response: httpx2.Response) -> None:
        """Who was just connecting when this was closed has a connection of which no pool knows any more."""
        if self._open.closed and self._own:
            response.extensions["network_stream"].close()

    def _follow(self, stream: Stream[V], patience: float | None = None) -> ClientEvents[V]:
        events = ClientEvents(self._connect, self._open.check, stream, self.patience if patience is None else patience)
        self._open.streams.add(events)
        return events

    def _run(self, steps: Steps[T]) -> T:
        try:
            exchange = next(steps)
            while True:
                try:
                    reply = self._send(exchange)
                except SessionStoreError as error:
                    exchange = steps.throw(error)
                else:
                    exchange = steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _send(self, exchange: Exchange) -> Reply:
        persistence = Persistence(exchange, self.patience)
        while True:
            self._open.check()
            try:
                response = self._http.request(
                    exchange.method,
                    self.url + exchange.path,
                    params=exchange.query,
                    headers=exchange.headers | self._headers,
                    content=exchange.content,
                    timeout=self.timeout,
                )
            except httpx2.RequestError as failure:
                delay = persistence.after_silence(failure)
            else:
                self._give_back(response)
                if response.is_success:
                    return Reply(response.status_code, response.headers, response.content)
                error = error_of(response.status_code, response.headers, response.content)
                delay = persistence.after_refusal(error, response.headers.get("retry-after"))
            time.sleep(delay)


def headers_of(key: str | None) -> dict[str, str]:
    """The header that shows a key, where there is one."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


class Open:
    """What a client has open, shared with its copies."""

    def __init__(self) -> None:
        self.streams: weakref.WeakSet[ClientEvents[Any]] = weakref.WeakSet()
        self.closed = False

    def check(self) -> None:
        """Raise `Closed` once it is."""
        if self.closed:
            raise Closed

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for events in list(self.streams):
            events.close()
