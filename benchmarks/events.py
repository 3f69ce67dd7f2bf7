"""Following: 1,000 subscribers on one server, what they cost when nothing happens, and how soon the last of them is told."""

import asyncio
import resource
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import disk
from benchmarks.figures import Figure
from benchmarks.http import Served
from benchmarks.sides import cpu_seconds, memory_mb
from sessionstore import Draft, Store

SUBSCRIBERS, COMMITS, IDLE_SECONDS, PORT = 1_000, 40, 20.0, 18_476


class Subscriber(asyncio.Protocol):
    """Reads one stream, and notes when an event came."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"GET /v1/conversations/followed/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self._crowd.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        if b"event: changes" in data:
            self._crowd.told()


class Crowd:
    """All subscribers of one conversation."""

    def __init__(self) -> None:
        self.transports: list[asyncio.Transport] = []
        self._times: list[float] = []
        self._everybody = asyncio.Event()

    def told(self) -> None:
        """One of them was."""
        self._times.append(time.perf_counter())
        if len(self._times) == SUBSCRIBERS:
            self._everybody.set()

    async def connect(self, port: int) -> None:
        """Connect all of them; each is told the state as it is."""
        loop = asyncio.get_running_loop()
        for _ in range(SUBSCRIBERS):
            await loop.create_connection(lambda: Subscriber(self), "127.0.0.1", port)
        await self.all_told()

    async def all_told(self) -> list[float]:
        """When each of them was told, in order, once all were."""
        await asyncio.wait_for(self._everybody.wait(), 60)
        times, self._times = sorted(self._times), []
        self._everybody.clear()
        return times


def following(folder: Path) -> list[Figure]:
    """Subscribers of one conversation that another process writes to."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(10_000, most), most))
    server = Served(folder / "events", disk.environment(folder), "full", PORT, product=True)
    try:
        server.call("POST", "/v1/conversations", {"id": "followed"})
        return asyncio.run(_measure(server, f"sqlite:///{folder / 'events' / 'bench.db'}"))
    finally:
        server.close()


async def _measure(server: Served, url: str) -> list[Figure]:
    crowd, alone = Crowd(), memory_mb(server.pid, "VmRSS")
    await crowd.connect(server.port)
    memory = (memory_mb(server.pid, "VmRSS") - alone) * 1024 / SUBSCRIBERS
    before = cpu_seconds(server.pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(server.pid) - before) / IDLE_SECONDS * 100
    elsewhere = Store.open(url)
    server.reconnect()
    own = await _commits(crowd, server, lambda n: _over_http(server, n))
    others = await _commits(crowd, server, lambda n: elsewhere.append("followed", [Draft(role="user", content=f"{n}")]))
    elsewhere.close()
    for transport in crowd.transports:
        transport.abort()
    return [
        Figure("events", "1,000 idle subscribers", idle, 2, "less", "% of a core"),
        Figure("events", "… memory of each", memory, 60, "less", "KB"),
        Figure("events", "own commit, until the last of 1,000 was told, p95", own[0], 100, "less", "ms", note=own[2]),
        Figure("events", "… processor time for each subscriber", own[1], 25, "less", "us"),
        Figure("events", "another process's commit, the same", others[0], 100, "less", "ms", note=others[2]),
        Figure("events", "… processor time for each subscriber", others[1], 25, "less", "us"),
    ]


def _over_http(server: Served, n: int) -> None:
    server.call("POST", "/v1/conversations/followed/messages", {"messages": [{"role": "user", "content": f"{n}"}]})


async def _commits(crowd: Crowd, server: Served, commit: Callable[[int], object]) -> tuple[float, float, str]:
    first, last, before = list[float](), list[float](), cpu_seconds(server.pid)
    for n in range(COMMITS):
        began = time.perf_counter()
        await asyncio.to_thread(commit, n)
        times = await crowd.all_told()
        first.append((times[0] - began) * 1e3)
        last.append((times[-1] - began) * 1e3)
        await asyncio.sleep(0.1)
    cpu = (cpu_seconds(server.pid) - before) / COMMITS / SUBSCRIBERS * 1e6
    note = f"medians: first {sorted(first)[COMMITS // 2]:.0f} ms, last {sorted(last)[COMMITS // 2]:.0f} ms"
    return sorted(last)[int(COMMITS * 0.95)], cpu, note
