"""Forks: exact copies, once, and the source untouched (cases R4, R5, M12, M13, L12)."""

import pytest

from sessionstore import Store, errors, forking
from tests.conftest import TOKEN, Clock, Tables, reply, texts, user


@pytest.fixture(autouse=True)
def source(store: Store) -> None:
    store.create("s", title="Source", metadata={"k": 1})
    store.append("s", [user("u0", "a"), reply("r0", "b"), user("s0", "c", "system"), user("u1", "d")])


def test_a_fork_is_an_exact_copy_in_a_new_life(store: Store, tables: Tables) -> None:
    store.delete_message("s", "b")
    before = store.get("s")
    fork = store.fork("s", "f").value
    assert (fork.title, fork.metadata, fork.version, fork.message_count) == ("Source (2)", {"k": 1}, 1, 3)
    assert fork.forked_from is not None
    assert (fork.forked_from.id, fork.forked_from.position) == ("s", 3)
    copied = [(m.id, m.position, m.content, m.version, m.generation) for m in store.messages("f").items]
    assert copied == [("a", 0, "u0", 1, None), ("c", 2, "s0", 1, None), ("d", 3, "u1", 1, None)]
    assert store.append("f", [user("next")]).value[0].position == 4
    assert store.get("s") == before


def test_r4_a_fork_again_is_told_that_it_was_done(store: Store, tables: Tables) -> None:
    store.fork("s", "f", through_position=1)
    before = tables.everything()
    with pytest.raises(errors.ConversationExists) as same:
        store.fork("s", "f", through_position=1)
    assert same.value.same
    with pytest.raises(errors.ConversationExists) as other:
        store.fork("s", "f", through_position=2)
    assert not other.value.same
    store.acquire("s", "w", token=TOKEN)
    with pytest.raises(errors.ConversationExists):
        store.fork("s", "f", through_position=1)
    with pytest.raises(errors.Generating):
        store.fork("s", "f", through_position=2)
    assert tables.rows("SELECT * FROM messages") == before["messages"]


def test_r5_a_fork_onto_another_conversation_or_past_the_end_writes_nothing(store: Store, tables: Tables) -> None:
    store.create("taken", messages=[user("mine")])
    before = tables.everything()
    with pytest.raises(errors.ConversationExists):
        store.fork("s", "taken")
    for point in (4, 99):
        with pytest.raises(errors.InvalidInput) as refused:
            store.fork("s", "f", through_position=point)
        assert refused.value.path == "$.through_position"
    assert tables.everything() == before


def test_a_fork_again_is_recognised_before_its_point_is_judged(store: Store) -> None:
    """The source may have changed since (found by review)."""
    store.fork("s", "f", through_position=2)
    store.delete_message("s", "c")
    with pytest.raises(errors.ConversationExists) as same:
        store.fork("s", "f", through_position=2)
    assert same.value.same
    store.create("taken")
    with pytest.raises(errors.ConversationExists):
        store.fork("s", "taken", through_position=99)


def test_a_long_fork_is_copied_piece_by_piece_and_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "COPIED_AT_ONCE", 3)
    store.append("s", [user(n) for n in range(7)])
    store.delete_message("s", "d")
    assert store.fork("s", "f").value.message_count == 10
    assert texts(store, "f") == texts(store, "s")


def test_a_fork_onto_a_deleted_id_is_gone(store: Store) -> None:
    store.fork("s", "f")
    store.delete("f")
    with pytest.raises(errors.ConversationDeleted):
        store.fork("s", "f")


def test_a_deleted_message_is_no_point(store: Store) -> None:
    store.delete_message("s", "b")
    with pytest.raises(errors.InvalidInput):
        store.fork("s", through_position=1)


def test_m12_a_fork_before_a_user_message(store: Store) -> None:
    assert store.fork("s", "f0", before_user_message=0).value.message_count == 0
    assert texts(store, "f0") == []
    assert store.append("f0", [user("first")]).value[0].position == 0
    assert store.fork("s", "f1", before_user_message=1).value.message_count == 3
    for ordinal in (2, -1):
        with pytest.raises(errors.InvalidInput):
            store.fork("s", "fx", before_user_message=ordinal)
    with pytest.raises(errors.InvalidInput):
        store.fork("s", "fx", before_user_message=0, through_position=0)


def test_m13_later_messages_are_not_in_a_fork_of_the_beginning(store: Store) -> None:
    for round in range(5):
        store.append("s", [user(round)])
        store.fork("s", f"f{round}", through_position=3)
        assert texts(store, f"f{round}") == ["u0", "r0", "s0", "u1"]


def test_l12_a_settled_fork_of_a_generating_source_leaves_the_turn_out(store: Store, clock: Clock, tables: Tables) -> None:
    store.acquire("s", "w", token=TOKEN, messages=[user("question")], ttl_ms=1000)
    store.put("s", reply("half", "r", status="partial"), token=TOKEN)
    before = tables.rows("SELECT * FROM conversations WHERE id = 's'")
    with pytest.raises(errors.Generating):
        store.fork("s", "f")
    store.fork("s", "f", settled=True)
    assert texts(store, "f") == ["u0", "r0", "s0", "u1", "question"]
    with pytest.raises(errors.InvalidInput):
        store.fork("s", "g", settled=True, through_position=5)
    clock.advance(5000)
    store.fork("s", "h", settled=True)
    assert texts(store, "h") == texts(store, "f")
    assert tables.rows("SELECT * FROM conversations WHERE id = 's'") == before


def test_the_holder_forks_its_own_partial_reply_as_interrupted(store: Store) -> None:
    store.acquire("s", "w", token=TOKEN)
    store.put("s", reply("half", "r", status="partial"), token=TOKEN)
    store.fork("s", "f", token=TOKEN)
    assert store.message("f", "r").status == "interrupted"
    assert store.message("s", "r").status == "partial"


def test_an_append_repeated_on_a_fork_is_recognised(store: Store) -> None:
    store.fork("s", "f")
    assert store.append("f", [user("u0", "a")]).replayed


def test_forks_without_ids_are_different(store: Store) -> None:
    first, second = (store.fork("s", title="Mine").value for _ in range(2))
    assert first.id != second.id
    assert first.title == "Mine"
