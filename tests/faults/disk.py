"""Disks that are full, and disks that break: at the n-th write and at the n-th sync, under every mutation."""

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sessionstore import Store, migrate
from tests.faults import crowded
from tests.faults.ledger import Ledger, faults_in
from tests.faults.recorded import state_of
from tests.faults.served import Served
from tests.faults.struck import DONE_BEFORE, mutations
from tests.faults.table import Row
from tests.faults.traffic import Traffic

# Which call of the system fails, how, which of them (every so many, so that each mutation is met at each of its calls), and
# whether the store has to refuse everything then: a disk that is full is only full.
BREAKS = {
    "a full disk (ENOSPC) at the n-th write": ("pwrite64", "ENOSPC", (83, 97, 113), "goes-on"),
    "an I/O error at the n-th write": ("pwrite64", "EIO", (89, 101, 127), "refuses"),
    "an I/O error at the n-th sync": ("fdatasync", "EIO", (3, 5, 7), "refuses"),
    "a full disk (ENOSPC) at the n-th sync": ("fdatasync", "ENOSPC", (4, 5), "refuses"),
    "an I/O error at the n-th cut of the log": ("ftruncate", "EIO", (5, 7), "goes-on"),
}
SHORT_SECONDS, LONG_SECONDS = 3, 30
FULL_SHORT, FULL_LONG = 4, 20
DEATHS_SHORT, DEATHS_LONG = 8, 60
CROWDED_SHORT, CROWDED_LONG = 150, 1_000
CALLERS = 8
CROWD = crowded.CALLERS


def run(*, long: bool, seed: str) -> list[Row]:
    """All kinds."""
    seconds = LONG_SECONDS if long else SHORT_SECONDS
    rows = [_breaking(name, *how, seconds=seconds) for name, how in BREAKS.items()]
    rows.append(_dying(DEATHS_LONG if long else DEATHS_SHORT, random.Random(seed)))
    rows.append(_crowded(CROWDED_LONG if long else CROWDED_SHORT))
    return [*rows, full_disk(FULL_LONG if long else FULL_SHORT)]


def _breaking(name: str, call: str, error: str, every: tuple[int, ...], how: str, *, seconds: float) -> Row:
    counted: Counter[str] = Counter()
    struck_at: Counter[str] = Counter()
    wrong: list[str] = []
    for step in every:
        with tempfile.TemporaryDirectory() as folder:
            found = _struck(Path(folder), f"{call}:error={error}:when={step}+{step}", seconds, how)
        counted.update(found["counted"])
        struck_at.update(found["struck_at"])
        wrong += found["wrong"]
    spared = sorted({name for name, _ in mutations("c")} - set(struck_at))
    if spared and call != "ftruncate":
        wrong.append(f"never met: {', '.join(spared)}")
    note = ", ".join(f"{count:,} {code}" for code, count in sorted(counted.items()) if code not in ("acknowledged", "unready"))
    return Row(name, sum(struck_at.values()), counted["acknowledged"], 0, wrong, note=note)


def _struck(folder: Path, injection: str, seconds: float, how: str) -> Any:
    migrate.upgrade(f"sqlite:///{folder}/store.db")
    spy = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=pwrite64,fdatasync,ftruncate"]
    program = [sys.executable, "-m", "tests.faults.struck", f"sqlite:///{folder}/store.db", str(seconds), how]
    done = subprocess.run([*spy, "-e", f"inject={injection}", *program], capture_output=True, text=True, timeout=600)
    if how == "dies" and done.returncode == -signal.SIGKILL:
        return {}
    if done.returncode:
        return {"counted": {}, "struck_at": {}, "wrong": [f"{injection}: {done.stderr[-2_000:]}"]}
    found = json.loads(done.stdout)
    return {**found, "wrong": [*found["wrong"], *faults_in(folder / "store.db")]}


def _dying(times: int, choice: random.Random) -> Row:
    """A sync fails at COMMIT, and the process dies before anything is closed: who comes next finds what is in the log then."""
    kept, wrong = 0, list[str]()
    # Where the sync fails all has been written; where a write fails, only what came before it.
    calls = itertools.cycle((("fdatasync", 20), ("pwrite64", 300)))
    for (call, last), _ in zip(calls, range(times), strict=False):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if _struck(folder, f"{call}:error=EIO:when={choice.randrange(1, last)}+{last}", 0, "dies"):
                wrong.append("no outcome was unknown")
                continue
            name, before = (folder / "before").read_text().rsplit(" ", 1)
            with Store.open(f"sqlite:///{folder}/store.db") as store:
                kept += state_of(folder / "store.db") != before
                wrong += _repeated(store, name, folder)
            wrong += faults_in(folder / "store.db")
    if not kept:
        wrong.append("nothing that was unknown had been stored: this sees half of it")
    return Row(
        "an unknown outcome, and the process dies", times, times, 0, wrong, note=f"{kept} were stored, {times - kept} not"
    )


def _repeated(store: Store, name: str, folder: Path) -> list[str]:
    """All of it happened or nothing did: the repeat makes the one what the other is, and a second one changes nothing more."""
    change = dict(mutations("c0"))[name]
    said = []
    for _ in range(2):
        with suppress(*DONE_BEFORE.values()):
            change(store)
        said.append(_said(folder / "store.db"))
    return [] if said[0] == said[1] else [f"{name} was done twice"]


def _said(path: Path) -> list[Any]:
    """All but how long a lease still lives, which each call of its holder changes."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    queries = (
        "SELECT pk, id, version, message_count, queued_count, generation, title FROM conversations ORDER BY pk",
        "SELECT conversation_pk, id, position, version, status, content FROM messages ORDER BY pk",
        "SELECT number, outcome FROM generations ORDER BY number",
    )
    found = [connection.execute(query).fetchall() for query in queries]
    connection.close()
    return found


def _crowded(times: int) -> Row:
    """No room in the middle of a transaction that many calls share."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        with Store.open(url, migrate_first=True) as store:
            for number in range(CROWD):
                store.create(f"c{number}")
        spy = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=pwrite64"]
        command = [*spy, "-e", "inject=pwrite64:error=ENOSPC:when=67+67", sys.executable, "-m", "tests.faults.crowded"]
        done = subprocess.run([*command, url, str(times)], capture_output=True, text=True, timeout=600)
        if done.returncode:
            return Row("no room inside a group of calls", 0, 0, 0, [done.stderr[-2_000:]])
        found = json.loads(done.stdout)
        wrong = [*found["wrong"], *faults_in(Path(folder) / "store.db")]
    if not found["undone"]:
        wrong.append("no group was ever undone")
    note = f"{found['told'].get('disk-full', 0):,} disk-full; the calls of an undone group are made one by one"
    return Row("no room inside a group of calls", found["undone"], found["told"].get("done", 0), 0, wrong, note=note)


# A disk that is really full ----------------------------------------------------------------------------------------------


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of that size. Needs root."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def full_disk(times: int) -> Row:
    """Fill it up under a server with callers, let it be refused for a while, and make room again."""
    if os.geteuid() != 0:
        print("SKIPPED: only root can make a small file system; a disk that is really full was not tried", file=sys.stderr)
        return Row("a disk that is really full", 1, 1, 0, note="not tried: needs root")
    ledger = Ledger()
    with small_disk(24) as folder:
        path = folder / "store.db"
        migrate.upgrade(f"sqlite:///{path}")
        server = Served(f"sqlite:///{path}")
        outages = asyncio.run(_fill(server, folder, ledger, times))
        if server.stop() != 0:
            ledger.wrong.append("the server did not end in good order")
        lost, wrong = ledger.judge(path)
    refused = ", ".join(f"{count:,} {code}" for code, count in sorted(ledger.answers.items()) if code != "done")
    note = f"{refused}; served again {max(outages):.2f} s after there was room, by itself"
    return Row("a disk that is really full", times, ledger.acknowledged, lost, wrong, max(outages), note)


async def _fill(server: Served, folder: Path, ledger: Ledger, times: int) -> list[float]:
    traffic = Traffic(lambda: server.address, ledger, CALLERS)
    working = asyncio.ensure_future(traffic.run())
    outages = []
    for number in range(times):
        await asyncio.sleep(0.7)
        await asyncio.to_thread(_take_all_room, folder / "ballast", number * 1_021)
        refused = ledger.answers["disk-full"] + ledger.answers["outcome-unknown"]
        await _until(lambda refused=refused: ledger.answers["disk-full"] + ledger.answers["outcome-unknown"] > refused + 20)
        (folder / "ballast").unlink()
        began, done = time.monotonic(), ledger.acknowledged
        await _until(lambda done=done: ledger.acknowledged > done)
        outages.append(time.monotonic() - began)
    traffic.ending.set()
    await working
    return outages


def _take_all_room(ballast: Path, less: int) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65_536)
        except OSError:
            pass
        file.truncate(max(0, file.tell() - less))


async def _until(true: Any) -> None:
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("the server neither refuses nor serves")
        await asyncio.sleep(0.01)
