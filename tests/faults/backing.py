"""Backups while 16 write, backups that are killed half way, and what is restored from them."""

import random
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path

from sessionstore import Draft, Store, errors, restore
from tests.faults.ledger import Ledger, faults_in
from tests.faults.served import start
from tests.faults.table import Row

SHORT, LONG = 6, 40
WRITERS = 16
FILLED = 20
TOKEN = "the-token-of-the-turn-that-goes-on"
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.01


class Writers:
    """So many threads, each with a conversation of its own, and what each was told."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store, self._ledger, self._done = store, ledger, threading.Event()
        self._writing = threading.Lock()
        self.counts = [0] * WRITERS
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(WRITERS)]
        ledger.begin()
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        try:
            self._write(number)
        except Exception as error:
            self._ledger.wrong.append(f"a writer was told {error!r}")

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
            # So that the file stays about as large as it is.
            time.sleep(PAUSE_SECONDS)

    def wait(self) -> None:
        """Until each has written something."""
        end = time.monotonic() + PATIENCE_SECONDS
        while min(self.counts) < 3:
            if time.monotonic() > end:
                raise TimeoutError("the writers do not write")
            time.sleep(0.01)

    def stop(self) -> None:
        """Let each end the call that it is at."""
        self._done.set()
        for thread in self._threads:
            thread.join()


def run(*, long: bool, seed: str) -> list[Row]:
    """Both: those that come to their end, and those that do not."""
    times, ledger, choice = LONG if long else SHORT, Ledger(), random.Random(seed)
    wrong: list[str] = []
    slowest, met = 0.0, 0
    with tempfile.TemporaryDirectory() as place, Store.open(f"sqlite:///{place}/store.db", migrate_first=True) as store:
        folder, path = Path(place) / "backups", Path(place) / "store.db"
        _fill(store, ledger)
        writers = Writers(store, ledger)
        try:
            writers.wait()
            for number in range(times):
                before, began = list(writers.counts), time.monotonic()
                made = Path(store.backup(folder, keep=2).file)
                slowest = max(slowest, time.monotonic() - began)
                wrong += _compared(made, Path(place) / f"restored{number}" / "store.db", before, store)
                met += _killed(path, folder, choice, wrong)
        finally:
            writers.stop()
        store.backup(folder, keep=2)
        lost, faults = ledger.judge(path)
    if met < times // 3:
        wrong.append(f"only {met} of {times} were killed half way")
    note = (
        f"{WRITERS} writers meanwhile; {times} restored and compared, {met} killed half way; the slowest took {slowest:.1f} s"
    )
    return [Row("backup and restore", times + met, ledger.acknowledged, lost, [*wrong, *faults], ledger.outage, note)]


def _fill(store: Store, ledger: Ledger) -> None:
    """What is there before: something to copy, and a turn that goes on."""
    long = [Draft(role="user", content="what was said before " * 50) for _ in range(500)]
    for number in range(FILLED):
        store.create(f"filled{number}", messages=long)
    store.create("held")
    store.acquire("held", "worker", token=TOKEN, ttl_ms=3_600_000)
    store.put("held", Draft(id="r", role="assistant", content="half", status="partial"), token=TOKEN)
    ledger.filled = {"held", *(f"filled{number}" for number in range(FILLED))}


def _compared(made: Path, target: Path, before: list[int], live: Store) -> list[str]:
    """All that had been acknowledged before it was begun is in what is restored from it, and it is a new beginning."""
    wrong = [f"the restored one: {fault}" for fault in restore(made, f"sqlite:///{target}").faults]
    wrong += faults_in(target)
    stored = _stored(target)
    for number, count in enumerate(before):
        found = stored.get(f"c{number}", [])
        if len(found) < count or found != list(range(len(found))):
            wrong.append(f"c{number}: {len(found)} of {count}, or not what was said")
    with Store.open(f"sqlite:///{target}") as store:
        wrong += _begun_anew(store, live)
    return wrong


def _begun_anew(store: Store, live: Store) -> list[str]:
    """Nothing that was known of the one is good for the other."""
    wrong, known = [], live.get("c0")
    if not (store.get("c0").incarnation > known.incarnation and store.changes("c0", known.tag).reset):
        wrong.append("a life goes on that was restored")
    if store.get("held").generation is not None or store.message("held", "r").status != "interrupted":
        wrong.append("a turn goes on that was restored")
    try:
        store.append("held", [Draft(role="user", content="late")], token=TOKEN)
        wrong.append("a token is good in what was restored")
    except errors.LeaseLost:
        pass
    return wrong


def _stored(path: Path) -> dict[str, list[int]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = connection.execute(
        "SELECT c.id, CAST(m.content AS INTEGER) FROM messages m JOIN conversations c ON c.pk = m.conversation_pk"
        " WHERE c.id LIKE 'c%' ORDER BY c.pk, m.position"
    ).fetchall()
    connection.close()
    found: dict[str, list[int]] = {}
    for id, content in rows:
        found.setdefault(id, []).append(content)
    return found


def _killed(path: Path, folder: Path, choice: random.Random, wrong: list[str]) -> bool:
    """A backup that dies half way is none. Answers whether it was killed half way: it may have been quick."""
    before = {found.name for found in folder.iterdir()}
    one = start(
        sys.executable, "-m", "sessionstore.cli", "backup", "--database", f"sqlite:///{path}", folder, stdout=-3, stderr=-3
    )
    while one.poll() is None and {found.name for found in folder.iterdir()} <= before:
        time.sleep(0.001)
    time.sleep(choice.uniform(0, 0.15))
    one.kill()
    one.wait()
    new = [found for found in folder.glob("store-*.db") if found.name not in before]
    wrong += [f"{found.name} is half of a backup: {faults_in(found)[:3]}" for found in new if faults_in(found)]
    return not new
