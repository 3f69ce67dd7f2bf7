"""Fixtures: a store behind each of its faces, an injected clock, and what lies in the tables."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from sessionstore import AsyncStore, Draft, Store, migrate
from sessionstore.client import AsyncClient, Client
from sessionstore.engine import sqlite3
from sessionstore.engines import invariants_of
from sessionstore.postgresql.database import PostgreSQLDatabase
from sessionstore.sqlite.database import SQLiteDatabase
from tests import trace
from tests.live import LiveServer
from tests.servers import BINARIES, Server, binaries

TOKEN = "token-of-the-first-holder-1"
OTHER_TOKEN = "token-of-the-other-holder-2"


class Clock:
    """Milliseconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds


class Awaited:
    """An AsyncStore, or an AsyncClient, that answers like a Store: each call is awaited on a loop of its own."""

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._store = self._wait(opening())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *args, **kwargs: self._wait(method(*args, **kwargs))

    def events(self, *args: Any, **kwargs: Any) -> "AwaitedEvents":
        return AwaitedEvents(self._store.events(*args, **kwargs), self._wait)

    def generate(self, *args: Any, **kwargs: Any) -> "AwaitedTurn":
        return AwaitedTurn(self._store.generate(*args, **kwargs), self._wait)

    def list_events(self, *args: Any, **kwargs: Any) -> "AwaitedEvents":
        return AwaitedEvents(self._store.list_events(*args, **kwargs), self._wait)

    def close(self) -> None:
        self._wait(self._store.close())
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class AwaitedEvents:
    """Events of an AsyncStore, iterated like those of a Store."""

    def __init__(self, events: AsyncGenerator[Any], wait: Callable[[Any], Any]) -> None:
        self._events, self._wait = events, wait

    def __iter__(self) -> "AwaitedEvents":
        return self

    def __next__(self) -> Any:
        try:
            return self._wait(self._step())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _step(self) -> Any:
        # Begun on its loop, which then ends it when nobody wants it any more.
        return await anext(self._events)

    def __enter__(self) -> "AwaitedEvents":
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._events.aclose())


class AwaitedTurn:
    """A turn of an AsyncStore, used like one of a Store."""

    def __init__(self, turn: Any, wait: Callable[[Any], Any]) -> None:
        self._turn, self._wait = turn, wait
        self.stopped = AwaitedStop(turn, wait)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._turn, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._wait(found(*args, **kwargs))

    def __enter__(self) -> "AwaitedTurn":
        self._wait(self._turn.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._wait(self._turn.__aexit__(*error))


class AwaitedStop:
    """An asyncio event, waited for like one of threading."""

    def __init__(self, turn: Any, wait: Callable[[Any], Any]) -> None:
        self._turn, self._wait = turn, wait

    def is_set(self) -> bool:
        return bool(self._turn.stopped.is_set())

    def wait(self, seconds: float) -> bool:
        return bool(self._wait(asyncio.wait_for(self._turn.stopped.wait(), seconds)))


@pytest.fixture(autouse=True)
def no_statement_breaks_the_rule(request: pytest.FixtureRequest) -> Iterator[None]:
    """In every test of the suite: each write transaction begins immediately and looks at the conversation first."""
    if request.node.get_closest_marker("any_sql"):
        yield
        return
    with trace.listening() as violations:
        yield
    assert violations == []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database to copy: migrating for every test would be most of the time."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def path(tmp_path: Path, template: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A database file. Whatever a test does with it through the product, at its end all that is always true is true."""
    copy = Path(shutil.copy(template, tmp_path / "store.db"))
    yield copy
    if not request.node.get_closest_marker("any_sql"):
        assert faults(copy) == []


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server of our own, with a migrated, empty database to copy."""
    if binaries() is None:
        reason = "There is no PostgreSQL on this machine: install Debian's `postgresql`, or say in " + BINARIES + " where it is"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with Server() as started:
        started.execute("CREATE DATABASE template")
        migrate.upgrade(started.url("template"))
        yield started


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database, on the engine that this run is about."""
    if ENGINE == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('path')}"
        return
    started: Server = request.getfixturevalue("postgresql")
    with started.database() as url:
        yield url
        if not request.node.get_closest_marker("any_sql"):
            assert faults(url) == []


@pytest.fixture
def second(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Another database, with nothing in it but the schema."""
    if ENGINE == "sqlite":
        yield f"sqlite:///{shutil.copy(request.getfixturevalue('template'), tmp_path / 'second.db')}"
        return
    with request.getfixturevalue("postgresql").database() as url:
        yield url


@pytest.fixture
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a database can be made: no file yet, or one on a server in which nothing is."""
    if ENGINE == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    with request.getfixturevalue("postgresql").copied("template0") as url:
        yield url


def faults(place: Path | str) -> list[Any]:
    """What breaks an invariant, found like an operator would."""
    invariants = invariants_of("sqlite:///x" if isinstance(place, Path) else place)
    found = Tables(place).all_rows(one.sql for one in invariants)
    return [(one.name, *row) for one, rows in zip(invariants, found, strict=True) for row in rows]


ENGINE = os.environ.get("SESSIONSTORE_TEST_ENGINE", "sqlite")
"""Which engine this run is about: sqlite or postgresql. The suite is the same; what is about a file is left out on a server."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about the other engine."""
    others = [item for item in items if _is_of_another_engine(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def _is_of_another_engine(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    about_a_file = "path" in names or "template" in names or item.get_closest_marker("one_file") is not None
    return about_a_file if ENGINE == "postgresql" else item.get_closest_marker("a_server") is not None


FACES = os.environ.get("FACES", "Store AsyncStore Client AsyncClient").split()


@pytest.fixture(params=FACES)
def store(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Store]:
    """The conformance suite runs on every face of the store, unchanged: in this process, and through a real server."""
    with face(request.param, url, clock) as opened:
        yield opened


@contextmanager
def face(name: str, url: str, clock: Clock) -> Iterator[Store]:
    """One of the faces of a store."""
    with ExitStack() as stack:
        if name == "Store":
            opened: Any = Store.open(url, clock=clock)
        elif name == "AsyncStore":
            opened = Awaited(lambda: AsyncStore.open(url, clock=clock))
        else:
            address = stack.enter_context(LiveServer(url, clock)).address
            opened = Client(address) if name == "Client" else Awaited(partial(connected, address))
        stack.callback(opened.close)
        yield cast("Store", opened)


def runs_changes(store: Store) -> bool:
    """Whether this face runs a caller's own function in a transaction, which only one in the database's process can."""
    return hasattr(store, "transact")


async def connected(address: str) -> AsyncClient:
    return AsyncClient(address)


@pytest.fixture
def plain(url: str, clock: Clock) -> Iterator[Store]:
    """Just a Store, where its face does not matter."""
    with Store.open(url, clock=clock) as opened:
        yield opened


def on_file(store: Store) -> SQLiteDatabase:
    """The database of a store, which is a file."""
    assert isinstance(store.database, SQLiteDatabase)
    return store.database


def in_line(store: Store) -> int:
    """How many calls wait for their turn in this process."""
    if isinstance(store.database, PostgreSQLDatabase):
        return store.database._lines._waiting
    return len(on_file(store)._groups._lanes)


class Tables:
    """What is in the database, seen over a connection of its own."""

    def __init__(self, place: Path | str) -> None:
        self._url = f"sqlite:///{place}" if isinstance(place, Path) else place

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.all_rows([sql], *parameters)[0]

    def all_rows(self, statements: Iterable[str], *parameters: Any) -> list[list[tuple[Any, ...]]]:
        """Of several statements, over one connection."""
        if not self._url.startswith("sqlite"):
            with psycopg.connect(self._url) as server:
                asked = (sql.replace("%", "%%").replace("?", "%s") for sql in statements)
                return [server.execute(sql, parameters).fetchall() for sql in asked]
        connection = sqlite3.connect(f"file:{self._url.removeprefix('sqlite:///')}?mode=ro", uri=True, timeout=10)
        try:
            return [connection.execute(sql, parameters).fetchall() for sql in statements]
        finally:
            connection.close()

    def one(self, sql: str, *parameters: Any) -> Any:
        return self.rows(sql, *parameters)[0][0]

    def sound(self) -> bool:
        """Whether the engine finds nothing wrong. A server has nothing to say about that."""
        return not self._url.startswith("sqlite") or self.one("PRAGMA integrity_check") == "ok"

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables, to compare before and after."""
        return {name: self.rows(f"SELECT * FROM {name} ORDER BY 1") for name in ("conversations", "messages", "generations")}


@pytest.fixture
def copied(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[[], str]]:
    """Copies the database, which nobody may have open, and answers where the copy is."""
    with ExitStack() as stack:

        def copy() -> str:
            if ENGINE == "sqlite":
                path = Path(url.removeprefix("sqlite:///"))
                return f"sqlite:///{shutil.copy(path, path.with_name('copied.db'))}"
            server: Server = request.getfixturevalue("postgresql")
            return str(stack.enter_context(server.copied(url.rpartition("/")[2])))

        yield copy


@pytest.fixture
def tables(url: str) -> Tables:
    return Tables(url)


def user(text: Any, id: str | None = None, role: str = "user", **rest: Any) -> Draft:
    return Draft(role=role, content=text, id=id, **rest)


def reply(text: Any, id: str | None = None, **rest: Any) -> Draft:
    return user(text, id, "assistant", **rest)


def texts(store: Store, id: str) -> list[Any]:
    return [message.content for message in store.messages(id, limit=1000).items]
