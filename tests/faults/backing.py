"""Backups while 16 write, backups that are killed half way, and what is restored from them."""

import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from sessionstore import Draft, Store, restore
from tests.faults.ledger import Ledger, faults_in
from tests.faults.table import Row

SHORT, LONG = 5, 40
WRITERS = 16
FILLED = 3_000


class Writers:
    """So many threads, each with a conversation of its own, and what each was told."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store, self._ledger, self._done = store, ledger, threading.Event()
        self._writing = threading.Lock()
        self.counts = [0] * WRITERS
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        ledger.begin()
        for thread in self._threads:
            thread.start()

    def _write(self, number: int) -> None:
        id = f"c{number}"
        self._store.create(id)
        while not self._done.is_set():
            message_id = f"m{self.counts[number]}"
            with self._writing:
                self._ledger.send(id, message_id, self.counts[number])
            self._store.append(id, [Draft(id=message_id, role="user", content=self.counts[number])])
            with self._writing:
                self._ledger.acknowledge(id, message_id)
            self.counts[number] += 1

    def stop(self) -> None:
        """Let each end the call that it is at."""
        self._done.set()
        for thread in self._threads:
            thread.join()


def run(*, long: bool, seed: str) -> list[Row]:
    """Both: those that come to their end, and those that do not."""
    times, ledger, choice = LONG if long else SHORT, Ledger(), random.Random(seed)
    wrong: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path, backups = folder / "store.db", folder / "backups"
        with Store.open(f"sqlite:///{path}", migrate_first=True) as store:
            filled = [Draft(role="user", content="what was said before " * 50) for _ in range(1_000)]
            for number in range(FILLED // 1_000):
                store.create(f"filled{number}", messages=filled)
                ledger.filled.add(f"filled{number}")
            writers = Writers(store, ledger)
            while min(writers.counts) < 3:
                time.sleep(0.01)
            for number in range(times):
                before, began = list(writers.counts), time.monotonic()
                made = Path(store.backup(backups, keep=2).file)
                slowest = max(slowest, time.monotonic() - began)
                wrong += _compared(made, folder / f"restored{number}" / "store.db", before)
                wrong += _killed(path, backups, choice)
            writers.stop()
            store.backup(backups, keep=2)
        lost, faults = ledger.judge(path)
        left = sorted(found.name for found in backups.iterdir())
        if len([name for name in left if name.startswith("store-")]) != 2:
            wrong.append(f"{left} is left, not two backups")
    note = f"{WRITERS} writers meanwhile, each restored and compared, as many killed half way; the slowest took {slowest:.1f} s"
    return [Row("backup and restore", 2 * times, ledger.acknowledged, lost, [*wrong, *faults], ledger.outage, note)]


def _compared(made: Path, target: Path, before: list[int]) -> list[str]:
    """What had been acknowledged before it was begun is in what is restored from it, and all is as it always is."""
    restore(made, f"sqlite:///{target}")
    wrong = faults_in(target)
    with Store.open(f"sqlite:///{target}") as store:
        counts = {conversation.id: conversation.message_count for conversation in store.conversations(limit=1_000).items}
        store.append("c0", [Draft(role="user", content="it goes on")])
    wrong += [f"c{n}: {counts.get(f'c{n}', 0)} of {count}" for n, count in enumerate(before) if counts.get(f"c{n}", 0) < count]
    return wrong


def _killed(path: Path, backups: Path, choice: random.Random) -> list[str]:
    """A backup that dies half way is none, unless it was whole already."""
    before = {found.name for found in backups.glob("store-*.db")}
    program = [sys.executable, "-m", "sessionstore.cli", "backup", "--database", f"sqlite:///{path}", str(backups)]
    one = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(choice.uniform(0.4, 0.9))
    one.kill()
    one.wait()
    new = [found for found in backups.glob("store-*.db") if found.name not in before]
    return [f"{found.name}: {faults_in(found)}" for found in new if faults_in(found)]
