"""Clocks that jump by hours, clocks that differ, and holders that were stopped: the fence holds, and nobody is stuck for long.

libfaketime gives a server another clock, and moves it while it runs.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from sessionstore import migrate
from tests.faults.ledger import Ledger
from tests.faults.served import Served, start
from tests.faults.table import Row

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
FAKED = ("-m", "tests.faults.faked", "serve")
HOURS = (-3, 3, -3, 3, 0)
SHORT, LONG = 6, 60
TTL_MS = 1_500
# The longest that anybody may be kept waiting: the time to live, the second that a clock may be off, and what calls take.
PATIENCE = TTL_MS / 1000 + 1 + 1.5


class Clock:
    """A server's clock, so many hours off, and moved while it runs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / name
        self.move(0)

    def move(self, hours: int) -> None:
        """From now on it is off by so much."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{hours * 3_600:+d}\n")
        fresh.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process use it."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class Holder:
    """Somebody who generates through one of the servers, and what he was told."""

    def __init__(self, name: str, client: httpx2.Client, id: str, ledger: Ledger) -> None:
        self.name, self._client, self._base, self._id, self._ledger = name, client, f"/v1/conversations/{id}", id, ledger
        self.generation: int | None = None
        self._token, self._saves = "", itertools.count()

    def acquire(self, turn: int) -> bool:
        """Try to begin a turn."""
        self._token = f"token-of-{self.name}-and-turn-{turn:06}"
        answer = self._client.post(f"{self._base}/lease", json={"holder": self.name, "token": self._token, "ttl_ms": TTL_MS})
        self.generation = answer.json()["generation"] if answer.status_code == 201 else None
        if answer.status_code not in (201, 409):
            self._ledger.wrong.append(f"acquire was answered {answer.status_code}")
        return self.generation is not None

    def acquire_patiently(self, turn: int) -> float:
        """Begin a turn, and answer how long that took."""
        began = time.monotonic()
        while not self.acquire(turn):
            if time.monotonic() - began > 30:
                self._ledger.wrong.append(f"{self.name} was stuck for 30 s")
                break
            time.sleep(0.05)
        return time.monotonic() - began

    def renew(self) -> bool:
        """Say that he is alive."""
        return self._renewed().status_code == 200

    def _renewed(self) -> httpx2.Response:
        return self._client.patch(f"{self._base}/lease", json={}, headers={"Lease-Token": self._token})

    def check_clock(self, hours: int) -> None:
        """The server's clock is off by so much, or all this shows nothing."""
        told = self._renewed().json().get("expires_at")
        off = (datetime.fromisoformat(told) - datetime.now(UTC)).total_seconds() if told else 0.0
        if abs(off - hours * 3_600) > 60:
            self._ledger.wrong.append(f"the clock is off by {off:.0f} s, and not by {hours} hours")

    def save(self, turn: int) -> bool:
        """Store a message. Answers whether he still holds the lease."""
        message_id = f"{turn:06}-{self.name}-{next(self._saves):06}"
        self._ledger.send(self._id, message_id, self.generation)
        body = {"messages": [{"id": message_id, "role": "assistant", "content": self.generation}]}
        answer = self._client.post(f"{self._base}/messages", json=body, headers={"Lease-Token": self._token})
        if answer.status_code == 201:
            self._ledger.acknowledge(self._id, message_id)
            return True
        if answer.json().get("code") != "lease-lost":
            self._ledger.wrong.append(f"a save was answered {answer.status_code} {answer.text[:100]}")
        return False

    def finish(self) -> bool:
        """End the turn."""
        return self._client.post(f"{self._base}/lease/finish", json={}, headers={"Lease-Token": self._token}).status_code == 200


def run(*, long: bool, seed: str) -> list[Row]:
    """Steps of one clock, two clocks that differ, and holders that are stopped."""
    if LIBRARY is None:
        raise SystemExit("libfaketime is missing: apt-get install faketime")
    times = LONG if long else SHORT
    return [_in_a_folder(name, fault, times, seed) for name, fault in FAULTS.items()]


def _in_a_folder(name: str, fault: Callable[..., float], times: int, seed: str) -> Row:
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        migrate.upgrade(f"sqlite:///{path}")
        outage = fault(path, ledger, times, random.Random(seed))
        lost, wrong = ledger.judge(path)
        wrong += _fences(path)
    if outage > PATIENCE:
        wrong.append(f"somebody was stuck for {outage:.1f} s")
    return Row(name, times, ledger.acknowledged, lost, wrong, outage, f"leases of {TTL_MS / 1000} s")


def _fences(path: Path) -> list[str]:
    """Messages stand in the order of the turns that wrote them, each under the one that it was told."""
    import sqlite3

    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = connection.execute("SELECT generation, content FROM messages ORDER BY conversation_pk, position").fetchall()
    connection.close()
    numbers = [generation for generation, _ in rows]
    wrong = [] if numbers == sorted(numbers) else ["an older turn wrote after a newer one"]
    return wrong + [f"turn {content} wrote under {number}" for number, content in rows if str(number) != content]


def steps(path: Path, ledger: Ledger, times: int, choice: random.Random) -> float:
    """The clock jumps between acquire, renew and save. The holder goes on, or a rival takes over and the holder is told."""
    clock = Clock(path.parent, "clock")
    server = Served(f"sqlite:///{path}", program=FAKED, **clock.environment)
    longest = 0.0
    with httpx2.Client(base_url=server.address, timeout=30) as client:
        client.post("/v1/conversations", json={"id": "c"})
        holder, rival = Holder("holder", client, "c", ledger), Holder("rival", client, "c", ledger)
        for turn, hours in zip(range(times), itertools.cycle(HOURS), strict=False):
            longest = max(longest, holder.acquire_patiently(turn))
            for moment in range(4):
                if moment == turn % 4:
                    clock.move(hours)
                    holder.check_clock(hours)
                if choice.random() < 0.5:
                    holder.renew()
                holder.save(turn)
            if rival.acquire(turn):
                ledger.wrong.append("a lease was taken from who had just saved")
            if turn % 2:
                # Behind his last sign of life, or far ahead of it.
                clock.move(-3 if turn % 4 == 1 else 3)
                longest = max(longest, rival.acquire_patiently(turn))
                clock.move(choice.choice(HOURS))
                if holder.save(turn):
                    ledger.wrong.append("a holder wrote after another one had taken over")
                rival.save(turn)
                rival.finish()
            else:
                holder.finish()
    server.stop()
    return longest


def differing(path: Path, ledger: Ledger, times: int, choice: random.Random) -> float:
    """Two servers on one file, whose clocks are hours apart: whoever was told last that he holds the lease holds it."""
    clocks = [Clock(path.parent, f"clock{number}") for number in range(2)]
    servers = [Served(f"sqlite:///{path}", program=FAKED, **clock.environment) for clock in clocks]
    clients = [httpx2.Client(base_url=server.address, timeout=30) for server in servers]
    clients[0].post("/v1/conversations", json={"id": "c"})
    holders = [Holder(f"holder{number}", client, "c", ledger) for number, client in enumerate(clients)]
    longest = 0.0
    for turn in range(times):
        clocks[1].move(choice.choice((-3, 3)))
        first, second = holders if turn % 2 else reversed(holders)
        longest = max(longest, first.acquire_patiently(turn))
        first.save(turn)
        longest = max(longest, second.acquire_patiently(turn))
        if first.save(turn) or first.renew() or first.finish():
            ledger.wrong.append("two held the lease at once")
        second.save(turn)
        second.finish()
    for client, server in zip(clients, servers, strict=True):
        client.close()
        server.stop()
    return longest


PROGRAM = """
import os, signal, sys
from sessionstore import Draft, SessionStoreError, Store
with Store.open(sys.argv[1]) as store:
    id, token = sys.argv[2:4]
    generation = store.acquire(id, "stopped", token=token, ttl_ms=int(sys.argv[4])).value.generation
    try:
        for number in range(20):
            store.append(id, [Draft(id=f"m{number}", role="assistant", content=generation)], token=token)
            print(generation, flush=True)
            if number == 9:
                # Between two saves: who is stopped inside a transaction keeps the database, whatever its lease says.
                os.kill(os.getpid(), signal.SIGSTOP)
    except SessionStoreError as error:
        print(error.code, flush=True)
"""


def stopped(path: Path, ledger: Ledger, times: int, _: random.Random) -> float:
    """A holder is stopped (SIGSTOP) while he saves, somebody takes over, and he goes on: he is told that he has lost it."""
    server = Served(f"sqlite:///{path}", SESSIONSTORE_BUSY_TIMEOUT_MS="1000")
    longest = 0.0
    with httpx2.Client(base_url=server.address, timeout=30) as client:
        for turn in range(times):
            id = f"c{turn}"
            client.post("/v1/conversations", json={"id": id})
            arguments = [f"sqlite:///{path}", id, f"token-of-the-stopped-one-{turn:06}", str(TTL_MS)]
            one = start(sys.executable, "-c", PROGRAM, *arguments, stdout=subprocess.PIPE)
            while one.poll() is None and Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
            rival = Holder("rival", client, id, ledger)
            waited = rival.acquire_patiently(turn)
            os.kill(one.pid, signal.SIGCONT)
            if waited < TTL_MS / 1000 - 0.5:
                ledger.wrong.append(f"the lease of who was stopped was free after {waited:.1f} s")
            *saved, told = one.communicate(timeout=30)[0].split()
            for number, generation in enumerate(saved):
                ledger.send(id, f"m{number}", int(generation))
                ledger.acknowledge(id, f"m{number}")
            if told != "lease-lost" or len(saved) != 10:
                ledger.wrong.append(f"who was stopped was told {told} after {len(saved)} saves")
            rival.save(turn)
            rival.finish()
            longest = max(longest, waited)
    server.stop()
    return longest


FAULTS = {
    "a clock that jumps by 3 hours, either way": steps,
    "two servers whose clocks are 3 hours apart": differing,
    "a holder that is stopped and goes on": stopped,
}
