"""The generating lease: who has it, how it ends, and what an old holder can still do, which is nothing (cases L)."""

from collections.abc import Callable
from typing import Any

import pytest

from sessionstore import Store, errors
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, runs_changes, texts, user

THIRD_TOKEN = "token-of-the-third-holder-3"


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", messages=[user("hi", "hi")])


def test_a_turn_from_begin_to_end(store: Store, clock: Clock) -> None:
    turn = store.acquire("c", "worker-1", messages=[user("and?", "q")], ttl_ms=10_000).value
    assert (turn.generation, turn.expires_at) == (1, clock.now + 10_000)
    assert [(message.id, message.position, message.generation) for message in turn.messages] == [("q", 1, None)]
    saved = store.put("c", reply("He", "r", status="partial"), token=turn.token)
    assert saved.value.message.generation == 1
    assert saved.lease is not None
    assert (saved.lease.generation, saved.lease.interrupt_requested) == (1, False)
    finished = store.finish("c", [reply("Hello", "r")], token=turn.token, usage={"out": 2}).value
    assert finished.conversation.generation is None
    last = finished.conversation.last_generation
    assert last is not None
    assert (last.number, last.outcome, last.usage, last.ended_at) == (1, "completed", {"out": 2}, clock.now)
    assert texts(store, "c") == ["hi", "and?", "Hello"]


def test_l1_one_conversation_has_one_generator(store: Store, clock: Clock) -> None:
    store.acquire("c", "first", token=TOKEN)
    clock.advance(10_000)
    with pytest.raises(errors.Generating) as refused:
        store.acquire("c", "second", token=OTHER_TOKEN)
    error = refused.value
    assert (error.holder, error.generation, error.retry_after_ms) == ("first", 1, 20_000)


def guarded_calls(store: Store, token: str | None) -> list[Callable[[], Any]]:
    within: Callable[[], Any] = lambda: store.transact("c", lambda c: c.append([user("no")]), token=token)  # noqa: E731
    return [
        lambda: store.append("c", [user("no")], token=token),
        lambda: store.put("c", user("no", "hi"), token=token),
        lambda: store.put("c", user("no", "new"), token=token),
        lambda: store.label_message("c", "hi", {"no": 1}, token=token),
        lambda: store.delete_message("c", "hi", token=token),
        lambda: store.truncate("c", after_position=-1, through_position=9, token=token),
        lambda: store.fork("c", "f", token=token),
        lambda: store.delete("c", token=token),
        *([within] if runs_changes(store) else []),
    ]


def test_l2_nobody_else_changes_a_leased_conversation(store: Store, tables: Tables) -> None:
    store.acquire("c", "holder", token=TOKEN)
    before = tables.everything()
    for call in guarded_calls(store, None):
        with pytest.raises(errors.Generating):
            call()
    for call in guarded_calls(store, OTHER_TOKEN):
        with pytest.raises(errors.LeaseLost):
            call()
    for token in (None, OTHER_TOKEN):
        ends: list[Callable[..., Any]] = [store.renew, store.release, store.finish]
        for end in ends:
            with pytest.raises(errors.LeaseLost):
                end("c", token=token)
    assert tables.everything() == before


def test_l4_an_old_holder_is_out_also_under_the_same_name(store: Store, clock: Clock, tables: Tables) -> None:
    store.acquire("c", "same name", token=TOKEN, ttl_ms=1000)
    clock.advance(1000)
    taken = store.acquire("c", "same name", token=OTHER_TOKEN).value
    assert taken.generation == 2
    before = tables.everything()
    late: list[Callable[[], Any]] = [
        *guarded_calls(store, TOKEN),
        lambda: store.renew("c", token=TOKEN),
        lambda: store.release("c", token=TOKEN),
        lambda: store.finish("c", [reply("late", "r")], token=TOKEN, usage={"n": 1}),
        lambda: store.label("c", title="late", token=TOKEN),
        lambda: store.interrupt("c", token=TOKEN),
        lambda: store.fork("c", settled=True, token=TOKEN),
        lambda: store.delete("c", force=True, token=TOKEN),
    ]
    for call in late:
        with pytest.raises(errors.LeaseLost) as lost:
            call()
        assert (lost.value.generation, lost.value.outcome) == (1, "expired")
    assert tables.everything() == before


def test_l5_an_expired_lease_that_nobody_took_revives(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    clock.advance(60_000)
    shown = store.get("c").generation
    assert shown is not None
    assert shown.expired
    assert store.renew("c", token=TOKEN).value.expires_at == clock.now + 1000
    clock.advance(60_000)
    assert store.append("c", [reply("late but mine")], token=TOKEN).value[0].generation == 1


def test_l6_a_user_may_speak_after_the_lease_expired(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    clock.advance(1001)
    store.append("c", [user("hello?")])
    with pytest.raises(errors.LeaseLost):
        store.put("c", reply("whole", "r"), token=TOKEN)
    assert store.message("c", "r").status == "interrupted"
    assert texts(store, "c") == ["hi", "half", "hello?"]
    last = store.get("c").last_generation
    assert last is not None
    assert last.outcome == "expired"


def test_a_guarded_call_of_somebody_else_ends_an_expired_turn_for_good(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    clock.advance(1001)
    store.delete_message("c", "hi")
    assert store.get("c").generation is None
    with pytest.raises(errors.LeaseLost) as lost:
        store.renew("c", token=TOKEN)
    assert lost.value.outcome == "expired"


def test_a_partial_reply_becomes_complete_with_the_same_text(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    store.put("c", reply("all of it", "r", status="partial"), token=TOKEN)
    done = store.put("c", reply("all of it", "r"), token=TOKEN)
    assert (done.replayed, done.value.message.status) == (False, "complete")


def test_l7_a_dead_holder_is_taken_over_after_its_time(store: Store, clock: Clock) -> None:
    store.acquire("c", "dead", token=TOKEN, ttl_ms=1000)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    with pytest.raises(errors.Generating):
        store.acquire("c", "next")
    clock.advance(1001)
    assert store.acquire("c", "next").value.generation == 2
    assert (store.message("c", "r").status, store.message("c", "r").content) == ("interrupted", "half")


def test_l7_a_forced_interrupt_frees_at_once(store: Store) -> None:
    store.acquire("c", "dead", token=TOKEN)
    done = store.interrupt("c", force=True).value
    assert (done.state, done.conversation.generation) == ("ended", None)
    assert store.acquire("c", "next").value.generation == 2


def test_l8_an_interrupt_is_a_flag_that_every_answer_carries(store: Store) -> None:
    assert store.interrupt("c").value.state == "idle"
    store.acquire("c", "w", token=TOKEN)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    first, second = store.interrupt("c").value, store.interrupt("c").value
    assert (first.state, second.state) == ("requested", "requested")
    assert first.conversation.version == second.conversation.version
    for lease in (store.renew("c", token=TOKEN).lease, store.append("c", [user("x")], token=TOKEN).lease):
        assert lease is not None
        assert lease.interrupt_requested
    assert store.message("c", "r").status == "partial"


def test_l21_a_late_interrupt_leaves_the_next_turn_alone(store: Store, clock: Clock, tables: Tables) -> None:
    store.acquire("c", "w", token=TOKEN)
    store.release("c", token=TOKEN)
    store.acquire("c", "v", token=OTHER_TOKEN, ttl_ms=1000)
    before = tables.everything()
    assert store.interrupt("c", generation=1, force=True).value.state == "idle"
    assert tables.everything() == before
    clock.advance(2000)
    assert store.interrupt("c").value.state == "ended"
    with pytest.raises(errors.LeaseLost):
        store.renew("c", token=OTHER_TOKEN)


def test_l10_looking_changes_nothing(store: Store, clock: Clock, tables: Tables) -> None:
    store.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    clock.advance(2000)
    before = tables.everything()
    store.get("c"), store.messages("c"), store.message("c", "hi"), store.conversations(), store.leases()
    assert tables.everything() == before


def test_l13_an_acquire_whose_answer_was_lost_is_the_same_turn(store: Store, clock: Clock) -> None:
    first = store.acquire("c", "w", token=TOKEN, messages=[user("q", "q"), user("no id")])
    clock.advance(5000)
    again = store.acquire("c", "w", token=TOKEN, messages=[user("q", "q"), user("no id")])
    assert (again.replayed, again.value.generation, again.value.messages) == (True, 1, first.value.messages)
    assert again.value.expires_at == clock.now + 30_000
    assert texts(store, "c") == ["hi", "q", "no id"]
    for other in ([user("something else", "q"), user("no id")], [user("hello")], [user("hello", "new")], []):
        with pytest.raises(errors.TokenUsed):
            store.acquire("c", "w", token=TOKEN, messages=other)
    assert texts(store, "c") == ["hi", "q", "no id"]


def test_an_acquire_with_a_precondition_is_judged_in_order(store: Store) -> None:
    """Own token, ended token, somebody else's lease; only then the precondition (found by review)."""
    seen = store.get("c").tag
    store.acquire("c", "w", token=TOKEN, if_match=seen)
    assert store.acquire("c", "w", token=TOKEN, if_match=seen).replayed
    with pytest.raises(errors.Generating):
        store.acquire("c", "v", token=OTHER_TOKEN, if_match=seen)
    store.release("c", token=TOKEN)
    with pytest.raises(errors.LeaseLost):
        store.acquire("c", "w", token=TOKEN, if_match=seen)
    with pytest.raises(errors.PreconditionFailed):
        store.acquire("c", "v", token=OTHER_TOKEN, if_match=seen)


def test_l14_a_refused_acquire_leaves_no_lease(store: Store) -> None:
    with pytest.raises(errors.InvalidInput):
        store.acquire("c", "w", messages=[user("x", role="Not A Role")])
    store.put("c", user("taken", "m"))
    with pytest.raises(errors.MessageExists):
        store.acquire("c", "w", messages=[user("other", "m")])
    assert store.get("c").generation is None
    with pytest.raises(errors.ConversationNotFound):
        store.acquire("unknown", "w")


def test_l15_busy_can_mean_interrupt(store: Store) -> None:
    store.acquire("c", "first", token=TOKEN)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    assert store.acquire("c", "second", if_busy="interrupt").value.generation == 2
    assert store.message("c", "r").status == "interrupted"
    with pytest.raises(errors.LeaseLost) as lost:
        store.append("c", [user("late")], token=TOKEN)
    assert lost.value.outcome == "interrupted"


def take_over(store: Store, clock: Clock) -> None:
    clock.advance(30_001)
    store.acquire("c", "other", token=OTHER_TOKEN)


ENDS: dict[str, Callable[[Store, Clock], Any]] = {
    "finish": lambda store, _: store.finish("c", token=TOKEN),
    "release": lambda store, _: store.release("c", token=TOKEN),
    "forced interrupt": lambda store, _: store.interrupt("c", force=True),
    "takeover": lambda store, clock: take_over(store, clock),
    "revoked by a busy other": lambda store, _: store.acquire("c", "other", token=OTHER_TOKEN, if_busy="interrupt"),
}


@pytest.mark.parametrize("end", ENDS)
def test_l17_a_token_serves_one_turn_for_ever(store: Store, clock: Clock, tables: Tables, end: str) -> None:
    store.acquire("c", "w", token=TOKEN)
    ENDS[end](store, clock)
    before = tables.everything()
    with pytest.raises(errors.LeaseLost):
        store.acquire("c", "w", token=TOKEN)
    assert tables.everything() == before


@pytest.mark.parametrize("end", ENDS)
def test_l22_every_end_interrupts_what_is_partial(store: Store, clock: Clock, end: str) -> None:
    store.acquire("c", "w", token=TOKEN)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    ENDS[end](store, clock)
    assert store.message("c", "r").status == "interrupted"


def test_l18_a_finish_whose_answer_was_lost_is_answered_again(store: Store, tables: Tables) -> None:
    store.acquire("c", "w", token=TOKEN)
    store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    drafts = [reply("whole", "r"), user("unnamed one"), user("named", "n"), user("unnamed two")]
    first = store.finish("c", drafts, token=TOKEN, usage={"out": 1})
    before = tables.everything()
    again = store.finish("c", drafts, token=TOKEN, usage={"out": 1})
    assert (again.replayed, again.value) == (True, first.value)
    for changed in ({"usage": {"out": 2}}, {"outcome": "failed"}, {"messages": [reply("other", "r")]}):
        arguments: dict[str, Any] = {"messages": drafts, "usage": {"out": 1}, **changed}
        with pytest.raises(errors.LeaseLost) as lost:
            store.finish("c", token=TOKEN, **arguments)
        assert (lost.value.outcome, lost.value.ended_at) == ("completed", first.value.conversation.updated_at)
    assert tables.everything() == before

    other = store.acquire("c", "other", token=OTHER_TOKEN).value
    assert store.finish("c", drafts, token=TOKEN, usage={"out": 1}).value.messages == first.value.messages
    assert store.renew("c", token=OTHER_TOKEN).value.generation == other.generation


def test_l18_a_release_whose_answer_was_lost_is_answered_again(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    assert not store.release("c", token=TOKEN).replayed
    assert store.release("c", token=TOKEN).replayed
    with pytest.raises(errors.LeaseLost):
        store.finish("c", token=TOKEN)


def test_finish_saves_and_ends_together_or_not_at_all(store: Store, tables: Tables) -> None:
    store.put("c", user("done", "m"))
    store.acquire("c", "w", token=TOKEN)
    before = tables.everything()
    with pytest.raises(errors.MessageComplete):
        store.finish("c", [reply("good", "r"), user("again", "m", status="partial")], token=TOKEN)
    assert tables.everything() == before


def test_a_clock_that_stepped_back_locks_nobody_out(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN)
    clock.advance(-3 * 3_600_000)
    shown = store.get("c").generation
    assert shown is not None
    assert shown.expired
    assert store.renew("c", token=TOKEN).value.expires_at == clock.now + 30_000
    clock.advance(-3 * 3_600_000)
    assert store.acquire("c", "next").value.generation == 2


def test_a_phase_is_told_once_and_a_bare_renewal_raises_no_version(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN)
    version = store.get("c").version
    clock.advance(1000)
    assert store.renew("c", token=TOKEN).value.conversation.version == version
    told = store.renew("c", token=TOKEN, phase="calling a tool", ttl_ms=5000).value
    assert (told.conversation.version, told.ttl_ms, told.expires_at) == (version + 1, 5000, clock.now + 5000)
    assert store.renew("c", token=TOKEN, phase="calling a tool").value.conversation.version == version + 1


def test_every_call_of_the_holder_renews(store: Store, clock: Clock) -> None:
    store.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    store.put("c", reply("a", "r", status="partial"), token=TOKEN)
    calls: list[Callable[[], Any]] = [
        lambda: store.append("c", [user("x")], token=TOKEN),
        lambda: store.put("c", reply("a", "r", status="partial"), token=TOKEN),
        lambda: store.label("c", title="t", token=TOKEN),
        lambda: store.fork("c", "f", token=TOKEN),
    ]
    for call in calls:
        clock.advance(999)
        assert call().lease.expires_at == clock.now + 1000
        assert [turn.generation.expires_at for turn in store.leases() if turn.generation] == [clock.now + 1000]


@pytest.mark.parametrize("ttl", [0, 999, 3_600_001, -1, True, "1000"])
def test_an_impossible_time_to_live_is_refused(store: Store, ttl: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        store.acquire("c", "w", ttl_ms=ttl)


@pytest.mark.parametrize("token", ["short", "x" * 201, "has white space in the middle", "ünïcode-" * 4, ""])
def test_a_token_that_can_be_guessed_is_refused(store: Store, token: str) -> None:
    for call in (lambda: store.acquire("c", "w", token=token), lambda: store.append("c", [user("x")], token=token)):
        with pytest.raises(errors.InvalidInput):
            call()


def test_tokens_are_stored_hashed_and_never_printed(store: Store, tables: Tables) -> None:
    turn = store.acquire("c", "w", token=TOKEN).value
    assert TOKEN not in str(tables.everything())
    assert TOKEN not in repr(turn)
    assert turn.token == TOKEN


def test_generation_numbers_rise_over_all_conversations_and_lives(store: Store) -> None:
    numbers = []
    life = store.get("c").incarnation
    for _ in range(3):
        numbers.append(store.acquire("c", "w").value.generation)
        store.delete("c", force=True)
        life = store.create("c", recreate=life).value.conversation.incarnation
    assert numbers == sorted(set(numbers))
