"""Compaction and the context: what a model is shown, and that nothing is lost by it (cases M8 to M11)."""

import threading
from typing import Any

import pytest

from sessionstore import Store, errors
from sessionstore.model import Conversation, Message
from tests.conftest import TOKEN, Tables, reply, texts, user


def say(store: Store, id: str, *words: Any) -> None:
    store.append(id, [user(word) for word in words])


def context(store: Store, id: str = "c") -> list[Any]:
    return [message.content for message in store.messages(id, view="context", limit=1000).items]


def compact(store: Store, text: str, through: int, seen: int, id: str | None = None, **rest: Any) -> Conversation:
    done = store.compact("c", user(text, id, "system"), through_position=through, seen_version=seen, **rest)
    return done.value.conversation


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c")
    say(store, "c", *range(5))


def test_m8_a_compaction_stands_for_what_was_seen_and_keeps_what_came_meanwhile(store: Store) -> None:
    seen = store.get("c").version
    say(store, "c", "meanwhile")
    done = store.compact("c", user("in short", "s", "system"), through_position=4, seen_version=seen)
    assert (done.value.summary.position, done.value.summary.summary_through, done.replayed) == (6, 4, False)
    assert done.value.conversation.message_count == 7
    assert context(store) == ["in short", "meanwhile"]
    assert texts(store, "c") == [0, 1, 2, 3, 4, "meanwhile", "in short"]
    again = store.compact("c", user("in short", "s", "system"), through_position=4, seen_version=seen)
    assert (again.replayed, again.value.summary) == (True, done.value.summary)
    with pytest.raises(errors.Stale) as stale:
        compact(store, "other", 4, seen - 1)
    assert stale.value.version == store.get("c").version
    with pytest.raises(errors.MessageExists):
        compact(store, "in short", 3, seen, "s")


@pytest.mark.parametrize("change", ["put", "delete_message", "truncate", "label_message"])
def test_a_compaction_of_what_has_changed_is_stale(store: Store, change: str, tables: Tables) -> None:
    store.put("c", user("new", "m"))
    seen = store.get("c").version
    calls: dict[str, Any] = {
        "put": lambda: store.put("c", user("edited", "m")),
        "delete_message": lambda: store.delete_message("c", "m"),
        "truncate": lambda: store.truncate("c", after_position=4, through_position=5),
        "label_message": lambda: store.label_message("c", "m", {"tokens": 5}),
    }
    calls[change]()
    before = tables.everything()
    with pytest.raises(errors.Stale):
        compact(store, "in short", 5, seen)
    assert tables.everything() == before
    compact(store, "in short", 4, seen)


def test_a_compaction_of_what_came_after_it_was_seen_is_stale(store: Store) -> None:
    seen = store.get("c").version
    say(store, "c", "unseen")
    with pytest.raises(errors.Stale):
        compact(store, "in short", 5, seen)
    compact(store, "in short", 4, seen)


def test_a_compaction_of_what_was_claimed_meanwhile_is_stale(store: Store) -> None:
    """An input is older than its place in the transcript."""
    store.queue_inputs("c", [user("waits")])
    seen = store.get("c").version
    store.claim_inputs("c")
    say(store, "c", "later")
    with pytest.raises(errors.Stale):
        compact(store, "in short", 5, seen)


def test_a_compaction_of_a_future_or_of_another_life_is_stale(store: Store) -> None:
    with pytest.raises(errors.Stale):
        compact(store, "in short", 4, store.get("c").version + 1)


@pytest.mark.parametrize("through", [5, 99])
def test_a_compaction_ends_on_a_message(store: Store, through: int, tables: Tables) -> None:
    before = tables.everything()
    with pytest.raises(errors.InvalidInput) as refused:
        compact(store, "in short", through, store.get("c").version)
    assert refused.value.path == "$.through_position"
    assert tables.everything() == before


def test_a_summary_is_complete_and_says_something(store: Store) -> None:
    version = store.get("c").version
    with pytest.raises(errors.InvalidInput) as refused:
        store.compact("c", reply("half", status="partial"), through_position=4, seen_version=version)
    assert refused.value.path == "$.summary.status"
    with pytest.raises(errors.InvalidInput) as refused:
        store.compact("c", user("x", role="NO"), through_position=4, seen_version=version)
    assert refused.value.path == "$.summary.role"


def test_m9_a_compaction_of_a_deleted_conversation_is_gone(store: Store) -> None:
    seen = store.get("c").version
    store.delete("c")
    with pytest.raises(errors.ConversationDeleted):
        compact(store, "in short", 4, seen)


def test_m10_one_of_two_compactions_of_one_range_wins(store: Store) -> None:
    seen = store.get("c").version
    start, told = threading.Barrier(2), list[str]()

    def race(id: str) -> None:
        start.wait()
        try:
            compact(store, id, 4, seen, id)
            told.append("done")
        except errors.Stale:
            told.append("stale")

    threads = [threading.Thread(target=race, args=(id,)) for id in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["done", "stale"]
    assert len(context(store)) == 1


def test_m11_the_second_summary_and_its_tail_are_the_context(store: Store) -> None:
    compact(store, "first", 2, store.get("c").version)
    assert context(store) == ["first", 3, 4]
    say(store, "c", 5, 6, 7)
    seen = store.get("c").version
    compact(store, "second", 6, seen)
    assert context(store) == ["second", 6, 7]
    store.fork("c", "fork")
    assert context(store, "fork") == ["second", 6, 7]
    assert texts(store, "fork") == texts(store, "c")
    store.fork("c", "earlier", through_position=8)
    assert context(store, "earlier") == ["first", 3, 4, 5, 6, 7]


def test_an_older_summary_counts_again_when_the_newer_one_goes(store: Store) -> None:
    compact(store, "first", 1, store.get("c").version, "s1")
    compact(store, "second", 3, store.get("c").version, "s2")
    assert context(store) == ["second", 4]
    store.delete_message("c", "s2")
    assert context(store) == ["first", 2, 3, 4]
    with pytest.raises(errors.MessageDeleted):
        compact(store, "second", 3, store.get("c").version, "s2")


def test_a_compaction_of_what_a_summary_said_is_stale_when_that_was_deleted(store: Store) -> None:
    """It would bring back what was deleted (found by review)."""
    compact(store, "first", 1, store.get("c").version, "s1")
    seen = store.get("c").version
    store.delete_message("c", "s1")
    with pytest.raises(errors.Stale):
        compact(store, "second, with what the first one said", 3, seen)


def test_a_truncate_takes_the_summaries_of_what_it_removes(store: Store) -> None:
    compact(store, "first", 1, store.get("c").version)
    compact(store, "second", 3, store.get("c").version)
    done = store.truncate("c", after_position=1, through_position=2).value
    assert (done.removed, done.conversation.message_count) == (2, 5)
    assert context(store) == ["first", 3, 4]


def test_a_late_truncate_leaves_a_newer_summary_alone(store: Store) -> None:
    store.truncate("c", after_position=2, through_position=3)
    compact(store, "in short", 4, store.get("c").version)
    assert store.truncate("c", after_position=2, through_position=3).replayed
    assert context(store) == ["in short"]


def test_an_edit_of_what_is_covered_leaves_the_summary(store: Store) -> None:
    store.put("c", user("last", "m"))
    compact(store, "in short", 5, store.get("c").version)
    store.put("c", user("edited", "m"))
    store.delete_message("c", "m")
    assert context(store) == ["in short"]


def test_a_summary_is_no_user_message_to_fork_at(store: Store) -> None:
    store.compact("c", user("in short"), through_position=1, seen_version=store.get("c").version)
    say(store, "c", "after")
    assert texts(store, store.fork("c", before_user_message=5).value.id)[-1] == "in short"


def test_the_holder_compacts_and_nobody_else(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    seen = store.get("c").version
    with pytest.raises(errors.Generating):
        compact(store, "in short", 4, seen)
    compact(store, "in short", 4, seen, "s", token=TOKEN)
    # The answer was lost, and somebody else asks: a repeat all the same.
    assert store.compact("c", user("in short", "s", "system"), through_position=4, seen_version=seen).replayed


def test_the_context_comes_in_pages_from_both_ends(store: Store) -> None:
    compact(store, "in short", 1, store.get("c").version)
    for order, expected in (("asc", ["in short", 2, 3, 4]), ("desc", [4, 3, 2, "in short"])):
        for limit in (1, 2, 3, 4, 5):
            shown, place = list[Message](), None
            while True:
                bound: dict[str, Any] = {"after": place} if order == "asc" else {"before": place}
                page = store.messages("c", view="context", order=order, limit=limit, **bound)  # type: ignore[arg-type]
                shown += page.items
                place = page.next
                if place is None:
                    break
            assert [message.content for message in shown] == expected, (order, limit)
    assert [m.content for m in store.messages("c", view="context", after=3).items] == [4]
    with pytest.raises(errors.InvalidInput):
        store.messages("c", view="other")  # type: ignore[arg-type]
