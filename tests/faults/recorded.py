"""A program whose every write to the disk is recorded: python -m tests.faults.recorded URL SYNCHRONOUS STEPS alone|together

What it says goes through write(2), so it stands in the record where it was said. *Alone* it makes all kinds of calls, one after
the other through either face, and says after each whether it was done and what all tables hold. *Together* several threads
append, each to a conversation of its own, and say what they send and what was acknowledged.
"""

import asyncio
import hashlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessionstore import AsyncStore, Draft, SessionStoreError, Store
from sessionstore.engine import sqlite3
from sessionstore.errors import Unavailable
from sessionstore.sqlite import log

TABLES = ("conversations", "messages", "generations", "pruned")
THREADS = 6


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
    """A store that says after each call whether it was done, and what all tables hold now."""

    def __init__(self, call: Callable[[str, Any, Any], Any], say: Callable[[str], None]) -> None:
        self._call, self._say = call, say

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def told(*args: Any, **options: Any) -> Any:
            try:
                answer = self._call(name, args, options)
            except Unavailable:
                raise
            except SessionStoreError:
                self._say("refused")
                raise
            self._say("done")
            return answer

        return told


def _text(number: int) -> str:
    return f"message {number} " * (1 + number % 40)


def _drafts(number: int) -> list[Draft]:
    return [Draft(role="user", content=_text(number)) for _ in range(1 + number % 5)]


def _turn(store: Any, id: str, number: int) -> None:
    token = f"the-token-of-{id}-and-turn-{number}"
    store.acquire(id, "worker", token=token, messages=[Draft(id=f"q{number}", role="user", content=_text(number))])
    store.put(id, Draft(id=f"a{number}", role="assistant", content="half", status="partial"), token=token)
    store.queue_inputs(id, [Draft(id=f"i{number}", role="user", content=_text(number))])
    store.claim_inputs(id, token=token)
    if number % 2:
        store.interrupt(id, force=True)
    else:
        store.finish(id, [Draft(id=f"a{number}", role="assistant", content=_text(number))], token=token, usage={"cost": 3})


def _cut(store: Any, id: str, number: int) -> None:
    last = store.append(id, _drafts(number)).value[-1].position
    store.truncate(id, after_position=last - 1, through_position=last)


def _compacted(store: Any, id: str, number: int) -> None:
    written = store.append(id, _drafts(number)).value[-1]
    summary = Draft(id=f"s{number}", role="user", content=_text(number))
    store.compact(id, summary, through_position=written.position, seen_version=written.version)


STEPS: tuple[Callable[[Any, str, int], Any], ...] = (
    lambda store, id, n: store.append(id, _drafts(n)),
    lambda store, id, n: store.put(id, Draft(id=f"edited{n % 3}", role="assistant", content=f"{n} {_text(n)}")),
    lambda store, id, n: store.fork(id, f"fork{n}"),
    lambda store, id, n: store.label(id, title=f"title {n}", metadata={"n": n}),
    _turn,
    _cut,
    _compacted,
)


def alone(store: Store, path: Path, steps: int) -> None:
    """One conversation after the other, from its creation to its end; every call changes something."""
    choice = random.Random(1)

    def say(how: str) -> None:
        os.write(1, f"{how} {state_of(path)}\n".encode())

    async def awaited(name: str, args: Any, options: Any) -> Any:
        return await getattr(awaiting, name)(*args, **options)

    awaiting = AsyncStore(store)
    with asyncio.Runner() as runner:
        faces = (
            Telling(lambda name, args, options: getattr(store, name)(*args, **options), say),
            Telling(lambda *call: runner.run(awaited(*call)), say),
        )
        say("done")
        for number in range(1, steps + 1):
            face, id = choice.choice(faces), f"c{number // 8}"
            if number == 1 or number % 8 == 0:
                face.create(id, messages=_drafts(number))
            choice.choice(STEPS)(face, id, number)
            if number % 8 == 7 and choice.random() < 0.5:
                face.delete(id)


def together(store: Store, steps: int) -> None:
    """Groups of calls in one transaction, and several that wait for one commit."""

    def work(id: str) -> None:
        os.write(1, f"send {id} -1\n".encode())
        store.create(id)
        for number in range(steps):
            os.write(1, f"send {id} {number}\n".encode())
            store.append(id, [Draft(id=f"m{number}", role="user", content=number)])
            os.write(1, f"done {id} {number}\n".encode())

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Work."""
    url, synchronous, steps, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    # So that the log is copied back often.
    log.LOG_LIMIT_BYTES = 96 * 1024
    with Store.open(url, migrate_first=True, synchronous=synchronous) as store:  # type: ignore[arg-type]
        if how == "alone":
            alone(store, Path(url.removeprefix("sqlite:///")), steps)
        else:
            together(store, steps)


if __name__ == "__main__":
    main()
