"""Clients who say nothing, or half of it, or say it slowly, or too much: over real sockets, with both parsers."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest
from sessionstore_api.serve import allow_many_sockets

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
    with LiveServer(url, clock, receive_seconds=1, http_parser=request.param) as running:
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
        assert head.startswith(b"HTTP/1.1 408 ")
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
            time.sleep(1.2)


def test_a_stream_goes_on_for_as_long_as_it_is_read(live: LiveServer) -> None:
    stream = Stream(live.port, "/v1/events")
    assert next(stream)["event"] == "conversations"
    time.sleep(1.5)
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


def answered(live: LiveServer, request: bytes) -> int | None:
    """The status, or None where the connection was closed without a word."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        try:
            connection.sendall(request)
            line = connection.makefile("rb").readline()
        except ConnectionError:
            return None
    return int(line.split()[1]) if line else None
