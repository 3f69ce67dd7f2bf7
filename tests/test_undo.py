"""Undo: a fork keeps everything, and what comes in between is not touched."""

from typing import Any

import pytest

from sessionstore import Store, errors, undoing
from tests.conftest import TOKEN, Tables, reply, texts, user


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", title="Basil", messages=[user("q0"), reply("a0"), user("q1", "q1"), reply("a1")])


def test_the_last_turn_is_taken_back_and_kept_in_a_fork(store: Store) -> None:
    done = store.undo("c", "kept").value
    assert (texts(store, "c"), done.removed, done.backup.id, done.backup.title) == (["q0", "a0"], 2, "kept", "Basil (2)")
    assert texts(store, "kept") == ["q0", "a0", "q1", "a1"]
    assert store.undo("c").value.removed == 2
    assert texts(store, "c") == []


def test_an_undo_again_takes_nothing_more_back(store: Store) -> None:
    store.undo("c", "kept")
    again = store.undo("c", "kept")
    assert (again.replayed, again.value.removed, texts(store, "c")) == (True, 0, ["q0", "a0"])
    store.append("c", [user("new")])
    store.undo("c", "kept")
    assert texts(store, "c") == ["q0", "a0", "new"]


def test_an_undo_whose_second_half_was_lost_is_done_by_its_repeat(store: Store) -> None:
    store.fork("c", "kept")
    store.append("c", [user("meanwhile")])
    assert store.undo("c", "kept").value.removed == 2
    assert texts(store, "c") == ["q0", "a0", "meanwhile"]


def test_a_place_may_be_named(store: Store) -> None:
    assert store.undo("c", before_message="q1").value.removed == 2
    assert store.undo("c", after_position=0).value.removed == 1
    with pytest.raises(errors.InvalidInput):
        store.undo("c", after_position=99)
    with pytest.raises(errors.InvalidInput):
        store.undo("c", after_position=0, before_message="q1")


def test_what_comes_in_between_is_not_touched(plain: Store) -> None:
    class Meanwhile:
        """A store into which somebody writes after the first call of each kind."""

        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                done = getattr(plain, name)(*arguments, **options)
                if f"after {name}" not in texts(plain, "c"):
                    plain.append("c", [user(f"after {name}")])
                return done

            return call

    undoing.run(Meanwhile(), undoing.undo("c", "kept"))
    assert texts(plain, "c")[:2] == ["q0", "a0"]
    assert texts(plain, "c")[2:] == ["q1", "a1", "after fork", "after messages", "after truncate"]
    assert texts(plain, "kept") == ["q0", "a0", "q1", "a1", "after get"]


def test_an_undo_that_cannot_be_leaves_nothing_behind(store: Store, tables: Tables) -> None:
    store.create("silent", messages=[reply("hello")])
    with pytest.raises(errors.InvalidInput):
        store.undo("silent", "kept")
    with pytest.raises(errors.MessageNotFound, match="in conversation c"):
        store.undo("c", "other", before_message="nowhere")
    assert tables.one("SELECT count(*) FROM conversations WHERE deleted_at IS NULL") == 2
    store.create("taken")
    with pytest.raises(errors.ConversationExists):
        store.undo("c", "taken")
    store.acquire("c", "w", token=TOKEN)
    with pytest.raises(errors.Generating):
        store.undo("c")
    assert store.undo("c", token=TOKEN).value.removed == 2


def test_only_a_whole_fork_of_this_life_is_a_backup(store: Store, tables: Tables) -> None:
    """Another one lacks what would be taken back (found by review)."""
    store.fork("c", "part", through_position=1)
    with pytest.raises(errors.ConversationExists):
        store.undo("c", "part")
    store.undo("c", "whole")
    store.delete("c")
    store.create("c", recreate=1, messages=[user("new")])
    with pytest.raises(errors.ConversationExists):
        store.undo("c", "whole")
    assert texts(store, "c") == ["new"]


def test_an_edit_in_between_is_not_lost(plain: Store) -> None:
    """The fork has the old text: what was edited is nowhere else (found by review)."""

    class Edited:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                done = getattr(plain, name)(*arguments, **options)
                if name == "fork":
                    plain.put("c", user("edited", "q1"))
                return done

            return call

    with pytest.raises(errors.PreconditionFailed):
        undoing.run(Edited(), undoing.undo("c", "kept"))
    assert texts(plain, "c") == ["q0", "a0", "edited", "a1"]
    assert len(plain.conversations().items) == 1


def test_an_edit_after_the_look_is_not_lost_either(plain: Store) -> None:
    looked = list[str]()

    class Edited:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if name == "truncate":
                    if not looked:
                        plain.put("c", user("edited", "q1"))
                    looked.append(name)
                return getattr(plain, name)(*arguments, **options)

            return call

    with pytest.raises(errors.PreconditionFailed):
        undoing.run(Edited(), undoing.undo("c", "kept"))
    assert texts(plain, "c") == ["q0", "a0", "edited", "a1"]


def test_the_result_of_a_tool_is_nothing_that_a_person_said(store: Store) -> None:
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]
    store.append("c", [user("q2"), reply([{"type": "tool_use", "id": "t"}]), user(result), reply("four")])
    assert store.undo("c").value.removed == 4


def test_a_backup_that_was_gone_on_with_is_none_any_more(store: Store) -> None:
    store.undo("c", "kept")
    store.truncate("kept", after_position=1, through_position=3)
    with pytest.raises(errors.ConversationExists):
        store.undo("c", "kept")
    assert texts(store, "c") == ["q0", "a0"]


def test_a_fork_that_was_made_is_recognised_though_its_last_message_has_gone(store: Store) -> None:
    store.fork("c", "f", through_message="q1")
    store.delete_message("c", "q1")
    with pytest.raises(errors.ConversationExists) as same:
        store.fork("c", "f", through_message="q1")
    assert same.value.same


def test_the_lease_is_judged_before_the_message_where_a_fork_ends(store: Store) -> None:
    store.create("f")
    store.acquire("c", "w", token=TOKEN)
    for new in ("f", "fresh"):
        with pytest.raises(errors.Generating):
            store.fork("c", new, through_message="nowhere")


def test_a_fork_ends_at_a_message_by_its_id(store: Store) -> None:
    store.put("c", user("q1", "q1"))
    assert texts(store, store.fork("c", "f1", through_message="q1").value.id) == ["q0", "a0", "q1"]
    assert texts(store, store.fork("c", "f2", before_message="q1").value.id) == ["q0", "a0"]
    with pytest.raises(errors.ConversationExists) as same:
        store.fork("c", "f1", through_position=2)
    assert same.value.same
    with pytest.raises(errors.MessageNotFound):
        store.fork("c", through_message="nowhere")
    store.queue_inputs("c", [user("waits", "w")])
    with pytest.raises(errors.MessageNotFound):
        store.fork("c", through_message="w")
    store.delete_message("c", "q1")
    with pytest.raises(errors.MessageDeleted):
        store.fork("c", before_message="q1")
    with pytest.raises(errors.InvalidInput):
        store.fork("c", through_message="q1", through_position=1)


def test_forks_are_numbered(store: Store) -> None:
    titles = [store.fork("c").value.title for _ in range(3)]
    assert titles == ["Basil (2)", "Basil (3)", "Basil (4)"]
    store.create("f", title="Basil (3) and mint (77)")
    assert store.fork("f").value.title == "Basil (3) and mint (78)"
    assert store.fork(store.fork("c").value.id).value.title == "Basil (6)"
    store.create("plain")
    assert store.fork("plain").value.title is None
    long = "x" * 1000
    store.label("plain", title=long)
    first, second = (store.fork("plain").value.title or "" for _ in range(2))
    assert (len(first) <= 1000, first[-4:], second[-4:]) == (True, " (2)", " (3)")


def test_r15_two_forks_of_one_point_are_two(store: Store) -> None:
    before = store.get("c")
    one, other = (store.fork("c", through_position=1).value for _ in range(2))
    assert one.id != other.id
    assert one.title != other.title
    assert texts(store, one.id) == texts(store, other.id) == ["q0", "a0"]
    assert store.get("c") == before
