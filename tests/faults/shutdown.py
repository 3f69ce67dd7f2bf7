"""SIGTERM under load: what was accepted is answered, streams end with a last event, and the exit code is 0, in time."""

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from sessionstore import Store, migrate
from tests.faults.ledger import Ledger
from tests.faults.served import Served
from tests.faults.table import Row
from tests.faults.traffic import Traffic

SHORT, LONG = 6, 40
CALLERS, STREAMS = 16, 6
GRACE_SECONDS = 10


async def _follow(address: str, path: str, ledger: Ledger) -> None:
    """Follow until the server ends it, which it does with a word."""
    last = ""
    async with httpx2.AsyncClient(timeout=60) as client:
        with contextlib.suppress(httpx2.HTTPError):
            async with client.stream("GET", f"{address}{path}") as events:
                async for line in events.aiter_lines():
                    last = line.partition(": ")[2] if line.startswith("event") else last
    if last != "closed":
        ledger.wrong.append(f"a stream ended after {last!r}")


async def _round(server: Served, ledger: Ledger, number: int, choice: random.Random) -> float:
    """Load, SIGTERM, and how long it took to end."""
    traffic = Traffic(lambda: server.address, ledger, CALLERS, name=f"r{number}-")
    working = asyncio.ensure_future(traffic.run())
    await asyncio.sleep(0.7)
    paths = ["/v1/events", *(f"/v1/conversations/r{number}-{caller}/events" for caller in range(STREAMS - 1))]
    following = [asyncio.ensure_future(_follow(server.address, path, ledger)) for path in paths]
    await asyncio.sleep(choice.uniform(0.3, 0.6))
    began = time.monotonic()
    traffic.ending.set()
    code = await asyncio.to_thread(server.stop, GRACE_SECONDS + 20)
    took = time.monotonic() - began
    if code != 0 or took > GRACE_SECONDS:
        ledger.wrong.append(f"it ended with {code} after {took:.1f} s")
    await asyncio.gather(working, *following)
    return took


def _unanswered(path: Path, ledger: Ledger) -> list[str]:
    """What was done, and nobody was told: it was accepted, so it has to be answered."""
    with Store.open(f"sqlite:///{path}") as store:
        return [
            f"{id}: {message_id} was stored and not acknowledged"
            for id, messages in ledger.sent.items()
            for message_id, contents in messages.items()
            for message in store.messages(id, limit=1_000).items
            if contents
            and message.id == message_id
            and message.content == contents[-1]
            and _told(ledger, id, message_id, contents)
        ]


def _told(ledger: Ledger, id: str, message_id: str, contents: list[object]) -> bool:
    return ledger.told[id].get(message_id) != contents[-1]


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
    program = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
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
            longest = max(longest, asyncio.run(_round(Served(url), ledger, number, choice)))
        _turns_of_a_program(url, ledger)
        ledger.wrong += _unanswered(path, ledger)
        ledger.sent["held"] = {"r": ["half"]}
        lost, wrong = ledger.judge(path)
    note = f"{CALLERS} callers and {STREAMS} streams; the slowest end took {longest:.1f} s of {GRACE_SECONDS}"
    return [Row("SIGTERM under load", times, ledger.acknowledged, lost, wrong, None, note)]
