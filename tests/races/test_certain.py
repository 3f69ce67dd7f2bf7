"""The bad moment made certain: a writer that stands still, fails or dies at each point of its transaction."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store, errors
from sessionstore.postgresql.transaction import PostgreSQLTransaction
from sessionstore.sqlite import room
from sessionstore.transaction import Transaction
from tests.conftest import ENGINE, TOKEN, Clock, Tables, reply, texts, user
from tests.races.arenas import Process
from tests.races.failpoints import fail, failpoint, pause, wait_for
from tests.races.operations import Op, message, on_store, op

# A file is locked by its BEGIN, a row by the first statement.
POINTS = [*(["after_begin", "statement:1"] if ENGINE == "sqlite" else []), "statement:2", "before_commit"]


@pytest.mark.parametrize("point", POINTS)
def test_l3_nobody_comes_between_the_check_and_the_write(url: str, tmp_path: Path, tables: Tables, point: str) -> None:
    """A writer stands still inside its transaction: everybody else waits, or is told that the database is busy."""
    with Store.open(url) as store:
        store.create("c")
    writer = Process(url, point, f"pause:{tmp_path}")
    rival = Process(url, patience_ms=200)
    appended: list[Any] = []
    call = op("append", "c", messages=[message("first")])
    thread = threading.Thread(target=lambda: appended.append(writer.perform(call)))
    thread.start()
    wait_for(tmp_path / "reached")
    before = tables.everything()
    for blocked in (op("acquire", "c"), op("delete", "c"), op("append", "c", messages=[message("second")])):
        assert rival.perform(blocked).code == "busy"
    assert rival.perform(op("messages", "c")).value["messages"] == []
    assert tables.everything() == before
    (tmp_path / "go").touch()
    thread.join(30)
    assert appended[0].code == "done"
    assert rival.perform(op("append", "c", messages=[message("second")])).value["messages"][0]["position"] == 1
    writer.stop()
    rival.stop()


def test_a_failpoint_counts_the_statements_of_each_transaction_from_its_first(url: str) -> None:
    """A transaction may lie in memory where another one lay; what that one ran isn't counted."""
    seen: list[str] = []
    with Store.open(url) as store:
        store.create("c")
        with failpoint("statement:2", lambda: seen.append("second")):
            for _ in range(8):
                store.transact("c", lambda _: None)
            assert seen == []
            store.append("c", [user("hi")])
    assert seen == ["second"]


MUTATIONS: dict[str, Op] = {
    "create": op("create", "new", messages=[message(1), message(2)]),
    "label": op("label", "c", title="changed", metadata={"a": 1}),
    "append": op("append", "c", messages=[message(1), message(2, "two")]),
    "put": op("put", "c", message=message("changed", "m0")),
    "label_message": op("label_message", "c", message_id="m0", metadata={"a": 1}),
    "delete_message": op("delete_message", "c", message_id="m0"),
    "truncate": op("truncate", "c", after_position=0, through_position=9),
    "compact": op("compact", "c", summary=message("in short"), through_position=2, seen_version=1),
    "fork": op("fork", "c", new="fork"),
    "delete": op("delete", "c"),
    "acquire": op("acquire", "c", messages=[message("q")]),
    "acquire over another": op("acquire", "held", if_busy="interrupt"),
    "renew": op("renew", "held", token=TOKEN, phase="new", ttl_ms=5000),
    "finish": op("finish", "held", token=TOKEN, messages=[message("done", "half")], usage={"n": 1}),
    "release": op("release", "held", token=TOKEN),
    "interrupt": op("interrupt", "held"),
    "forced interrupt": op("interrupt", "held", force=True),
    "forced delete": op("delete", "held", force=True),
    "cascade": op("delete", "parent"),
}


def furnish(store: Store) -> None:
    """A database in which each of the mutations has something to change."""
    store.create("c", metadata={"k": 1}, messages=[user(n, f"m{n}") for n in range(4)])
    store.create("held", messages=[user("q")])
    store.acquire("held", "holder", token=TOKEN)
    store.put("held", reply("ha", "half", status="partial"), token=TOKEN)
    store.create("parent")
    store.create("child", parent_id="parent", messages=[user("of the child")])


def statements_of(store: Store, operation: Op, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many statements an operation runs."""
    seen = 0
    kind = Transaction if ENGINE == "sqlite" else PostgreSQLTransaction
    run = kind._run

    def counted(self: Any, statement: Any, parameters: Any) -> Any:
        nonlocal seen
        seen += 1
        return run(self, statement, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "_run", counted)
        assert on_store(store, operation).code == "done"
    return seen


@pytest.mark.parametrize("name", MUTATIONS)
def test_m7_an_error_at_any_statement_leaves_nothing(
    plain: Store, url: str, copied: Callable[[], str], clock: Clock, tables: Tables, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each statement of each mutation, and at its COMMIT: nothing of the call is stored, and no lock is left behind."""
    monkeypatch.setattr(room, "TRY_AGAIN_SECONDS", 0)
    furnish(plain)
    operation = MUTATIONS[name]
    plain.close()
    with Store.open(copied(), clock=clock) as elsewhere:
        statements = statements_of(elsewhere, operation, monkeypatch)
    assert statements >= 2
    before = tables.everything()
    points = [*(f"statement:{n}" for n in range(1, statements + 1)), "before_commit"]
    with Store.open(url, clock=clock) as store:
        for point in points:
            # What is known of how many there are, is not asked again.
            store.database.statements.counted.clear()  # type: ignore[attr-defined]
            with failpoint(point, fail("SQLITE_FULL")):
                code = on_store(store, operation).code
            # A server says that it did not commit; a file's commit that fails may be in its log.
            unknown = point == "before_commit" and ENGINE == "sqlite"
            assert code == ("outcome-unknown" if unknown else "disk-full"), point
            assert tables.everything() == before, point
        assert on_store(store, operation).code == "done"
        assert tables.everything() != before


@pytest.mark.parametrize("name", ["truncate", "compact", "fork", "delete", "finish", "cascade", "acquire over another"])
def test_m17_a_process_killed_between_two_statements_leaves_all_or_nothing(
    plain: Store, url: str, tables: Tables, name: str
) -> None:
    furnish(plain)
    plain.close()
    before = tables.everything()
    for point in ("statement:2", "statement:3", "before_commit"):
        victim = Process(url, point, "kill")
        assert victim.perform(MUTATIONS[name]).code == "killed"
        victim.stop()
        assert tables.everything() == before
    assert tables.sound()
    victim = Process(url, "after_commit_before_answer", "kill")
    assert victim.perform(MUTATIONS[name]).code == "killed"
    victim.stop()
    after = tables.everything()
    assert after != before
    assert tables.sound()


def test_r6_a_fork_that_failed_half_way_was_never_there(plain: Store) -> None:
    plain.create("source", messages=[user(n) for n in range(3)])
    with failpoint("statement:6", fail("SQLITE_FULL")), pytest.raises(errors.DiskFull):
        plain.fork("source", "f")
    with pytest.raises(errors.ConversationNotFound):
        plain.get("f")
    assert not plain.create("f").replayed
    assert texts(plain, "f") == []


REPEATED: dict[str, tuple[Op, Callable[[Any], bool]]] = {
    "r1 create": (op("create", "new", messages=[message("hi")]), lambda said: said.code == "replayed"),
    "r4 fork": (op("fork", "c", new="f"), lambda said: said.code == "conversation-exists" and said.value["same"]),
    "m2 append": (op("append", "c", messages=[message("hi", "m")]), lambda said: said.code == "replayed"),
    "put": (op("put", "c", message=message("hi", "m")), lambda said: said.code == "replayed"),
    "l13 acquire": (op("acquire", "c", token=TOKEN, messages=[message("q")]), lambda said: said.code == "replayed"),
    "l18 finish": (op("finish", "held", token=TOKEN, messages=[message("bye")]), lambda said: said.code == "replayed"),
    "release": (op("release", "held", token=TOKEN), lambda said: said.code == "replayed"),
    "delete": (op("delete", "c"), lambda said: said.code == "conversation-deleted"),
    "truncate": (op("truncate", "c", after_position=1, through_position=3), lambda said: said.code == "replayed"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_call_whose_answer_was_lost_is_settled_by_its_repeat(url: str, plain: Store, tables: Tables, name: str) -> None:
    """The process dies after the COMMIT and before the answer; another one is asked again."""
    furnish(plain)
    operation, settled = REPEATED[name]
    victim = Process(url, "after_commit_before_answer", "kill")
    assert victim.perform(operation).code == "killed"
    victim.stop()
    after = tables.everything()
    # By the victim's own clock: to the tests' one its lease would have run out long ago.
    with Store.open(url) as again:
        assert settled(on_store(again, operation))
    renewed = {"conversations": [_without_lease(row) for row in after["conversations"]]}
    assert [_without_lease(row) for row in tables.everything()["conversations"]] == renewed["conversations"]
    assert tables.everything()["messages"] == after["messages"]
    assert tables.everything()["generations"] == after["generations"]


def _without_lease(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A repeat of the holder's may renew; nothing else may have changed. (Column 19 is lease_expires_at.)"""
    return row[:19] + row[20:]


def test_failpoints_are_off_unless_put_in() -> None:
    import sessionstore

    root = Path(sessionstore.__file__).parents[1]
    product = [*(root / "sessionstore").rglob("*.py"), *(root / "api").rglob("*.py")]
    assert not [file.name for file in product if "failpoint" in file.read_text().lower()]
    code = "import sys, sessionstore, sessionstore_api.app; print([m for m in sys.modules if m.startswith('tests')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_a_paused_writer_in_this_process_makes_others_wait_for_their_turn(plain: Store, tmp_path: Path) -> None:
    plain.create("c")
    with failpoint("before_commit", pause(tmp_path)):
        first = threading.Thread(target=lambda: plain.append("c", [user("first")]))
        first.start()
        wait_for(tmp_path / "reached")
        second = threading.Thread(target=lambda: plain.append("c", [user("second")]))
        second.start()
        assert texts(plain, "c") == []
        (tmp_path / "go").touch()
        first.join()
        second.join()
    assert texts(plain, "c") == ["first", "second"]


def test_l7_a_killed_holder_leaves_a_lease_that_runs_out_and_what_it_saved(url: str, plain: Store, clock: Clock) -> None:
    plain.create("c")
    code = """
import sys, time
from sessionstore import Draft, Store
store = Store.open(sys.argv[1], clock=lambda: int(sys.argv[2]))
turn = store.acquire("c", "victim", ttl_ms=1000).value
store.put("c", Draft(id="r", role="assistant", content="half", status="partial"), token=turn.token)
print("saved", flush=True)
time.sleep(60)
"""
    victim = subprocess.Popen([sys.executable, "-c", code, url, str(clock.now)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "saved\n"
    victim.kill()
    victim.communicate()
    with pytest.raises(errors.Generating):
        plain.acquire("c", "next")
    clock.advance(1001)
    assert plain.acquire("c", "next").value.generation == 2
    assert (plain.message("c", "r").content, plain.message("c", "r").status) == ("half", "interrupted")
