"""`sessionstore serve` as a process, over real sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sessionstore import Store, errors, migrate
from sessionstore.client import Client
from sessionstore.sqlite.connections import engine_fault
from tests.conftest import texts, user


class Server:
    """A running server and its address."""

    def __init__(self, url: str, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sessionstore.cli", "serve", "--database", url, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Nobody reads what it says before it has ended.
            env={**os.environ, "SESSIONSTORE_LOG_LEVEL": "warning", **environment},
        )
        assert self.process.stdout is not None
        listening, database = self.process.stdout.readline(), self.process.stdout.readline()
        self.said = listening + database
        self.address = listening.split()[2] if listening else ""

    def post(self, path: str, body: Any) -> "Sent":
        """Send a call and go on."""
        return Sent(int(self.address.rpartition(":")[2]), path, body)

    def wait_until_read(self) -> None:
        """Everything that was sent lies in no queue of the system any more: the server has it."""
        port = f"{int(self.address.rpartition(':')[2]):04X}"
        while any(
            local.endswith(f":{port}") and state == "01" and not queues.endswith(":00000000")
            for _, local, _, state, queues, *_ in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        ):
            pass

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.errors = self.process.communicate(timeout=30)[1]
        return self.process.returncode


class Sent:
    """A call on its way, over a socket of its own."""

    def __init__(self, port: int, path: str, body: Any) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + text)

    def answer(self) -> tuple[int, Any]:
        """Status and body."""
        with self._socket:
            answered = HTTPResponse(self._socket)
            answered.begin()
            return answered.status, json.loads(answered.read())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(f"sqlite:///{tmp_path}/data/store.db", SESSIONSTORE_LOG_LEVEL="info")
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate()


def test_it_says_where_it_listens_serves_and_ends_well(server: Server, tmp_path: Path) -> None:
    assert server.said.splitlines()[1] == f"Database {tmp_path}/data/store.db"
    with httpx2.Client(base_url=server.address) as client:
        assert client.get("/readyz").json()["status"] == "ready"
        created = client.post("/v1/conversations", json={"id": "c", "messages": [{"role": "user", "content": "hi"}]})
        assert created.status_code == 201
        assert client.head("/v1/conversations/c").content == b""
    assert server.stop() == 0
    fault = engine_fault()
    told = [json.loads(line) for line in server.errors.splitlines()]
    assert [line["event"] for line in told if line["level"] != "info"] == ([] if fault is None else [fault])
    assert [(line["method"], line["route"], line["status"]) for line in told if line["event"] == "request"] == [
        ("GET", "/readyz", 200), ("POST", "/v1/conversations", 201), ("HEAD", "/v1/conversations/{conversation_id}", 200),
    ]  # fmt: skip
    with Store.open(f"sqlite:///{tmp_path}/data/store.db") as store:
        assert texts(store, "c") == ["hi"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_end_in_good_order(server: Server, number: int) -> None:
    assert server.stop(number) == 0


def test_sigterm_finishes_the_call_that_is_running(url: str, path: Path) -> None:
    import sqlite3

    running = Server(url)
    with Store.open(url) as store:
        store.create("c")
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    call = running.post("/v1/conversations/c/messages", {"messages": [{"role": "user", "content": "accepted"}]})
    running.wait_until_read()
    running.process.send_signal(signal.SIGTERM)
    rival.execute("ROLLBACK")
    rival.close()
    assert call.answer()[0] == 201
    assert running.stop() == 0
    with Store.open(url) as store:
        assert texts(store, "c") == ["accepted"]


def test_two_servers_on_one_file_agree(url: str) -> None:
    first, second = Server(url), Server(url)
    try:
        body = {"id": "c", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx2.post(f"{first.address}/v1/conversations", json=body).status_code == 201
        assert httpx2.post(f"{second.address}/v1/conversations", json=body).status_code == 200
        lease = {"holder": "on the first"}
        assert httpx2.post(f"{first.address}/v1/conversations/c/lease", json=lease).status_code == 201
        refused = httpx2.post(f"{second.address}/v1/conversations/c/lease", json={"holder": "on the second"})
        assert (refused.status_code, refused.json()["holder"]) == (409, "on the first")
    finally:
        assert (first.stop(), second.stop()) == (0, 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_it_refuses_other_addresses_than_this_machines_until_there_is_a_key(host: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    command = [sys.executable, "-m", "sessionstore.cli", "serve", "--database", url, "--port", "0", "--host", host]
    for there in (False, True):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"Error: {host} is not a loopback address, and without keys")
        # Nor was there anything made that a stranger could be let into.
        assert (tmp_path / "store.db").exists() == there
        migrate.upgrade(url)


def test_with_a_key_it_listens_anywhere_and_serves_who_has_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with Store.open(url, migrate_first=True) as store:
        secret = store.keys.create("k", "ann").secret
    running = Server(url, "--host", "0.0.0.0")
    try:
        address = running.address.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{address}/v1/conversations").status_code == 401
        with Client(address, key=secret) as client:
            client.create("c")
            assert client.get("c").id == "c"
        with Client(address, key="ssk_another") as stranger, pytest.raises(errors.Unauthorized):
            stranger.get("c")
    finally:
        assert running.stop() == 0


def test_a_port_in_use_is_one_clear_line(server: Server, url: str) -> None:
    port = server.address.rpartition(":")[2]
    run = [sys.executable, "-m", "sessionstore.cli", "serve", "--database", url, "--port", port]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Cannot listen" in done.stderr


def test_a_database_from_the_future_is_refused_before_anything_listens(url: str, plain: Store, path: Path) -> None:
    import sqlite3

    plain.create("c", messages=[user("x")])
    plain.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'from the future'")
    connection.commit()
    connection.close()
    run = [sys.executable, "-m", "sessionstore.cli", "serve", "--database", url, "--port", "0"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.count("\n") == 1


def test_l12_the_other_server_reads_and_forks_what_is_generated_on_the_first(url: str) -> None:
    first, second = Server(url), Server(url)
    here, there = f"{first.address}/v1/conversations", f"{second.address}/v1/conversations"
    body = {"messages": [{"role": "user", "content": "late"}]}
    try:
        httpx2.post(here, json={"id": "c", "messages": [{"role": "user", "content": "hi"}]})
        httpx2.post(f"{here}/c/lease", json={"holder": "on the first"})
        statuses = [
            httpx2.get(f"{there}/c").status_code,
            httpx2.get(f"{there}/c/messages").status_code,
            httpx2.post(f"{there}/c/messages", json=body).status_code,
            httpx2.delete(f"{there}/c").status_code,
            httpx2.post(f"{there}/c/fork", json={}).status_code,
            httpx2.post(f"{there}/c/fork", json={"settled": True}).status_code,
        ]
        assert statuses == [200, 200, 409, 409, 409, 201]
    finally:
        assert (first.stop(), second.stop()) == (0, 0)


@pytest.mark.parametrize("head", [b"X-Long: " + b"x" * 1_000_000, b"X-Many: y\r\n" * 100_000, b"GET /" + b"x" * 1_000_000])
def test_a_head_without_end_is_refused_before_it_has_come(server: Server, head: bytes) -> None:
    """httptools would keep it in memory, however long (found by review)."""
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        first = b"" if head.startswith(b"GET") else b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        try:
            connection.sendall(first + head)
            answered = connection.recv(1000)
        except (ConnectionResetError, BrokenPipeError):
            answered = b""
    assert answered == b"" or answered.split()[1] in (b"431", b"400")
    with httpx2.Client(base_url=server.address) as client:
        long = {"X-Long": "x" * 30_000}
        assert [client.get("/healthz", headers=long).status_code for _ in range(5)] == [200] * 5


def test_granian_serves_it_as_well(tmp_path: Path) -> None:
    """As docs/serving.md says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("granian")), "--interface", "asgi", "--factory", "--host", "127.0.0.1",
        "--port", str(port), "sessionstore_api.app:create_app",
    ]  # fmt: skip
    environment = {**os.environ, "SESSIONSTORE_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            _until_ready(client)
            assert client.post("/v1/conversations", json={"id": "c"}).status_code == 201
            refused = client.post("/v1/conversations/c/messages", content=b"{", headers={"Content-Type": "application/json"})
            assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
            assert client.get("/v1/conversations/c%2Fd").status_code == 422
    finally:
        running.terminate()
        assert running.wait(30) == 0


def _until_ready(client: httpx2.Client) -> None:
    for _ in range(600):
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.05)
    raise TimeoutError
