"""A program that runs out of room inside its transactions: python -m tests.faults.crowded URL ROUNDS

It has a cache so small that SQLite writes before the COMMIT. A write that finds no room then makes it roll back the whole
transaction by itself, with all the calls that share it (DESIGN.md, rule 7). Many calls come at the same time, each with an id,
and who was refused does not come again. Prints what it counted, as JSON.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import Any

from sessionstore import AsyncStore, Draft, Store, errors
from sessionstore.sqlite import room
from sessionstore.sqlite.writer import Writer
from tests.conftest import on_file

CALLERS, PAGES = 12, 8


async def rounds(store: Store, count: int, told: Counter[str], wrong: list[str]) -> None:
    """All of them at once, again and again."""
    awaiting = AsyncStore(store)
    known: list[list[str]] = [[] for _ in range(CALLERS)]
    for attempt in range(count):
        calls = [_append(awaiting, number, attempt) for number in range(CALLERS)]
        for number, answer in enumerate(await asyncio.gather(*calls)):
            told[answer] += 1
            if answer == "done":
                known[number].append(f"m{attempt}")
    for number in range(CALLERS):
        there = [message.id for message in store.messages(f"c{number}", limit=1_000).items]
        if there != known[number]:
            wrong.append(f"c{number} has {len(there)} messages, and {len(known[number])} were acknowledged")
    await awaiting.close()


async def _append(awaiting: AsyncStore, number: int, attempt: int) -> str:
    while True:
        try:
            await awaiting.append(f"c{number}", [Draft(id=f"m{attempt}", role="user", content="x" * 9_000)])
        except errors.OutcomeUnknown:
            continue
        except errors.DiskFull:
            return "disk-full"
        return "done"


def main() -> None:
    """Count how often a whole group was undone, too."""
    undone, one_by_one = 0, Writer._one_by_one

    def counting(self: Writer, items: Any) -> None:
        nonlocal undone
        undone += 1
        one_by_one(self, items)

    Writer._one_by_one = counting  # type: ignore[method-assign]
    room.TRY_AGAIN_SECONDS = 0.001
    told: Counter[str] = Counter()
    wrong: list[str] = []
    with Store.open(sys.argv[1]) as store:
        writer: Any = on_file(store)._writer._connection
        if writer is None:
            store.label("c0", title="so that there is a connection")
            writer = on_file(store)._writer._connection
        writer.execute(f"PRAGMA cache_size={PAGES}")
        asyncio.run(rounds(store, int(sys.argv[2]), told, wrong))
    print(json.dumps({"told": told, "wrong": wrong, "undone": undone}))


if __name__ == "__main__":
    main()
