"""Many growing replies in one call: one transaction, each judged by itself. Runs on every face of the store."""

import sqlite3 as codes
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Draft, Save, Store, errors
from sessionstore.sqlite.connections import ImmediateSQLite
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, texts, user
from tests.test_database import _sqlite_error


def token_of(id: str) -> str:
    return f"token-of-the-holder-of-{id}"


def save(id: str, text: Any, token: str | None = None, message_id: str = "reply", **rest: Any) -> Save:
    draft = Draft(id=message_id, role="assistant", content=text, status=rest.pop("status", "partial"))
    return Save(conversation_id=id, token=token or token_of(id), message=draft, **rest)


@pytest.fixture(autouse=True)
def generating(store: Store) -> None:
    for id in ("a", "b", "c"):
        store.create(id, messages=[user("hi", "m")])
        store.acquire(id, "worker", token=token_of(id))


@pytest.mark.one_file
def test_all_are_stored_in_one_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[Any] = []
    commit = ImmediateSQLite.do_commit

    def do_commit(self: ImmediateSQLite, connection: Any) -> None:
        commits.append(1)
        commit(self, connection)

    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    saved = store.save_all([save(id, f"of {id}") for id in ("a", "b", "c")])
    assert len(commits) == 1
    assert [answer.value.created for answer in saved] == [True] * 3  # type: ignore[union-attr]
    assert [texts(store, id) for id in ("a", "b", "c")] == [["hi", "of a"], ["hi", "of b"], ["hi", "of c"]]


def test_each_is_judged_by_itself_and_what_fails_harms_no_other(store: Store, tables: Tables) -> None:
    store.delete("b", force=True)
    store.finish("c", token=token_of("c"))
    results = store.save_all(
        [
            save("a", "one"),
            save("b", "no"),
            save("c", "no"),
            save("nowhere", "no", TOKEN),
            save("a", "no", OTHER_TOKEN),
            save("a", "no", message_id="m", if_match=store.message("a", "m").tag._replace(version=99)),
            save("a", "two", message_id="second"),
        ]
    )
    assert [type(result).__name__ for result in results] == [
        "Answer",
        "ConversationDeleted",
        "LeaseLost",
        "ConversationNotFound",
        "LeaseLost",
        "PreconditionFailed",
        "Answer",
    ]
    lost = results[2]
    assert isinstance(lost, errors.LeaseLost)
    assert lost.outcome == "completed"
    assert texts(store, "a") == ["hi", "one", "two"]
    assert tables.one("SELECT count(*) FROM messages WHERE content = '\"no\"'") == 0


def test_those_of_one_conversation_are_applied_in_order(store: Store) -> None:
    results = store.save_all([save("a", "half"), save("a", "whole", status="complete"), save("a", "late half")])
    assert isinstance(results[2], errors.MessageComplete)
    assert texts(store, "a") == ["hi", "whole"]
    first, second = results[0], results[1]
    assert not isinstance(first, errors.SessionStoreError)
    assert not isinstance(second, errors.SessionStoreError)
    assert (second.value.created, second.value.message.version) == (False, first.value.message.version + 1)


def test_a_repeat_changes_nothing_and_says_so(store: Store, tables: Tables) -> None:
    saves = [save(id, "text") for id in ("a", "b")]
    store.save_all(saves)
    before = tables.everything()
    again = store.save_all(saves)
    assert [answer.replayed for answer in again] == [True, True]  # type: ignore[union-attr]
    assert tables.everything() == before


def test_every_save_renews_its_lease_and_tells_how_it_stands(store: Store, clock: Clock) -> None:
    store.interrupt("b")
    clock.advance(20_000)
    results = store.save_all([save("a", "x"), save("b", "x"), save("b", "no", if_match="*", message_id="unknown")])
    leases = [result.lease for result in results]
    assert all(lease is not None for lease in leases)
    assert [lease.interrupt_requested for lease in leases] == [False, True, True]  # type: ignore[union-attr]
    clock.advance(20_000)
    generation = store.get("a").generation
    assert generation is not None
    assert not generation.expired


@pytest.mark.parametrize(
    ("saves", "where"),
    [
        ([], "$.saves"),
        ([save("a", "x")] * 65, "$.saves"),
        (None, "$.saves"),
        (["no save"], "$.saves[0]"),
        ([save("a", "x"), save("b/c", "x")], "$.saves[1].conversation_id"),
        ([save("a", "x", "short")], "$.saves[0].token"),
        ([save("a", "x", message_id="")], "$.saves[0].message_id"),
        ([save("a", {1: 2})], "$.saves[0].content"),
        ([Save(conversation_id="a", token=TOKEN, message=reply("x"))], "$.saves[0].message_id"),
        ([save("a", "x", status="queued")], "$.saves[0].status"),
    ],
)
def test_what_is_wrong_in_the_call_is_refused_as_a_whole(store: Store, tables: Tables, saves: Any, where: str) -> None:
    before = tables.everything()
    with pytest.raises(errors.InvalidInput) as refused:
        store.save_all(saves)
    assert refused.value.path == where
    assert tables.everything() == before


@pytest.mark.one_file
def test_a_database_that_fails_stores_none_of_them(plain: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    from sessionstore.transaction import Transaction

    run, puts = Transaction._run, [0]

    def full(self: Transaction, statement: Any, parameters: Any) -> Any:
        puts[0] += "digest" in parameters
        if puts[0] == 2 and "digest" in parameters:
            self.failed = _sqlite_error(codes.SQLITE_FULL)
            raise self.failed
        return run(self, statement, parameters)

    before = tables.everything()
    monkeypatch.setattr(Transaction, "_run", full)
    with pytest.raises(errors.DiskFull):
        plain.save_all([save(id, "x") for id in ("a", "b", "c")])
    assert tables.everything() == before


def test_saves_and_their_rivals_on_another_store(store: Store, url: str, clock: Clock, path: Path) -> None:
    """The fence: what the thief wrote stays, and the robbed one is told for each conversation."""
    clock.advance(31_000)
    with Store.open(url, clock=clock) as thief:
        thief.acquire("a", "thief", token=OTHER_TOKEN)
    results = store.save_all([save("a", "stale"), save("b", "fresh")])
    assert isinstance(results[0], errors.LeaseLost)
    assert results[0].outcome == "expired"
    assert texts(store, "b") == ["hi", "fresh"]
