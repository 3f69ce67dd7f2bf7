"""Histories: what concurrent clients asked and were told, and whether some legal order of the calls explains it.

An answer that was lost leaves its call open: it may have happened at any time since, or never.
"""

import math
from typing import NamedTuple

from tests import rules
from tests.rules import Call, Said, State

NOW = 0  # No lease runs out while a history is made, so the rules need no clock.


class Entry(NamedTuple):
    """A call of one client: when it was sent, when its answer came (infinity: never), and the answer."""

    sent: float
    answered: float
    call: Call
    said: Said | None


def explained(history: list[Entry], state: State = State()) -> bool:  # noqa: B008  # a value
    """Whether the history is linearizable: depth first over the calls that may have been next, with a memory of dead ends."""
    entries = sorted(history)
    settled = sum(1 << index for index, entry in enumerate(entries) if entry.said is not None)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, state)]
    while stack:
        done, state = stack.pop()
        if done & settled == settled:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        stack.extend(_next(entries, done, state))
    return False


def _next(entries: list[Entry], done: int, state: State) -> list[tuple[int, State]]:
    """What each call leads to that may have been the next one: those sent before the first of the rest was answered."""
    waiting = [(index, entry) for index, entry in enumerate(entries) if not done >> index & 1]
    limit = min((entry.answered for _, entry in waiting), default=math.inf)
    following = []
    for index, entry in waiting:
        if entry.sent > limit:
            break
        after, said = rules.step(state, entry.call, NOW)
        if entry.said is None or _agrees(said, entry.said):
            following.append((done | 1 << index, after))
        elif entry.said == rules.superseded(state, entry.call) and _overtaken(entry, entries):
            following.append((done | 1 << index, state))
    return following


def _agrees(expected: Said, told: Said) -> bool:
    """Whether an answer is as expected; HTTP does not tell the version with each."""
    return told == (expected if told.version is not None else expected._replace(version=None))


def _overtaken(entry: Entry, entries: list[Entry]) -> bool:
    """Whether a save that the answer shows instead was on its way at the same time."""
    if entry.said is None:
        return False
    id, _, content, status = entry.said.messages[0]
    return any(
        other is not entry
        and other.answered >= entry.sent
        and (other.call.name, other.call.token) == ("put", entry.call.token)
        and other.call.messages[0] == (id, content, status)
        for other in entries
    )


def shortest_unexplained(history: list[Entry]) -> list[Entry]:
    """The beginning of a history up to the first answer that nothing explains."""
    answered = sorted(entry.answered for entry in history if entry.said is not None)
    low, high = 0, len(answered) - 1
    while low < high:
        middle = (low + high) // 2
        if explained(_until(history, answered[middle])):
            low = middle + 1
        else:
            high = middle
    return _until(history, answered[low])


def _until(history: list[Entry], moment: float) -> list[Entry]:
    cut = (entry for entry in history if entry.sent <= moment)
    return [entry if entry.answered <= moment else entry._replace(answered=math.inf, said=None) for entry in cut]
