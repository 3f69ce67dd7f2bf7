"""The server over real sockets, under wrk: durable appends against an echo in the same server, and saves in batches."""

import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import disk
from benchmarks.figures import Figure, ratio
from benchmarks.sides import ROOT, cpu_seconds, median, memory_mb
from benchmarks.sides import ratio as compare
from benchmarks.worker import TEXT

SCRIPT = Path(__file__).with_name("append.lua")
APPEND, ECHO = "/v1/conversations/c{n}/messages", "/echo"
FLOORS = {16: 0.28, 64: 0.5, 256: 0.5}


class Served:
    """A server on a free port."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        synchronous: str,
        port: int,
        *,
        granian: bool = False,
        product: bool = False,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.port = port
        command = [sys.executable, "-m", "benchmarks.server", str(port), str(folder / "bench.db"), synchronous]
        environment = {**environment, "BENCH_DATABASE": str(folder / "bench.db")}
        if granian:
            command = [str(Path(sys.executable).with_name("granian")), "--interface", "asgi", "--host", "127.0.0.1",
                       "--port", str(port), "--workers", "1", "--no-ws", "--log-level", "warning",
                       "benchmarks.granian:application"]  # fmt: skip
        if product:
            command = [sys.executable, "-m", "sessionstore.cli", "serve", "--database", f"sqlite:///{folder / 'bench.db'}",
                       "--port", str(port)]  # fmt: skip
            environment["SESSIONSTORE_SYNCHRONOUS"] = synchronous
        self._log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=self._log, stderr=self._log)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._wait()

    @property
    def pid(self) -> int:
        """The process that serves."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[-1]) if children else self.process.pid

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call."""
        self._connection.request(
            method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"}
        )
        answered = self._connection.getresponse()
        text = answered.read()
        assert answered.status < 300, text
        return json.loads(text)

    def reconnect(self) -> None:
        """After a rest in which the server has closed the connection."""
        self._connection.close()

    def load(self, path: str, clients: int, seconds: float) -> dict[str, Any]:
        """What wrk measures, and the server's processor time for each request."""
        before = cpu_seconds(self.pid)
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "-s", SCRIPT, f"http://127.0.0.1:{self.port}"]
        done = subprocess.run(command, env={**os.environ, "BENCH_PATH": path}, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**found, "cpu_us": (cpu_seconds(self.pid) - before) / max(1, found["done"]) * 1e6}

    def close(self) -> None:
        """Stop it."""
        self._connection.close()
        self.process.terminate()
        self.process.wait(30)
        self._log.close()

    def _wait(self) -> None:
        for _ in range(200):
            try:
                self.call("GET", "/healthz")
                return
            except OSError:
                self._connection.close()
                time.sleep(0.05)
        raise RuntimeError("the server does not answer")


def appends(folder: Path, rounds: int, table: list[dict[str, Any]]) -> list[Figure]:
    """Durable appends against the echo of the same server, FULL and NORMAL."""
    if shutil.which("wrk") is None:
        raise SystemExit("The load comes from wrk: apt-get install wrk")
    environment = disk.environment(folder)
    servers = {"full": Served(folder / "http-full", environment, "full", 18_471),
               "normal": Served(folder / "http-normal", environment, "normal", 18_472)}  # fmt: skip
    try:
        for server in servers.values():
            _conversations(server)
        found: list[Figure] = []
        for clients, floor in FLOORS.items():
            found += _against_echo(servers, clients, floor, rounds, table)
    finally:
        for server in servers.values():
            server.close()
    return found


def _against_echo(servers: Mapping[str, Served], clients: int, floor: float, rounds: int, table: list[Any]) -> list[Figure]:
    kinds = {
        "echo": (servers["full"], ECHO),
        "append": (servers["full"], APPEND),
        "append, NORMAL": (servers["normal"], APPEND),
    }
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name in random.sample(list(kinds), len(kinds)):
            server, path = kinds[name]
            taken[name].append(server.load(path, clients, 2))
    assert not any(result["errors"] for results in taken.values() for result in results), taken
    table += [{"side": f"HTTP {name}, {clients} clients", "http": results} for name, results in taken.items()]
    note = ", ".join(
        f"{name} {median(results, 'rate'):,.0f}/s {median(results, 'cpu_us'):.0f} us" for name, results in taken.items()
    )
    late = median(taken["append"], "p99") * 1e3
    slower = late / (median(taken["echo"], "p99") * 1e3)
    found = [
        ratio("http", f"{clients} clients, appends of the same server's echo", compare(taken, "append", "echo"), floor, note),
        Figure("http", f"{clients} clients, p99, times the echo's", slower, 2.5, "less", note=f"{late:.1f} ms"),
    ]
    if clients == 64:
        found.append(ratio("http", "64 clients, FULL of NORMAL", compare(taken, "append", "append, NORMAL"), 0.9))
    return found


def saves(folder: Path, seconds: float = 6.0) -> list[Figure]:
    """1,000 conversations that generate elsewhere and save every 250 ms: 63 calls of 64 saves a second."""
    server = Served(folder / "saves", disk.environment(folder), "full", 18_473)
    try:
        return _saves(server, seconds)
    finally:
        server.close()


def _saves(server: Served, seconds: float) -> list[Figure]:
    count, per_call, wanted = 1_000, 64, 4_100
    for n in range(count):
        server.call("POST", "/v1/conversations", {"id": f"c{n}"})
        server.call("POST", f"/v1/conversations/c{n}/lease", {"holder": "bench", "token": f"token-of-conversation-{n:06}"})
    began, before, sent, done, took = time.perf_counter(), cpu_seconds(server.pid), 0, 0, list[float]()
    while (due := sent * per_call / wanted) < seconds:
        time.sleep(max(0, began + due - time.perf_counter()))
        batch = [_save((sent * per_call + k) % count, sent) for k in range(per_call)]
        results = server.call("POST", "/v1/saves", {"saves": batch})["results"]
        took.append(time.perf_counter() - began - due)
        done += sum(result["status"] < 300 for result in results)
        sent += 1
    wall = time.perf_counter() - began
    cores = (cpu_seconds(server.pid) - before) / wall
    return [
        Figure("generating", "the same over HTTP, saves a second in calls of 64", done / wall, 4_100 * 0.99, "more",
               note=f"p99 of a call {sorted(took)[int(len(took) * 0.99)] * 1e3:.0f} ms"),
        Figure("generating", "… cores", cores, 0.4, "less"),
    ]  # fmt: skip


def _save(n: int, round_: int) -> dict[str, Any]:
    text = TEXT[: 500 + round_ % 500]
    return {"conversation_id": f"c{n}", "message_id": "reply", "token": f"token-of-conversation-{n:06}", "role": "assistant",
            "content": text, "status": "partial"}  # fmt: skip


def memory(folder: Path, messages: int) -> list[Figure]:
    """A server at rest, and while it reads out a conversation of very many messages, page by page."""
    # The first start makes the database, and has Alembic in memory for that.
    Served(folder / "memory", disk.environment(folder), "normal", 18_474, product=True).close()
    server = Served(folder / "memory", disk.environment(folder), "normal", 18_474, product=True)
    try:
        idle = memory_mb(server.pid, "VmRSS")
        server.call("POST", "/v1/conversations", {"id": "long"})
        for _ in range(messages // 1_000):
            server.call("POST", "/v1/conversations/long/messages", {"messages": [{"role": "user", "content": TEXT}] * 1_000})
        filled = memory_mb(server.pid)
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        cursor, seen = "", 0
        while True:
            page = server.call("GET", f"/v1/conversations/long/messages?limit=1000{cursor}")
            seen += len(page["data"])
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == messages
        peak = memory_mb(server.pid)
    finally:
        server.close()
    return [
        Figure("memory", "server at rest", idle, 60, "less", "MB"),
        Figure("memory", f"reading out {messages:,} messages in pages of 1,000, above rest", peak - idle, 40, "less", "MB",
               note=f"peak while they came in, 1,000 a call: {filled - idle:.0f} MB above"),
    ]  # fmt: skip


def granian(folder: Path, rounds: int) -> list[Figure]:
    """The same application under granian, where it is installed."""
    if not Path(sys.executable).with_name("granian").exists():
        return []
    server = Served(folder / "granian", disk.environment(folder), "full", 18_475, granian=True)
    try:
        _conversations(server)
        kinds = {"echo": ECHO, "append": APPEND}
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name in random.sample(list(kinds), len(kinds)):
                taken[name].append(server.load(kinds[name], 64, 2))
    finally:
        server.close()
    note = ", ".join(f"{name} {median(results, 'rate'):,.0f}/s" for name, results in taken.items())
    return [ratio("http", "64 clients under granian, of its own echo", compare(taken, "append", "echo"), 0.5, note)]


def _conversations(server: Served) -> None:
    for n in range(200):
        server.call("POST", "/v1/conversations", {"id": f"c{n}"})
