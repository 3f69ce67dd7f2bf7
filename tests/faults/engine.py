"""The engine's own fault (SQLite 3.7.0 to 3.51.2): overlapping checkpoints lose commits and corrupt. Ours never overlap.

Two writers and two who do nothing but copy the log back, on a file in memory, where the fault shows soonest. Side by side with
the same on the bare engine, which breaks in about one run of three where the engine is affected (facts, 1.9).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from sessionstore import Store
from sessionstore.dialect import engine_fault
from sessionstore.engine import sqlite3
from tests.faults.ledger import faults_in
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
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            counted, missing, faults = _race(Path(folder) / "store.db", seconds)
        acknowledged, lost, wrong = acknowledged + counted, lost + missing, wrong + faults
    bare = [_race_bare(seconds) for _ in range(BARE_LONG if long else BARE_SHORT)]
    fault = "with the fault" if engine_fault() else "without the fault"
    note = f"SQLite {sqlite3.sqlite_version}, {fault}; the bare engine broke in {sum(bare)} of {len(bare)} runs"
    return [Row("checkpoints back to back", times, acknowledged, lost, wrong, note=note)]


def _race(path: Path, seconds: float) -> tuple[int, int, list[str]]:
    url, ids = f"sqlite:///{path}", ("w0", "w1", "k0", "k1")
    with Store.open(url, migrate_first=True) as store:
        for id in ids:
            store.create(id)
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults.racers", url, id, str(seconds), "write" if id[0] == "w" else "checkpoint"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for id in ids
    ]  # fmt: skip
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
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = f"{folder}/bare.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (w INTEGER, n INTEGER, pad TEXT, PRIMARY KEY (w, n))")
        connection.execute("CREATE INDEX ix ON t (pad)")
        connection.close()
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", BARE, path, str(number), str(seconds), "write" if number < 2 else "checkpoint"],
                stdout=subprocess.PIPE, text=True,
            )
            for number in range(4)
        ]  # fmt: skip
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
