"""Disks that are full, and disks that break: at the n-th write and at the n-th sync, under every mutation."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sessionstore import migrate
from tests.faults.ledger import Ledger, faults_in
from tests.faults.served import Served
from tests.faults.struck import mutations
from tests.faults.table import Row
from tests.faults.traffic import Traffic

# Which call of the system fails, how, and which of them: every so many, so that each mutation is met at each of its calls.
BREAKS = {
    "a full disk (ENOSPC) at the n-th write": ("pwrite64", "ENOSPC", (83, 97, 113)),
    "an I/O error at the n-th write": ("pwrite64", "EIO", (89, 101, 127)),
    "an I/O error at the n-th sync": ("fdatasync", "EIO", (3, 5, 7)),
    "a full disk (ENOSPC) at the n-th sync": ("fdatasync", "ENOSPC", (4, 5)),
    "an I/O error at the n-th cut of the log": ("ftruncate", "EIO", (5, 7)),
}
SHORT_SECONDS, LONG_SECONDS = 4, 30
FULL_SHORT, FULL_LONG = 4, 20
CALLERS = 8


def run(*, long: bool, seed: str) -> list[Row]:
    """Both kinds."""
    seconds = LONG_SECONDS if long else SHORT_SECONDS
    rows = [_breaking(name, *how, seconds=seconds) for name, how in BREAKS.items()]
    return [*rows, full_disk(FULL_LONG if long else FULL_SHORT)]


def _breaking(name: str, call: str, error: str, every: tuple[int, ...], *, seconds: float) -> Row:
    counted: Counter[str] = Counter()
    struck_at: Counter[str] = Counter()
    wrong: list[str] = []
    for step in every:
        found = _struck(f"{call}:error={error}:when={step}+{step}", seconds)
        counted.update(found["counted"])
        struck_at.update(found["struck_at"])
        wrong += found["wrong"]
    spared = sorted({name for name, _ in mutations("c")} - set(struck_at))
    if spared and call != "ftruncate":
        wrong.append(f"never met: {', '.join(spared)}")
    refused = sum(struck_at.values())
    note = ", ".join(f"{count:,} {code}" for code, count in sorted(counted.items()) if code not in ("acknowledged", "unready"))
    return Row(name, max(refused, 1 if call == "ftruncate" else 0), counted["acknowledged"], 0, wrong, note=note)


def _struck(injection: str, seconds: float) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        migrate.upgrade(url)
        spy = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=pwrite64,fdatasync,ftruncate"]
        program = [sys.executable, "-m", "tests.faults.struck", url, str(seconds)]
        done = subprocess.run([*spy, "-e", f"inject={injection}", *program], capture_output=True, text=True, timeout=600)
        if done.returncode:
            return {"counted": {}, "struck_at": {}, "wrong": [f"{injection}: {done.stderr[-2_000:]}"]}
        found = json.loads(done.stdout)
        return {**found, "wrong": [*found["wrong"], *faults_in(Path(folder) / "store.db")]}


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
