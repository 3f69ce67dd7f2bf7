"""SIGTERM under load: what was accepted is answered, streams end with a last event, and the exit code is 0, in time."""

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

from sessionstore import Store, migrate
from tests.faults.ledger import Ledger
from tests.faults.served import Served, start
from tests.faults.table import Row
from tests.faults.traffic import Traffic

SHORT, LONG = 6, 40
CALLERS, STREAMS = 16, 6
GRACE_SECONDS = 10


async def _follow(address: str, path: str, ledger: Ledger, begun: asyncio.Semaphore) -> None:
    """Follow until the server ends it, which it does with a word."""
    last = ""
    async with httpx2.AsyncClient(timeout=60) as client:
        with contextlib.suppress(httpx2.HTTPError):
            async with client.stream("GET", f"{address}{path}") as events:
                async for line in events.aiter_lines():
                    if line.startswith("event"):
                        last = line.partition(": ")[2]
                        begun.release()
    if last != "closed":
        ledger.wrong.append(f"a stream ended after {last!r}")


async def _round(server: Served, path: Path, ledger: Ledger, number: int, choice: random.Random) -> float:
    """Load, SIGTERM while every caller waits for an answer, and how long it took to end."""
    traffic, begun = Traffic(lambda: server.address, ledger, CALLERS, name=f"r{number}-"), asyncio.Semaphore(0)
    working, known = asyncio.ensure_future(traffic.run()), ledger.acknowledged
    await _until(lambda: ledger.acknowledged > known + 5 * CALLERS)
    paths = ["/v1/events", *(f"/v1/conversations/r{number}-{caller}/events" for caller in range(STREAMS - 1))]
    following = [asyncio.ensure_future(_follow(server.address, path, ledger, begun)) for path in paths]
    for _ in paths:
        await asyncio.wait_for(begun.acquire(), 60)
    with _held(path):
        # Nobody can write, so soon all of them wait in the server's line.
        await asyncio.sleep(0.3)
        traffic.ending.set()
        answered, done = ledger.answers.total(), ledger.answers["done"]
        began = time.monotonic()
        stopping = asyncio.ensure_future(asyncio.to_thread(server.stop, GRACE_SECONDS + 20))
        await asyncio.sleep(choice.uniform(0, 0.5))
    code, took = await stopping, time.monotonic() - began
    await asyncio.gather(working, *following)
    if code != 0 or took > GRACE_SECONDS:
        ledger.wrong.append(f"it ended with {code} after {took:.1f} s")
    if (ledger.answers.total() - answered, ledger.answers["done"] - done) != (CALLERS, CALLERS):
        ledger.wrong.append(f"of {CALLERS} calls that it had, {ledger.answers['done'] - done} were done and answered")
    return took


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Meanwhile nobody can write."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        await asyncio.sleep(0.01)


HOLDER = """
import signal, sys, threading
from sessionstore import Store
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
store = Store.open(sys.argv[1])
store.create("held")
turn = store.generate("held", "program", ttl_ms=3_600_000)
turn.__enter__()
turn.save("r", "half")
print("holds", flush=True)
stop.wait()
store.close()
"""


def _turns_of_a_program(url: str, ledger: Ledger) -> None:
    """A program that closes its store has given its leases back."""
    program = start(sys.executable, "-c", HOLDER, url, stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    program.terminate()
    program.communicate(timeout=30)
    with Store.open(url) as store:
        held = store.get("held")
        message = store.message("held", "r")
    if program.returncode or held.generation is not None or message.status != "interrupted":
        ledger.wrong.append(f"a program that was stopped left {held.generation} and {message.status}")


def run(*, long: bool, seed: str) -> list[Row]:
    """Again and again, at any moment."""
    times, choice, ledger, longest = LONG if long else SHORT, random.Random(seed), Ledger(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        url = f"sqlite:///{path}"
        migrate.upgrade(url)
        for number in range(times):
            longest = max(longest, asyncio.run(_round(Served(url), path, ledger, number, choice)))
        _turns_of_a_program(url, ledger)
        ledger.sent["held"] = {"r": ["half"]}
        lost, wrong = ledger.judge(path)
    note = (
        f"{CALLERS} calls in its line and {STREAMS} streams each time; the slowest end took {longest:.1f} s of {GRACE_SECONDS}"
    )
    return [Row("SIGTERM under load", times, ledger.acknowledged, lost, wrong, None, note)]
