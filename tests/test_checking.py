"""Every invariant is seen to be broken, and what can be put right is."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sessionstore import Store, checking, errors
from sessionstore.cli import main
from sessionstore.engine import sqlite3
from sessionstore.model import Checked
from sessionstore.sqlite.invariants import INVARIANTS
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, on_file, reply, texts, user

pytestmark = pytest.mark.any_sql
BREAKS = {
    "counts": "UPDATE conversations SET message_count = message_count + 1, queued_count = 5 WHERE id = 'c'",
    "positions": "UPDATE conversations SET next_position = 1 WHERE id = 'c'",
    "versions": "UPDATE messages SET version = 99 WHERE id = 'm1'",
    "changes": "UPDATE conversations SET change = (SELECT change FROM conversations WHERE id = 'c') WHERE id = 'live'",
    "leases": "UPDATE conversations SET lease_token = 'another hash' WHERE id = 'live'",
    "turns": "UPDATE generations SET ended_at = NULL, outcome = NULL WHERE outcome = 'completed'",
    "partials": "UPDATE messages SET status = 'partial' WHERE id = 'm1'",
    "fences": "UPDATE messages SET generation = 77 WHERE id = 'm1'",
    "summaries": "UPDATE messages SET summary_through = 50 WHERE id = 's'",
    "references": "UPDATE conversations SET parent_pk = 4711 WHERE id = 'child'",
    "json": "UPDATE messages SET content = 'no JSON' WHERE id = 'late'",
    "search": "INSERT INTO search (search) VALUES ('delete-all')",
}
ROOT_PAGE = "SELECT rootpage FROM sqlite_master WHERE name = 'ix_messages_partial'"
NO_REPAIR = {"fences", "summaries", "json"}


@pytest.fixture
def filled(plain: Store) -> Store:
    plain.create("c", messages=[user("one", "m0"), reply("two", "m1")])
    plain.compact("c", user("both", "s"), through_position=1, seen_version=1)
    plain.create("live")
    plain.acquire("live", "worker", token=TOKEN)
    plain.put("live", reply("half", "p", status="partial"), token=TOKEN)
    plain.create("done")
    plain.acquire("done", "worker", token=OTHER_TOKEN)
    plain.finish("done", [reply("all", "a")], token=OTHER_TOKEN)
    plain.create("child", parent_id="c")
    plain.create("gone", messages=[user("away")])
    plain.delete("gone")
    assert plain.purge()
    plain.append("c", [user("three", "late")])
    return plain


def breaking(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA ignore_check_constraints=ON")
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_sound_database_has_no_fault(filled: Store) -> None:
    assert filled.check() == Checked(engine=[], faults=[], leftovers=0)
    assert filled.repair() == []


def test_every_invariant_has_its_test() -> None:
    assert set(BREAKS) == {one.name for one in INVARIANTS}
    assert set(checking.REPAIRS) | {"search"} == set(BREAKS) - NO_REPAIR


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_invariant_is_found_and_repaired(filled: Store, path: Path, name: str, tables: Tables) -> None:
    before = {conversation.id: conversation.version for conversation in filled.conversations().items}
    breaking(path, BREAKS[name])
    found = filled.check()
    assert {fault.invariant for fault in found.faults} == {name}
    assert not found.sound
    repaired = filled.repair(found)
    left = filled.check()
    if name in NO_REPAIR:
        assert (repaired, left.faults) == ([], found.faults)
        return
    assert repaired == found.faults
    assert left.sound
    touched = {fault.conversation_id for fault in found.faults if name != "search"}
    after = {conversation.id: conversation.version for conversation in filled.conversations().items}
    assert {id for id in after if after[id] > before[id]} == touched
    assert filled.repair() == []


def test_what_is_repaired_is_as_it_was(filled: Store, path: Path) -> None:
    for name in ("counts", "positions", "partials"):
        breaking(path, BREAKS[name])
    before = filled.changes("c", filled.get("c").tag)
    filled.repair()
    conversation = filled.get("c")
    assert (conversation.message_count, conversation.queued_inputs) == (4, 0)
    assert filled.append("c", [user("four")]).value[0].position == 4
    changes = filled.changes("c", before.since)
    assert [(message.id, message.status) for message in changes.messages[:1]] == [("m1", "interrupted")]


def test_a_lease_without_its_turn_ends_and_frees_the_conversation(filled: Store, path: Path, tables: Tables) -> None:
    breaking(path, BREAKS["leases"])
    filled.repair()
    assert filled.get("live").generation is None
    assert filled.message("live", "p").status == "interrupted"
    assert tables.rows("SELECT outcome FROM generations ORDER BY number") == [("expired",), ("completed",)]
    assert filled.acquire("live", "another").value.generation == 3


def test_a_lease_that_names_a_turn_that_is_over_leaves_that_turn_alone(filled: Store, path: Path, tables: Tables) -> None:
    breaking(path, "UPDATE conversations SET generation = 2 WHERE id = 'live'")
    before = tables.rows("SELECT * FROM generations WHERE number = 2")
    filled.repair()
    assert tables.rows("SELECT * FROM generations WHERE number = 2") == before
    assert filled.check().sound


def test_a_turn_of_a_deleted_conversation_is_ended(filled: Store, path: Path, tables: Tables) -> None:
    filled.delete("done")
    breaking(path, BREAKS["turns"])
    assert [fault.conversation_id for fault in filled.repair()] == ["done"]
    assert filled.check().sound
    with pytest.raises(errors.ConversationDeleted):
        filled.get("done")


def test_what_was_put_right_meanwhile_is_left_alone(filled: Store, path: Path, tables: Tables) -> None:
    breaking(path, BREAKS["counts"])
    found = filled.check()
    breaking(path, "UPDATE conversations SET message_count = 4, queued_count = 0 WHERE id = 'c'")
    before = tables.everything()
    assert filled.repair(found) == []
    assert tables.everything() == before


def test_rows_of_nobody_are_told_and_left(filled: Store, path: Path) -> None:
    breaking(path, "UPDATE messages SET conversation_pk = 999 WHERE id = 'a'")
    found = filled.check()
    assert {"counts", "references"} <= {fault.invariant for fault in found.faults}
    assert any("refers to nothing" in fault for fault in found.engine)
    filled.repair(found)
    assert [fault.found for fault in filled.check().faults if fault.invariant == "references"] == ["message 5 is nobody's"]


def test_the_index_is_made_anew_and_finds_everything(filled: Store, path: Path) -> None:
    breaking(path, BREAKS["search"])
    assert filled.search("two").items == []
    filled.repair()
    assert [found.message.id for found in filled.search("two").items] == ["m1"]


def test_a_damaged_file_is_told_by_the_engine(filled: Store, path: Path) -> None:
    filled.close()
    root, size = (Tables(path).one(sql) for sql in (ROOT_PAGE, "PRAGMA page_size"))
    with path.open("r+b") as file:
        # How many entries that page has, says its header there: none.
        file.seek((root - 1) * size + 3)
        file.write(bytes(2))
    with Store.open(f"sqlite:///{path}") as store:
        found = store.check()
    assert any("ix_messages_partial" in fault for fault in found.engine)
    assert not found.sound


def test_what_is_left_of_the_deleted_is_no_fault(filled: Store, path: Path) -> None:
    breaking(path, "UPDATE messages SET conversation_pk = (SELECT pk FROM conversations WHERE id = 'gone') WHERE id = 'late'")
    breaking(path, "UPDATE conversations SET message_count = 3 WHERE id = 'c'")
    found = filled.check()
    assert (found.leftovers, found.faults) == (1, [])
    filled.purge()
    assert filled.check().leftovers == 0


# The command -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(url: str) -> Callable[..., Any]:
    return lambda *arguments: CliRunner().invoke(main, ["check", "--database", url, *arguments])


def test_the_command_says_what_is_wrong_and_repairs_it(filled: Store, path: Path, run: Any) -> None:
    assert (run().exit_code, run().stdout) == (0, "All that is always true is true.\n")
    breaking(path, BREAKS["counts"])
    breaking(path, BREAKS["json"])
    said = run()
    assert said.exit_code == 1
    assert "counts\tc\tcounts 5 and 5, has 4 and 0\tcheck --repair\n" in said.stdout
    assert "json\tc\tmessage late is no JSON\trestore a backup\n" in said.stdout
    mended = run("--repair")
    assert "counts\tc\tcounts 5 and 5, has 4 and 0\trepaired\n" in mended.stdout
    assert (mended.exit_code, "NOT sound" in mended.stdout) == (1, True)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
def test_the_queries_run_at_an_operators_prompt(filled: Store, path: Path, run: Any) -> None:
    script = run("--sql").stdout
    for statement, expected in ((None, ""), (BREAKS["counts"], "1|counts 5 and 5, has 4 and 0\n")):
        if statement:
            breaking(path, statement)
        asked = subprocess.run(["sqlite3", "-readonly", str(path)], input=script, capture_output=True, text=True, check=True)
        assert asked.stdout == expected


def test_a_check_writes_nothing(filled: Store, path: Path, tables: Tables, clock: Clock) -> None:
    before, size = tables.everything(), on_file(filled).log_bytes()
    filled.check()
    assert (tables.everything(), on_file(filled).log_bytes()) == (before, size)
    assert texts(filled, "done") == ["all"]
