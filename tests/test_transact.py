"""The door: several mutations in one transaction, and every way in which a change can go wrong."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sessionstore import AsyncStore, GuardedConversation, Limits, Store, errors
from sessionstore.drafts import prepare_all
from sessionstore.store import UNGUARDED
from sessionstore.unguarded import UnguardedConversation
from tests.conftest import TOKEN, Clock, Tables, face, in_line, reply, texts, user


@pytest.fixture(params=["Store", "AsyncStore"])
def store(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Store]:
    """The faces in the database's own process: no other one can run a caller's function in a transaction."""
    with face(request.param, url, clock) as opened:
        yield opened


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", messages=[user("hi", "hi")])


def test_several_mutations_are_one_version(store: Store) -> None:
    def change(conversation: GuardedConversation) -> str:
        conversation.append([user("a", "a")])
        conversation.put(user("edited", "hi"))
        conversation.delete_message("a")
        return "done"

    assert store.transact("c", change).value == "done"
    assert (store.get("c").version, texts(store, "c")) == (2, ["edited"])


def test_a_change_that_raises_leaves_nothing(store: Store, tables: Tables) -> None:
    before = tables.everything()

    def change(conversation: GuardedConversation) -> None:
        conversation.append([user("a")])
        raise RuntimeError("of the caller")

    with pytest.raises(RuntimeError, match="of the caller"):
        store.transact("c", change)
    assert tables.everything() == before
    assert store.append("c", [user("next")]).value[0].position == 1


def test_a_mutation_that_raised_dooms_the_change_even_if_caught(store: Store, tables: Tables) -> None:
    before = tables.everything()

    def change(conversation: GuardedConversation) -> None:
        conversation.append([user("a")])
        try:
            conversation.append([user("other", "hi")])
        except errors.MessageExists:
            conversation.append([user("b")])

    with pytest.raises(errors.MessageExists):
        store.transact("c", change)
    assert tables.everything() == before


def test_a_store_call_inside_a_change_is_refused(store: Store, plain: Store, tables: Tables) -> None:
    before = tables.everything()
    for call in (lambda: plain.append("c", [user("x")]), lambda: plain.get("c"), lambda: plain.create("d")):
        with pytest.raises(errors.Nested):
            plain.transact("c", lambda _, call=call: call())  # type: ignore[misc]
    assert tables.everything() == before


def test_a_change_that_waits_is_refused(store: Store, tables: Tables) -> None:
    before = tables.everything()

    async def change(conversation: GuardedConversation) -> None:
        conversation.append([user("never")])

    with pytest.raises(errors.Awaitable):
        store.transact("c", change)
    assert tables.everything() == before


def test_the_conversation_of_a_change_is_dead_after_it(store: Store) -> None:
    kept: list[GuardedConversation] = []
    store.transact("c", kept.append)
    with pytest.raises(errors.Dead):
        kept[0].append([user("too late")])


def test_the_conversation_of_a_change_that_raised_is_dead_as_well(store: Store, tables: Tables) -> None:
    """It would write past the lease (found by review)."""
    kept: list[GuardedConversation] = []

    def change(conversation: GuardedConversation) -> None:
        kept.append(conversation)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.transact("c", change)
    store.acquire("c", "w", token=TOKEN)
    before = tables.everything()
    calls: list[Any] = [
        lambda: kept[0].append([user("sneaked in")]),
        lambda: kept[0].append_all(prepare_all([user("sneaked in")], Limits())),
        lambda: kept[0].view(),
    ]
    for call in calls:
        with pytest.raises(errors.Dead):
            call()
    assert tables.everything() == before


@pytest.mark.parametrize(
    "mutation",
    [
        lambda c: c.renew(ttl_ms=10**12),
        lambda c: c.renew(ttl_ms=-5),
        lambda c: c.renew(phase="\0"),
        lambda c: c.renew(phase="\ud800"),
        lambda c: c.finish(outcome="bogus"),
        lambda c: c.finish(usage="not an object"),
        lambda c: c.delete_message("\ud800"),
        lambda c: c.delete_message([]),
        lambda c: c.label_message("hi", []),
        lambda c: c.truncate(2**70, 2**70),
        lambda c: c.truncate(None, 2),
        lambda c: c.delete("casscade"),
        lambda c: c.fork("a/b"),
        lambda c: c.append([{}]),
        lambda c: c.append(None),
        lambda c: c.put(None),
        lambda c: c.put(reply("p", "m", status="lost")),
    ],
    # Not by what they are called, which has the place in memory in it and differs in each process.
    ids=map(str, itertools.count()),
)
def test_a_mutation_inside_a_change_checks_its_input_too(store: Store, tables: Tables, mutation: Any) -> None:
    store.acquire("c", "w", token=TOKEN)
    before = tables.everything()
    with pytest.raises(errors.InvalidInput):
        store.transact("c", mutation, token=TOKEN)
    assert tables.everything() == before


def test_a_change_without_the_token_ends_no_turn_and_stores_nothing_partial(store: Store) -> None:
    calls: list[Any] = [lambda c: c.finish(), lambda c: c.release(), lambda c: c.renew()]
    for call in calls:
        with pytest.raises(errors.LeaseLost):
            store.transact("c", call)
    with pytest.raises(errors.InvalidInput):
        store.transact("c", lambda conversation: conversation.put(reply("p", "m", status="partial")))


def test_a_caught_refusal_after_a_delete_undoes_the_delete(store: Store) -> None:
    def change(conversation: GuardedConversation) -> None:
        conversation.delete()
        with contextlib.suppress(errors.ConversationDeleted):
            conversation.append([user("after the end")])

    with pytest.raises(errors.ConversationDeleted):
        store.transact("c", change)
    assert texts(store, "c") == ["hi"]


def test_a_store_call_on_another_store_inside_a_change_is_refused(plain: Store, url: str) -> None:
    with Store.open(url) as another, pytest.raises(errors.Nested):
        plain.transact("c", lambda _: another.get("c"))


def test_nothing_follows_a_delete_inside_a_change(store: Store) -> None:
    def change(conversation: GuardedConversation) -> None:
        conversation.delete()
        conversation.append([user("after the end")])

    with pytest.raises(errors.ConversationDeleted):
        store.transact("c", change)
    assert texts(store, "c") == ["hi"]


def test_the_lease_is_judged_before_the_change_runs(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    ran: list[Any] = []
    with pytest.raises(errors.Generating):
        store.transact("c", ran.append)
    with pytest.raises(errors.PreconditionFailed):
        store.transact("c", ran.append, token=TOKEN, if_match=store.get("c").tag._replace(version=1))
    assert ran == []


def test_a_whole_turn_fits_in_one_change(store: Store) -> None:
    store.acquire("c", "w", token=TOKEN)
    finished = store.transact("c", lambda conversation: conversation.finish([reply("r", "r")]), token=TOKEN)
    assert (finished.lease, finished.value.conversation.generation) == (None, None)
    assert store.message("c", "r").generation == 1


def test_the_clock_is_read_after_the_lock_is_held(plain: Store, clock: Clock) -> None:
    """A caller who waited for the lock is judged by the time after the wait."""
    plain.acquire("c", "w", token=TOKEN, ttl_ms=1000)
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        inside.set()
        go.wait(10)

    holder = threading.Thread(target=lambda: plain.transact("c", slow, token=TOKEN))
    rival = threading.Thread(target=lambda: plain.acquire("c", "rival"))
    holder.start()
    inside.wait(10)
    rival.start()
    # He has asked, and waits.
    while not in_line(plain):
        time.sleep(0.001)
    clock.advance(5000)
    go.set()
    holder.join(10)
    rival.join(10)
    turn = plain.get("c").generation
    assert turn is not None
    assert turn.holder == "rival"


def test_the_closed_list_is_what_the_code_has() -> None:
    """PROTOCOL.md, "Not guarded": nothing else may reach a conversation that somebody else is generating."""
    methods = {name for name, value in vars(UnguardedConversation).items() if hasattr(value, "__mutation__")}
    assert {*methods, "create"} == set(UNGUARDED)


def test_every_public_method_of_both_conversations_is_a_mutation() -> None:
    for kind in (GuardedConversation, UnguardedConversation):
        public = {name for name in vars(kind) if not name.startswith("_")}
        assert {name for name in public if hasattr(getattr(kind, name), "__mutation__")} == public


def test_the_async_store_has_the_same_names() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Store) <= public(AsyncStore)
    assert public(AsyncStore) - public(Store) == {"run", "limits", "follow", "followers", "end_events"}


def test_a_cancelled_call_still_ends_its_transaction(url: str, clock: Clock) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        conversation.append([user("kept")])
        inside.set()
        go.wait(10)

    async def scenario() -> list[Any]:
        async with await AsyncStore.open(url, clock=clock) as store:
            task = asyncio.create_task(store.transact("c", slow))
            await asyncio.to_thread(inside.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go.set()
            await store.append("c", [user("next")])
            return [message.content for message in (await store.messages("c")).items]

    assert asyncio.run(scenario()) == ["hi", "kept", "next"]
