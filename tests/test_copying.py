"""Copies from one database to another: exact, resumable, and never over anything."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import sessionstore
from sessionstore import Store, copying, errors, migrate
from sessionstore.schema import conversations
from tests.conftest import ENGINE, TOKEN, Clock, Tables, reply, user

# A copy is of rows, whatever they are.
pytestmark = pytest.mark.any_sql
TABLES = ("conversations", "messages", "generations", "pruned", "keys")
CHANGE = list(conversations.c.keys()).index("change")
PAIRS = ["file to file"] if ENGINE == "sqlite" else ["file to server", "server to file", "server to server"]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where a copy is made from, and an empty place for it."""
    source, _, target = request.param.partition(" to ")
    with ExitStack() as stack:

        def place(kind: str, name: str) -> str:
            if kind == "file":
                return f"sqlite:///{tmp_path}/{name}.db"
            return str(stack.enter_context(request.getfixturevalue("postgresql").copied("template0")))

        yield place(source, "source"), place(target, "target")


def fill(url: str, clock: Clock, many: int = 0) -> None:
    """One of everything that a database can have."""
    with Store.open(url, clock=clock, migrate_first=True) as store:
        store.create("a", title="A", metadata={"k": 1}, messages=[user({"text": "\x00\ud800 %s :x ?", "n": 10**30}), user(1.5)])
        store.create("child", parent_id="a")
        store.fork("a", "fork")
        store.acquire("a", "holder", token=TOKEN, messages=[user("q")])
        store.put("a", reply("half", "r", status="partial"), token=TOKEN)
        store.queue_inputs("a", [user("waits", "w2"), user("waits too", "w1")])
        store.create("done")
        turn = store.acquire("done", "w").value
        store.finish("done", [reply("r")], token=turn.token, usage={"input_tokens": 3})
        store.compact("done", user("in short"), through_position=0, seen_version=3)
        for n in range(many):
            store.create(f"m{n}", messages=[user(f"{n}-{k}") for k in range(3)])
        store.create("gone", messages=[user("secret")])
        store.create("pruned")
        store.delete("pruned")
        store.label("a", title="AA")
        clock.advance(40 * 86_400_000)
        store.prune()
        store.delete("gone")
        store.keys.create("k", "somebody")
        store.keys.revoke("k")
        store.keys.create("k", "somebody", read_only=True, expires_after_ms=1_000)


def everything(url: str) -> dict[str, Any]:
    tables = Tables(Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url)
    return {name: tables.rows(f"SELECT * FROM {name} ORDER BY 1") for name in TABLES}


def test_a_copy_is_exact_and_goes_on_where_its_source_was(pair: tuple[str, str], clock: Clock) -> None:
    source, target = pair
    fill(source, clock)
    before, seen = everything(source), list[Any]()
    done = sessionstore.copy(source, target, progress=seen.append)
    assert everything(target) == before == everything(source)
    assert (done.conversations, done.total, done.messages) == (5, 5, len(before["messages"]))
    assert seen[-1] == done
    with Store.open(source, clock=clock) as old, Store.open(target, clock=clock) as new:
        # The last numbers were given to what is pruned since, and are not given again.
        assert new.create("x").value.conversation.incarnation == old.create("x").value.conversation.incarnation
        assert new.acquire("child", "w").value.generation == old.acquire("child", "w").value.generation
        # Who knew the source's newest change is told what comes after it.
        new.append("fork", [user("later")])
        since = max(row[CHANGE] for row in before["conversations"])
        assert [c.id for c in new.list_changes(since).conversations] == ["x", "child", "fork"]
        assert new.finish("a", [reply("whole", "r")], token=TOKEN).value.conversation.generation is None
        assert [found.message.id for found in new.search("whole").items] == ["r"]
        assert [found.conversation_id for found in new.search("later").items] == ["fork"]
        assert new.check().sound


def test_a_copy_that_was_interrupted_goes_on_and_is_exact(
    pair: tuple[str, str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    fill(source, clock, many=30)
    monkeypatch.setattr(copying, "BATCH_ROWS", 10)
    monkeypatch.setattr(copying, "PAGE_ROWS", 7)
    with pytest.raises(ZeroDivisionError):
        sessionstore.copy(source, target, progress=lambda done: 1 // (done.conversations < 20))
    with pytest.raises(errors.DatabaseUnusable, match="half of a copy"):
        Store.open(target)
    with pytest.raises(errors.DatabaseUnusable, match="half of a copy"):
        Store.open(target, migrate_first=True)
    with Store.open(source, clock=clock) as store:
        # What is there already has changed, gone and come since.
        store.append("m1", [user("since")])
        store.renew("a", token=TOKEN)
        store.delete("m2")
        store.create("since", parent_id="m1")
        clock.advance(31 * 86_400_000)
        store.prune()
    done = sessionstore.copy(source, target)
    assert everything(target) == everything(source)
    assert done.messages < len(everything(source)["messages"])
    Store.open(target).close()


def test_a_copy_replaces_nothing(pair: tuple[str, str], clock: Clock) -> None:
    source, target = pair
    fill(source, clock)
    with Store.open(target, migrate_first=True) as store:
        store.create("mine")
    before = everything(target)
    with pytest.raises(errors.DatabaseUnusable, match="not empty"):
        sessionstore.copy(source, target)
    with pytest.raises(errors.DatabaseUnusable, match="onto itself"):
        sessionstore.copy(source, source)
    assert everything(target) == before


def test_half_of_another_copy_is_refused(pair: tuple[str, str], clock: Clock, tmp_path: Path) -> None:
    source, target = pair
    other = f"sqlite:///{tmp_path}/other.db"
    for url in (source, other):
        fill(url, clock)
    with pytest.raises(ZeroDivisionError):
        sessionstore.copy(source, target, progress=lambda _: 1 // 0)
    with pytest.raises(errors.DatabaseUnusable, match="another database"):
        sessionstore.copy(other, target)


def test_a_source_of_another_schema_is_refused(pair: tuple[str, str]) -> None:
    source, target = pair
    migrate.upgrade(source, "0001")
    with pytest.raises(errors.SchemaBehind):
        sessionstore.copy(source, target)


def test_rows_that_somebody_else_puts_there_make_it_no_copy(
    pair: tuple[str, str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    fill(source, clock)
    finish: Callable[..., None] = copying.Copying._finish

    def meddled(self: copying.Copying, snapshot: Any) -> None:
        insert = copying.INSERT[conversations]
        row = {**copying._named(conversations, snapshot.rows(copying.CONVERSATIONS, after=-1)[0]), "pk": 99, "id": "m"}
        self._target.write(lambda transaction: transaction.run(insert, **row))
        finish(self, snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(copying.Copying, "_finish", meddled)
        with pytest.raises(errors.DatabaseUnusable, match="somebody else"):
            sessionstore.copy(source, target)
    assert sessionstore.copy(source, target).total == 5
    assert everything(target) == everything(source)
