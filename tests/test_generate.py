"""`generate`: a turn that is kept, told when to stop, and ended in one way or another. Runs on every face of the store."""

from collections.abc import Iterator
from typing import Any

import pytest

from sessionstore import Store, errors
from tests.conftest import TOKEN, Clock, reply, texts, user

# So long that no renewal of its own tells a turn what somebody else has to tell it.
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", messages=[user("hi", "m")])


@pytest.fixture
def elsewhere(url: str, clock: Clock) -> Iterator[Store]:
    """Another process's store, as good as."""
    with Store.open(url, clock=clock) as opened:
        yield opened


def last_outcome(store: Store, id: str = "c") -> Any:
    last = store.get(id).last_generation
    return None if last is None else last.outcome


def test_a_turn_from_begin_to_end(store: Store) -> None:
    with store.generate("c", "worker", messages=[user("Any basil?", "q")]) as turn:
        assert [message.id for message in turn.messages] == ["q"]
        generation = store.get("c").generation
        assert generation is not None
        assert (generation.number, generation.holder, turn.generation) == (turn.generation, "worker", generation.number)
        for text in ("Let", "Let me", "Let me see"):
            saved = turn.save("r", text)
            assert (saved.content, saved.status, saved.generation) == (text, "partial", turn.generation)
        turn.append([user({"packets": 4}, "t", role="tool")])
        assert turn.inputs() == []
        assert not turn.interrupted
    assert [(message.id, message.status) for message in store.messages("c").items] == [
        ("m", "complete"), ("q", "complete"), ("r", "complete"), ("t", "complete"),
    ]  # fmt: skip
    assert (last_outcome(store), store.get("c").generation) == ("completed", None)


def test_finish_says_how_it_went(store: Store) -> None:
    with store.generate("c", "worker", token=TOKEN) as turn:
        turn.save("r", "half")
        finished = turn.finish([reply("end", "e")], usage={"output_tokens": 3}, outcome="waiting")
        assert finished.conversation.last_generation is not None
        assert finished.conversation.last_generation.usage == {"output_tokens": 3}
        with pytest.raises(errors.LeaseLost):
            turn.save("r", "too late")
    assert [(message.id, message.status) for message in store.messages("c").items][1:] == [
        ("r", "interrupted"),
        ("e", "complete"),
    ]
    assert last_outcome(store) == "waiting"
    assert not turn.interrupted


def test_what_was_saved_as_complete_is_not_saved_again(store: Store) -> None:
    with store.generate("c", "worker") as turn:
        turn.save("r", "half", metadata={"n": 1})
        whole = turn.save("r", "whole", status="complete")
    stored = store.message("c", "r")
    assert (stored.content, stored.metadata, stored.version) == ("whole", {"n": 1}, whole.version)


def test_an_exception_marks_the_turn_as_failed_and_goes_on(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.generate("c", "worker") as turn:
        turn.save("r", "half")
        raise ZeroDivisionError
    assert (last_outcome(store), store.message("c", "r").status) == ("failed", "interrupted")


def test_whoever_is_stopped_from_outside_was_interrupted(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt), store.generate("c", "worker") as turn:
        turn.save("r", "half")
        raise KeyboardInterrupt
    assert (last_outcome(store), store.message("c", "r").status) == ("interrupted", "interrupted")


def test_one_turn_at_a_time(store: Store) -> None:
    with pytest.raises(errors.LeaseLost), store.generate("c", "worker", token=TOKEN, ttl_ms=HOUR) as turn:
        with pytest.raises(errors.Generating), store.generate("c", "other", messages=[user("me too")]):
            pytest.fail("two turns at once")
        turn.save("r", "half")
        with store.generate("c", "other", if_busy="interrupt") as other:
            assert turn.stopped.wait(30)
            assert isinstance(turn.lost, errors.LeaseLost)
            assert other.generation > turn.generation
            with pytest.raises(errors.LeaseLost):
                turn.save("r", "stale")
            other.save("s", "newer")
        assert texts(store, "c") == ["hi", "half", "newer"]


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_l8_a_request_to_stop_is_heard_without_a_call(store: Store, elsewhere: Store, who: str) -> None:
    asking = store if who == "this process" else elsewhere
    with store.generate("c", "worker", ttl_ms=HOUR) as turn:
        turn.save("r", "half")
        assert not turn.stopped.is_set()
        asking.interrupt("c")
        assert turn.stopped.wait(30)
        assert (turn.interrupted, turn.lost) == (True, None)
        turn.save("r", "half, and a bit")
    assert (last_outcome(store), store.message("c", "r").status) == ("interrupted", "interrupted")
    assert store.message("c", "r").content == "half, and a bit"


def test_l15_a_forced_end_is_told_at_once_and_raised_at_the_next_call(store: Store, elsewhere: Store) -> None:
    with pytest.raises(errors.LeaseLost) as lost, store.generate("c", "worker", ttl_ms=HOUR) as turn:
        elsewhere.interrupt("c", force=True)
        assert turn.stopped.wait(30)
        with pytest.raises(errors.LeaseLost):
            turn.inputs()
        turn.append([user("stale")])
    assert (lost.value.outcome, texts(store, "c")) == ("interrupted", ["hi"])


def test_a_turn_that_was_lost_does_not_end_as_if_nothing_were(store: Store, elsewhere: Store) -> None:
    with pytest.raises(errors.LeaseLost), store.generate("c", "worker", ttl_ms=HOUR) as turn:
        elsewhere.interrupt("c", force=True)
        assert turn.stopped.wait(30)


def test_a_deletion_ends_the_turn(store: Store, elsewhere: Store) -> None:
    with pytest.raises(errors.ConversationDeleted), store.generate("c", "worker", ttl_ms=HOUR) as turn:
        elsewhere.delete("c", force=True)
        assert turn.stopped.wait(30)
        turn.save("r", "back from the dead")
    with pytest.raises(errors.ConversationDeleted):
        store.get("c")


def test_an_error_of_the_callers_own_outlives_a_lost_turn(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.generate("c", "worker", ttl_ms=HOUR) as turn:
        store.interrupt("c", force=True)
        assert turn.stopped.wait(30)
        raise ZeroDivisionError


def test_inputs_come_into_the_transcript_when_they_are_asked_for(store: Store, elsewhere: Store) -> None:
    with store.generate("c", "worker") as turn:
        elsewhere.queue_inputs("c", [user("And mint?", "k")], mode="steer")
        turn.save("r", "Four")
        assert [message.id for message in turn.inputs()] == ["k"]
        assert turn.inputs() == []
        elsewhere.queue_inputs("c", [user("And dill?", "l")])
        with pytest.raises(errors.InputsPending):
            turn.finish(unless_inputs=True)
        assert [message.id for message in turn.inputs()] == ["l"]
        turn.finish(unless_inputs=True)
    assert texts(store, "c") == ["hi", "Four", "And mint?", "And dill?"]


def test_a_reply_of_an_earlier_turn_grows_on(store: Store) -> None:
    with store.generate("c", "worker") as turn:
        turn.save("r", "half")
        turn.finish(outcome="interrupted")
    with store.generate("c", "worker") as turn:
        turn.save("r", "half, and a half")
    assert [(message.id, message.content, message.status) for message in store.messages("c").items][1:] == [
        ("r", "half, and a half", "complete")
    ]


def test_what_is_stored_already_is_saved(store: Store) -> None:
    with store.generate("c", "worker", token=TOKEN) as turn:
        store.put("c", reply("same", "r", status="partial"), token=TOKEN)
        assert turn.save("r", "same").content == "same"
        store.put("c", reply("other", "r", status="partial"), token=TOKEN)
        with pytest.raises(errors.PreconditionFailed):
            turn.save("r", "lost between two writers of one holder")


def test_what_cannot_be_a_turn_is_refused(store: Store) -> None:
    with pytest.raises(errors.InvalidInput):
        store.generate("c", "worker", ttl_ms=1)
    with pytest.raises(errors.InvalidInput), store.generate("c", ""):
        pytest.fail("a holder without a name")
    with pytest.raises(errors.ConversationNotFound), store.generate("unknown", "worker"):
        pytest.fail("a turn in nothing")


def test_a_lease_that_ran_out_is_revived_by_itself(store: Store, clock: Clock) -> None:
    with store.generate("c", "worker") as turn, store.events("c") as events:
        next(events)
        clock.advance(31_000)
        while (generation := next(events).conversation.generation) is None or generation.expired:
            pass
        assert not turn.interrupted
