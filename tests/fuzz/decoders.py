"""Every decoder in this process, whole requests among them: no error that is not ours, no 5xx, nothing slow, no growth of memory."""

import asyncio
import base64
import gc
import importlib
import inspect
import io
import json
import pkgutil
import re
import resource
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sessionstore_api
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sessionstore_api.app import OPERATIONS, create_app
from sessionstore_api.calls import moment_of
from sessionstore_api.operations import Operation

import sessionstore
from sessionstore import Store, jsontext
from sessionstore.cursors import Cursor, decode_cursor
from sessionstore.errors import SessionStoreError
from sessionstore.model import Tag
from sessionstore.settings import Settings
from tests.api.test_leases import BODIES

SLOW_SECONDS = 5.0
GROWTH_BYTES = 64 * 1024 * 1024
LONG = 64 * 1024

ODD = st.sampled_from(
    ["", " ", "*", '"', '""', '"1-1"', "1-1", "0", "-1", "9" * 30, "1e400", "null", "true", "..", ".", "/", "\\", "%", "%00", "\x00",
     "\u00e9", "\U0001f331", "\ud800", "Bearer", "Bearer x", "OPS-306", "a OR b", "body : x", "NEAR(a b)", "(" * 500, "'; DROP TABLE keys;--",
     "a" * 1_001, "2026-12-01T00:00:00Z", "localhost", "null:80", "[::1]", "[" * 100]
)  # fmt: skip
WORDS = st.one_of(ODD, st.text(max_size=40), st.text(alphabet=string.printable, max_size=200))
BYTES = st.one_of(WORDS.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=200))
JSON: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS),
    lambda inside: st.one_of(st.lists(inside, max_size=5), st.dictionaries(WORDS, inside, max_size=5)),
    max_leaves=20,
)
NAMES = (
    b"authorization", b"lease-token", b"incarnation", b"if-match", b"if-none-match", b"last-event-id", b"host", b"origin",
    b"sec-fetch-site", b"content-type", b"content-length", b"traceparent", b"x-request-id", b"cookie", b"expect",
)  # fmt: skip
HEADER = st.tuples(st.sampled_from(NAMES), BYTES.map(lambda value: value.translate(None, b"\r\n")))
CALLS = [operation for operation in OPERATIONS if operation.counted != "streams"]


@st.composite
def bodies(draw: Callable[[Any], Any], operation: Operation) -> bytes:
    """Nothing, nonsense, or something near to what is wanted."""
    wanted = BODIES.get(operation.name, {})
    kinds = ["right", "right", "near", "near", "json", "bytes", "deep", "none"] if operation.body else [*["none"] * 9, "bytes"]
    kind = draw(st.sampled_from(kinds))
    if kind == "near" and isinstance(wanted, dict):
        wanted = {**wanted, draw(st.sampled_from([*wanted, "id", "messages", "metadata", "force"])): draw(JSON)}
    if kind == "deep":
        return b'{"messages": ' + b"[" * int(draw(st.integers(0, 100_000)))
    if kind == "bytes":
        return bytes(draw(BYTES))
    if kind == "none":
        return b""
    return _json(draw(JSON) if kind == "json" else wanted)


@st.composite
def requests(draw: Callable[[Any], Any]) -> dict[str, Any]:
    """A request to one of our routes."""
    operation: Operation = draw(st.sampled_from(CALLS))
    names = st.one_of(
        st.sampled_from(["c", "m"]), WORDS.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe=""))
    )
    path = re.sub(r"\{\w+\}", lambda _: draw(names), operation.path).encode()
    asked = [f"{field}=" for field in operation.query.__struct_fields__]
    query = b"&".join(
        name.encode() + quote(draw(BYTES), safe="").encode()
        for name in draw(st.lists(st.sampled_from([*asked, "x="]), max_size=3))
    )
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), *draw(st.lists(HEADER, max_size=3))]
    return {
        "method": draw(st.sampled_from([operation.method, operation.method, "HEAD", "OPTIONS"])),
        "raw_path": path + draw(st.sampled_from([*[b""] * 10, b"/", b"%0a", b"%ff"])),
        "query_string": draw(st.one_of(st.just(query), st.just(query), st.just(b""), BYTES)),
        "headers": headers[draw(st.sampled_from([*[0] * 10, 1, 2])) :],
        "body": draw(bodies(operation)),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


class Caller:
    """The application, called without a network."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop, state: dict[str, Any]) -> None:
        self._app, self._loop, self._state = app, loop, state
        self.statuses: Counter[int] = Counter()

    def call(self, request: dict[str, Any]) -> None:
        """Send it, and look at the answer."""
        sent: list[Any] = []
        began = time.perf_counter()
        self._loop.run_until_complete(asyncio.wait_for(self._send(request, sent), 30))
        status = next(message["status"] for message in sent if message["type"] == "http.response.start")
        self.statuses[status] += 1
        assert status < 500 or status == 503, (status, request)
        assert time.perf_counter() - began < SLOW_SECONDS, request

    async def _send(self, request: dict[str, Any], sent: list[Any]) -> None:
        from urllib.parse import unquote

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1), "state": dict(self._state), **{name: request[name] for name in ("method", "raw_path", "query_string", "headers")},
            "path": unquote(request["raw_path"].decode("ascii", "replace")),
        }  # fmt: skip
        parts = [{"type": "http.request", "body": request["body"], "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)


def decode_anything(seconds: float, started: int) -> int:
    """Fuzz for so long. Answers how many kinds of faults were found."""
    end, found = time.monotonic() + seconds, _slow_expressions()
    with tempfile.TemporaryDirectory() as directory:
        url, loop = f"sqlite:///{directory}/fuzz.db", asyncio.new_event_loop()
        app = create_app(Settings(database_url=url))
        lifespan = app.router.lifespan_context(app)
        caller = Caller(app, loop, dict(loop.run_until_complete(lifespan.__aenter__())))  # type: ignore[arg-type]
        store = Store.open(url)
        store.create("c", messages=[sessionstore.Draft(role="user", content="hi", id="m")])
        targets = [*_targets(store), (requests(), caller.call)]
        memory, rounds = 0, 0
        while time.monotonic() < end or not rounds:
            for number, (strategy, target) in enumerate(targets):
                found += _try(strategy, target, started + 100 * rounds + number, 20 if target != caller.call else 300)
            rounds += 1
            gc.collect()
            memory = memory or _memory()
        grown = _memory() - memory
        store.close()
        loop.run_until_complete(lifespan.__aexit__(None, None, None))
        loop.close()
    sys.stdout.write(
        f"{rounds} rounds of {len(targets)} decoders, answers {dict(sorted(caller.statuses.items()))}; memory grew {grown >> 10} KiB\n"
    )
    return found + (grown > GROWTH_BYTES)


def _targets(store: Store) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """What reads text from outside, and may refuse it."""
    yield BYTES, _refusing(jsontext.decode)
    yield JSON.map(_json), _refusing(jsontext.decode)
    for kind in Cursor.__subclasses__():
        decode = partial(decode_cursor, kind=kind)
        yield WORDS, _refusing(decode)
        yield JSON.map(lambda value: base64.urlsafe_b64encode(_json(value)).decode()), _refusing(decode)
    yield WORDS, _refusing(Tag.parse)
    yield WORDS, _refusing(lambda text: moment_of(text, "?since"))
    yield WORDS, _refusing(store.search)
    yield WORDS, _refusing(store.keys.find)
    yield WORDS, _refusing(lambda text: store.conversations(containing=text, metadata_key=text, metadata_value=text))
    yield (
        st.lists(st.one_of(BYTES, JSON.map(_json)), max_size=5).map(b"\n".join),
        _refusing(lambda lines: store.import_(io.BytesIO(lines))),
    )
    yield JSON, _refusing(lambda value: store.append("c", [sessionstore.Draft(role="user", content=value)]))
    yield JSON, _refusing(lambda value: store.label("c", metadata=value))


def _refusing(decode: Callable[[Any], Any]) -> Callable[[Any], None]:
    def target(given: Any) -> None:
        began = time.perf_counter()
        with suppress(SessionStoreError):
            decode(given)
        assert time.perf_counter() - began < SLOW_SECONDS, given

    return target


def _try(strategy: Any, target: Callable[[Any], Any], number: int, examples: int) -> int:
    @seed(number)
    @settings(
        max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(strategy)
    def attempt(given: Any) -> None:
        target(given)

    try:
        attempt()
    except Exception as error:  # noqa: BLE001  # that is what is looked for
        sys.stdout.write(f"FOUND with seed {number}: {type(error).__name__}: {str(error)[:2000]}\n")
        return 1
    return 0


def _slow_expressions() -> int:
    """How many of our regular expressions take long for some text that is as long as a head may be."""
    found, attacks = (
        0,
        [
            part * (LONG // len(part)) + "!"
            for part in ("a", " ", "-", ".", "0", "/", "\\", '"', "[", ":", "a.", "a-", " a", "\u00e9")
        ],
    )
    for name, expression, searched in _expressions():
        for attack in attacks:
            text: Any = attack if isinstance(expression.pattern, str) else attack.encode()
            for act in (expression.fullmatch, *([expression.search] if searched else [])):
                began = time.perf_counter()
                act(text)
                if time.perf_counter() - began > 1:
                    found += 1
                    sys.stdout.write(f"SLOW: {name} {expression.pattern!r} on {attack[:2]!r}…\n")
    return found


def _expressions() -> Iterator[tuple[str, "re.Pattern[Any]", bool]]:
    """Each, and whether it is looked for inside of a text."""
    for package in (sessionstore, sessionstore_api):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            imported = importlib.import_module(module.name)
            source = inspect.getsource(imported)
            for name, value in vars(imported).items():
                if isinstance(value, re.Pattern):
                    yield f"{module.name}.{name}", value, re.search(rf"\b{name}\.(?!fullmatch|match)", source) is not None


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
