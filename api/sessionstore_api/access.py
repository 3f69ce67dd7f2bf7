"""Who calls, and what he may: a key stands for one owner, and nobody sees anything of another one.

A key is looked up in the database, and believed for a second: so long a key that was revoked may still be used. As long as the
database has never had a key, everybody on this machine is let in, and nobody from elsewhere.
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache

from sessionstore import AsyncStore
from sessionstore.errors import Forbidden, SessionStoreError, TooManyRequests, Unauthorized
from sessionstore.keys import Key, hash_of
from sessionstore.settings import Settings
from sessionstore_api.incoming import Incoming

BELIEVED_SECONDS = 1.0
MOST_KNOWN = 10_000
OVER = "a key that is none, or is over"


class Visitor:
    """Who calls: the store of his owner, his rights, and how much of him is under way in this process.

    `may_write`: he may change something. `is_admin`: he may end others' turns by force, and see the metrics.
    """

    def __init__(
        self, store: AsyncStore, key: Key | None, most: Mapping[str, int], *, may_write: bool = True, is_admin: bool = True
    ) -> None:
        self.store, self.key, self.may_write, self.is_admin = store, key, may_write, is_admin
        self.believed_until, self.hashed = 0.0, ""
        self._most, self.under_way = most, {"requests": 0, "streams": 0}
        self._following: set[asyncio.Future[None]] = set()
        self.is_over = False
        """Whether he is let in no more."""

    @property
    def name(self) -> str | None:
        """What the key is called."""
        return None if self.key is None else self.key.name

    def enter(self, kind: str) -> None:
        """One more request, or stream: `leave` when it is over. Raises `TooManyRequests`; without keys nobody has too many."""
        if self.key is not None and self.under_way[kind] >= self._most[kind]:
            raise TooManyRequests(reason=f"{self._most[kind]} {kind} of this key are under way")
        self.under_way[kind] += 1

    def leave(self, kind: str) -> None:
        """It is over."""
        self.under_way[kind] -= 1

    @contextmanager
    def following(self) -> Iterator[asyncio.Future[None]]:
        """What is done when the key is good for nothing any more."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following.add(over)
        if self.is_over:
            over.set_result(None)
        try:
            yield over
        finally:
            self._following.discard(over)

    def check_valid(self) -> None:
        """Raise `Unauthorized` once he is let in no more."""
        if self.is_over:
            raise Unauthorized(reason=OVER)

    def end(self) -> None:
        """Let him in no more, and tell whoever follows."""
        self.is_over = True
        for over in self._following:
            if not over.done():
                over.set_result(None)

    def check(self, method: str, *, admin: bool) -> None:
        """Raise `Forbidden` for a call that he may not make, as far as its method and address tell."""
        if not self.may_write and method not in ("GET", "HEAD"):
            raise Forbidden(reason="This key is read-only")
        if admin and not self.is_admin:
            raise Forbidden(reason="This needs a key with the right `admin`")


class Access:
    """Lets in whoever has a key, and tells who he is. Lives on one event loop."""

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        self._store, self._keys = store, store.keys
        self._most = {"requests": settings.requests_per_key, "streams": settings.streams_per_key}
        self._visitors: dict[str, Visitor] = {}
        self._anybody = Visitor(store, None, self._most)
        self._stranger = Visitor(store, None, self._most, may_write=False, is_admin=False)
        self._wants_keys, self._without_until = False, 0.0

    @property
    def stranger(self) -> Visitor:
        """Who is served without being asked for a key."""
        return self._stranger if self._wants_keys else self._anybody

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Meanwhile keys that have run out are noticed while something of them goes on."""
        await self._wanted()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def visitor(self, incoming: Incoming) -> Visitor:
        """Who calls. Raises `Unauthorized` for who has no key, or none that is good for anything, and `Malformed` for two."""
        given = incoming.single_header("Authorization")
        if given is None:
            if await self._wanted():
                raise Unauthorized(reason="no key")
            if not is_local((incoming.scope.get("server") or ("",))[0] or ""):
                raise Unauthorized(reason="no key, and without one it serves its own machine only")
            return self._anybody
        scheme, _, secret = given.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthorized(reason="no bearer key")
        return await self._of(secret)

    async def _of(self, secret: str) -> Visitor:
        hashed, now = hash_of(secret), self._now()
        known = self._visitors.get(hashed)
        if known is not None and now < known.believed_until:
            return known
        if known is not None:
            # Who comes meanwhile need not ask as well.
            known.believed_until = now + BELIEVED_SECONDS
        try:
            key = await self._keys.find_hash(hashed)
        except BaseException:
            # Whatever was in the way says nothing of the key: the next one asks.
            if known is not None:
                known.believed_until = 0.0
            raise
        if key is None:
            self._forget(hashed)
            raise Unauthorized(reason=OVER)
        self._want()
        if known is None or known.is_over:
            # Somebody else may have asked meanwhile.
            own = Visitor(self._store.of(key.owner), key, self._most, may_write=not key.read_only, is_admin=key.admin)
            own.hashed, known = hashed, self._visitors.setdefault(hashed, own)
            self._make_room()
        known.believed_until = now + BELIEVED_SECONDS
        return known

    async def _wanted(self) -> bool:
        """Whether there are keys. Once there are, it stays so: keys that are over stay where they are."""
        if self._wants_keys or self._now() < self._without_until:
            return self._wants_keys
        # Who comes meanwhile need not ask as well.
        self._without_until = self._now() + BELIEVED_SECONDS if self._without_until else 0.0
        try:
            if await self._keys.any():
                self._want()
        except BaseException:
            self._without_until = 0.0
            raise
        self._without_until = self._now() + BELIEVED_SECONDS
        return self._wants_keys

    def _want(self) -> None:
        """There are keys: who came without is let in no more."""
        self._wants_keys = True
        self._anybody.end()

    async def confirm(self, visitor: Visitor) -> None:
        """Ask again what was asked longer than a second ago: a request may take its time to arrive. Raises `Unauthorized`."""
        if visitor.key is None:
            await self._wanted()
        elif self._now() >= visitor.believed_until:
            await self._look_again(visitor)
        visitor.check_valid()

    def _forget(self, hashed: str) -> None:
        gone = self._visitors.pop(hashed, None)
        if gone is not None:
            gone.end()

    def _make_room(self) -> None:
        idle = (hashed for hashed, visitor in self._visitors.items() if not any(visitor.under_way.values()))
        while len(self._visitors) > MOST_KNOWN and (oldest := next(iter(idle), None)) is not None:
            del self._visitors[oldest]
            idle = (hashed for hashed, visitor in self._visitors.items() if not any(visitor.under_way.values()))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(BELIEVED_SECONDS)
            with suppress(SessionStoreError):
                await self._wanted()
            for visitor in list(self._visitors.values()):
                if visitor.under_way["streams"]:
                    with suppress(SessionStoreError):
                        await self._look_again(visitor)

    async def _look_again(self, visitor: Visitor) -> None:
        if await self._keys.find_hash(visitor.hashed) is None:
            self._forget(visitor.hashed)
            visitor.end()
        else:
            visitor.believed_until = self._now() + BELIEVED_SECONDS

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


@lru_cache(maxsize=256)
def is_local(here: str) -> bool:
    """Whether an address is one of the machine itself: a socket in a file has none, and is local as well."""
    try:
        return ipaddress.ip_address(here).is_loopback
    except ValueError:
        return True
