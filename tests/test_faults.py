"""The faults would notice: a ledger that does not balance, a disk that loses what was not synced."""

import random
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store
from sessionstore.engine import sqlite3
from tests.conftest import user
from tests.faults.engine import locks_of
from tests.faults.ledger import Ledger
from tests.faults.power import Disk, Event, crash_alone, crash_together
from tests.faults.table import Row, markdown

pytestmark = [pytest.mark.any_sql, pytest.mark.one_file]


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


SYNCED = (Event("syncing", "a"), Event("sync", "a"))


@pytest.mark.parametrize(("events", "allowed"), [
    ([write("a", b"new!")], {b"", b"n", b"ne", b"new", b"new!"}),
    ([write("a", b"new!"), *SYNCED], {b"new!"}),
    ([write("a", b"new!"), *SYNCED, Event("truncate", "a", offset=2)], {b"new!", b"ne"}),
    ([write("a", b"x"), *SYNCED, write("a", b"y", 2)], {b"x", b"x\0", b"x\0y"}),
    ([Event("syncing", "a"), write("a", b"y"), Event("sync", "a")], {b"", b"y"}),
])  # fmt: skip
def test_what_was_not_synced_is_there_or_not_or_torn(events: list[Event], allowed: set[bytes]) -> None:
    disk = Disk()
    for event in (Event("create", "a"), Event("sync folder", "folder"), *events):
        disk.happen(event)
    assert {disk.after(random.Random(seed))["a"] for seed in range(300)} == allowed


def test_a_name_is_there_when_its_folder_was_synced() -> None:
    disk = Disk()
    for event in (Event("create", "made"), Event("link", "made", b"name"), Event("unlink", "made")):
        disk.happen(event)
    assert {frozenset(disk.after(random.Random(seed))) for seed in range(99)} == {frozenset(), frozenset({"name"})}
    disk.happen(Event("sync folder", "folder"))
    assert {frozenset(disk.after(random.Random(seed))) for seed in range(99)} == {frozenset({"name"})}


def test_a_power_failure_that_takes_what_was_acknowledged_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = [Event("say", "", f"done state{number}".encode()) for number in range(60)]
    found = iter(["state0", "half of a state"] * 20)
    monkeypatch.setattr("tests.faults.power._found_after", lambda *_: next(found))
    lost = crash_alone(events, 40, "seed", tmp_path)
    assert lost.lost > 0
    assert all("half of a state" in wrong for wrong in lost.wrong)
    assert len(lost.wrong) == 20


@pytest.mark.parametrize(("how", "state"), [("done", "state5"), ("refused", "another")])
def test_a_call_that_was_told_wrongly_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, state: str) -> None:
    said = [f"done state{number}" for number in range(60)]
    said[6] = f"{how} {state}"
    monkeypatch.setattr("tests.faults.power._found_after", lambda *_: "state0")
    told = crash_alone([Event("say", "", one.encode()) for one in said], 1, "seed", tmp_path).wrong
    assert any(wrong.startswith("call 6 was") for wrong in told)


def test_what_several_callers_were_told_is_missed(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [Event("say", "", b"send t0 -1\n"), Event("say", "", b"send t0 0\n"), Event("say", "", b"done t0 0\n")] * 10

    def nothing_left(_: Any, __: Any, place: Path) -> str:
        place.mkdir()
        (place / "store.db").write_bytes(path.read_bytes())
        return "whatever"

    monkeypatch.setattr("tests.faults.power._found_after", nothing_left)
    assert crash_together(events, 3, "seed", tmp_path).lost > 0


SHM = "fcntl(5</x/store.db-shm>, F_SETLK, {l_type=F_%s, l_whence=SEEK_SET, l_start=%d, l_len=1}) = 0"
TAKE, LET_GO = "flock(7</x/store.db-gate>, LOCK_EX|LOCK_NB) = 0", "flock(7</x/store.db-gate>, LOCK_UN) = 0"


@pytest.mark.parametrize(
    ("before", "alone"),
    [
        ([], 1),
        ([SHM % ("WRLCK", 120)], 0),
        ([SHM % ("WRLCK", 120), SHM % ("UNLCK", 120)], 1),
        ([TAKE], 0),
        ([TAKE, LET_GO], 1),
        ([TAKE.replace("= 0", "= -1 EAGAIN")], 1),
    ],
)
def test_who_copies_the_log_back_without_a_lock_is_seen(before: list[str], alone: int) -> None:
    assert locks_of([*before, SHM % ("WRLCK", 121), SHM % ("UNLCK", 121)]) == (1, alone)
