"""Inputs that wait while somebody generates: cases I1 to I7, L15, L23. Runs on every face of the store."""

import threading
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Limits, Store, errors
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, texts, user


@pytest.fixture(autouse=True)
def generating(store: Store) -> None:
    store.create("c", messages=[user("hi", "m")])
    store.acquire("c", "worker", token=TOKEN)


def waiting(store: Store) -> list[Any]:
    return [item.message.content for item in store.inputs("c").items]


def test_inputs_wait_outside_of_the_transcript_and_the_holder_is_told(store: Store) -> None:
    queued = store.queue_inputs("c", [user("one", "k"), user("two")], mode="steer").value
    assert [(message.status, message.position, message.generation) for message in queued] == [("queued", None, None)] * 2
    store.queue_inputs("c", [user("three")])
    page = store.inputs("c")
    assert [(item.message.content, item.mode) for item in page.items] == [
        ("one", "steer"), ("two", "steer"), ("three", "follow_up")
    ]  # fmt: skip
    assert texts(store, "c") == ["hi"]
    conversation = store.get("c")
    assert (conversation.queued_inputs, conversation.message_count, conversation.version) == (3, 1, 4)
    lease = store.renew("c", token=TOKEN).lease
    assert lease is not None
    assert lease.queued_inputs == 3


def test_pages_of_inputs(store: Store) -> None:
    store.queue_inputs("c", [user(n) for n in range(5)])
    seen, after = [], None
    while True:
        page = store.inputs("c", after=after, limit=2)
        seen += [item.message.content for item in page.items]
        if page.next is None:
            break
        after = page.next
    assert seen == list(range(5))


def test_i1_an_input_is_queued_once_whatever_became_of_it(store: Store, tables: Tables) -> None:
    first = store.queue_inputs("c", [user("k", "k")])
    again = store.queue_inputs("c", [user("k", "k")])
    assert (first.replayed, again.replayed, again.value) == (False, True, first.value)
    with pytest.raises(errors.MessageExists):
        store.queue_inputs("c", [user("other", "k")])
    store.claim_inputs("c", ["k"], token=TOKEN)
    claimed = store.queue_inputs("c", [user("k", "k")])
    assert (claimed.replayed, claimed.value[0].position) == (True, 1)
    store.queue_inputs("c", [user("x", "x")])
    store.cancel_input("c", "x")
    before = tables.everything()
    with pytest.raises(errors.MessageDeleted):
        store.queue_inputs("c", [user("x", "x")])
    assert tables.everything() == before


def test_i2_the_queue_has_an_end_and_a_call_is_all_or_none(url: str, clock: Clock, tables: Tables) -> None:
    with Store.open(url, clock=clock, limits=Limits(queued_inputs=3)) as store:
        store.queue_inputs("c", [user("one", "one")])
        before = tables.everything()
        three = [user(n, f"n{n}") for n in range(3)]
        with pytest.raises(errors.InputsFull) as full:
            store.queue_inputs("c", three)
        assert (full.value.queued_inputs, full.value.sent) == (1, 3)
        assert tables.everything() == before
        store.claim_inputs("c", token=TOKEN)
        store.queue_inputs("c", three)
        assert store.queue_inputs("c", three).replayed
        assert waiting(store) == [0, 1, 2]


def test_i3_a_finish_unless_inputs_keeps_the_lease_and_nothing_is_lost(store: Store) -> None:
    store.queue_inputs("c", [user("wait", "k")])
    with pytest.raises(errors.InputsPending):
        store.finish("c", token=TOKEN, unless_inputs=True)
    store.claim_inputs("c", ["k"], token=TOKEN)
    store.finish("c", token=TOKEN, unless_inputs=True)
    store.queue_inputs("c", [user("late")])
    assert [message.content for message in store.claim_inputs("c").value] == ["late"]
    assert texts(store, "c") == ["hi", "wait", "late"]


def test_i4_inputs_are_in_the_file(store: Store, url: str) -> None:
    store.queue_inputs("c", [user("kept")])
    with Store.open(url) as another:
        assert waiting(another) == ["kept"]


def test_i5_claim_and_cancel_of_one_input(plain: Store) -> None:
    for number in range(20):
        plain.queue_inputs("c", [user(number, f"k{number}")])
        barrier, won = threading.Barrier(2), list[str]()

        def attempt(name: str, action: Any) -> None:
            barrier.wait()
            try:
                action()
                won.append(name)
            except (errors.InputClaimed, errors.MessageDeleted):
                pass

        id = f"k{number}"
        rivals = [
            threading.Thread(target=attempt, args=("claim", lambda: plain.claim_inputs("c", [id], token=TOKEN))),
            threading.Thread(target=attempt, args=("cancel", lambda: plain.cancel_input("c", id))),
        ]
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join()
        assert len(won) == 1
        assert (number in texts(plain, "c")) == (won == ["claim"])
    assert plain.get("c").queued_inputs == 0
    assert plain.get("c").message_count == len(texts(plain, "c"))


def test_i6_a_claim_whose_answer_was_lost_is_answered_again(store: Store, tables: Tables) -> None:
    store.queue_inputs("c", [user("one", "one"), user("two", "two")])
    first = store.claim_inputs("c", ["two", "one"], token=TOKEN)
    assert [(message.content, message.position, message.generation) for message in first.value] == [
        ("two", 1, 1), ("one", 2, 1)
    ]  # fmt: skip
    before = tables.rows("SELECT * FROM messages ORDER BY pk")
    again = store.claim_inputs("c", ["two", "one"], token=TOKEN)
    assert (again.replayed, again.value) == (True, first.value)
    assert tables.rows("SELECT * FROM messages ORDER BY pk") == before
    store.finish("c", token=TOKEN, unless_inputs=True)


def test_i7_what_was_appended_is_not_queued_as_well(store: Store) -> None:
    store.finish("c", token=TOKEN)
    store.append("c", [user("said", "u")])
    store.acquire("c", "another", token=OTHER_TOKEN)
    queued = store.queue_inputs("c", [user("said", "u")])
    assert (queued.replayed, queued.value[0].position) == (True, 1)
    assert store.get("c").queued_inputs == 0


def test_claims_are_all_or_none_and_guarded(store: Store, tables: Tables) -> None:
    store.queue_inputs("c", [user("one", "one"), user("gone", "gone")])
    store.cancel_input("c", "gone")
    before = tables.everything()
    for ids, error in (
        (["one", "unknown"], errors.MessageNotFound),
        (["one", "gone"], errors.MessageDeleted),
        (["one", "m"], errors.MessageNotFound),
        ([], errors.InvalidInput),
        (["one", "one"], errors.InvalidInput),
    ):
        with pytest.raises(error):
            store.claim_inputs("c", ids, token=TOKEN)
    with pytest.raises(errors.Generating):
        store.claim_inputs("c")
    with pytest.raises(errors.LeaseLost):
        store.claim_inputs("c", token=OTHER_TOKEN)
    assert tables.everything()["messages"] == before["messages"]
    store.claim_inputs("c", ["one"], token=TOKEN)
    store.finish("c", token=TOKEN)
    store.acquire("c", "another", token=OTHER_TOKEN)
    with pytest.raises(errors.InputClaimed):
        store.claim_inputs("c", ["one"], token=OTHER_TOKEN)


def test_cancelling_what_is_no_input(store: Store) -> None:
    for message_id, error in (("unknown", errors.MessageNotFound), ("m", errors.MessageNotFound)):
        with pytest.raises(error):
            store.cancel_input("c", message_id)
    store.queue_inputs("c", [user("x", "x")])
    store.cancel_input("c", "x")
    with pytest.raises(errors.MessageDeleted):
        store.cancel_input("c", "x")


def test_the_transcripts_own_mutations_leave_inputs_alone(store: Store) -> None:
    store.queue_inputs("c", [user("waits", "k")])
    for call in (
        lambda: store.append("c", [user("waits", "k")], token=TOKEN),
        lambda: store.put("c", reply("no", "k"), token=TOKEN),
        lambda: store.delete_message("c", "k", token=TOKEN),
    ):
        with pytest.raises(errors.MessageQueued):
            call()
    store.truncate("c", after_position=-1, through_position=99, token=TOKEN)
    assert waiting(store) == ["waits"]
    store.finish("c", token=TOKEN)
    store.fork("c", "f")
    assert store.get("f").queued_inputs == 0


def test_deletion_takes_inputs_along(store: Store, tables: Tables) -> None:
    store.queue_inputs("c", [user("secret")])
    store.delete("c", token=TOKEN)
    assert tables.one("SELECT count(*) FROM messages") == 0
    assert tables.one("SELECT queued_count FROM conversations") == 0


def test_l15_an_interrupting_acquire_keeps_and_a_rollback_undoes(store: Store) -> None:
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    store.acquire("c", "second", token=OTHER_TOKEN, if_busy="interrupt")
    assert [(message.content, message.status) for message in store.messages("c").items] == [
        ("hi", "complete"), ("half", "interrupted")
    ]  # fmt: skip
    store.append("c", [reply("of the second")], token=OTHER_TOKEN)
    store.acquire("c", "third", token=TOKEN[::-1], if_busy="rollback")
    assert texts(store, "c") == ["hi", "half"]
    for lost in (TOKEN, OTHER_TOKEN):
        with pytest.raises(errors.LeaseLost):
            store.append("c", [reply("late")], token=lost)
    assert store.get("c").message_count == 2


def test_l23_a_rollback_lets_claimed_inputs_wait_again_and_keeps_what_is_older(store: Store) -> None:
    store.finish("c", token=TOKEN)
    store.acquire("c", "worker", token=OTHER_TOKEN, messages=[user("the question")])
    store.queue_inputs("c", [user("steer one", "one"), user("steer two", "two")], mode="steer")
    store.claim_inputs("c", ["one"], token=OTHER_TOKEN)
    store.put("c", user("hi, edited", "m"), token=OTHER_TOKEN)
    store.append("c", [reply("an answer", "a")], token=OTHER_TOKEN)
    store.acquire("c", "next", token=TOKEN[::-1], if_busy="rollback")
    assert texts(store, "c") == ["hi, edited", "the question"]
    assert waiting(store) == ["steer one", "steer two"]
    conversation = store.get("c")
    assert (conversation.message_count, conversation.queued_inputs) == (2, 2)
    again = store.claim_inputs("c", token=TOKEN[::-1]).value
    assert [(message.content, message.position) for message in again] == [("steer one", 4), ("steer two", 5)]


def test_an_expired_turn_is_not_rolled_back(store: Store, clock: Clock) -> None:
    """It is not busy: what it had saved is kept."""
    store.append("c", [reply("saved")], token=TOKEN)
    clock.advance(31_000)
    store.acquire("c", "next", token=OTHER_TOKEN, if_busy="rollback")
    assert texts(store, "c") == ["hi", "saved"]


def test_inputs_are_seen_from_sql(store: Store, path: Path, tables: Tables) -> None:
    store.queue_inputs("c", [user("wait", "k")], mode="steer")
    assert tables.rows("SELECT conversation_id, message_id, mode, content FROM v_inputs") == [("c", "k", "steer", '"wait"')]
