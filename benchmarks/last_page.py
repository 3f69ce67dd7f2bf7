"""The last 50 messages of conversations of growing length: the cost must not grow with what is not shown.

    python -m benchmarks.last_page [--directory DIR] [--largest N]

Two sides of one run: the store's call, and the bare SQL of the same page on a connection of its own.
"""

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sessionstore import Draft, Store, statements

BODY = "x" * 1024
ROUNDS = 200


def fill(store: Store, id: str, count: int) -> None:
    """A conversation of `count` messages."""
    store.create(id)
    for begin in range(0, count, 1000):
        store.append(id, [Draft(role="user", content=BODY)] * min(1000, count - begin))


def main() -> None:
    """Print a line for each length, with the ratio to the shortest that fills a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--largest", type=int, default=100_000)
    asked = parser.parse_args()
    lengths = [length for length in (10, 1_000, 10_000, 100_000, 1_000_000) if length <= asked.largest]
    with (
        tempfile.TemporaryDirectory(dir=asked.directory) as directory,
        Store.open(f"sqlite:///{directory}/bench.db", migrate_first=True, synchronous="normal") as store,
    ):
        for length in lengths:
            fill(store, f"c{length}", length)
        measured = _interleaved({length: _sides(store, Path(directory) / "bench.db", length) for length in lengths})
        first = measured[lengths[min(1, len(lengths) - 1)]][0]
        for length in lengths:
            ours, bare = measured[length]
            growth = f"{ours / first:.2f} of 1,000 messages'"
            print(f"{length:9,} messages: {ours:5.0f} us, {growth}; bare SQL {bare:5.0f} us, {ours / bare:.1f} times that")


def _sides(store: Store, path: Path, length: int) -> tuple[Callable[[], object], Callable[[], object]]:
    connection = sqlite3.connect(path)
    sql, constants = store.database.statements[statements.list_messages(descending=True)]
    pk = store.get(f"c{length}").incarnation
    asked = {**constants, "pk": pk, "after": -1, "before": 2**62, "count": 51}
    return (
        lambda: store.messages(f"c{length}", order="desc", limit=50),
        lambda: connection.execute(sql, asked).fetchall(),
    )


def _interleaved(sides: dict[int, tuple[Callable[[], object], Callable[[], object]]]) -> dict[int, tuple[float, float]]:
    """The median microseconds of each side, all of them measured in turn."""
    times: dict[tuple[int, int], list[float]] = {(length, side): [] for length in sides for side in (0, 1)}
    for _ in range(ROUNDS):
        for (length, side), seen in times.items():
            begin = time.perf_counter()
            sides[length][side]()
            seen.append((time.perf_counter() - begin) * 1e6)
    return {length: (statistics.median(times[length, 0]), statistics.median(times[length, 1])) for length in sides}


if __name__ == "__main__":
    main()
