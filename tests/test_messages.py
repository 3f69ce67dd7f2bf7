"""Messages: order, repeats, edits, deletion, truncation (cases M)."""

from typing import Any

import pytest

from sessionstore import Store, errors
from sessionstore.model import Tag
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, runs_changes, texts, user


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c")


def test_positions_follow_the_commits_whatever_the_clock_says(store: Store, clock: Clock) -> None:
    store.append("c", [user(1), user(2)])
    clock.advance(-3_600_000)
    store.append("c", [user(3)])
    store.append("c", [user(4)])
    assert texts(store, "c") == [1, 2, 3, 4]
    assert [message.position for message in store.messages("c").items] == [0, 1, 2, 3]
    assert [message.content for message in store.messages("c", order="desc", limit=1).items] == [4]


def test_a_version_rises_once_a_transaction(store: Store) -> None:
    messages = store.append("c", [user(1), user(2)]).value
    assert [message.version for message in messages] == [2, 2]
    assert store.get("c").version == 2


def test_m2_the_same_message_is_stored_once(store: Store, tables: Tables) -> None:
    first = store.append("c", [user("hi", "m", metadata={"k": 1})])
    before = tables.everything()
    again = store.append("c", [user("hi", "m", metadata={"k": 1})])
    assert (again.replayed, again.value) == (True, first.value)
    with pytest.raises(errors.MessageExists):
        store.append("c", [user("other", "m")])
    assert tables.everything() == before


def test_m2_a_repeat_is_recognised_by_what_was_first_sent(store: Store) -> None:
    store.append("c", [user("hi", "m")])
    store.put("c", user("edited", "m"))
    again = store.append("c", [user("hi", "m")])
    assert (again.replayed, again.value[0].content) == (True, "edited")


def test_m2_a_deleted_message_is_not_inserted_anew(store: Store, tables: Tables) -> None:
    store.append("c", [user("hi", "m")])
    store.delete_message("c", "m")
    for call in (
        lambda: store.append("c", [user("hi", "m")]),
        lambda: store.put("c", user("hi", "m")),
        lambda: store.message("c", "m"),
        lambda: store.delete_message("c", "m"),
        lambda: store.label_message("c", "m", {}),
    ):
        with pytest.raises(errors.MessageDeleted):
            call()
    assert tables.rows("SELECT id, position, status, content, metadata, digest FROM messages") == [
        ("m", 0, "deleted", None, None, None)
    ]


def test_l20_a_repeat_is_answered_although_somebody_else_is_generating_now(store: Store, tables: Tables) -> None:
    stored = store.append("c", [user("hi", "m")]).value
    store.acquire("c", "other", token=TOKEN)
    before = tables.everything()
    again = store.append("c", [user("hi", "m")])
    assert (again.replayed, again.value, again.lease) == (True, stored, None)
    with pytest.raises(errors.Generating):
        store.append("c", [user("hi", "m"), user("new", "n")])
    assert store.put("c", user("hi", "m")).replayed
    assert tables.everything() == before


def test_a_repeat_ends_no_expired_lease(store: Store, clock: Clock, tables: Tables) -> None:
    store.append("c", [user("hi", "m")])
    store.acquire("c", "slow", token=TOKEN, ttl_ms=1000)
    clock.advance(5000)
    before = tables.everything()
    assert store.append("c", [user("hi", "m")]).replayed
    assert store.put("c", user("hi", "m")).replayed
    assert tables.everything() == before


def test_a_partly_stored_batch_stores_the_rest_at_the_tail(store: Store) -> None:
    store.append("c", [user(1, "a")])
    store.append("c", [user(2, "b")])
    done = store.append("c", [user(1, "a"), user(3, "x")])
    assert not done.replayed
    assert [message.position for message in done.value] == [0, 2]


def test_a_batch_with_an_id_twice_is_refused(store: Store) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        store.append("c", [user(1, "a"), user(1, "a")])
    assert refused.value.path == "$.messages[1].id"


def test_m7_a_bad_message_stores_nothing_of_its_batch(store: Store, tables: Tables) -> None:
    with pytest.raises(errors.InvalidInput):
        store.append("c", [user("good"), user(float("nan"))])
    assert tables.one("SELECT count(*) FROM messages") == 0
    assert store.append("c", [user("next")]).value[0].position == 0


def test_a_put_creates_edits_and_repeats(store: Store) -> None:
    created = store.put("c", user("a", "m", metadata={"k": 1})).value
    assert (created.created, created.message.position) == (True, 0)
    edited = store.put("c", user("b", "m")).value
    assert (edited.created, edited.message.content, edited.message.metadata) == (False, "b", {"k": 1})
    again = store.put("c", user("b", "m"))
    assert (again.replayed, again.value.message) == (True, edited.message)
    assert store.get("c").message_count == 1


def test_m4_an_id_of_another_conversation_is_not_touched(store: Store) -> None:
    store.create("b", messages=[user("of b", "m")])
    assert store.put("c", user("of c", "m")).value.created
    assert store.message("b", "m").content == "of b"


def test_m5_an_edit_by_id_never_hits_another_message(store: Store, tables: Tables) -> None:
    store.append("c", [user(n, f"m{n}") for n in range(6)])
    seen = store.message("c", "m5")
    store.delete_message("c", "m5")
    store.append("c", [user("after")])
    before = tables.everything()
    for precondition in (None, seen.tag):
        with pytest.raises(errors.MessageDeleted):
            store.put("c", user("edit", "m5"), if_match=precondition)
    assert tables.everything() == before


def test_l19_a_delayed_save_does_not_overwrite_a_newer_one(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    seen = store.put("c", reply("a", "m", status="partial"), token=TOKEN).value.message
    newer = store.put("c", reply("ab", "m", status="partial"), token=TOKEN, if_match=seen.tag).value.message
    with pytest.raises(errors.PreconditionFailed) as late:
        store.put("c", reply("a+", "m", status="partial"), token=TOKEN, if_match=seen.tag)
    assert (late.value.version, late.value.same) == (newer.version, False)
    with pytest.raises(errors.PreconditionFailed) as same:
        store.put("c", reply("ab", "m", status="partial"), token=TOKEN, if_match=seen.tag)
    assert same.value.same
    store.put("c", reply("abc", "m"), token=TOKEN)
    with pytest.raises(errors.MessageComplete):
        store.put("c", reply("ab", "m", status="partial"), token=TOKEN)
    assert store.message("c", "m").content == "abc"


def test_if_match_on_a_message_that_is_not_there_fails(store: Store) -> None:
    for precondition in ("*", Tag(1, 1)):
        with pytest.raises(errors.PreconditionFailed):
            store.put("c", user("x", "none"), if_match=precondition)
    assert store.put("c", user("x", "none"), only_create=True).value.created
    with pytest.raises(errors.PreconditionFailed) as refused:
        store.put("c", user("x", "none"), only_create=True)
    assert refused.value.same


def test_message_labels_merge(store: Store) -> None:
    store.append("c", [user("hi", "m", metadata={"a": 1, "b": 2})])
    labelled = store.label_message("c", "m", {"b": None, "c": 3}).value
    assert (labelled.metadata, labelled.content, labelled.version) == ({"a": 1, "c": 3}, "hi", 3)
    assert store.label_message("c", "m", {"c": 3}).replayed
    assert store.append("c", [user("hi", "m", metadata={"a": 1, "b": 2})]).replayed
    with pytest.raises(errors.MessageNotFound):
        store.label_message("c", "none", {})


def test_deleting_keeps_the_counts_and_never_reuses_a_position(store: Store) -> None:
    store.append("c", [user(n, f"m{n}") for n in range(3)])
    store.delete_message("c", "m2")
    assert store.get("c").message_count == 2
    assert store.append("c", [user("new")]).value[0].position == 3
    assert texts(store, "c") == [0, 1, "new"]
    with pytest.raises(errors.MessageNotFound):
        store.delete_message("c", "never")


def test_a_stale_tag_deletes_no_message(store: Store) -> None:
    seen = store.append("c", [user("hi", "m")]).value[0]
    store.put("c", user("edited", "m"))
    with pytest.raises(errors.PreconditionFailed):
        store.delete_message("c", "m", if_match=seen.tag)
    store.delete_message("c", "m", if_match=store.message("c", "m").tag)


def test_a_truncate_takes_its_range_and_no_more(store: Store) -> None:
    store.create("t", messages=[user(n) for n in range(6)])
    assert store.truncate("t", after_position=1, through_position=3).value.removed == 2
    assert texts(store, "t") == [0, 1, 4, 5]


def test_m15_a_truncate_that_comes_twice_keeps_what_came_later(store: Store) -> None:
    store.append("c", [user(n) for n in range(5)])
    assert store.truncate("c", after_position=2, through_position=4).value.removed == 2
    store.append("c", [user("later")])
    again = store.truncate("c", after_position=2, through_position=4)
    assert (again.value.removed, again.replayed) == (0, True)
    assert texts(store, "c") == [0, 1, 2, "later"]
    assert store.truncate("c", after_position=-1, through_position=10**9).value.conversation.message_count == 0


def test_a_truncate_repeated_with_its_old_tag_or_while_somebody_generates_is_answered(store: Store) -> None:
    store.append("c", [user(n) for n in range(3)])
    seen = store.get("c").tag
    store.truncate("c", after_position=0, through_position=2, if_match=seen)
    assert store.truncate("c", after_position=0, through_position=2, if_match=seen).replayed
    store.acquire("c", "w", token=TOKEN)
    assert store.truncate("c", after_position=0, through_position=2).replayed
    with pytest.raises(errors.Generating):
        store.truncate("c", after_position=-1, through_position=2)


def test_the_order_of_keys_makes_no_difference(store: Store) -> None:
    saved = store.put("c", user({"a": 1, "b": 2}, "m", metadata={"x": 1, "y": 2})).value.message
    again = store.put("c", user({"b": 2, "a": 1}, "m", metadata={"y": 2, "x": 1}))
    assert (again.replayed, again.value.message) == (True, saved)
    assert not store.put("c", user({"a": 1.0, "b": 2}, "m")).replayed


def test_a_put_with_other_metadata_is_another_message(store: Store) -> None:
    store.put("c", user("hi", "m", metadata={"a": 1}))
    assert store.put("c", user("hi", "m")).replayed
    changed = store.put("c", user("hi", "m", metadata={"a": 2}))
    assert (changed.replayed, changed.value.message.metadata) == (False, {"a": 2})


@pytest.mark.parametrize("ends", [(-2, 0), (3, 2), (0, 2**70)])
def test_an_impossible_range_is_refused(store: Store, ends: tuple[int, int]) -> None:
    with pytest.raises(errors.InvalidInput):
        store.truncate("c", after_position=ends[0], through_position=ends[1])


def test_partial_needs_a_lease(store: Store) -> None:
    def within() -> None:
        store.transact("c", lambda conversation: conversation.append([reply("p", status="partial")]))

    for call in (
        lambda: store.append("c", [reply("p", status="partial")]),
        lambda: store.put("c", reply("p", "m", status="partial")),
        lambda: store.create("d", messages=[reply("p", status="partial")]),
        lambda: store.acquire("c", "w", messages=[reply("p", status="partial")]),
        *([within] if runs_changes(store) else []),
    ):
        with pytest.raises(errors.InvalidInput) as refused:
            call()
        assert refused.value.path.endswith(".status")


def test_pages_neither_skip_nor_repeat(store: Store) -> None:
    store.append("c", [user(n, f"m{n}") for n in range(25)])
    store.delete_message("c", "m7")
    expected = [n for n in range(25) if n != 7]
    assert _paged(store, "asc", "after") == expected
    assert _paged(store, "desc", "before") == expected[::-1]
    between = store.messages("c", after=3, before=9, limit=10)
    assert [message.content for message in between.items] == [4, 5, 6, 8]
    assert between.next is None


def _paged(store: Store, order: Any, key: str) -> list[Any]:
    seen: list[Any] = []
    following: Any = None
    while True:
        page = store.messages("c", order=order, limit=4, **{key: following})
        seen += [message.content for message in page.items]
        following = page.next
        if following is None:
            return seen


@pytest.mark.parametrize("limit", [0, -1, 10**9, True, "50"])
def test_an_impossible_page_is_refused(store: Store, limit: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        store.messages("c", limit=limit)
    with pytest.raises(errors.InvalidInput):
        store.conversations(limit=limit)


def test_the_repeat_of_a_put_with_a_wrong_token_is_recognised_only_when_alike(store: Store) -> None:
    store.put("c", user("hi", "m"))
    store.acquire("c", "w", token=TOKEN)
    assert store.put("c", user("hi", "m"), token=OTHER_TOKEN).replayed
    with pytest.raises(errors.LeaseLost):
        store.put("c", user("else", "m"), token=OTHER_TOKEN)
    with pytest.raises(errors.LeaseLost):
        store.put("c", user("hi", "m"), token=OTHER_TOKEN, if_match=Tag(1, 99))
