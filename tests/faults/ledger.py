"""Who was told what: kept outside of the product, and held against what is in the file."""

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sessionstore.engine import sqlite3
from sessionstore.sqlite.invariants import INVARIANTS
from tests.conftest import Tables, faults


class Verdict(NamedTuple):
    """How many acknowledged writes are missing, and what must not be."""

    lost: int
    wrong: list[str]


@dataclass
class Ledger:
    """What was sent, and what was acknowledged. Each conversation has one writer, who repeats a call until it is answered."""

    sent: dict[str, dict[str, list[Any]]] = field(default_factory=lambda: defaultdict(dict))
    """By conversation and message, in the order of first sending: the contents since the last that was acknowledged."""
    told: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    filled: set[str] = field(default_factory=set)
    """Conversations that were there before, and are looked at by the invariants alone."""
    acknowledged: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    outage: float = 0.0
    _last: float = 0.0

    def begin(self) -> None:
        """From now on it counts how long nothing is acknowledged."""
        self._last = time.monotonic()

    def end(self, most: float) -> None:
        """Nothing more is to come. Nobody may have waited for longer than that."""
        self.outage = max(self.outage, time.monotonic() - self._last)
        if self.outage > most:
            self.wrong.append(f"for {self.outage:.1f} s nothing was acknowledged")

    def send(self, id: str, message_id: str, content: Any) -> None:
        """It is sent."""
        self.sent[id].setdefault(message_id, []).append(content)

    def acknowledge(self, id: str, message_id: str | None = None) -> None:
        """Its sender was told that it is done."""
        self.told[id]
        if message_id is not None:
            self.told[id][message_id] = self.sent[id][message_id][-1]
            self.sent[id][message_id].clear()
        self.acknowledged += 1
        now = time.monotonic()
        if self._last:
            self.outage = max(self.outage, now - self._last)
            self._last = now

    def add(self, other: "Ledger") -> None:
        """What somebody else has written down, of conversations of his own."""
        self.sent.update(other.sent)
        self.told.update(other.told)
        self.acknowledged += other.acknowledged

    def judge(self, place: Path | str, only: str = "") -> Verdict:
        """Acknowledged ⊆ present ⊆ sent, each once, in order, and everything in the database as it always is.

        `only`: of conversations whose ids begin like that.
        """
        lost, wrong = 0, [*self.wrong, *(faults_in(place) if isinstance(place, Path) else map(str, faults(place)))]
        found = {id: messages for id, messages in _stored(place).items() if id.startswith(only)}
        for id, sent in self.sent.items():
            present = found.pop(id, [])
            lost += len(set(self.told[id]) - {message_id for message_id, _, _ in present})
            wrong += self._out_of_place(id, sent, present)
        lost += len([id for id in self.told if id not in self.sent and found.pop(id, None) is None])
        return Verdict(lost, [*wrong, *(f"{id} was never asked for" for id in found if id not in self.filled)])

    def _out_of_place(self, id: str, sent: dict[str, list[Any]], present: list[tuple[str, int, Any]]) -> list[str]:
        found = [message_id for message_id, _, _ in present]
        there = set(found)
        wrong = [] if found == [one for one in sent if one in there] else [f"{id}: the order is another one"]
        for place, (message_id, position, content) in enumerate(present):
            allowed = [*sent.get(message_id, []), self.told[id].get(message_id)]
            if position != place or content not in allowed:
                wrong.append(f"{id}: {message_id} at {position} says {content!r:.60}")
        return wrong


def _stored(place: Path | str) -> dict[str, list[tuple[str, int, Any]]]:
    rows = Tables(place).rows(
        "SELECT c.id, m.id, m.position, m.content FROM conversations c LEFT JOIN messages m"
        " ON m.conversation_pk = c.pk AND m.position >= 0 WHERE c.deleted_at IS NULL ORDER BY c.pk, m.position"
    )
    found: dict[str, list[tuple[str, int, Any]]] = defaultdict(list)
    for id, message_id, position, content in rows:
        found[id] += [] if message_id is None else [(message_id, position, json.loads(content))]
    return dict(found)


def faults_in(path: Path) -> list[str]:
    """What is wrong with a file, whatever it should contain."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
        found += [f"{row[0]} refers to nothing" for row in connection.execute("PRAGMA foreign_key_check")]
        for invariant in INVARIANTS:
            found += [f"{invariant.name}: {what}" for _, what in connection.execute(invariant.sql)]
    except sqlite3.Error as error:
        found = [str(error)]
    finally:
        connection.close()
    return found
