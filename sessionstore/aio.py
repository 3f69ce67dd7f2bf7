"""The store for asyncio programs: the same names, arguments, answers and errors as `Store`, awaited."""

import asyncio
import copy
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from sessionstore.aioturn import AsyncLiveTurn
from sessionstore.awaiting import Awaiting
from sessionstore.conversation import GuardedConversation
from sessionstore.drafts import Draft, Save
from sessionstore.errors import Closed, ConversationDeleted
from sessionstore.following import Followed, FollowedConversation, FollowedList
from sessionstore.keys import Key, Keys, NewKey
from sessionstore.limits import Limits
from sessionstore.liveturn import Alarm
from sessionstore.model import Answer, Changes, IfBusy, IfMatch, ListChanges, Tag, Undone
from sessionstore.store import Store
from sessionstore.tracing import traced
from sessionstore.undoing import run_awaited, undo

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
# Beyond this many characters, about half a millisecond of work, a call is prepared in a thread and not on the loop. A value
# inside a list or an object counts as so many.
LARGE = 64 * 1024
VALUE = 16


def _mutation(
    method: Callable[Concatenate[Store, P], T],
) -> Callable[Concatenate["AsyncStore", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.awaiting.closed:
            raise Closed
        # Checked and encoded here, or in a thread where that takes long; run by the writer.
        future: Any
        if heavy(args, kwargs):
            prepare = functools.partial(method, self._preparing, *args, **kwargs)
            future = self._carry(*await self.awaiting.prepare(prepare))
        else:
            future = method(self._submitting, *args, **kwargs)
        return await future  # type: ignore[no-any-return]

    return call


def _read(
    method: Callable[Concatenate[Store, P], T],
) -> Callable[Concatenate["AsyncStore", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.awaiting.read(self.store.owner, functools.partial(method, self.store, *args, **kwargs))

    return call


def _upkeep(
    method: Callable[Concatenate[Store, P], T],
) -> Callable[Concatenate["AsyncStore", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: "AsyncStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(functools.partial(method, self.store, *args, **kwargs))

    return call


class AsyncStore:
    """A session store whose calls never block the event loop. A call that is cancelled still ends its transaction."""

    final = Store.final

    def __init__(self, store: Store, *, threads: int = 16) -> None:
        self.store, self.awaiting = store, Awaiting(store.database, store.watch, threads)
        self._carry = traced(self.awaiting.submit)
        self._submitting, self._preparing = (
            Store(store.database, owner=store.owner, limits=store.limits, carry=carry)
            for carry in (self._carry, lambda *call: call)
        )

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Open a database; see `Store.open`. Close the store when done: `async with await AsyncStore.open(…) as store`."""
        return cls(await asyncio.to_thread(Store.open, url, **options))

    def of(self, owner: str) -> Self:
        """The same database for another owner; see `Store.of`."""
        view = copy.copy(self)
        stores = (one.of(owner) for one in (self.store, self._submitting, self._preparing))
        view.store, view._submitting, view._preparing = stores  # noqa: SLF001  # our own
        return view

    @property
    def limits(self) -> Limits:
        """The limits of this store."""
        return self.store.limits

    async def run(self, action: Callable[[], T], *, reading: bool = False) -> T:
        """Run something that may wait for the disk, in a thread.

        When the caller is cancelled, what has not begun never will, and what runs, runs to its end.
        """
        return await self.awaiting.run(action, reading=reading)

    def events(self, id: str, since: Tag | None = None, *, incarnation: int | None = None) -> AsyncGenerator[Changes]:
        """See `Store.events`. What many follow on one event loop is read once for all of them."""
        return self._events(FollowedConversation(self.store.owner, self.limits, id, since, incarnation))

    def list_events(self, since: int | None = None) -> AsyncGenerator[ListChanges]:
        """See `Store.list_events`."""
        return self._events(FollowedList(self.store.owner, self.limits, since))

    async def _events(self, followed: Followed[Any, V]) -> AsyncGenerator[V]:
        events, begun = self.follow(followed, _unchanged), False
        try:
            async for event in events:
                yield event
                begun = True
        except ConversationDeleted:
            if not begun:
                raise
        finally:
            await events.aclose()

    async def follow(self, followed: Followed[Any, V], render: Callable[[V], T]) -> AsyncGenerator[T]:
        """What `render` makes of each event, once for all who follow the same thing with the same function, in a thread.

        Raises `ConversationDeleted` at the end.
        """
        channel, seen = self.awaiting.join(self.store, followed, render), followed.start
        try:
            while True:
                value, seen = await channel.after(seen)
                yield value
        finally:
            self.awaiting.leave(followed.topic, channel)

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
            self, self.store, id, holder, token=token, ttl_ms=ttl, messages=messages, if_busy=if_busy,
            incarnation=incarnation, if_match=if_match,
        )  # fmt: skip

    def heed(self, id: str, generation: int, alarm: Alarm) -> Callable[[], None]:
        """See `Store.heed`."""
        return self.store.heed(id, generation, alarm)

    @property
    def followers(self) -> int:
        """How many follow something, of all owners."""
        return sum(channel.followers for channel in list(self.awaiting.channels.values()))

    def end_events(self) -> None:
        """End all events, before the store is closed: whoever follows is told `Closed`. On the followers' event loop."""
        self.awaiting.end_events()

    async def close(self) -> None:
        """Give the leases of turns back, finish what runs, and close every connection. Later calls raise `Closed`."""
        self.awaiting.closed = True
        await asyncio.to_thread(self.awaiting.close)
        await asyncio.to_thread(self.store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    create = _mutation(Store.create)
    label = _mutation(Store.label)
    delete = _mutation(Store.delete)
    append = _mutation(Store.append)
    put = _mutation(Store.put)
    save_all = _mutation(Store.save_all)
    label_message = _mutation(Store.label_message)
    delete_message = _mutation(Store.delete_message)
    truncate = _mutation(Store.truncate)
    compact = _mutation(Store.compact)
    fork = _mutation(Store.fork)
    acquire = _mutation(Store.acquire)
    renew = _mutation(Store.renew)
    release = _mutation(Store.release)
    finish = _mutation(Store.finish)
    interrupt = _mutation(Store.interrupt)
    queue_inputs = _mutation(Store.queue_inputs)
    cancel_input = _mutation(Store.cancel_input)
    claim_inputs = _mutation(Store.claim_inputs)
    get = _read(Store.get)
    conversations = _read(Store.conversations)
    usage = _read(Store.usage)
    search = _read(Store.search)
    messages = _read(Store.messages)
    context = _read(Store.context)
    message = _read(Store.message)
    inputs = _read(Store.inputs)
    changes = _read(Store.changes)
    list_changes = _read(Store.list_changes)
    generations = _read(Store.generations)
    leases = _read(Store.leases)
    check_ready = _read(Store.check_ready)
    measured = _read(Store.measured)
    prune = _upkeep(Store.prune)
    purge = _upkeep(Store.purge)
    backup = _upkeep(Store.backup)
    check = _upkeep(Store.check)
    repair = _upkeep(Store.repair)
    export = _upkeep(Store.export)
    import_ = _upkeep(Store.import_)
    owners = _upkeep(Store.owners)

    @property
    def keys(self) -> "AsyncKeys":
        """See `Store.keys`."""
        return AsyncKeys(self.awaiting, self.store.keys)

    async def undo(self, id: str, backup: str | None = None, **options: Any) -> Answer[Undone]:
        """See `Store.undo`."""
        return await run_awaited(self, undo(id, backup, **options))

    async def transact(self, id: str, change: Callable[[GuardedConversation], T], **options: Any) -> Answer[T]:
        """Run several mutations in one transaction, see `Store.transact`. `change` is no coroutine; it runs in a thread."""
        if self.awaiting.closed:
            raise Closed
        future: Any = self._submitting.transact(id, change, **options)
        return await future  # type: ignore[no-any-return]


class AsyncKeys:
    """The keys of a database, awaited: see `Keys`."""

    def __init__(self, awaiting: Awaiting, keys: Keys) -> None:
        self._awaiting, self._keys = awaiting, keys

    async def create(self, name: str, owner: str, **options: Any) -> NewKey:
        """See `Keys.create`."""
        return await self._awaiting.run(functools.partial(self._keys.create, name, owner, **options))

    async def revoke(self, name: str) -> Key:
        """See `Keys.revoke`."""
        return await self._awaiting.run(functools.partial(self._keys.revoke, name))

    async def list(self) -> list[Key]:
        """See `Keys.list`."""
        return await self._awaiting.look_up(self._keys.list)

    async def find(self, secret: str) -> Key | None:
        """See `Keys.find`."""
        return await self._awaiting.look_up(functools.partial(self._keys.find, secret))

    async def find_hash(self, wanted: str) -> Key | None:
        """See `Keys.find_hash`."""
        return await self._awaiting.look_up(functools.partial(self._keys.find_hash, wanted))

    async def any(self) -> bool:
        """See `Keys.any`."""
        return await self._awaiting.look_up(self._keys.any)


def _unchanged(event: T) -> T:
    return event


def heavy(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether checking and encoding these would hold up an event loop: many characters, or many values."""
    room = LARGE
    try:
        for given in (*args, *named.values()):
            if given is not None:
                room = _room_left(given, room)
    except RecursionError:
        return True
    return room < 0


def _room_left(given: Any, room: int) -> int:
    if isinstance(given, str):
        return room - len(given)
    if isinstance(given, Save):
        given = given.message
    if isinstance(given, Draft):
        room = _room_left(given.content, room)
        return room if given.metadata is None else _room_left(given.metadata, room)
    if isinstance(given, dict):
        given = (*given, *given.values())
    elif not isinstance(given, list | tuple):
        return room
    room -= VALUE * len(given)
    for inside in given:
        if room < 0:
            break
        room = _room_left(inside, room)
    return room
