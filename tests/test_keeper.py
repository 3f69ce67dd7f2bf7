"""What keeps a lease alive: a thread that an event loop cannot hold up, on a clock that runs on while the machine sleeps."""

import asyncio
import threading
import time
from typing import Any

import pytest

from sessionstore import AsyncStore, Store, errors, keeper
from sessionstore.keeper import Keeper
from tests.conftest import OTHER_TOKEN, Clock


def test_l16_a_lease_is_kept_while_the_event_loop_stands_still(plain: Store, url: str) -> None:
    plain.create("c")

    async def main() -> None:
        async with await AsyncStore.open(url) as store:
            async with store.generate("c", "worker", ttl_ms=1_000) as turn:
                time.sleep(2.5)
                with Store.open(url) as other, pytest.raises(errors.Generating):
                    other.acquire("c", "other")
                await turn.save("r", "still here")
            assert (await store.get("c")).last_generation.outcome == "completed"  # type: ignore[union-attr]

    asyncio.run(main())


def test_a_cancelled_task_ends_its_turn(plain: Store, url: str, clock: Clock) -> None:
    plain.create("c")

    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            began = asyncio.Event()

            async def generate() -> None:
                async with store.generate("c", "worker") as turn:
                    await turn.save("r", "half")
                    began.set()
                    await asyncio.sleep(3600)

            task = asyncio.ensure_future(generate())
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            last = (await store.get("c")).last_generation
            assert last is not None
            assert last.outcome == "interrupted"

    asyncio.run(main())


class Time:
    """A running time that runs when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Time:
    passing = Time()
    monkeypatch.setattr(keeper, "running_time", passing)
    monkeypatch.setattr(keeper, "LONGEST_SLEEP", 0.01)
    return passing


def test_a_lease_is_renewed_at_a_third_of_its_life_also_after_a_suspend(running: Time) -> None:
    renewed, lost = threading.Semaphore(0), list[Any]()
    kept = Keeper(renewed.release, lost.append, 30_000)
    kept.start(running.now)
    running.now += 7.9
    assert not renewed.acquire(timeout=0.1)
    running.now += 3
    assert renewed.acquire(timeout=5)
    # The machine sleeps for an hour: no timer of this process counts that, the lease does.
    running.now += 3600
    assert renewed.acquire(timeout=5)
    assert not renewed.acquire(timeout=0.1)
    kept.stop()
    kept._thread.join(30)
    assert lost == []


def test_a_renewal_that_fails_is_tried_again_soon(running: Time) -> None:
    answers: list[Any] = [errors.Busy(), ZeroDivisionError(), None]
    asked = threading.Semaphore(0)

    def renew() -> None:
        asked.release()
        error = answers.pop(0)
        if error is not None:
            raise error

    kept = Keeper(renew, lambda _: None, 30_000)
    kept.start(running.now)
    for _ in range(3):
        running.now += 10.1 if len(answers) == 3 else 1.1
        assert asked.acquire(timeout=30)
    assert not asked.acquire(timeout=0.1)
    kept.stop()
    kept._thread.join(30)


def test_nothing_is_kept_that_is_lost(running: Time) -> None:
    told, lost = threading.Event(), list[Any]()

    def renew() -> None:
        raise errors.LeaseLost(conversation_id="c")

    def lose(error: errors.SessionStoreError) -> None:
        lost.append(error)
        told.set()

    kept = Keeper(renew, lose, 30_000)
    kept.start(running.now)
    kept.hurry()
    assert told.wait(30)
    kept._thread.join(30)
    assert [type(error) for error in lost] == [errors.LeaseLost]


def test_a_turn_leaves_no_thread_behind(plain: Store) -> None:
    plain.create("c")
    with plain.generate("c", "worker", token=OTHER_TOKEN) as turn:
        thread = turn._keeper._thread
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
    assert plain.watch._subscribers == {}
