"""Clients who say nothing, or half of it, or say it slowly, or too much: over real sockets, with both parsers."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sessionstore_api.app import create_app
from sessionstore_api.serve import allow_many_sockets

from sessionstore.engine import sqlite3
from sessionstore.settings import Settings
from tests.conftest import Clock
from tests.live import LiveServer, Stream

HEAD = b"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = HEAD + b"Content-Length: 100\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "half a line": (b"GE", b""),
    "half a head": (HEAD, b""),
    "half a body": (BODY + b'{"id"', b""),
    "half a chunk": (CHUNKED + b"5\r\n{", b""),
    "a trickled head": (HEAD + b"X-Slow: ", b"x"),
    "a trickled body": (BODY + b'{"id": "', b"x"),
    "trickled chunks": (CHUNKED, b"1\r\n \r\n"),
}
"""What is sent at once, and what is sent again and again after it."""


@pytest.fixture(params=["httptools", "h11"])
def live(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[LiveServer]:
    with LiveServer(url, clock, receive_seconds=2, http_parser=request.param) as running:
        yield running


class Slow:
    """A client of one of these kinds."""

    def __init__(self, live: LiveServer, kind: str) -> None:
        at_once, self._drop = SLOW[kind]
        self.socket = socket.create_connection(("127.0.0.1", live.port), timeout=30)
        self.socket.sendall(at_once)

    def drip(self) -> None:
        """Send a little more."""
        try:
            self.socket.sendall(self._drop)
        except OSError:
            self._drop = b""

    def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        received = b""
        try:
            while part := self.socket.recv(65_536):
                received += part
        except ConnectionError:
            pass
        self.socket.close()
        return received


def drip_until(done: threading.Event, clients: list[Slow]) -> None:
    while not done.wait(0.1):
        for client in clients:
            client.drip()


@pytest.mark.parametrize("kind", SLOW)
def test_a_request_that_does_not_come_in_time_is_told_so_and_closed(live: LiveServer, kind: str) -> None:
    done, client = threading.Event(), Slow(live, kind)
    dripping = threading.Thread(target=drip_until, args=(done, [client]))
    dripping.start()
    received = client.rest()
    done.set()
    dripping.join()
    # A client who still sends may find the connection reset before he reads.
    if received or not SLOW[kind][1]:
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close" in head.lower()
        assert (json.loads(body)["code"], json.loads(body)["retryable"]) == ("request-timeout", True)


def test_500_slow_clients_keep_nobody_from_being_served(live: LiveServer) -> None:
    allow_many_sockets()
    kinds, done = list(SLOW), threading.Event()
    with httpx2.Client(base_url=live.address, timeout=30) as good:
        assert good.post("/v1/conversations", json={"id": "c"}).status_code == 201
        clients = [Slow(live, kinds[n % len(kinds)]) for n in range(500)]
        dripping = threading.Thread(target=drip_until, args=(done, clients))
        dripping.start()
        for n in range(50):
            body = {"messages": [{"role": "user", "content": n}]}
            assert good.post("/v1/conversations/c/messages", json=body).status_code == 201
        with httpx2.Client(base_url=live.address, timeout=30) as another:
            assert another.get("/v1/conversations/c").json()["message_count"] == 50
        # All of them are closed, also those who never stopped sending.
        for client in clients:
            client.rest()
        done.set()
        dripping.join()
        assert good.get("/v1/conversations/c").status_code == 200


def test_who_is_quick_keeps_his_connection_however_long_he_thinks(live: LiveServer) -> None:
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=30)
    with connection, connection.makefile("rb") as answers:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answers.readline().split()[1] == b"200"
            while (line := answers.readline()) != b"\r\n":
                length = int(line.split()[1]) if line.lower().startswith(b"content-length") else 0
            answers.read(length or 15)
            time.sleep(2.2)


def test_a_stream_goes_on_for_as_long_as_it_is_read(live: LiveServer) -> None:
    stream = Stream(live.port, "/v1/events")
    assert next(stream)["event"] == "conversations"
    time.sleep(2.5)
    assert httpx2.post(f"{live.address}/v1/conversations", json={"id": "c"}).status_code == 201
    assert next(stream)["data"]["data"][0]["id"] == "c"
    stream.close()


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (b"Host: localhost\r\n", 200),
        (b"", 400),
        (b"Host: localhost\r\nHost: evil.example\r\n", 400),
        (b"Host: localhost\r\nhost: localhost\r\n", 400),
        (b"Host: evil.example\r\n", 403),
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_there_is_one_host_whichever_parser_reads_it(live: LiveServer, hosts: bytes, status: int, version: bytes) -> None:
    """httptools by itself accepts two, and RFC 9112 §3.2 wants 400."""
    assert answered(live, b"GET /healthz HTTP/" + version + b"\r\n" + hosts + b"\r\n") == status


@pytest.mark.parametrize("head", [b"X: " + b"x" * 200_000, b"X: y\r\n" * 40_000, b"Host: " + b"x" * 100_000])
def test_a_head_is_64_kib_at_most_whichever_parser_reads_it(live: LiveServer, head: bytes) -> None:
    assert answered(live, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n") in (400, 431, None)
    assert answered(live, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000 + b"\r\n\r\n") == 200


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://evil.example/v1/conversations HTTP/1.1",
        b"CONNECT evil.example:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"\x16\x03",
    ],
)
def test_a_request_that_means_somebody_else_is_no_call(live: LiveServer, request_line: bytes) -> None:
    status = answered(live, request_line + b"\r\nHost: evil.example\r\n\r\n")
    assert status in (400, 403, None)


def test_who_pipelines_has_time_for_each_of_his_requests(live: LiveServer) -> None:
    """Each arrives in time, though one always ends in the segment in which the next begins (found by review)."""
    body = b'{"metadata": {"k": "xxxxxxx"}}'
    request = BODY.replace(b"100", b"%d" % len(body)) + body
    whole, answers = request * 16, b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        for sent in range(0, len(whole), len(request)):
            # The end of one, and the next but for its end.
            connection.sendall(whole[max(0, sent - 10) : sent + len(request) - 10])
            time.sleep(0.25)
        connection.sendall(whole[-10:])
        while answers.count(b"HTTP/1.1 ") < 16 and (part := connection.recv(65_536)):
            answers += part
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"201"] * 16


@pytest.mark.one_file
def test_what_is_late_is_never_the_answer_to_what_came_before(live: LiveServer, path: Path) -> None:
    """A second request that never comes whole leaves the first one its answer (found by review)."""
    rival = sqlite3.connect(path, isolation_level=None)
    assert httpx2.get(f"{live.address}/healthz").status_code == 200
    rival.execute("BEGIN IMMEDIATE")
    request = BODY.replace(b"100", b"14") + b'{"id": "kept"}'
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        connection.sendall(request + BODY + b'{"id"')
        time.sleep(2.5)
        rival.execute("ROLLBACK")
        rival.close()
        answers = connection.makefile("rb")
        assert answers.readline().split()[1] == b"201"
        # And then the second one is told as well.
        rest = answers.read()
    assert rest.count(b"HTTP/1.1 408 ") == 1


def test_what_never_became_a_request_is_counted(live: LiveServer) -> None:
    for kind in ("silent", "half a head", "half a body"):
        Slow(live, kind).rest()
    told = httpx2.get(f"{live.address}/metrics").text
    assert 'sessionstore_problems_total{code="request-timeout"} 3.0' in told
    assert 'sessionstore_requests_total{method="other",route="other",status="408"}' in told


def test_a_body_that_does_not_come_is_given_up_under_any_server(url: str, clock: Clock) -> None:
    """The application does so by itself, where its server does not."""
    app = create_app(Settings(database_url=url, receive_seconds=1), clock=clock)
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/v1/conversations", "raw_path": b"/v1/conversations", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"10")],
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.sleep(600)

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        async with app.router.lifespan_context(app) as state:
            await app({**scope, "state": dict(state or {})}, never, send)

    asyncio.run(call())
    assert sent[0]["status"] == 408


def answered(live: LiveServer, request: bytes) -> int | None:
    """The status, or None where the connection was closed without a word."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        try:
            connection.sendall(request)
            line = connection.makefile("rb").readline()
        except ConnectionError:
            return None
    return int(line.split()[1]) if line else None
