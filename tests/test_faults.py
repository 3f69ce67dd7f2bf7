"""The faults would notice: a ledger that does not balance, a disk that loses what was not synced."""

import random
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store
from sessionstore.engine import sqlite3
from tests.conftest import user
from tests.faults.ledger import Ledger
from tests.faults.power import Disk, Event, crash
from tests.faults.table import Row, markdown

pytestmark = pytest.mark.any_sql


@pytest.fixture
def ledger(plain: Store) -> Ledger:
    """Of a conversation of three messages, which is as it should be."""
    found = Ledger()
    plain.create("c")
    for number in range(3):
        found.send("c", f"m{number}", number)
        plain.append("c", [user(number, f"m{number}")])
        found.acknowledge("c", f"m{number}")
    return found


def sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints=ON")
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_ledger_that_balances_finds_nothing(ledger: Ledger, path: Path) -> None:
    assert ledger.judge(path) == (0, [])
    assert ledger.acknowledged == 3


def test_what_was_sent_and_never_answered_may_be_there_or_not(ledger: Ledger, path: Path, plain: Store) -> None:
    ledger.send("c", "m3", 3)
    assert ledger.judge(path) == (0, [])
    plain.append("c", [user(3, "m3")])
    assert ledger.judge(path) == (0, [])


@pytest.mark.parametrize(
    ("statement", "lost", "said"),
    [
        ("DELETE FROM messages WHERE id = 'm2'", 1, "counts"),
        ("UPDATE messages SET content = '7' WHERE id = 'm1'", 0, "m1 at 1 says 7"),
        ("UPDATE messages SET position = CASE id WHEN 'm0' THEN 9 WHEN 'm1' THEN 8 ELSE 7 END", 0, "the order is another one"),
        ("UPDATE messages SET id = 'unknown' WHERE id = 'm0'", 1, "unknown at 0"),
        ("UPDATE conversations SET id = 'another'", 3, "another was never asked for"),
        ("UPDATE conversations SET message_count = 9", 0, "counts 9"),
        ("DELETE FROM conversations", 3, "is nobody's"),
    ],
)
def test_a_ledger_notices(ledger: Ledger, path: Path, statement: str, lost: int, said: str) -> None:
    sql(path, statement)
    found = ledger.judge(path)
    assert found.lost == lost
    assert any(said in wrong for wrong in found.wrong)


def test_a_row_passes_only_if_something_was_tried_and_nothing_went_wrong() -> None:
    sound = Row("a fault", 1, 1, 0)
    assert sound.passed
    for change in ({"times": 0}, {"acknowledged": 0}, {"lost": 1}, {"wrong": ["x"]}):
        assert not sound._replace(**change).passed
    assert "| a fault | 1 | 1 | 0 | 0 |  |  |" in markdown([sound])


def write(path: str, data: bytes, offset: int = 0) -> Event:
    return Event("write", path, data, offset)


@pytest.mark.parametrize(("events", "allowed"), [
    ([write("a", b"new!")], {b"", b"n", b"ne", b"new", b"new!"}),
    ([write("a", b"new!"), Event("sync", "a")], {b"new!"}),
    ([write("a", b"new!"), Event("sync", "a"), Event("truncate", "a", offset=2)], {b"new!", b"ne"}),
    ([write("a", b"x"), Event("sync", "a"), write("a", b"y", 2)], {b"x", b"x\0", b"x\0y"}),
])  # fmt: skip
def test_what_was_not_synced_is_there_or_not_or_torn(events: list[Event], allowed: set[bytes]) -> None:
    disk = Disk()
    for event in (Event("create", "a"), Event("sync", "folder"), *events):
        disk.happen(event)
    assert {disk.after(random.Random(seed))["a"] for seed in range(300)} == allowed


def test_a_name_is_there_when_its_folder_was_synced() -> None:
    disk = Disk()
    for event in (Event("create", "made"), Event("link", "made", b"name"), Event("unlink", "made")):
        disk.happen(event)
    assert {frozenset(disk.after(random.Random(seed))) for seed in range(99)} == {frozenset(), frozenset({"name"})}
    disk.happen(Event("sync", "folder"))
    assert {frozenset(disk.after(random.Random(seed))) for seed in range(99)} == {frozenset({"name"})}


def test_a_power_failure_that_takes_what_was_acknowledged_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = [Event("say", "", state) for state in (b"empty", b"one", b"two")]
    monkeypatch.setattr("tests.faults.power._found_after", lambda *_: "empty")
    lost = crash(events, 40, "seed", tmp_path)
    assert lost.lost > 0
    assert not lost.wrong
    monkeypatch.setattr("tests.faults.power._found_after", lambda *_: "half of two")
    assert crash(events, 3, "seed", tmp_path).wrong
