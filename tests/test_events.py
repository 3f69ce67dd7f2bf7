"""Events: whoever follows is told, by whatever process it was changed, and ends up with what a fresh reader sees."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessionstore import AsyncStore, Mirror, Store, errors, statements, watch
from sessionstore.channel import Channel
from sessionstore.engine import sqlite3
from sessionstore.following import CHANGES_PER_EVENT, FollowedConversation, FollowedList
from sessionstore.reads import Reads
from sessionstore.watch import Watch
from tests.conftest import TOKEN, Clock, on_file, reply, user


@pytest.fixture(autouse=True)
def conversation(store: Store) -> None:
    store.create("c", messages=[user("hi", "m")])


@pytest.fixture
def elsewhere(url: str, clock: Clock) -> Iterator[Store]:
    """Another store on the same file: nothing in memory is shared with the first, as with another process."""
    with Store.open(url, clock=clock) as opened:
        yield opened


Meanwhile = Callable[[Any, Callable[[], Any]], Any]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """What is told of something that happens while somebody waits: he has looked, and found nothing new."""
    nothing_new = threading.Event()

    def noting(look: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            nothing_new.clear()
            found = look(*args)
            if found is None:
                nothing_new.set()
            return found

        return noted

    for followed in (FollowedConversation, FollowedList):
        monkeypatch.setattr(followed, "look", noting(followed.look))

    def told(events: Any, action: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, events, None)
            assert nothing_new.wait(30)
            action()
            return waiting.result()

    return told


def shown(mirror: Mirror) -> list[tuple[str, Any, str]]:
    return [(message.id, message.content, message.status) for message in mirror.messages]


def follow(mirror: Mirror, events: Any) -> Mirror:
    """Take events until everything that had happened by now has been shown."""
    while True:
        changes = next(events)
        mirror.apply(changes)
        if changes.next is None:
            return mirror


def test_the_first_event_is_the_state_as_it_is(store: Store) -> None:
    with store.events("c") as events:
        first = next(events)
        assert (first.reset, first.next, [message.id for message in first.messages]) == (True, None, ["m"])
        assert first.conversation == store.get("c")


def test_e1_an_event_between_connecting_and_the_first_read_is_not_lost(store: Store) -> None:
    with store.events("c") as events:
        store.append("c", [user("between", "b")])
        mirror = follow(Mirror(), events)
        assert [message.id for message in mirror.messages] == ["m", "b"]
        store.append("c", [user("after", "a")])
        assert [message.id for message in next(events).messages] == ["a"]


def test_a_growing_reply_is_one_row_and_ends_interrupted_with_its_turn(store: Store) -> None:
    with store.events("c") as events:
        mirror = follow(Mirror(), events)
        store.acquire("c", "worker", token=TOKEN)
        for text in ("a", "ab", "abc"):
            store.put("c", reply(text, "r", status="partial"), token=TOKEN)
        store.release("c", token=TOKEN)
        while not (mirror.conversation and mirror.conversation.last_generation):
            follow(mirror, events)
        assert shown(mirror) == [("m", "hi", "complete"), ("r", "abc", "interrupted")]


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_what_is_committed_while_somebody_waits_is_told(store: Store, elsewhere: Store, meanwhile: Meanwhile, who: str) -> None:
    writing = store if who == "this process" else elsewhere
    with store.events("c") as events:
        next(events)
        for n in range(5):
            told = meanwhile(events, partial(writing.append, "c", [user(n, f"e{n}")]))
            assert [message.id for message in told.messages] == [f"e{n}"]


def test_only_the_conversation_that_is_followed_is_told(store: Store, meanwhile: Meanwhile) -> None:
    def others_and_this() -> None:
        store.create("other", messages=[user("x", "x")])
        store.append("c", [user("mine", "y")])

    with store.events("c") as events:
        next(events)
        assert [message.id for message in meanwhile(events, others_and_this).messages] == ["y"]


def test_e1_whoever_reconnects_after_10000_changes_is_right(store: Store, elsewhere: Store) -> None:
    with store.events("c") as events:
        mirror = follow(Mirror(), events)
    for n in range(100):
        elsewhere.append("c", [user(n, f"a{n}-{k}") for k in range(100)])
    elsewhere.put("c", user("edited", "m"))
    elsewhere.truncate("c", after_position=5, through_position=9_000)
    before = mirror.since
    with store.events("c", mirror.since) as events:
        follow(mirror, events)
        fresh = follow(Mirror(), store.events("c"))
        assert shown(mirror) == shown(fresh)
        assert mirror.since == fresh.since != before


def test_e2_an_expired_lease_is_told_though_nobody_comes(store: Store, clock: Clock, meanwhile: Meanwhile) -> None:
    store.acquire("c", "worker", token=TOKEN)
    with store.events("c") as events:
        first = next(events).conversation.generation
        assert first is not None
        assert not first.expired
        told = meanwhile(events, lambda: clock.advance(31_000))
        assert (told.messages, told.since) == ([], store.get("c").tag)
        assert told.conversation.generation is not None
        assert told.conversation.generation.expired


def test_a_lease_that_lives_again_is_told(store: Store, clock: Clock) -> None:
    store.acquire("c", "worker", token=TOKEN)
    clock.advance(31_000)
    before = store.get("c")
    with store.events("c") as events:
        next(events)
        renewed = store.renew("c", token=TOKEN).value
        told = next(events).conversation
        assert told.generation is not None
        assert not told.generation.expired
        assert told.version == before.version + 1 == renewed.conversation.version
    store.renew("c", token=TOKEN)
    assert store.get("c").version == told.version


def test_an_acquire_that_revives_its_own_turn_takes_one_version(store: Store, clock: Clock) -> None:
    store.acquire("c", "worker", token=TOKEN)
    clock.advance(31_000)
    before = store.get("c").version
    assert store.acquire("c", "worker", token=TOKEN).replayed
    assert store.get("c").version == before + 1


def test_a_save_that_revives_takes_one_version(store: Store, clock: Clock) -> None:
    store.acquire("c", "worker", token=TOKEN)
    clock.advance(31_000)
    before = store.get("c").version
    saved = store.put("c", reply("late", "r"), token=TOKEN).value.message
    assert saved.version == store.get("c").version == before + 1


def test_e3_a_deletion_ends_the_events(store: Store, meanwhile: Meanwhile) -> None:
    with store.events("c") as events:
        tag = next(events).since
        assert meanwhile(events, lambda: store.delete("c")) is None
        assert list(events) == []
    with pytest.raises(errors.ConversationDeleted):
        next(store.events("c", tag))
    store.create("c", messages=[user("new", "n")], recreate=tag.incarnation)
    with pytest.raises(errors.ConversationDeleted):
        next(store.events("c", tag, incarnation=tag.incarnation))
    again = next(store.events("c", tag))
    assert (again.reset, [message.id for message in again.messages]) == (True, ["n"])


def test_e3_a_new_life_is_not_followed_by_who_followed_the_old_one(store: Store, elsewhere: Store) -> None:
    with store.events("c") as events:
        tag = next(events).since
        elsewhere.delete("c")
        elsewhere.create("c", recreate=tag.incarnation)
        assert list(events) == []


def test_an_unknown_conversation_has_no_events(store: Store) -> None:
    with pytest.raises(errors.ConversationNotFound):
        next(store.events("unknown"))
    with pytest.raises(errors.InvalidInput):
        next(store.events("not/an/id"))


def test_e4_a_large_change_comes_in_pages(store: Store) -> None:
    store.append("c", [user(n) for n in range(500)])
    with store.events("c") as events:
        first = [next(events) for _ in range(6)]
        assert [page.reset for page in first] == [True] + [False] * 5
        assert max(len(page.messages) for page in first) == CHANGES_PER_EVENT
        assert [page.next is None for page in first] == [False] * 5 + [True]
        store.truncate("c", after_position=0, through_position=500)
        gone = [next(events) for _ in range(5)]
        assert sum(len(page.messages) for page in gone) == 500
        assert {message.status for page in gone for message in page.messages} == {"deleted"}


def test_m14_a_reader_who_stops_in_the_middle_holds_nobody_up(plain: Store, path: Path) -> None:
    plain.append("c", [user(n) for n in range(1_000)])
    with plain.events("c") as events:
        next(events)
        plain.append("c", [user("meanwhile", "w")])
        connection = sqlite3.connect(path, isolation_level=None)
        # Nothing of the log is held by a reader: all of it can be copied back.
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        connection.close()
        mirror = Mirror()
        while len(mirror.messages) < 902:
            mirror.apply(next(events))
        assert mirror.messages[-1].id == "w"


def test_a_reader_who_breaks_off_in_the_middle_of_pages_loses_nothing(store: Store) -> None:
    store.append("c", [user(n, f"x{n}") for n in range(250)])
    mirror = Mirror()
    with store.events("c") as events:
        mirror.apply(next(events))
        mirror.apply(next(events))
    store.truncate("c", after_position=10, through_position=150)
    follow(mirror, store.events("c", mirror.since))
    assert shown(mirror) == shown(follow(Mirror(), store.events("c")))


def test_the_list_is_followed_with_its_tombstones(store: Store, clock: Clock, meanwhile: Meanwhile) -> None:
    with store.list_events() as events:
        first = next(events)
        assert (first.reset, [found.id for found in first.conversations], first.deleted) == (True, ["c"], [])
        made = meanwhile(events, lambda: store.create("d"))
        assert (made.reset, [found.id for found in made.conversations]) == (False, ["d"])
        life = store.get("d").incarnation
        gone = meanwhile(events, lambda: store.delete("d"))
        assert [(one.id, one.incarnation) for one in gone.deleted] == [("d", life)]
        store.acquire("c", "worker")
        assert [found.generation is not None for found in next(events).conversations] == [True]
        (expired,) = meanwhile(events, lambda: clock.advance(31_000)).conversations
        assert expired.generation is not None
        assert expired.generation.expired
    again = next(store.list_events(gone.change))
    assert [found.id for found in again.conversations] == ["c"]


def test_what_moved_in_the_list_meanwhile(store: Store) -> None:
    page = store.conversations()
    assert store.list_changes(page.change).conversations == []
    for n in range(5):
        store.create(f"n{n}")
    store.delete("n0")
    first = store.list_changes(page.change, limit=3)
    assert ([found.id for found in first.conversations], first.more, first.reset) == (["n1", "n2", "n3"], True, False)
    rest = store.list_changes(first.change, limit=3)
    assert ([found.id for found in rest.conversations], [gone.id for gone in rest.deleted]) == (["n4"], ["n0"])
    assert (rest.more, rest.change) == (False, store.conversations().change)
    ahead = store.list_changes(rest.change + 1)
    assert (ahead.reset, ahead.deleted, len(ahead.conversations)) == (True, [], 5)
    with pytest.raises(errors.InvalidInput):
        store.list_changes(-1)


def test_e5_every_last_state_is_seen_of_what_two_stores_write_at_once(store: Store, elsewhere: Store) -> None:
    def write(writing: Store, name: str) -> None:
        for n in range(30):
            writing.create(f"{name}{n % 7}") if n < 7 else writing.label(f"{name}{n % 7}", title=f"{n}")

    writers = [threading.Thread(target=write, args=(at, f"{k}-")) for k, at in enumerate([store, elsewhere] * 4)]
    with store.list_events() as events:
        seen: dict[str, int] = {found.id: found.version for found in next(events).conversations}
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        last = {found.id: found.version for found in store.conversations(limit=1000).items}
        while seen != last:
            seen.update({found.id: found.version for found in next(events).conversations})


def test_events_end_when_they_are_closed_in_another_thread(plain: Store) -> None:
    plain.create("d")
    events = plain.events("d")
    next(events)
    closing = threading.Timer(0.05, events.close)
    closing.start()
    assert list(events) == []
    closing.join()


def test_events_say_that_the_store_was_closed(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url, clock=clock) as opened:
        events = opened.events("c")
        next(events)
        looks, look, close = threading.Semaphore(0), events._followed.look, opened.database.close

        def noted(found: Any) -> Any:
            looks.release()
            return found

        def close_when_all_have_looked() -> None:
            """The watcher told them when it ended: they wait again, for what nobody else will tell."""
            while looks.acquire(timeout=0.5):
                pass
            close()

        monkeypatch.setattr(events._followed, "look", lambda *state: noted(look(*state)))
        monkeypatch.setattr(opened.database, "close", close_when_all_have_looked)
        closing = threading.Timer(0.05, opened.close)
        closing.start()
        with pytest.raises(errors.Closed):
            next(events)
        closing.join()
        assert opened.watch._thread is None


def test_waiting_has_a_limit_if_you_want_one(plain: Store) -> None:
    with plain.events("c") as events:
        assert events.wait() is not None
        assert events.wait(0.01) is None


def test_nobody_watches_once_nobody_follows(plain: Store) -> None:
    with plain.events("c") as events:
        next(events)
        thread = plain.watch._thread
        assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    with plain.events("c") as events:
        next(events)
        plain.append("c", [user("again", "g")])
        assert [message.id for message in next(events).messages] == ["g"]


def test_what_happens_while_the_watcher_starts_is_told(plain: Store, elsewhere: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has read the state, and the watcher has not yet begun: what is committed then is older than all it looks for."""
    starting, go, newest = threading.Event(), threading.Event(), Watch._newest

    def late(self: Watch, pulse: Any) -> int:
        starting.set()
        go.wait(30)
        return newest(self, pulse)

    monkeypatch.setattr(Watch, "_newest", late)
    with plain.events("c") as events:
        assert events.wait() is not None
        starting.wait(30)
        elsewhere.append("c", [user("in between", "b")])
        go.set()
        told = events.wait(10)
        assert told is not None
        assert [message.id for message in told.messages] == ["b"]


def test_own_commits_ring_a_bell(plain: Store, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 60)
    with plain.events("c") as events:
        next(events)
        assert meanwhile(events, lambda: plain.append("c", [user("news", "n")])) is not None


@pytest.mark.any_sql
def test_many_changes_at_once_are_all_told(
    plain: Store, elsewhere: Store, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "NEWS_PER_LOOK", 2)

    def seven_in_one_transaction() -> None:
        parent = elsewhere.get("c0").incarnation
        elsewhere.database.write(
            lambda transaction: [
                transaction.run(statements.ADVANCE, at=parent + n, version=9, now=1, next_position=0, message_count=0,
                                queued_count=0, lease_expires_at=None)
                for n in range(7)
            ]
        )  # fmt: skip

    for n in range(7):
        plain.create(f"c{n}")
    with plain.events("c6") as events:
        next(events)
        assert meanwhile(events, seven_in_one_transaction).conversation.version == 9


def test_a_watcher_that_stumbles_gets_up(
    plain: Store, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "TROUBLE_SECONDS", 0.01)
    with plain.events("c") as events:
        next(events)
        look, failed = Watch._look, list[Any]()

        def once(self: Watch, pulse: Any, seen: int) -> int:
            if not failed:
                failed.append(seen)
                raise ZeroDivisionError
            return look(self, pulse, seen)

        monkeypatch.setattr(Watch, "_look", once)
        for n in range(3):
            told = meanwhile(events, partial(plain.append, "c", [user(n, f"a{n}")]))
            assert [message.id for message in told.messages] == [f"a{n}"]
    assert failed
    assert "the watcher stumbled" in caplog.text


def test_what_happens_before_the_watcher_begins_is_told(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, looked, go = Watch._newest, threading.Event(), threading.Event()

    def late(self: Watch, pulse: Any) -> int:
        go.wait(10)
        return newest(self, pulse)

    def noted(found: Any) -> Any:
        looked.set()
        return found

    monkeypatch.setattr(Watch, "_newest", late)
    with plain.events("c") as events, ThreadPoolExecutor(1) as pool:
        next(events)
        look = events._followed.look
        monkeypatch.setattr(events._followed, "look", lambda *state: noted(look(*state)))
        told = pool.submit(events.wait, 5)
        looked.wait(10)
        plain.append("c", [user("x", "early")])
        go.set()
        assert told.result(10) is not None


def test_news_that_come_while_it_is_read_are_read_as_well() -> None:
    async def main() -> None:
        state, reading = ["old"], asyncio.Event()

        async def look(seen: str) -> tuple[str, str] | None:
            found = state[0]
            reading.set()
            await asyncio.sleep(0.05)
            return (found, found) if found != seen else None

        channel: Channel[str, str] = Channel(look)
        waiting = asyncio.ensure_future(channel.after("old"))
        await reading.wait()
        state[0] = "new"
        channel.tell(None)
        assert await asyncio.wait_for(waiting, 10) == ("new", "new")

    asyncio.run(main())


def test_each_of_many_followers_has_an_error_of_his_own() -> None:
    async def main() -> None:
        async def look(_: str) -> None:
            raise errors.Busy

        channel: Channel[str, str] = Channel(look)
        first, second = await asyncio.gather(channel.after("s"), channel.after("s"), return_exceptions=True)
        assert isinstance(first, errors.Busy)
        assert isinstance(second, errors.Busy)
        assert first is not second
        channel.end()
        with pytest.raises(errors.Closed):
            await channel.after("s")

    asyncio.run(main())


@pytest.mark.one_file
def test_followers_are_told_when_the_storage_has_failed(plain: Store, meanwhile: Meanwhile) -> None:
    def fail() -> None:
        on_file(plain)._writer.refusal = errors.StorageFailed(reason="injected")

    with plain.events("c") as events:
        next(events)
        with pytest.raises(errors.StorageFailed):
            meanwhile(events, fail)


def test_a_clock_that_steps_forth_and_back_is_told_both_times(
    plain: Store, clock: Clock, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that last, that is: the watcher has looked at the leases before the next one comes."""
    looked, look = threading.Semaphore(0), Watch._look_at_leases

    def looking(self: Watch, *args: Any) -> Any:
        found = look(self, *args)
        looked.release()
        return found

    def step(milliseconds: int) -> None:
        # One look may have been on its way already.
        while looked.acquire(blocking=False):
            pass
        assert looked.acquire(timeout=30)
        assert looked.acquire(timeout=30)
        clock.advance(milliseconds)

    monkeypatch.setattr(Watch, "_look_at_leases", looking)
    monkeypatch.setattr(watch, "LEASES_SECONDS", 0.01)
    plain.acquire("c", "worker")
    for follow in (lambda: plain.events("c"), plain.list_events):
        with follow() as events:
            next(events)
            for hours in (1, -1, -1, 1):
                told = meanwhile(events, partial(step, hours * 3_600_000))
                shown = told.conversations[0] if follow == plain.list_events else told.conversation
                assert shown.generation.expired == (clock() != 1_800_000_000_000)


def test_an_older_state_in_the_file_is_told(plain: Store, path: Path, meanwhile: Meanwhile) -> None:
    def restore() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("UPDATE conversations SET change = 1, title = 'restored' WHERE id = 'c'")
        connection.close()

    for n in range(3):
        plain.label("c", title=f"{n}")
    with plain.list_events() as events:
        next(events)
        told = meanwhile(events, restore)
        assert (told.reset, told.change, told.conversations[0].title) == (True, 1, "restored")


def test_expired_leases_of_a_long_list_are_told_once(plain: Store, clock: Clock) -> None:
    for n in range(2 * CHANGES_PER_EVENT):
        plain.create(f"n{n}")
        plain.acquire(f"n{n}", "worker")
    clock.advance(31_000)
    with plain.list_events() as events:
        told: list[str] = []
        more = True
        while more:
            page = next(events)
            told += [found.id for found in page.conversations]
            more = page.more
        assert len(told) == len(set(told)) == 2 * CHANGES_PER_EVENT + 1
        assert events.wait(0.01) is None
    with plain.list_events(page.change) as events:
        # Who only knows the list from before they ran out is told of all of them, in pages.
        assert [len(next(events).conversations) for _ in range(2)] == [CHANGES_PER_EVENT] * 2


def test_events_that_are_dropped_are_told_nothing_more(plain: Store) -> None:
    for _ in range(3):
        next(plain.events("c"))
        with pytest.raises(errors.ConversationNotFound):
            next(plain.events("unknown"))
    gc.collect()
    assert plain.watch._subscribers == {}


def test_a_close_at_the_wrong_moment_is_not_lost(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    events, look = plain.events("c"), FollowedConversation.look
    next(events)

    def closing(self: FollowedConversation, *args: Any) -> Any:
        events.close()
        events._news.clear()
        return look(self, *args)

    monkeypatch.setattr(FollowedConversation, "look", closing)
    assert events.wait(0.01) is None
    assert list(events) == []


def test_a_wait_ends_however_often_it_is_woken_up(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    events, look = plain.events("c"), FollowedConversation.look
    next(events)

    def woken(self: FollowedConversation, *args: Any) -> Any:
        events._news.set()
        return look(self, *args)

    monkeypatch.setattr(FollowedConversation, "look", woken)
    assert events.wait(0.05) is None
    events.close()


def test_whoever_comes_while_it_is_read_is_not_answered_by_that_read() -> None:
    async def main() -> None:
        state, reading = ["before"], asyncio.Event()

        async def look(_: str) -> tuple[str, str]:
            found = state[0]
            reading.set()
            await asyncio.sleep(0.05)
            return found, found

        channel: Channel[str, str] = Channel(look)
        first = asyncio.ensure_future(channel.after("s"))
        await reading.wait()
        state[0] = "what I have been told is stored"
        second = asyncio.ensure_future(channel.after("s"))
        assert (await first)[0] == "before"
        assert (await second)[0] == "what I have been told is stored"
        assert (channel._waiting, channel._looking) == ({}, {})

    asyncio.run(main())


def test_who_waits_no_more_is_forgotten() -> None:
    async def main() -> None:
        async def look(_: str) -> None:
            return None

        channel: Channel[str, str] = Channel(look)
        for _ in range(20):
            waiting = asyncio.ensure_future(channel.after("s"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert sum(map(len, channel._waiting.values())) == 0

    asyncio.run(main())


@pytest.mark.one_file
def test_an_error_of_the_disk_is_not_hidden_by_a_second_one(plain: Store) -> None:
    def rolled_back(transaction: Any) -> None:
        transaction._connection.execute("ROLLBACK")
        raise ZeroDivisionError

    with plain.database.pulse() as pulse, pytest.raises(ZeroDivisionError):
        pulse.read(rolled_back)


def test_a_watcher_without_a_thread_is_busy_and_closes(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(errors.Busy):
            plain.events("c")
    assert plain.watch._subscribers == {}
    with plain.events("c") as events:
        next(events)
    plain.close()


def test_a_follower_for_whom_there_was_no_thread_leaves_no_deaf_channel(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: Any) -> None:
        raise errors.Busy

    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            with monkeypatch.context() as patched:
                patched.setattr(Watch, "subscribe", no_thread)
                with pytest.raises(errors.Busy):
                    await anext(store.events("c"))
            assert store.awaiting.channels == {}

    asyncio.run(main())


def test_what_a_hundred_follow_is_read_once(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    changes = Reads.changes

    def counted(self: Reads, *args: Any, **kwargs: Any) -> Any:
        reads.append(args)
        return changes(self, *args, **kwargs)

    monkeypatch.setattr(Reads, "changes", counted)

    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            followers = [store.events("c") for _ in range(100)]
            assert len({(await anext(one)).since for one in followers}) == 1
            connected = len(reads)
            waiting = [asyncio.ensure_future(anext(one)) for one in followers]
            await asyncio.sleep(0)
            await store.append("c", [user("news", "n")])
            told = await asyncio.gather(*waiting)
            assert {id(one) for one in told} == {id(told[0])}
            # Once when the first of them began to wait, once or twice for the news.
            assert len(reads) - connected <= 3
            for one in followers:
                await one.aclose()
            assert store.awaiting.channels == {}

    asyncio.run(main())


def test_a_cancelled_follower_leaves_the_others_alone(url: str, clock: Clock) -> None:
    async def main() -> None:
        async with await AsyncStore.open(url, clock=clock) as store:
            first, second = store.events("c"), store.events("c")
            await anext(first)
            await anext(second)
            gone, stays = asyncio.ensure_future(anext(first)), asyncio.ensure_future(anext(second))
            await asyncio.sleep(0.05)
            gone.cancel()
            await store.append("c", [user("news", "n")])
            assert [message.id for message in (await stays).messages] == ["n"]
            with pytest.raises(asyncio.CancelledError):
                await gone
            await second.aclose()
            assert store.awaiting.channels == {}

    asyncio.run(main())


def test_followers_of_a_closed_store_are_told(url: str, clock: Clock) -> None:
    async def main() -> None:
        store = await AsyncStore.open(url, clock=clock)
        events = store.events("c")
        await anext(events)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        await store.close()
        with pytest.raises(errors.Closed):
            await waiting

    asyncio.run(main())
