"""Forgetting: what goes and what stays, in pieces that let others through, and that it is gone from the bytes (case F5)."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store, errors, forgetting
from sessionstore.model import Pruned
from sessionstore.sqlite import fulltext
from sessionstore.sqlite.writer import Writer
from tests.conftest import TOKEN, Clock, Tables, on_file, reply, texts, user

DAY = 86_400_000


@pytest.fixture
def aged(plain: Store, clock: Clock) -> Store:
    """Three conversations, each a day younger than the one before."""
    for name in "abc":
        plain.create(name, messages=[user(f"{name} said"), reply("yes")])
        clock.advance(DAY)
    return plain


def left(store: Store) -> list[str]:
    return sorted(conversation.id for conversation in store.conversations().items)


def test_what_has_not_changed_for_long_is_forgotten(aged: Store, clock: Clock) -> None:
    dry = aged.prune(older_than_ms=2 * DAY, dry_run=True)
    assert (dry.conversations, dry.messages, left(aged)) == (1, 2, ["a", "b", "c"])
    clock.advance(1)
    seen = list[Pruned]()
    done = aged.prune(older_than_ms=2 * DAY, progress=seen.append)
    assert (done.conversations, done.messages, done.skipped, seen[-1]) == (2, 4, 0, done)
    assert left(aged) == ["c"]
    with pytest.raises(errors.ConversationDeleted):
        aged.get("a")
    assert aged.prune(older_than_ms=2 * DAY) == Pruned()


def test_all_but_the_last_changed_are_forgotten(aged: Store) -> None:
    aged.append("a", [user("again")])
    assert aged.prune(keep=2).conversations == 1
    assert left(aged) == ["a", "c"]
    assert aged.prune(keep=0).conversations == 2


def test_without_a_word_nothing_is_forgotten(aged: Store) -> None:
    assert aged.prune() == Pruned()
    assert left(aged) == ["a", "b", "c"]


def test_what_is_being_generated_is_left_alone(aged: Store, clock: Clock, tables: Tables) -> None:
    aged.acquire("a", "w", token=TOKEN, ttl_ms=3_600_000)
    clock.advance(10)
    before = tables.rows("SELECT * FROM conversations WHERE id = 'a'")
    done = aged.prune(keep=0)
    assert (done.conversations, done.skipped, left(aged)) == (2, 1, ["a"])
    assert tables.rows("SELECT * FROM conversations WHERE id = 'a'") == before
    clock.advance(3_600_000)
    assert aged.prune(keep=0).conversations == 1


def test_what_changes_while_it_is_looked_at_stays(aged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bury = forgetting.Forgetting._bury

    def late(self: Any, family: Any) -> Any:
        aged.append(family.id, [user("I am back")])
        return bury(self, family)

    monkeypatch.setattr(forgetting.Forgetting, "_bury", late)
    done = aged.prune(keep=0)
    assert (done.conversations, done.skipped, left(aged)) == (0, 3, ["a", "b", "c"])


def test_a_family_is_as_young_as_its_youngest(plain: Store, clock: Clock) -> None:
    plain.create("root", messages=[user("old")])
    plain.create("child", parent_id="root", messages=[user("old")])
    plain.create("grandchild", parent_id="child")
    clock.advance(DAY)
    plain.append("grandchild", [user("young")])
    clock.advance(DAY // 2)
    assert plain.prune(older_than_ms=DAY) == Pruned()
    plain.acquire("child", "w", token=TOKEN, ttl_ms=3_600_000)
    clock.advance(DAY)
    plain.acquire("grandchild", "w", token=TOKEN + "2", ttl_ms=3_600_000)
    clock.advance(1)
    assert plain.prune(keep=0).skipped == 1
    plain.release("grandchild", token=TOKEN + "2")
    clock.advance(DAY + 1)
    assert plain.prune(older_than_ms=DAY).conversations == 3


def test_a_child_that_is_created_meanwhile_keeps_its_family(aged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bury = forgetting.Forgetting._bury

    def late(self: Any, family: Any) -> Any:
        aged.create(f"child of {family.id}", parent_id=family.id)
        return bury(self, family)

    monkeypatch.setattr(forgetting.Forgetting, "_bury", late)
    assert aged.prune(keep=0).skipped == 3


def test_old_messages_go_and_whole_turns_stay(plain: Store, clock: Clock) -> None:
    plain.create("c")
    for n in range(6):
        plain.append("c", [user(f"q{n}"), reply(f"a{n}")])
        clock.advance(DAY)
    assert plain.prune(keep_messages=5, dry_run=True).messages == 6
    assert plain.prune(keep_messages=5).messages == 6
    assert texts(plain, "c") == ["q3", "a3", "q4", "a4", "q5", "a5"]
    assert plain.get("c").message_count == 6
    assert plain.prune(messages_older_than_ms=2 * DAY).messages == 2
    assert texts(plain, "c") == ["q4", "a4", "q5", "a5"]
    assert plain.prune(messages_older_than_ms=0).messages == 4
    assert plain.append("c", [user("next")]).value[0].position == 12


def test_a_summary_outlives_what_it_stands_for(plain: Store) -> None:
    plain.create("c", messages=[user(f"m{n}") if n % 2 == 0 else reply(f"m{n}") for n in range(10)])
    plain.compact("c", user("in short", role="system"), through_position=5, seen_version=1)
    plain.prune(keep_messages=2)
    assert texts(plain, "c") == ["m8", "m9", "in short"]
    assert [m.content for m in plain.messages("c", view="context").items] == ["in short", "m8", "m9"]


def test_a_call_is_not_parted_from_its_result(plain: Store) -> None:
    call = {"tool_calls": [{"id": "1", "type": "function"}]}
    said = [
        user("q0"),
        reply("a0"),
        user("q1"),
        reply(call),
        user("hurry"),
        user({"tool_call_id": "1"}, role="tool"),
        reply("a1"),
    ]
    plain.create("c", messages=said)
    plain.prune(keep_messages=3)
    assert texts(plain, "c")[0] == "q1"


def test_messages_of_a_conversation_that_is_being_generated_stay(plain: Store, clock: Clock) -> None:
    plain.create("c", messages=[user(n) if n % 2 == 0 else reply(n) for n in range(10)])
    plain.acquire("c", "w", token=TOKEN)
    assert plain.prune(keep_messages=2).skipped == 1
    assert len(texts(plain, "c")) == 10


def test_tombstones_go_after_their_time_and_the_list_says_so(plain: Store, clock: Clock, tables: Tables) -> None:
    for name in "abc":
        plain.create(name, messages=[user("basil")])
    plain.acquire("a", "w", token=TOKEN)
    plain.finish("a", token=TOKEN, usage={"cost": 1})
    known = plain.conversations().change
    plain.delete("a")
    plain.delete("b")
    clock.advance(30 * DAY)
    assert plain.prune().tombstones == 0
    clock.advance(1)
    plain.append("c", [user("the newest change")])
    gone = plain.list_changes(known)
    assert (sorted(each.id for each in gone.deleted), gone.reset) == (["a", "b"], False)
    assert plain.prune(dry_run=True).tombstones == plain.prune().tombstones == 2
    assert tables.one("SELECT count(*) FROM conversations") == 1
    assert plain.usage().items == []
    again = plain.list_changes(known)
    assert (again.reset, [each.id for each in again.conversations], again.deleted) == (True, ["c"], [])
    assert not plain.list_changes(again.change).reset
    with pytest.raises(errors.ConversationNotFound):
        plain.get("a")
    plain.create("a")


def test_the_whole_list_comes_to_its_end_after_tombstones_went(store: Store, plain: Store, clock: Clock) -> None:
    """Its pages begin at changes that are older than what was pruned."""
    for n in range(7):
        store.create(f"c{n}")
    store.create("gone")
    store.delete("gone")
    store.create("last")
    clock.advance(31 * DAY)
    assert plain.prune().tombstones == 1
    page = store.list_changes(limit=3)
    seen, resets = [each.id for each in page.conversations], [page.reset]
    while page.next is not None:
        page = store.list_changes(next=page.next, limit=3)
        seen, resets = seen + [each.id for each in page.conversations], [*resets, page.reset]
    assert seen == [*(f"c{n}" for n in range(7)), "last"]
    assert resets == [True, False, False]
    told = list[str]()
    with store.list_events() as events:
        while len(told) < 8:
            told += [each.id for each in next(events).conversations]
    assert told == seen


def test_the_newest_change_is_never_pruned(plain: Store, clock: Clock, tables: Tables) -> None:
    plain.create("a")
    plain.delete("a")
    clock.advance(31 * DAY)
    newest = tables.one("SELECT max(change) FROM conversations")
    assert plain.prune().tombstones == 0
    assert plain.create("b").value.conversation.incarnation == 2
    assert tables.one("SELECT max(change) FROM conversations") > newest


def test_a_tombstone_with_dead_children_goes(plain: Store, clock: Clock) -> None:
    plain.create("root")
    plain.create("child", parent_id="root")
    plain.delete("root")
    plain.create("new")
    clock.advance(31 * DAY)
    assert plain.prune().tombstones == 2


@pytest.mark.parametrize("indexed", [False, True])
def test_what_a_pruner_left_behind_is_erased_by_the_next(aged: Store, tables: Tables, indexed: bool) -> None:
    if indexed:
        aged.database.catch_search_up()
    steps = aged._forgetting().prune(forgetting.Retention(keep=0))
    for piece in steps:
        if piece.conversations:
            break
    assert tables.one("SELECT count(*) FROM messages") > 4
    assert left(aged) == ["b", "c"]
    assert aged.search("said", conversation_id="b").items
    assert [each.conversation_id for each in aged.search("said").items] == ["c", "b"]
    assert aged.prune().messages == 2
    assert tables.one("SELECT count(*) FROM messages") == 4


def test_a_purge_erases_what_a_pruner_left_behind(plain: Store, path: Path) -> None:
    """It was stopped between two pieces, a moment ago (found by review)."""

    class Stopped(Exception):
        pass

    def stop(done: Pruned) -> None:
        raise Stopped

    plain.create("gone", messages=[user(SECRET) for _ in range(300)])
    with pytest.raises(Stopped):
        plain.prune(keep=0, progress=stop)
    assert bytes_with_the_secret(path) != []
    assert plain.purge()
    assert bytes_with_the_secret(path) == []


def test_forgetting_messages_is_no_change_of_the_conversation(plain: Store, clock: Clock) -> None:
    """Else who keeps the last changed would keep the wrong ones (found by review)."""
    for name in ("old", "recent"):
        plain.create(name, messages=[user("q0"), reply("a0"), user("q1"), reply("a1")][: 4 if name == "old" else 2])
        clock.advance(DAY)
    before = plain.get("old")
    assert plain.prune(keep_messages=2).messages == 2
    after = plain.get("old")
    assert (after.updated_at, after.version) == (before.updated_at, before.version + 1)
    assert [message.id for message in plain.changes("old", before.tag).messages if message.status == "deleted"]
    plain.prune(keep=1)
    assert left(plain) == ["recent"]


def test_old_messages_of_a_young_fork_are_old(plain: Store, clock: Clock) -> None:
    plain.create("c", messages=[user("q0"), reply("a0")])
    clock.advance(100 * DAY)
    plain.append("c", [user("q1"), reply("a1")])
    plain.fork("c", "f")
    assert plain.prune(messages_older_than_ms=30 * DAY).messages == 4
    assert texts(plain, "f") == ["q1", "a1"]


def test_what_is_shortened_meanwhile_is_looked_at_again(plain: Store) -> None:
    said = [user(n) if n % 2 == 0 else reply(n) for n in range(40)]
    for name in "ab":
        plain.create(name, messages=said)
    done = plain.prune(keep_messages=4, progress=lambda _: plain.truncate("b", after_position=9, through_position=39))
    assert texts(plain, "b") == [6, 7, 8, 9]
    assert done.skipped == 0
    assert texts(plain, "a") == [36, 37, 38, 39]


def test_what_is_shortened_between_the_look_and_the_cut_is_looked_at_again(
    plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.create("c", messages=[user(n) if n % 2 == 0 else reply(n) for n in range(40)])
    look, looked = forgetting.Forgetting._cut_of, list[Any]()

    def late(self: Any, *arguments: Any) -> Any:
        cut = look(self, *arguments)
        if not looked:
            plain.truncate("c", after_position=9, through_position=39)
        looked.append(cut)
        return cut

    monkeypatch.setattr(forgetting.Forgetting, "_cut_of", late)
    assert plain.prune(keep_messages=4).messages == 6
    assert texts(plain, "c") == [6, 7, 8, 9]


def test_a_summary_amid_what_is_forgotten_stays(plain: Store) -> None:
    said = [user(f"m{n}") if n % 2 == 0 else reply(f"m{n}") for n in range(10)]
    plain.create("c", messages=said)
    plain.compact("c", user("in short", role="system"), through_position=9, seen_version=1)
    plain.append("c", said)
    plain.prune(keep_messages=2)
    assert texts(plain, "c") == ["in short", "m8", "m9"]


def test_a_dry_run_counts_nothing_twice(plain: Store, clock: Clock) -> None:
    plain.create("root")
    plain.create("child", parent_id="root")
    plain.create("grandchild", parent_id="child", messages=[user(n) if n % 2 == 0 else reply(n) for n in range(8)])
    clock.advance(1)
    dry = plain.prune(older_than_ms=0, keep_messages=2, dry_run=True)
    assert (dry.messages, dry.conversations) == (8, 3)


@pytest.mark.one_file
def test_what_was_removed_does_not_wait_in_the_notes_of_the_index(plain: Store, tables: Tables) -> None:
    plain.create("c", messages=[user(f"word {n}", f"m{n}") for n in range(10)])
    plain.purge()
    removed = "SELECT count(*) FROM search_pending WHERE said IS NOT NULL"
    changes: list[Any] = [
        lambda: plain.delete_message("c", "m1"),
        lambda: plain.put("c", user("edited", "m2")),
        lambda: plain.truncate("c", after_position=5, through_position=6),
        lambda: plain.prune(keep_messages=4),
        lambda: plain.delete("c"),
    ]
    for change in changes:
        change()
        assert tables.one(removed) == 0


@pytest.mark.one_file
def test_what_is_removed_within_a_turn_that_is_rolled_back_does_not_wait_either(plain: Store, tables: Tables) -> None:
    plain.create("c")
    plain.acquire("c", "w", token=TOKEN)
    plain.append("c", [user("said")], token=TOKEN)
    plain.purge()
    plain.acquire("c", "w", if_busy="rollback")
    assert tables.one("SELECT count(*) FROM search_pending") == 0


def test_others_come_between_the_pieces(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long conversation goes in many transactions; between any two of them others write."""
    plain.create("long")
    for _ in range(5):
        plain.append("long", [user("x" * 100) for _ in range(1000)])
    plain.create("other")
    monkeypatch.setattr(forgetting, "PIECE_SECONDS", 0.0)
    pieces = list[Pruned]()

    def between(done: Pruned) -> None:
        pieces.append(done)
        if len(pieces) % 100 == 0:
            plain.append("other", [user("between")])

    plain.prune(keep=1, progress=between)
    assert len(pieces) > 1000
    assert plain.get("other").message_count == len(pieces) // 100


@pytest.mark.parametrize("wanted", [{"keep": -1}, {"older_than_ms": "90d"}, {"keep_messages": 0}, {"keep": True}])
def test_impossible_retentions_are_refused(plain: Store, wanted: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        plain.prune(**wanted)


SECRET = "watermelon"


def bytes_with_the_secret(path: Path) -> list[str]:
    """Which files of the database still have it, as another process reads them."""
    look = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]);"
        "print(*(f.name for f in sorted(p.parent.iterdir()) if f.is_file() and sys.argv[2].encode() in f.read_bytes()))"
    )
    done = subprocess.run([sys.executable, "-c", look, str(path), SECRET], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("way", ["delete", "delete_message", "truncate", "put", "prune", "prune messages"])
@pytest.mark.parametrize("indexed", [False, True])
def test_f5_after_a_purge_deleted_text_is_nowhere_in_the_bytes(
    plain: Store, path: Path, clock: Clock, way: str, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if indexed:
        monkeypatch.setattr(fulltext, "is_due", lambda _: True)
        monkeypatch.setattr(Writer, "_index_is_due", lambda writer: writer._connection is not None)
    plain.create("kept", messages=[user("melon")])
    plain.create("gone", title="t", messages=[user("hi"), reply(f"a {SECRET}, {'x' * 9000}, {SECRET}", "m")])
    plain.create("held", messages=[user("held")])
    plain.acquire("held", "w", token=TOKEN, ttl_ms=3_600_000)
    clock.advance(1)
    ways: dict[str, Any] = {
        "delete": lambda: plain.delete("gone"),
        "delete_message": lambda: plain.delete_message("gone", "m"),
        "truncate": lambda: plain.truncate("gone", after_position=0, through_position=5),
        "put": lambda: plain.put("gone", reply("nothing", "m")),
        "prune": lambda: plain.prune(keep=0),
        "prune messages": lambda: plain.prune(messages_older_than_ms=0),
    }
    ways[way]()
    assert bytes_with_the_secret(path) != []
    assert plain.purge()
    assert bytes_with_the_secret(path) == []
    assert plain.search(SECRET).items == []
    assert texts(plain, "held") == ["held"]


def test_the_search_for_the_secret_would_find_it(plain: Store, path: Path) -> None:
    plain.create("there", messages=[user(SECRET)])
    assert plain.purge()
    assert bytes_with_the_secret(path) == [path.name]
    assert len(plain.search(SECRET).items) == 1


def test_a_purge_says_so_while_somebody_reads(plain: Store, path: Path) -> None:
    plain.create("gone", messages=[user(SECRET)])
    reading, go = threading.Event(), threading.Event()

    def look(transaction: Any) -> None:
        transaction.row(fulltext_count())
        reading.set()
        go.wait(10)

    reader = threading.Thread(target=lambda: plain.database.read(look))
    reader.start()
    reading.wait(10)
    plain.delete("gone")
    patient = Store.open(f"sqlite:///{path}", busy_timeout_ms=50)
    assert not patient.purge()
    go.set()
    reader.join()
    assert patient.purge()
    patient.close()
    assert bytes_with_the_secret(path) == []


def fulltext_count() -> Any:
    from sessionstore import queries

    return queries.NEWEST_CHANGE


def test_a_purge_past_a_gate_that_stays_shut_does_not_touch_the_log(plain: Store, path: Path) -> None:
    """On an engine that corrupts under overlapping checkpoints the log is emptied only by who is alone (DESIGN.md, rule 9)."""
    import fcntl

    plain.create("a")
    with Path(f"{path}-gate").open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        impatient = Store.open(f"sqlite:///{path}", busy_timeout_ms=50)
        assert not on_file(impatient).empty_log()
        impatient.close()
    assert on_file(plain).empty_log()
