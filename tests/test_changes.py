"""The feed of one conversation: whoever follows it ends up with what a fresh reader sees. Runs on every face of the store."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from sessionstore import Message, Store, Tag, errors
from sessionstore.model import Changes
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, reply, texts, user


class Follower:
    """Somebody who knows a state and asks what has changed."""

    def __init__(self, store: Store, id: str = "c", limit: int = 3) -> None:
        self._store, self._id, self._limit = store, id, limit
        self.since: Tag | None = None
        self.messages: dict[str, Message] = {}
        self.resets = 0

    def catch_up(self) -> Changes:
        """Read the pages to the end."""
        place, begun = None, False
        while True:
            page = self._store.changes(self._id, self.since, next=place, limit=self._limit)
            if page.reset and not begun:
                self.messages.clear()
                self.resets += 1
            begun = True
            assert len(page.messages) <= self._limit
            for message in page.messages:
                self.messages[message.id] = message
            if page.next is None:
                self.since = page.since
                return page
            place = page.next

    @property
    def living(self) -> list[Message]:
        """What it would show."""
        alive = [message for message in self.messages.values() if message.status != "deleted"]
        return sorted(alive, key=lambda message: (message.position is None, message.position or 0, message.id))


def fresh(store: Store, id: str = "c") -> list[Message]:
    """What somebody sees who comes now."""
    placed = store.messages(id, limit=1000).items
    waiting = [item.message for item in store.inputs(id, limit=1000).items]
    return [*placed, *sorted(waiting, key=lambda message: message.id)]


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", messages=[user("hi", "m")])


def test_the_first_read_is_the_whole_state(store: Store) -> None:
    store.append("c", [user("gone", "gone"), user("kept", "kept")])
    store.delete_message("c", "gone")
    page = store.changes("c")
    assert (page.reset, page.next) == (True, None)
    assert [message.id for message in page.messages] == ["m", "kept"]
    assert page.since == store.get("c").tag == page.conversation.tag


def test_nothing_is_told_twice_and_nothing_left_out(store: Store) -> None:
    follower = Follower(store)
    follower.catch_up()
    assert follower.catch_up().messages == []
    store.append("c", [user("new", "new")])
    store.put("c", user("hi, edited", "m"))
    page = follower.catch_up()
    assert [(message.id, message.content) for message in page.messages] == [("new", "new"), ("m", "hi, edited")]
    assert follower.resets == 1


def test_deletions_are_told_as_tombstones(store: Store) -> None:
    follower = Follower(store)
    store.append("c", [user(n, f"n{n}") for n in range(5)])
    follower.catch_up()
    store.delete_message("c", "n1")
    store.truncate("c", after_position=2, through_position=4)
    page = follower.catch_up()
    assert {(message.id, message.status, message.content) for message in page.messages} <= {
        (f"n{n}", "deleted", None) for n in range(5)
    }
    assert follower.living == fresh(store)


def test_a_growing_reply_is_one_row(store: Store) -> None:
    store.acquire("c", "worker", token=TOKEN)
    follower = Follower(store)
    follower.catch_up()
    for n in range(20):
        store.put("c", reply("x" * n, "r", status="partial"), token=TOKEN)
    page = follower.catch_up()
    assert [(message.id, message.content) for message in page.messages] == [("r", "x" * 19)]
    store.release("c", token=TOKEN)
    assert [message.status for message in follower.catch_up().messages] == ["interrupted"]


def test_pages_within_one_version(store: Store) -> None:
    """Hundreds of messages that one truncate took: all of them have the same version."""
    store.append("c", [user(n, f"n{n}") for n in range(200)])
    follower = Follower(store, limit=7)
    follower.catch_up()
    store.truncate("c", after_position=-1, through_position=150)
    follower.catch_up()
    assert follower.living == fresh(store)
    assert len(follower.living) == 50


def test_what_the_first_page_showed_and_is_deleted_before_the_next_one_is_told(store: Store) -> None:
    store.append("c", [user(n, f"n{n}") for n in range(5)])
    store.queue_inputs("c", [user("k", "k")])
    store.delete_message("c", "n4")
    follower = Follower(store, limit=2)
    first = store.changes("c", limit=2)
    store.delete_message("c", "n0")
    store.cancel_input("c", "k")
    rest = store.changes("c", None, next=first.next, limit=100)
    # What was gone before is not worth a word, though.
    assert [message.id for message in rest.messages] == ["n1", "n2", "n3", "n0", "k"]
    follower.catch_up()
    assert follower.living == fresh(store)


def test_what_changes_between_two_pages_is_told_as_it_is_in_the_end(store: Store) -> None:
    store.append("c", [user(n, f"n{n}") for n in range(5)])
    first = store.changes("c", limit=2)
    assert first.next is not None
    store.put("c", user("edited", "n4"))
    store.delete_message("c", "n0")
    rest = store.changes("c", None, next=first.next, limit=100)
    assert [message.id for message in rest.messages] == ["n1", "n2", "n3", "n4", "n0"]
    assert (rest.messages[-2].content, rest.messages[-1].status) == ("edited", "deleted")
    assert [message.id for message in store.changes("c", rest.since).messages] == []


def test_an_input_is_told_when_it_waits_and_when_it_is_claimed(store: Store) -> None:
    follower = Follower(store)
    follower.catch_up()
    store.queue_inputs("c", [user("wait", "k")])
    assert [(message.id, message.status) for message in follower.catch_up().messages] == [("k", "queued")]
    store.append("c", [user("between", "b")])
    store.claim_inputs("c", ["k"])
    store.append("c", [user("after", "a")])
    page = follower.catch_up()
    assert {(message.id, message.position) for message in page.messages} == {("b", 1), ("k", 2), ("a", 3)}


def test_another_life_and_a_future_version_are_a_reset(store: Store) -> None:
    old = store.get("c").tag
    store.delete("c")
    with pytest.raises(errors.ConversationDeleted):
        store.changes("c", old)
    store.create("c", messages=[user("again", "n")], recreate=old.incarnation)
    page = store.changes("c", old)
    assert (page.reset, [message.id for message in page.messages]) == (True, ["n"])
    assert store.changes("c", page.since._replace(version=999)).reset
    with pytest.raises(errors.ConversationDeleted):
        store.changes("c", incarnation=old.incarnation)
    with pytest.raises(errors.ConversationNotFound):
        store.changes("unknown")


@pytest.mark.parametrize("seed", range(12))
def test_whoever_follows_sees_what_a_fresh_reader_sees(store: Store, clock: Clock, seed: int) -> None:
    """Anything happens, and followers ask now and then, in pages of different lengths."""
    chance = random.Random(seed)
    followers = [Follower(store, limit=limit) for limit in (1, 2, 50)]
    for number in range(60):
        with suppress(errors.SessionStoreError, StopIteration):
            chance.choice(anything(store, chance, f"x{number}"))()
        if chance.random() < 0.1:
            clock.advance(31_000)
        for follower in followers:
            if chance.random() < 0.3:
                follower.catch_up()
                assert follower.living == fresh(store)
    for follower in followers:
        follower.catch_up()
        assert follower.living == fresh(store)
        assert follower.resets == 1


def anything(store: Store, chance: random.Random, id: str) -> list[Callable[[], Any]]:
    """What may happen next, under a new id or to a message that is there."""
    there = chance.choice([message.id for message in store.messages("c", limit=1000).items] or ["m"])
    after, growing = chance.randrange(9), reply(id, "growing", status="partial")
    return [
        lambda: store.append("c", [user("a", id), user("b", id + "b")]),
        lambda: store.append("c", [user("a", id)], token=TOKEN),
        lambda: store.put("c", user(id, there)),
        lambda: store.put("c", growing, token=TOKEN),
        lambda: store.delete_message("c", there),
        lambda: store.truncate("c", after_position=after, through_position=after + 4),
        lambda: store.queue_inputs("c", [user("q", id)]),
        lambda: store.claim_inputs("c"),
        lambda: store.claim_inputs("c", token=TOKEN),
        lambda: store.cancel_input("c", next(iter(store.inputs("c").items)).message.id),
        lambda: store.acquire("c", "worker", token=TOKEN),
        lambda: store.acquire("c", "worker", token=id + OTHER_TOKEN, if_busy="rollback"),
        lambda: store.finish("c", [reply("end", id)], token=TOKEN),
        lambda: store.interrupt("c", force=True),
        lambda: store.label("c", title=id),
        lambda: store.label_message("c", there, {"n": id}),
    ]


def test_the_log_of_turns(store: Store, clock: Clock) -> None:
    for n in range(3):
        store.acquire("c", f"worker {n}", token=f"{TOKEN}{n}")
        clock.advance(1_000)
        store.renew("c", token=f"{TOKEN}{n}", phase="tools")
        if n < 2:
            store.finish("c", token=f"{TOKEN}{n}", usage={"out": n}, outcome="failed")
    page = store.generations("c", limit=2)
    assert [(turn.number, turn.holder, turn.phase, turn.outcome, turn.usage) for turn in page.items] == [
        (3, "worker 2", "tools", None, None), (2, "worker 1", "tools", "failed", {"out": 1})
    ]  # fmt: skip
    assert page.items[1].ended_at == page.items[1].acquired_at + 1_000
    rest = store.generations("c", before=page.next)
    assert ([turn.number for turn in rest.items], rest.next) == ([1], None)


def test_the_end_of_a_long_conversation_is_found_by_key(store: Store) -> None:
    store.append("c", [user(n) for n in range(900)])
    known = store.get("c").tag
    store.append("c", [user("new", "new")])
    assert [message.id for message in store.changes("c", known).messages] == ["new"]
    assert texts(store, "c")[-1] == "new"
