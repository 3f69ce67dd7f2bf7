"""The engine's own fault (SQLite 3.7.0 to 3.51.2): overlapping checkpoints lose commits and corrupt. Ours never overlap.

Two writers and two who do nothing but copy the log back, on a file in memory, where the fault shows soonest. Side by side with
the same on the bare engine, which breaks in about one run of three where the engine is affected (facts, 1.9). As a pass by luck
proves little, the locks themselves are watched as well: nobody ever copies the log back who has neither SQLite's write lock nor
the gate.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sessionstore import Store
from sessionstore.engine import sqlite3
from sessionstore.sqlite.connections import engine_fault
from tests.faults.ledger import faults_in
from tests.faults.served import start
from tests.faults.table import Row

MEMORY = Path("/dev/shm")
SHORT, LONG = (3, 8.0), (20, 12.0)
BARE_SHORT, BARE_LONG = 2, 8


def run(*, long: bool, seed: str) -> list[Row]:
    """As often as the facts say."""
    times, seconds = LONG if long else SHORT
    acknowledged = lost = 0
    wrong: list[str] = []
    for _ in range(times):
        with _in_memory() as folder:
            counted, missing, faults = _race(folder / "store.db", seconds)
        acknowledged, lost, wrong = acknowledged + counted, lost + missing, wrong + faults
    bare = [_race_bare(seconds) for _ in range(BARE_LONG if long else BARE_SHORT)]
    fault = "with the fault" if engine_fault() else "without the fault"
    note = f"SQLite {sqlite3.sqlite_version}, {fault}; the bare engine broke in {sum(bare)} of {len(bare)} runs"
    return [Row("checkpoints back to back", times, acknowledged, lost, wrong, note=note), *_locks(seconds)]


def _locks(seconds: float) -> list[Row]:
    """Which locks whoever copies the log back has. Where the engine is sound it may do so by itself, and nothing is watched."""
    if not engine_fault():
        return []
    with _in_memory() as folder:
        counted, lost, wrong = _race(folder / "store.db", seconds, watched=True)
        watched = [locks_of(trace.read_text().splitlines()) for trace in sorted(folder.glob("*.trace"))]
    copied = sum(one.copied for one in watched)
    wrong += [f"{one.alone} of {one.copied} times without a lock" for one in watched if one.alone]
    note = "each under SQLite's write lock or the gate, by a trace of the locks"
    return [Row("the log is copied back", copied, counted, lost, wrong, note=note)]


class Watched(NamedTuple):
    """How often a process began to copy the log back, and how often it had neither the write lock nor the gate then."""

    copied: int
    alone: int


FCNTL = re.compile(r"fcntl\(\d+<([^>]*)>, F_SETLK\w*, \{l_type=F_(\w+), .*l_start=(\d+), l_len=(\d+)\}\) = 0")
FLOCK = re.compile(r"flock\(\d+<[^>]*-gate>, ([A-Z_|]+)\) = 0")
# In the log's index: its locks for writing and for copying back. In the database: all of it (SQLite, os_unix.c, wal.c).
WRITING, COPYING, DATABASE = 120, 121, (1_073_741_826, 510)


def locks_of(lines: list[str]) -> Watched:
    """Go through the locks of one process, in their order."""
    has = {"write": False, "gate": False, "database": False}
    copied = alone = 0
    for line in lines:
        if gate := FLOCK.search(line):
            has["gate"] = "LOCK_EX" in gate[1]
        if not (found := FCNTL.search(line)):
            continue
        path, kind, start, length = found[1], found[2], int(found[3]), int(found[4])
        if not path.endswith("-shm"):
            has["database"] = kind == "WRLCK" if (start, length) == DATABASE else has["database"] and kind != "UNLCK"
        elif start <= WRITING < start + (length or 10**9):
            has["write"] = kind == "WRLCK"
        elif (start, length, kind) == (COPYING, 1, "WRLCK"):
            copied += 1
            alone += not any(has.values())
    return Watched(copied, alone)


@contextmanager
def _in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def _race(path: Path, seconds: float, *, watched: bool = False) -> tuple[int, int, list[str]]:
    url, ids = f"sqlite:///{path}", ("w0", "w1", "k0", "k1")
    with Store.open(url, migrate_first=True) as store:
        for id in ids:
            store.create(id)
    racers = []
    for id in ids:
        spy = ["strace", "-qq", "-y", "-e", "trace=fcntl,flock", "-e", "signal=none", "-o", path.with_name(f"{id}.trace")]
        program = [sys.executable, "-m", "tests.faults.racers", url, id, seconds, "write" if id[0] == "w" else "checkpoint"]
        racers.append(start(*(spy if watched else []), *program, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    told = [racer.communicate(timeout=seconds + 60) for racer in racers]
    wrong = [f"a racer ended with {said[1][-500:]}" for racer, said in zip(racers, told, strict=True) if racer.returncode]
    counted = {id: int(said[0] or 0) for id, said in zip(ids, told, strict=True)}
    return sum(counted.values()), _missing(path, counted), [*wrong, *faults_in(path)]


def _missing(path: Path, counted: dict[str, int]) -> int:
    """By the rows themselves: an index may be short of some."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found = dict(
            connection.execute(
                "SELECT c.id, count(*) FROM messages m NOT INDEXED JOIN conversations c ON c.pk = m.conversation_pk GROUP BY 1"
            ).fetchall()
        )
    except sqlite3.Error:
        return sum(counted.values())
    finally:
        connection.close()
    return sum(max(0, count - found.get(id, 0)) for id, count in counted.items())


# The bare engine -------------------------------------------------------------------------------------------------------

BARE = """
import json, random, sqlite3, sys, time
path, number, seconds, what = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
connection = sqlite3.connect(path, isolation_level=None, timeout=20)
connection.execute("PRAGMA synchronous=NORMAL")
choice, count, end, broken = random.Random(number), 0, time.time() + seconds, False
try:
    while time.time() < end:
        if what == "write":
            many = choice.choice((1, 1, 1, 2, 5, 30))
            connection.execute("BEGIN IMMEDIATE")
            for index in range(many):
                text = str(choice.random()) * choice.choice((1, 1, 40))
                connection.execute("INSERT INTO t VALUES (?, ?, ?)", (number, count + index, text))
            connection.execute("COMMIT")
            count += many
        if what != "write" or choice.random() < 0.2:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
except sqlite3.Error:
    broken = True
print(json.dumps([count, broken]))
"""


def _race_bare(seconds: float) -> bool:
    """Whether it broke."""
    with _in_memory() as folder:
        path = f"{folder}/bare.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (w INTEGER, n INTEGER, pad TEXT, PRIMARY KEY (w, n))")
        connection.execute("CREATE INDEX ix ON t (pad)")
        connection.close()
        racers = [
            start(
                sys.executable,
                "-c",
                BARE,
                path,
                number,
                seconds,
                "write" if number < 2 else "checkpoint",
                stdout=subprocess.PIPE,
            )
            for number in range(4)
        ]
        told = [json.loads(racer.communicate(timeout=seconds + 60)[0]) for racer in racers]
        connection = sqlite3.connect(path)
        try:
            sound = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            count = connection.execute("SELECT count(*) FROM t NOT INDEXED").fetchone()[0]
        except sqlite3.Error:
            return True
        finally:
            connection.close()
    return not sound or count < sum(count for count, _ in told) or any(broken for _, broken in told)
