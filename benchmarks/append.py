"""One caller appends 1 KiB messages with all checks, against the same transaction in raw sqlite3, in interleaved slices.

    python -m benchmarks.append [--directory DIR] [--slices N]

Both sides have the same file format, indexes, durability and statements: read the conversation, insert the message, write the
conversation back. The raw side has no validation, no digest, no typed answer and one connection that nobody shares.
"""

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sessionstore import Draft, Store, statements
from sessionstore.drafts import new_id

SLICE_SECONDS = 0.5
BODY = "x" * 1024


def raw_append(store: Store, path: Path, synchronous: str) -> Callable[[], None]:
    """The statements of the product's own append, run by hand."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in (f"synchronous={synchronous}", "foreign_keys=ON", "secure_delete=ON", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("PRAGMA wal_autocheckpoint=1000")
    compiled = store.database.statements.__getitem__
    (life, _), (put, constants), (advance, _) = (
        compiled(statement) for statement in (statements.LIFE, statements.PUT_MESSAGE, statements.ADVANCE)
    )
    content, clock = f'"{BODY}"', lambda: time.time_ns() // 1_000_000

    def append() -> None:
        now = clock()
        connection.execute("BEGIN IMMEDIATE")
        row = connection.execute(life, {"owner": "", "id": "raw"}).fetchone()
        if row[7] is not None and row[10] > now:
            raise RuntimeError("generating")
        message = {
            "conversation_pk": row[0], "id": new_id(), "position": row[3], "role": "user", "content": content,
            "metadata": "{}", "status": "complete", "mode": None, "summary_through": None, "generation": None,
            "created_version": row[2] + 1, "version": row[2] + 1, "created_at": now, "updated_at": now, "digest": "0" * 64,
        }  # fmt: skip
        connection.execute(put, {**constants, **message})
        connection.execute(
            advance,
            {"at": row[0], "version": row[2] + 1, "now": now, "next_position": row[3] + 1, "message_count": row[4] + 1,
             "queued_count": row[5], "lease_expires_at": row[10]},
        )  # fmt: skip
        connection.execute("COMMIT")

    return append


def product_append(store: Store) -> Callable[[], None]:
    """What a user of the library calls."""
    drafts = [Draft(role="user", content=BODY)]
    return lambda: (store.append("product", drafts), None)[1]


def rate(step: Callable[[], None]) -> float:
    """Calls a second in one slice."""
    done, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < SLICE_SECONDS:
        step()
        done += 1
    return done / (now - begin)


def compare(directory: Path, synchronous: str, slices: int) -> None:
    """Print the median of the ratios of neighbouring slices, and its spread."""
    ratios, rates = [], []
    for side in ("raw", "product"):
        (directory / side).mkdir()
    raw_path, path = (directory / side / "bench.db" for side in ("raw", "product"))
    with (
        Store.open(f"sqlite:///{raw_path}", migrate_first=True) as reference,
        Store.open(f"sqlite:///{path}", migrate_first=True, synchronous=synchronous) as store,
    ):
        reference.create("raw")
        store.create("product")
        sides = {"raw": raw_append(reference, raw_path, synchronous), "product": product_append(store)}
        for _ in range(slices):
            measured = {name: rate(sides[name]) for name in random.sample(sorted(sides), 2)}
            ratios.append(measured["product"] / measured["raw"])
            rates.append(measured)
    median, (low, high) = statistics.median(ratios), _quartiles(ratios)
    product, raw = (statistics.median(measured[name] for measured in rates) for name in ("product", "raw"))
    print(f"{synchronous:8} {median:.2f} of raw (quartiles {low:.2f} to {high:.2f}); {product:,.0f}/s against {raw:,.0f}/s")


def _quartiles(values: list[float]) -> tuple[float, float]:
    quarters = statistics.quantiles(values, n=4)
    return quarters[0], quarters[2]


def main() -> None:
    """Run both durabilities."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the files go (a temporary folder)")
    parser.add_argument("--slices", type=int, default=60)
    asked = parser.parse_args()
    for synchronous in ("full", "normal"):
        with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
            compare(Path(directory), synchronous, asked.slices)


if __name__ == "__main__":
    main()
