"""A turn ends, whatever happens at its ends: cancelled, busy, without threads, or under a store that is closed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessionstore import AsyncStore, LiveTurn, Store, errors, keeper, liveturn
from sessionstore.client import AsyncClient, Client
from sessionstore.engine import sqlite3
from sessionstore.sqlite.database import SQLiteDatabase
from sessionstore.watch import Watch
from tests.conftest import TOKEN, Clock, reply, texts, user
from tests.live import LiveServer
from tests.test_groups import held


@pytest.fixture(autouse=True)
def conversation(plain: Store) -> None:
    plain.create("c")


def until(true: Callable[[], bool]) -> None:
    """What happens in the background happens soon."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_free(store: Store) -> bool:
    return store.get("c").generation is None


def outcome(store: Store) -> Any:
    last = store.get("c").last_generation
    return None if last is None else last.outcome


def test_a_turn_that_is_cancelled_while_it_leaves_ends(url: str, path: Path, plain: Store, clock: Clock) -> None:
    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            leaving = asyncio.Event()

            async def turn() -> None:
                async with store.generate("c", "worker") as live:
                    await live.save("r", "whole")
                    leaving.set()
                    await go.wait()

            go = asyncio.Event()
            task = asyncio.ensure_future(turn())
            await leaving.wait()
            with held(path):
                go.set()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(until, lambda: is_free(plain))

    asyncio.run(main())
    assert (outcome(plain), plain.message("c", "r").status) == ("completed", "complete")


def test_a_turn_that_is_cancelled_while_it_enters_leaves_no_lease(url: str, path: Path, plain: Store, clock: Clock) -> None:
    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            acquire, begun = AsyncStore.acquire, asyncio.Event()

            async def committed_and_cancelled(self: AsyncStore, *args: Any, **options: Any) -> Any:
                answer = await acquire(self, *args, **options)
                begun.set()
                await asyncio.sleep(0.05)
                return answer

            monkeypatch = pytest.MonkeyPatch()
            monkeypatch.setattr(AsyncStore, "acquire", committed_and_cancelled)
            entering = asyncio.ensure_future(store.generate("c", "worker").__aenter__())
            await begun.wait()
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
            monkeypatch.undo()
            await asyncio.to_thread(until, lambda: is_free(plain))

    asyncio.run(main())
    assert outcome(plain) == "released"


def test_a_turn_ends_although_the_database_is_busy_at_first(
    url: str, path: Path, plain: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(url, clock=clock, busy_timeout_ms=20) as store:
        rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                rival.execute("ROLLBACK")

        monkeypatch.setattr(liveturn, "rest", pause)
        with store.generate("c", "worker") as turn:
            turn.save("r", "whole")
            rival.execute("BEGIN IMMEDIATE")
        assert len(pauses) == 2
        rival.close()
    assert (outcome(plain), plain.message("c", "r").status) == ("completed", "complete")


def test_a_turn_that_cannot_end_can_be_ended_later(
    url: str, path: Path, plain: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveturn, "LEAVING_SECONDS", -1)
    with Store.open(url, clock=clock, busy_timeout_ms=20) as store:
        turn = store.generate("c", "worker")
        turn.__enter__()
        with held(path), pytest.raises(errors.Busy):
            turn.__exit__(None, None, None)
        turn.finish()
    assert outcome(plain) == "completed"


def test_a_turn_that_cannot_be_kept_is_given_back(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: Any) -> None:
        raise errors.Busy

    monkeypatch.setattr(Watch, "subscribe", no_thread)
    turn = plain.generate("c", "worker")
    with pytest.raises(errors.Busy), turn:
        pytest.fail("nobody keeps it")
    turn._keeper._thread.join(30)
    assert not turn._keeper._thread.is_alive()
    assert is_free(plain)


def test_what_the_holder_stored_himself_is_not_overwritten_at_the_end(plain: Store) -> None:
    with plain.generate("c", "worker", token=TOKEN) as turn:
        turn.save("r", "half")
        plain.put("c", reply("whole and right", "r"), token=TOKEN)
        turn.save("s", "growing")
        plain.delete_message("c", "s", token=TOKEN)
    assert (texts(plain, "c"), outcome(plain)) == (["whole and right"], "completed")


def test_a_cancelled_save_leaves_the_next_one_in_order(url: str, path: Path, plain: Store, clock: Clock) -> None:
    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store, store.generate("c", "worker") as turn:
            await turn.save("r", "a")
            put = AsyncStore.put

            async def answered_too_late(self: AsyncStore, *args: Any, **options: Any) -> Any:
                await put(self, *args, **options)
                await asyncio.sleep(3600)

            monkeypatch = pytest.MonkeyPatch()
            monkeypatch.setattr(AsyncStore, "put", answered_too_late)
            saving = asyncio.ensure_future(turn.save("r", "ab"))
            await asyncio.to_thread(until, lambda: texts(plain, "c") == ["ab"])
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            monkeypatch.undo()
            await turn.save("r", "abc")
            await turn.save("r", "abcd")

    asyncio.run(main())
    assert texts(plain, "c") == ["abcd"]


def test_an_acquire_that_is_repeated_gets_the_time_to_live_that_is_asked_for(plain: Store, clock: Clock) -> None:
    plain.acquire("c", "worker", token=TOKEN, ttl_ms=1_000)
    with plain.generate("c", "worker", token=TOKEN, ttl_ms=30_000):
        until(lambda: plain.get("c").generation.expires_at == clock.now + 30_000)  # type: ignore[union-attr]


def test_a_finish_that_was_given_up_leaves_the_turn_able_to_hear(url: str, path: Path, plain: Store, clock: Clock) -> None:
    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            turn = store.generate("c", "worker")
            await turn.__aenter__()
            with held(path), pytest.raises(TimeoutError):
                await asyncio.wait_for(turn.finish(), 0.05)
            await asyncio.to_thread(plain.interrupt, "c", force=True)
            await asyncio.wait_for(turn.stopped.wait(), 30)
            assert isinstance(turn.lost, errors.LeaseLost)
            with pytest.raises(errors.LeaseLost):
                await turn.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_loss_that_is_heard_while_finishing_fails_is_not_forgotten(
    plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.LeaseLost), plain.generate("c", "worker") as turn:

        def lost_and_busy(*_: Any, **__: Any) -> None:
            turn._lose(errors.LeaseLost(conversation_id="c"))
            assert turn.lost is None
            raise errors.Busy

        monkeypatch.setattr(plain, "finish", lost_and_busy)
        with pytest.raises(errors.Busy):
            turn.finish()
        assert isinstance(turn.lost, errors.LeaseLost)


def test_a_database_that_is_closed_under_a_turn_stops_it(url: str, clock: Clock, plain: Store) -> None:
    store = Store.open(url, clock=clock)
    turn = store.generate("c", "worker")
    turn.__enter__()
    store.database.close()
    turn._keeper.hurry()
    assert turn.stopped.wait(30)
    assert isinstance(turn.lost, errors.Closed)
    turn._keeper._thread.join(30)
    with pytest.raises(errors.Closed):
        turn.__exit__(None, None, None)


def test_an_interrupted_entry_gives_the_lease_back(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = Store.acquire

    def interrupted(self: Store, *args: Any, **options: Any) -> None:
        acquire(self, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "acquire", interrupted)
    with pytest.raises(KeyboardInterrupt), plain.generate("c", "worker"):
        pytest.fail("entered")
    assert is_free(plain)


def test_finish_completes_what_is_partial_if_it_is_told(plain: Store) -> None:
    plain.acquire("c", "worker", token=TOKEN)
    plain.put("c", reply("growing", "r", status="partial"), token=TOKEN)
    finished = plain.finish("c", [user("last", "l")], token=TOKEN, complete=True)
    assert [(message.id, message.status) for message in plain.messages("c").items] == [("r", "complete"), ("l", "complete")]
    assert plain.finish("c", [user("last", "l")], token=TOKEN, complete=True).replayed
    with pytest.raises(errors.LeaseLost):
        plain.finish("c", [user("last", "l")], token=TOKEN)
    assert finished.value.conversation.generation is None


def test_a_renewal_without_the_database_makes_no_storm(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher in trouble alarms the turns; their renewals commit; that must not wake the watcher up at once."""
    from sessionstore import watch

    rounds: list[int] = []

    @contextmanager
    def broken(self: SQLiteDatabase) -> Iterator[None]:
        rounds.append(1)
        raise errors.Busy
        yield

    monkeypatch.setattr(watch, "TROUBLE_SECONDS", 3600)
    monkeypatch.setattr(SQLiteDatabase, "pulse", broken)
    with plain.generate("c", "worker") as turn:
        renewed = threading.Event()
        renew = turn._keeper._renew

        def renewing() -> None:
            renew()
            renewed.set()

        monkeypatch.setattr(turn._keeper, "_renew", renewing)
        turn._keeper.hurry()
        assert renewed.wait(30)
        for n in range(20):
            turn.save("r", f"{n}")
        time.sleep(0.05)
    assert sum(rounds) <= 2


def test_a_turn_is_a_live_turn(plain: Store) -> None:
    assert isinstance(plain.generate("c", "worker"), LiveTurn)
    assert keeper.running_time() > 0


def given_back(store: Store) -> None:
    """Free at once, and what was growing is kept."""
    assert outcome(store) == "released"
    assert [(message.content, message.status) for message in store.messages("c").items] == [("half", "interrupted")]


@pytest.mark.parametrize("face", ["Store", "Client"])
def test_who_closes_gives_the_lease_of_his_turn_back(url: str, clock: Clock, plain: Store, face: str) -> None:
    with LiveServer(url, clock) as server:
        store: Any = Store.open(url, clock=clock) if face == "Store" else Client(server.address)
        turn = store.generate("c", "worker")
        turn.__enter__()
        turn.save("r", "half")
        store.close()
        given_back(plain)
        assert turn.stopped.is_set()
        assert isinstance(turn.lost, errors.Closed)
        with pytest.raises(errors.Closed):
            turn.__exit__(None, None, None)


@pytest.mark.parametrize("face", ["AsyncStore", "AsyncClient"])
def test_who_awaits_the_close_gives_the_lease_of_his_turn_back(url: str, clock: Clock, plain: Store, face: str) -> None:
    async def main(address: str) -> None:
        store: Any = await AsyncStore.open(url, clock=clock) if face == "AsyncStore" else AsyncClient(address)
        turn = store.generate("c", "worker")
        await turn.__aenter__()
        await turn.save("r", "half")
        await store.close()
        given_back(plain)
        await asyncio.wait_for(turn.stopped.wait(), 10)

    with LiveServer(url, clock) as server:
        asyncio.run(main(server.address))


def test_a_turn_that_is_over_is_not_given_back(url: str, clock: Clock, plain: Store) -> None:
    store = Store.open(url, clock=clock)
    with store.generate("c", "worker") as turn:
        turn.save("r", "whole")
    assert not store.turns._turns
    store.close()
    assert outcome(plain) == "completed"
    assert turn.lost is None


def test_a_busy_database_keeps_no_store_open_for_its_turns(
    url: str, clock: Clock, plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.create("d")
    store = Store.open(url, clock=clock, busy_timeout_ms=200)
    turns = [store.generate(id, "worker") for id in ("c", "d")]
    for turn in turns:
        turn.__enter__()
    tried: list[str] = []
    release = store.release

    def counted(id: str, **options: Any) -> Any:
        tried.append(id)
        return release(id, **options)

    monkeypatch.setattr(store, "release", counted)
    with held(path):
        store.close()
    assert len(tried) == 1
    assert [isinstance(turn.lost, errors.Closed) for turn in turns] == [True, True]
    assert len(plain.leases()) == 2


def test_a_turn_that_is_just_beginning_does_not_outlive_its_store(
    url: str, clock: Clock, plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lease and is not yet kept (review): close waits for it, and then gives it back."""
    store = Store.open(url, clock=clock)
    acquired, go, closing = threading.Event(), threading.Event(), threading.Event()
    acquire, wait_for = store.acquire, threading.Condition.wait_for

    def slowly(*args: Any, **options: Any) -> Any:
        answer = acquire(*args, **options)
        acquired.set()
        assert go.wait(30)
        return answer

    def waiting(self: threading.Condition, *args: Any) -> Any:
        closing.set()
        return wait_for(self, *args)

    monkeypatch.setattr(store, "acquire", slowly)
    monkeypatch.setattr(threading.Condition, "wait_for", waiting)
    turn = store.generate("c", "worker")
    entering, leaving = threading.Thread(target=turn.__enter__), threading.Thread(target=store.close)
    entering.start()
    assert acquired.wait(30)
    leaving.start()
    assert closing.wait(30)
    go.set()
    for thread in (entering, leaving):
        thread.join(30)
    assert outcome(plain) == "released"
    assert turn.stopped.is_set()


def test_no_turn_begins_in_a_store_that_is_closed(url: str, clock: Clock, plain: Store) -> None:
    store = Store.open(url, clock=clock)
    store.turns.end()
    with pytest.raises(errors.Closed), store.generate("c", "worker"):
        raise AssertionError
    assert is_free(plain)
    store.close()


def test_close_from_a_signal_handler_while_a_turn_is_noted_does_not_hang(url: str, clock: Clock, plain: Store) -> None:
    store = Store.open(url, clock=clock)
    with store.turns._changing:
        store.close()
