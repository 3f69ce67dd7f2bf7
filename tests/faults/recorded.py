"""A program whose every write to the disk is recorded: python -m tests.faults.recorded URL SYNCHRONOUS STEPS

It does all kinds of things to one store, and says after each what all tables hold. What it says goes through write(2), so it
stands in the record where it was said.
"""

import asyncio
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sessionstore import AsyncStore, Draft, SessionStoreError, Store, log
from sessionstore.engine import sqlite3

TABLES = ("conversations", "messages", "generations", "pruned")


def state_of(path: Path) -> str:
    """All that was said, as one value. The search index follows it in its own time."""
    if not path.exists():
        return "nothing"
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'pruned'").fetchone()[0]:
            return "nothing"
        rows = [connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES]
    finally:
        connection.close()
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


class Telling:
    """A store that says after each call what all tables hold now. What is refused has changed nothing, and is said as well."""

    def __init__(self, call: Callable[[str, Any, Any], Any], say: Callable[[], None]) -> None:
        self._call, self._say = call, say

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def told(*args: Any, **options: Any) -> None:
            with suppress(SessionStoreError):
                self._call(name, args, options)
            self._say()

        return told


def _text(number: int) -> str:
    return f"message {number} " * (1 + number % 40)


def _token(id: str) -> str:
    return f"the-token-of-{id}-and-its-turn"


def _turn(store: Any, id: str, number: int) -> None:
    token = f"{_token(id)}-{number}"
    store.acquire(id, "worker", token=token, messages=[Draft(id=f"q{number}", role="user", content=_text(number))])
    store.put(id, Draft(id=f"a{number}", role="assistant", content="half", status="partial"), token=token)
    store.finish(id, [Draft(id=f"a{number}", role="assistant", content=_text(number))], token=token, usage={"output_tokens": 3})


def _several(number: int) -> list[Draft]:
    return [Draft(role="user", content=_text(number)) for _ in range(1 + number % 5)]


STEPS: dict[str, Callable[[Any, str, int], Any]] = {
    "create": lambda store, id, n: store.create(id, messages=_several(n)),
    "append": lambda store, id, n: store.append(id, _several(n)),
    "put": lambda store, id, n: store.put(id, Draft(id=f"edited{n % 3}", role="assistant", content=_text(n))),
    "turn": _turn,
    "acquire": lambda store, id, n: store.acquire(id, "worker", token=_token(id), if_busy="interrupt"),
    "fork": lambda store, id, n: store.fork(id, f"fork{n}"),
    "label": lambda store, id, n: store.label(id, title=f"title {n}", metadata={"n": n}),
    "queue": lambda store, id, n: store.queue_inputs(id, [Draft(id=f"i{n}", role="user", content=_text(n))]),
    "claim": lambda store, id, n: store.claim_inputs(id, token=_token(id)),
    "truncate": lambda store, id, n: store.truncate(id, after_position=3, through_position=5),
    "interrupt": lambda store, id, n: store.interrupt(id, force=True),
    "delete": lambda store, id, n: n % 3 or store.delete(id, force=True),
}


def main() -> None:
    """Work, through either face, and say after each call what there is."""
    url, synchronous, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    path, choice = Path(url.removeprefix("sqlite:///")), random.Random(1)
    # So that the log is copied back often.
    log.LOG_LIMIT_BYTES = 96 * 1024

    def say() -> None:
        os.write(1, f"{state_of(path)}\n".encode())

    with asyncio.Runner() as runner, Store.open(url, migrate_first=True, synchronous=synchronous) as store:  # type: ignore[arg-type]
        awaiting = AsyncStore(store)

        async def awaited(name: str, args: Any, options: Any) -> None:
            await getattr(awaiting, name)(*args, **options)

        faces = (
            Telling(lambda name, args, options: getattr(store, name)(*args, **options), say),
            Telling(lambda *call: runner.run(awaited(*call)), say),
        )
        say()
        for number in range(1, steps + 1):
            step = STEPS[choice.choice(list(STEPS))]
            step(choice.choice(faces), f"c{choice.randrange(4)}", number)


if __name__ == "__main__":
    main()
