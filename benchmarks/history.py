"""History in a large file beside a small one: lists, contexts, last pages, searches, forks, and what forgetting holds up."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.sides import spread
from sessionstore import Draft, Store

WORDS = ["the", "garden", "has", "basil", "and", "thyme", "in", "full", "sun", "but", "ferns", "grow", "where", "it", "rains"]
# So many messages wait for the index on average.
NOTED = 128
MESSAGES = 100
SMALL, LARGE = 100, 10_000
CALLS = 40


def growth(folder: Path, rounds: int, largest: int) -> list[Figure]:
    """A file of 10,000 conversations of 100 messages and one of a million, beside one of 100 conversations."""
    small, large = _filled(folder / "small.db", SMALL, 0), _filled(folder / "large.db", LARGE * largest // 1_000_000, largest)
    figures = [_compared(name, call, small, large, rounds) for name, call in CALLS_OF.items()]
    figures.append(Figure("history", "fork of 10,000 messages", _fork_of_ten_thousand(large), 0.2, "less", "s"))
    figures += _prune(large)
    small.close()
    large.close()
    return figures


def _filled(path: Path, conversations: int, longest: int) -> Store:
    store = Store.open(f"sqlite:///{path}", migrate_first=True, synchronous="normal")
    store.create("longest")
    for begin in range(0, longest, 1000):
        store.append("longest", [_draft(n) for n in range(begin, min(begin + 1000, longest))])
    for n in range(conversations):
        store.create(f"c{n}", title=f"Garden {n}", messages=[_draft(m) for m in range(MESSAGES)])
    # One message that nothing else is like, in the middle of the rest.
    store.append(f"c{conversations // 2}", [Draft(role="user", content="a single nasturtium")])
    store.purge()
    store.append("longest", [_draft(n) for n in range(NOTED)])
    return store


def _draft(n: int) -> Draft:
    words = " ".join(WORDS[(n * 7 + k) % len(WORDS)] for k in range(12))
    return Draft(role="assistant" if n % 2 else "user", content=f"{words} {n}")


def _fork(store: Store) -> None:
    store.fork("c7", settled=True)


CALLS_OF: dict[str, Callable[[Store], object]] = {
    "list": lambda store: store.conversations(limit=50),
    "context": lambda store: store.context("c7", max_messages=50),
    "last page": lambda store: store.messages("longest" if store.get("longest").message_count > 10_000 else "c7", order="desc"),
    "search for a rare word": lambda store: store.search("nasturtium"),
    "search for a common word": lambda store: store.search("garden basil", limit=20),
    "search in one conversation": lambda store: store.search("garden basil", conversation_id="c7", limit=20),
    "fork of 100 messages": _fork,
}


def _compared(name: str, call: Callable[[Store], object], small: Store, large: Store, rounds: int) -> Figure:
    _timed(call, small)
    _timed(call, large)
    pairs = [(_timed(call, large), _timed(call, small)) for _ in range(rounds)]
    found = spread([there / here for there, here in pairs])
    here, there = (statistics.median(pair[side] for pair in pairs) * 1e3 for side in (1, 0))
    note = f"{here:.2f} ms in 10,000 messages, {there:.2f} ms in the large file"
    spreads = (found.low, found.high)
    return Figure("history", f"{name}, of a small file", found.median, 1.5, "less", spread=spreads, note=note)


def _timed(call: Callable[[Store], object], store: Store) -> float:
    """The median of some calls."""
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call(store)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _fork_of_ten_thousand(store: Store) -> float:
    store.create("ten thousand")
    for _ in range(10):
        store.append("ten thousand", [_draft(n) for n in range(1000)])
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        store.fork("ten thousand")
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _prune(store: Store) -> list[Figure]:
    """Forget half of the conversations and the longest, while another process tries for the write lock without a pause."""
    count = sum(1 for _ in _all(store))
    rival = subprocess.Popen(
        [sys.executable, "-c", RIVAL, str(store.database.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert rival.stdin is not None
    assert rival.stdout is not None
    rival.stdout.readline()
    began = time.perf_counter()
    done = store.prune(keep=count // 2)
    taken = time.perf_counter() - began
    rival.stdin.close()
    held = float(rival.stdout.readline())
    rival.wait()
    note = f"{done.conversations:,} conversations, {done.messages:,} messages in {taken:.0f} s"
    return [Figure("history", "prune of half the file, longest hold of the lock", held * 1e3, 50, "less", "ms", note=note)]


def _all(store: Store) -> list[str]:
    found, before = list[str](), None
    while True:
        page = store.conversations(before=before, limit=1000)
        found += [conversation.id for conversation in page.items]
        before = page.next
        if before is None:
            return found


# Tries to begin again and again, past the gate; the longest that it could not.
RIVAL = """
import select, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
print("ready", flush=True)
worst, free = 0.0, time.perf_counter()
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        free = time.perf_counter()
    except sqlite3.OperationalError:
        worst = max(worst, time.perf_counter() - free)
print(worst)
"""
