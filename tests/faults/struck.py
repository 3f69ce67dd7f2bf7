"""A program under whose writes the disk breaks now and then: python -m tests.faults.struck URL SECONDS refuses|goes-on|dies

It makes every mutation again and again, through both faces. What is refused must be refused in one of the ways that say so, and
must have changed nothing, save where the outcome is said to be unknown: then all of it happened or nothing did, and the repeat
tells. Where the disk is broken and not only full, the store has to refuse (`refuses`) until it is opened again. With `dies` it
kills itself at the first outcome that is unknown. At its end it prints what it counted, as JSON.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sessionstore import AsyncStore, Draft, SessionStoreError, Store, errors
from sessionstore.sqlite import log, room
from tests.faults.recorded import state_of

TRIES = 200
LONGEST_SECONDS = 90
# What the conversation is at when it is compacted: each call before that raised its version once, however often it was tried.
SEEN = 6
# What a repeat is told whose first try was done.
DONE_BEFORE = {
    "delete": errors.ConversationDeleted,
    "delete_message": errors.MessageDeleted,
    "cancel_input": errors.MessageDeleted,
    "fork": errors.ConversationExists,
}
Step = tuple[str, Callable[[Any], Any]]


def mutations(id: str) -> list[Step]:
    """Every mutation once, in an order in which each is allowed. All of them are repeatable, by their ids and tokens."""
    token, other = f"the-token-of-{id}-number-1", f"the-token-of-{id}-number-2"
    long = "many words " * 200
    told = [Draft(id="m0", role="user", content=long), Draft(id="m1", role="assistant", content="yes"), *_numbered("n", 6)]
    return [
        ("create", lambda store: store.create(id, messages=told)),
        ("append", lambda store: store.append(id, [Draft(id="m2", role="user", content=long)])),
        ("put", lambda store: store.put(id, Draft(id="m1", role="assistant", content="no"))),
        ("label", lambda store: store.label(id, title="Garden", metadata={"colour": "green"})),
        ("label_message", lambda store: store.label_message(id, "m1", {"tokens": 3})),
        ("delete_message", lambda store: store.delete_message(id, "n0")),
        ("compact", lambda store: _compact(store, id)),
        ("fork", lambda store: store.fork(id, f"{id}-fork")),
        ("acquire", lambda store: store.acquire(id, "worker", token=token, messages=_numbered("a", 2))),
        ("renew", lambda store: store.renew(id, token=token, phase="thinking")),
        ("save", lambda store: store.put(id, Draft(id="r", role="assistant", content="half", status="partial"), token=token)),
        ("queue_inputs", lambda store: store.queue_inputs(id, _numbered("i", 3))),
        ("cancel_input", lambda store: store.cancel_input(id, "i0")),
        ("claim_inputs", lambda store: store.claim_inputs(id, token=token)),
        ("interrupt", lambda store: store.interrupt(id)),
        ("finish", lambda store: store.finish(id, [Draft(id="r", role="assistant", content=long)], token=token)),
        ("acquire again", lambda store: store.acquire(id, "worker", token=other)),
        ("release", lambda store: store.release(id, token=other)),
        ("truncate", lambda store: store.truncate(id, after_position=3, through_position=5)),
        ("delete", lambda store: store.delete(id)),
    ]  # fmt: skip


def _numbered(letter: str, count: int) -> list[Draft]:
    return [Draft(id=f"{letter}{number}", role="user", content=f"{letter} {number}") for number in range(count)]


def _compact(store: Any, id: str) -> Any:
    return store.compact(id, Draft(id="s", role="user", content="all in short"), through_position=1, seen_version=SEEN)


class Struck:
    """A store on a disk that breaks, and what became of the calls."""

    def __init__(self, url: str, how: str) -> None:
        self._url, self._path, self._how = url, Path(url.removeprefix("sqlite:///")), how
        self._scratch = os.open(self._path.with_name("scratch"), os.O_CREAT | os.O_RDWR)
        self._runner, self._store = asyncio.Runner(), self._open()
        self._awaiting = AsyncStore(self._store)
        self.counted: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.struck_at: Counter[str] = Counter()
        self._state = state_of(self._path)

    def _open(self) -> Store:
        for attempt in range(TRIES):
            self._shift(attempt)
            try:
                return Store.open(self._url)
            except errors.SessionStoreError as error:
                last = error
        raise last

    def do(self, step: Step, *, awaited: bool) -> None:
        """One mutation, until it is done."""
        name, change = step
        unknown = False
        for attempt in range(TRIES):
            self._shift(attempt)
            try:
                # The writer's thread is a new one after each reopening, and counts anew what fails in it.
                self._runner.run(self._awaited(change)) if awaited and attempt % 2 == 0 else change(self._store)
            except SessionStoreError as error:
                if not (unknown and isinstance(error, DONE_BEFORE.get(name, ()))):
                    unknown = self._refused(name, error) or unknown
                    time.sleep(0.002)
                    continue
            self._acknowledged(name, unknown=unknown)
            return
        raise RuntimeError(f"{name} was refused {TRIES} times")

    async def _awaited(self, change: Callable[[Any], Any]) -> Any:
        return await change(self._awaiting)

    def _shift(self, attempt: int) -> None:
        """Every n-th call fails: so that it is not the same one of this mutation for ever, some are spent elsewhere."""
        for _ in range(attempt % 7):
            for spend in (os.fdatasync, lambda file: os.pwrite(file, b"x", 0), lambda file: os.ftruncate(file, 1)):
                with suppress(OSError):
                    spend(self._scratch)

    def _acknowledged(self, name: str, *, unknown: bool) -> None:
        state = state_of(self._path)
        if state == self._state and not unknown:
            self.wrong.append(f"{name} was acknowledged, and nothing was stored")
        self.counted["acknowledged"] += 1
        self._state = state

    def _refused(self, name: str, error: SessionStoreError) -> bool:
        """Whether the outcome is unknown."""
        self.counted[error.code] += 1
        self.struck_at[name] += 1
        state, unknown = state_of(self._path), isinstance(error, errors.OutcomeUnknown)
        if not isinstance(error, errors.Unavailable):
            self.wrong.append(f"{name} was told {error!r}")
        if not unknown and state != self._state:
            self.wrong.append(f"{name} was told {error.code}, and something was stored")
        if unknown and self._how == "dies":
            self._path.with_name("before").write_text(f"{name} {self._state}")
            os.kill(os.getpid(), signal.SIGKILL)
        self._state = state
        failed = isinstance(error, errors.StorageFailed)
        if failed or (unknown and self._how == "refuses"):
            self._begin_anew()
        return unknown

    def _begin_anew(self) -> None:
        """It trusts its connections no longer, and says so, until it is opened again."""
        try:
            self._store.check_ready()
            self.wrong.append("it is ready though its storage failed")
        except errors.StorageFailed:
            self.counted["unready"] += 1
        self._runner.run(self._awaiting.close())
        self._store = self._open()
        self._awaiting = AsyncStore(self._store)

    def close(self) -> dict[str, Any]:
        """What was counted, and what must not be."""
        self._runner.run(self._awaiting.close())
        return {"counted": self.counted, "wrong": self.wrong[:20], "struck_at": self.struck_at}


def main() -> None:
    """Every mutation, again and again: for so many seconds, and until each has been met."""
    url, seconds, how = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    # So that the log is copied back often, and its failures are met as well.
    log.LOG_LIMIT_BYTES = 96 * 1024
    # There is room, whatever the disk says, and no time to lose.
    room.TRY_AGAIN_SECONDS = 0.01
    struck, began = Struck(url, how), time.monotonic()
    for number in itertools.count():
        for step in mutations(f"c{number}"):
            struck.do(step, awaited=number % 2 == 1)
        spent, met = time.monotonic() - began, len(struck.struck_at)
        if spent > LONGEST_SECONDS or (spent > seconds and (met == len(mutations("")) or (met and how == "goes-on"))):
            break
    print(json.dumps(struck.close()))


if __name__ == "__main__":
    main()
