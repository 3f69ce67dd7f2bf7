"""One writer that groups: each line of DESIGN.md's rule 7, with the bad moment made certain.

The database is held by somebody else while calls come in, so all of them wait when the writer gets it.
"""

import asyncio
import errno
import os
import sqlite3 as codes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessionstore import AsyncStore, Store, errors
from sessionstore.engine import sqlite3
from sessionstore.items import Item, Lane
from sessionstore.sqlite import writer
from sessionstore.sqlite.connections import ImmediateSQLite
from sessionstore.sqlite.database import SQLiteDatabase
from sessionstore.sqlite.gate import Gate
from sessionstore.sqlite.lanes import GROUP_ITEMS, RESERVED_PLACES, WAITING_BYTES, Lanes
from sessionstore.sqlite.log import Log
from sessionstore.sqlite.writer import Writer
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, on_file, reply, texts, user
from tests.test_database import _sqlite_error

Results = list[Any]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Nobody can begin meanwhile."""
    rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        rival.execute("ROLLBACK")
        rival.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many savepoints each COMMIT of the product had in it."""
    seen: list[int] = []
    groups, commit = Writer._group, ImmediateSQLite.do_commit

    def group(self: Writer, items: Any) -> int:
        count = groups(self, items)
        seen.append(count)
        return count

    def do_commit(self: ImmediateSQLite, connection: Any) -> None:
        commit(self, connection)
        seen.append(0) if not seen or seen[-1] <= 0 else seen.append(-seen.pop())

    monkeypatch.setattr(Writer, "_group", group)
    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    return seen


def sizes(commits: list[int]) -> list[int]:
    """The number of calls in each transaction, in order."""
    return [max(1, -count) for count in commits]


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine ends groups early; the test of that says so."""
    monkeypatch.setattr(writer, "GROUP_SECONDS", 60)


@pytest.fixture
def together(url: str, path: Path, clock: Clock) -> Callable[..., Results]:
    """Have calls wait in that order, then let them run; what each answered or raised."""

    def run(*calls: Callable[[AsyncStore], Any], **options: Any) -> Results:
        async def scenario() -> Results:
            async with await AsyncStore.open(url, clock=clock, **options) as store:
                with held(path):
                    tasks = [asyncio.ensure_future(call(store)) for call in calls]
                    await asyncio.sleep(0)
                    waiting = len(on_file(store.store)._groups._lanes)
                    assert waiting == sum(not task.done() for task in tasks)
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                assert len(on_file(store.store)._groups._lanes) == 0
                return answers

        return asyncio.run(scenario())

    return run


def append(text: Any, id: str = "c", *, token: str | None = None, **rest: Any) -> Callable[[AsyncStore], Any]:
    return lambda store: store.append(id, [user(text, **rest)], token=token)


def change(action: Callable[[Any], Any], id: str = "c") -> Callable[[AsyncStore], Any]:
    return lambda store: store.transact(id, action)


def test_what_waits_shares_one_commit(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c")
    commits.clear()
    answers = together(*(append(number) for number in range(10)))
    assert sizes(commits) == [10]
    assert [answer.value[0].position for answer in answers] == list(range(10))
    assert texts(plain, "c") == list(range(10))


def test_a_bad_call_harms_nobody_else(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c", messages=[user("there", "taken")])
    plain.create("held")
    plain.acquire("held", "somebody", token=TOKEN)
    commits.clear()

    def half_done(conversation: Any) -> None:
        conversation.append([user("undone")])
        raise ZeroDivisionError

    first, generating, exists, broken, last = together(
        append("first"), append("x", "held"), append("other content"), change(half_done), append("last")
    )
    assert sizes(commits) == [5]
    assert isinstance(generating, errors.Generating)
    assert isinstance(broken, ZeroDivisionError)
    assert (first.value[0].position, last.value[0].position) == (1, 3)
    assert texts(plain, "c") == ["there", "first", "other content", "last"]
    assert exists.value[0].version == first.value[0].version + 1


def test_each_caller_has_an_exception_of_its_own(plain: Store, together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")

    def do_commit(_: Any, __: Any) -> None:
        raise _sqlite_error(codes.SQLITE_IOERR_FSYNC)

    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    first, second = together(append("a"), append("b"))
    assert type(first) is type(second) is errors.OutcomeUnknown
    assert first is not second


def test_a_failed_commit_is_unknown_to_all_and_nothing_runs_again(
    plain: Store, together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.create("c")
    ran: list[str] = []

    def do_commit(_: Any, __: Any) -> None:
        raise _sqlite_error(codes.SQLITE_IOERR_FSYNC)

    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    answers = together(change(lambda _: ran.append("a")), change(lambda _: ran.append("b")))
    assert [type(answer) for answer in answers] == [errors.OutcomeUnknown] * 2
    assert ran == ["a", "b"]


@pytest.mark.parametrize("busy", [2, 10_000])
def test_a_busy_commit_is_tried_again_and_rolled_back_when_its_time_is_over(
    plain: Store, together: Any, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    plain.create("c")
    commit, tries = ImmediateSQLite.do_commit, [0]

    def do_commit(self: Any, connection: Any) -> None:
        tries[0] += 1
        if tries[0] <= busy:
            raise _sqlite_error(codes.SQLITE_BUSY)
        commit(self, connection)

    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    answers = together(append("a"), append("b"), busy_timeout_ms=300)
    monkeypatch.undo()
    if busy == 2:
        assert tries[0] == 3
        assert texts(plain, "c") == ["a", "b"]
    else:
        assert [type(answer) for answer in answers] == [errors.Busy] * 2
        assert texts(plain, "c") == []


def test_what_undoes_the_whole_group_is_answered_alone_and_the_rest_runs_again(
    plain: Store, together: Any, commits: list[int], tables: Tables
) -> None:
    """SQLITE_FULL rolls back everything by itself, and the next call would run in autocommit (facts, 1.11)."""
    plain.create("c")
    commits.clear()

    def full(conversation: Any) -> None:
        conversation.append([user("lost")])
        conversation.transaction._connection.execute("ROLLBACK")
        raise _sqlite_error(codes.SQLITE_FULL)

    before, culprit, after = together(append("before"), change(full), append("after"))
    assert isinstance(culprit, errors.DiskFull)
    assert sizes(commits) == [1, 1]
    assert [before.value[0].position, after.value[0].position] == [0, 1]
    assert texts(plain, "c") == ["before", "after"]
    assert tables.one("SELECT version FROM conversations") == 3


def test_an_io_error_in_one_call_stores_nothing_of_any(plain: Store, together: Any) -> None:
    plain.create("c")

    def fails(_: Any) -> None:
        raise _sqlite_error(codes.SQLITE_IOERR_WRITE)

    answers = together(append("before"), change(fails), append("after"))
    assert [type(answer) for answer in answers] == [errors.StorageFailed] * 3
    assert texts(plain, "c") == []


def test_nobody_is_answered_before_the_commit(plain: Store, together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    seen: list[int] = []
    commit = ImmediateSQLite.do_commit

    def do_commit(self: Any, connection: Any) -> None:
        time.sleep(0.05)
        seen.append(len(answered))
        commit(self, connection)

    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    answered: list[Any] = []

    def noted(text: str) -> Callable[[AsyncStore], Any]:
        async def call(store: AsyncStore) -> None:
            answered.append(await store.append("c", [user(text)]))

        return call

    together(noted("a"), noted("b"))
    assert seen == [0]
    assert len(answered) == 2


def test_a_group_ends_at_so_many_calls(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c")
    commits.clear()
    together(*(append(number) for number in range(GROUP_ITEMS + 36)))
    assert sizes(commits) == [GROUP_ITEMS, 36]


def test_a_group_ends_at_so_many_bytes(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c")
    commits.clear()
    # Each is light enough to be prepared on the loop.
    together(*(append("x" * 60_000) for _ in range(20)))
    assert sizes(commits) == [18, 2]


def test_a_group_ends_after_so_much_work(
    plain: Store, together: Any, commits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_SECONDS", 0.005)
    plain.create("c")
    commits.clear()
    together(*(change(lambda _: time.sleep(0.006)) for _ in range(3)), append("last"))
    assert sizes(commits) == [1, 1, 1, 1]
    assert texts(plain, "c") == ["last"]


def renew(id: str) -> Callable[[AsyncStore], Any]:
    return lambda store: store.renew(id, token=TOKEN)


def order_of(plain: Store, *ids: str) -> list[str]:
    """The conversations, in the order of their last change."""
    changes = [item.id for item in plain.conversations().items]
    return [id for id in reversed(changes) if id in ids]


def test_what_keeps_a_turn_alive_or_stops_it_goes_first(plain: Store, together: Any) -> None:
    for id in ("a", "b", "renewed", "released", "interrupted"):
        plain.create(id)
    for id in ("renewed", "released", "interrupted"):
        plain.acquire(id, "somebody", token=TOKEN)
    together(
        append("x", "a"),
        append("x", "b"),
        lambda store: store.renew("renewed", token=TOKEN, phase="on"),
        lambda store: store.release("released", token=TOKEN),
        lambda store: store.interrupt("interrupted"),
    )
    assert order_of(plain, "a", "b", "renewed", "released", "interrupted") == ["renewed", "released", "interrupted", "a", "b"]


def test_nothing_passes_an_earlier_call_of_its_own_conversation(plain: Store, together: Any) -> None:
    """A release that passed the last save would make it a stranger's."""
    plain.create("c")
    plain.acquire("c", "somebody", token=TOKEN)
    saved, released = together(
        lambda store: store.append("c", [user("the last words")], token=TOKEN), lambda store: store.release("c", token=TOKEN)
    )
    assert saved.value[0].content == "the last words"
    assert released.value.generation is None


def test_a_full_line_is_busy_and_renewals_have_places_of_their_own(plain: Store, together: Any) -> None:
    plain.create("c")
    plain.create("held")
    plain.acquire("held", "somebody", token=TOKEN)
    renewals = [lambda store: store.renew("held", token=TOKEN)] * (RESERVED_PLACES + 1)
    answers = together(append("a"), append("b"), append("no place"), *renewals, max_waiting=2)
    assert [type(answer).__name__ for answer in answers[:3]] == ["Answer", "Answer", "Busy"]
    assert [type(answer).__name__ for answer in answers[3:]] == ["Answer"] * RESERVED_PLACES + ["Busy"]
    assert texts(plain, "c") == ["a", "b"]


def test_what_may_take_long_goes_alone(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c", messages=[user("hi")])
    plain.create("gone")
    commits.clear()
    together(
        append("a"),
        append("b"),
        lambda store: store.fork("c", "f"),
        append("c"),
        append("d"),
        lambda store: store.delete("gone"),
        lambda store: store.truncate("c", after_position=0, through_position=1),
        append("e"),
    )
    assert sizes(commits) == [2, 1, 2, 1, 1, 1]
    assert texts(plain, "f") == ["hi", "a", "b"]


def test_who_goes_alone_lets_one_group_pass_and_no_second(plain: Store, together: Any, commits: list[int]) -> None:
    plain.create("c", messages=[user("hi")])
    for id in ("x", "y"):
        plain.create(id)
        plain.acquire(id, "somebody", token=TOKEN)
    commits.clear()
    renewals = [renew(id) for id in ("x", "y") for _ in range(GROUP_ITEMS)]
    together(lambda store: store.fork("c", "f"), *renewals)
    assert sizes(commits) == [GROUP_ITEMS, 1, GROUP_ITEMS]


def test_what_is_past_its_deadline_never_runs(plain: Store, url: str, path: Path, clock: Clock) -> None:
    plain.create("c")

    async def scenario() -> None:
        async with await AsyncStore.open(url, clock=clock, busy_timeout_ms=50) as store:
            with held(path), pytest.raises(errors.Busy):
                await store.append("c", [user("too late")])
            await store.append("c", [user("in time")])

    asyncio.run(scenario())
    assert texts(plain, "c") == ["in time"]


@pytest.mark.one_file
@pytest.mark.any_sql
def test_the_writer_drops_what_is_past_its_deadline(url: str) -> None:
    database = SQLiteDatabase(url)
    ran: list[str] = []

    async def scenario() -> Any:
        slow = database.submit(lambda _: time.sleep(0.05))
        late = database.submit(lambda _: ran.append("late"))
        late.deadline = 0
        return await asyncio.gather(slow.future, late.future, return_exceptions=True)

    _, late = asyncio.run(scenario())
    database.close()
    assert isinstance(late, errors.Busy)
    assert ran == []


def test_a_lone_caller_runs_in_his_own_thread_and_a_loop_never_does(plain: Store, url: str, clock: Clock) -> None:
    plain.create("c")
    here = threading.current_thread()
    assert plain.transact("c", lambda _: threading.current_thread()).value is here
    assert plain.transact("c", lambda _: threading.current_thread()).value is here

    async def scenario() -> Any:
        async with await AsyncStore.open(url, clock=clock) as store:
            return (await store.transact("c", lambda _: threading.current_thread())).value

    assert asyncio.run(scenario()) is not here


def test_no_thread_runs_the_calls_of_another(plain: Store, path: Path) -> None:
    plain.create("c")
    seen: list[tuple[Any, Any]] = []

    def call() -> None:
        mine = threading.current_thread()
        plain.transact("c", lambda _: seen.append((mine, threading.current_thread())))

    callers = [threading.Thread(target=call) for _ in range(8)]
    with held(path):
        for caller in callers:
            caller.start()
        while len(on_file(plain)._groups._lanes) < 7:
            pass
    for caller in callers:
        caller.join()
    assert len(seen) == 8
    assert {ran for called, ran in seen if ran is not called} <= {on_file(plain)._groups._thread}


def test_close_answers_what_waits_and_refuses_what_comes(url: str, path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        store = await AsyncStore.open(url, clock=clock)
        await store.create("c")
        with held(path):
            # More than go together: those of the second group are still in line when the first one is written.
            waiting = [asyncio.ensure_future(store.append("c", [user(number)])) for number in range(GROUP_ITEMS + 5)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(asyncio.to_thread(store.store.close))
            while not on_file(store.store)._closing:
                await asyncio.sleep(0)
            with pytest.raises(errors.Closed):
                await store.append("c", [user("refused")])
        assert [answer.value[0].position for answer in await asyncio.gather(*waiting)] == list(range(GROUP_ITEMS + 5))
        await closing
        await store.close()

    asyncio.run(scenario())
    with Store.open(url, clock=clock) as store:
        assert texts(store, "c") == list(range(GROUP_ITEMS + 5))


def test_the_end_of_the_program_closes_the_store(url: str) -> None:
    """Threads that still write then are answered or refused; nothing hangs and nothing is printed."""
    program = f"""
import threading
from sessionstore import Draft, Store, errors
store = Store.open({url!r})
store.create("c")
def write():
    while True:
        try:
            store.append("c", [Draft(role="user", content="x")])
        except errors.Closed:
            return
writers = [threading.Thread(target=write, daemon=True) for _ in range(4)]
for writer in writers:
    writer.start()
while store.get("c").message_count < 50:
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Store.open(url) as store:
        assert store.get("c").message_count >= 50


def test_an_interrupted_waiter_leaves_nothing_behind(plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a call waits: it has not begun, so it never will."""
    from sessionstore.items import ThreadItem

    plain.create("c")
    monkeypatch.setattr(type(on_file(plain)._groups), "idle", False)
    wait = ThreadItem.wait

    def interrupted(self: ThreadItem) -> Any:
        answered = self._answered

        class Interrupting:
            def acquire(self, **_: Any) -> bool:
                raise KeyboardInterrupt

            def release(self) -> None:
                answered.release()

        self._answered = Interrupting()  # type: ignore[assignment]
        return wait(self)

    with held(path), monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ThreadItem, "wait", interrupted)
        plain.append("c", [user("never")])
    plain.append("c", [user("after")])
    assert texts(plain, "c") == ["after"]


# The gate --------------------------------------------------------------------------------------------------------------


def test_the_gate_lets_one_process_pass(path: Path) -> None:
    mine, theirs = Gate(path), Gate(path)
    assert mine.enter()
    assert not theirs.enter()
    mine.leave()
    assert theirs.enter()
    mine.close()
    theirs.close()


def test_a_process_that_was_stopped_inside_stops_no_other_one(plain: Store, path: Path) -> None:
    """The gate makes waiting fair; what is right is settled behind it (DESIGN.md, rule 8)."""
    plain.create("c")
    stopped = Gate(path)
    assert stopped.enter()
    on_file(plain)._writer._timeout = 0.1
    plain.append("c", [user("past it")])
    stopped.close()
    assert texts(plain, "c") == ["past it"]


@pytest.mark.one_file
def test_while_nobody_can_write_everybodys_patience_ends(plain: Store, url: str, clock: Clock) -> None:
    """The writer itself is held up, so it is not the one who gives them up; and what was given up never happens."""
    plain.create("c")
    taken, let_go = threading.Event(), threading.Event()

    def hold(store: Store) -> None:
        on_file(store)._writer.turn.take(-1)
        taken.set()
        let_go.wait(30)
        on_file(store)._writer.turn.give_back()

    async def scenario() -> None:
        async with await AsyncStore.open(url, clock=clock, busy_timeout_ms=100) as store:
            holder = threading.Thread(target=hold, args=(store.store,))
            holder.start()
            assert await asyncio.to_thread(taken.wait, 30)
            with pytest.raises(errors.Busy):
                await store.append("c", [user("awaited")])
            with pytest.raises(errors.Busy):
                await asyncio.to_thread(store.store.append, "c", [user("threaded")])
            let_go.set()
            await asyncio.to_thread(holder.join)
            await store.append("c", [user("after")])

    asyncio.run(scenario())
    assert texts(plain, "c") == ["after"]


def test_the_gate_is_open_to_whoever_may_write_the_database(path: Path, tmp_path: Path) -> None:
    path.chmod(0o660)
    gate = Gate(path)
    assert gate.enter()
    gate.close()
    like, made = path.stat(), Path(f"{path}-gate").stat()
    assert (made.st_mode & 0o777, made.st_uid, made.st_gid) == (0o660, like.st_uid, like.st_gid)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_such_locks_has_no_gate(plain: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(_: int, __: int) -> None:
        raise OSError(number, "injected")

    monkeypatch.setattr("sessionstore.sqlite.gate.fcntl.flock", flock)
    plain.create("c")
    plain.append("c", [user("all the same")])
    assert texts(plain, "c") == ["all the same"]


def test_a_gate_that_cannot_be_opened_is_gone_past(plain: Store, path: Path) -> None:
    Path(f"{path}-gate").unlink(missing_ok=True)
    Path(f"{path}-gate").mkdir()
    plain.create("c")
    assert plain.get("c").version == 1


def test_nobody_inherits_the_gate(path: Path) -> None:
    """Neither over exec nor over fork: a child would keep it shut when we die."""
    gate = Gate(path)
    assert gate.enter()
    assert gate._file is not None
    assert not os.get_inheritable(gate._file)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    gate.close()
    another = Gate(path)
    # The child lives, and has let go of its copy.
    end = time.monotonic() + 10
    while not (entered := another.enter()) and time.monotonic() < end:
        pass
    os.close(writing)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    another.close()
    assert entered


def test_the_gate_is_no_part_of_what_is_right(plain: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that skips it is impolite, and nothing else."""
    monkeypatch.setattr(Gate, "enter", lambda _: True)
    monkeypatch.setattr(Gate, "wait", lambda _: None)
    plain.create("c")
    with Store.open(url) as another:
        writers = [
            threading.Thread(target=lambda store=store: [store.append("c", [user("x")]) for _ in range(50)])
            for store in (plain, another)
        ]
        for one in writers:
            one.start()
        for one in writers:
            one.join()
    assert [message.position for message in plain.messages("c", limit=1000).items] == list(range(100))


def test_lanes_have_room_for_so_many_bytes(url: str) -> None:
    lanes = Lanes(100)
    lanes.join(Item(lambda _: None, Lane.GROUPED, ("a",), WAITING_BYTES - 10, 1))
    with pytest.raises(errors.Busy):
        lanes.join(Item(lambda _: None, Lane.GROUPED, ("b",), 20, 1))
    lanes.join(Item(lambda _: None, Lane.GROUPED, ("c",), 1, 1))
    # The line is not empty meanwhile, so it is not because of that.
    assert keys(lanes.take()) == ["a"]
    lanes.join(Item(lambda _: None, Lane.GROUPED, ("b",), WAITING_BYTES - 10, 1))


def test_an_acquire_of_the_same_token_waits_behind_the_first(plain: Store, together: Any) -> None:
    plain.create("c")
    first, other = together(
        lambda store: store.acquire("c", "one", token=TOKEN), lambda store: store.acquire("c", "two", token=OTHER_TOKEN)
    )
    assert first.value.generation == 1
    assert isinstance(other, errors.Generating)


# Found by review ---------------------------------------------------------------------------------------------------------


def test_what_another_thread_has_seen_fail_is_not_one_calls_answer_to_all(plain: Store, together: Any) -> None:
    """A reader's I/O error in the middle of a group: nobody is told of somebody else's missing conversation."""
    plain.create("c")

    def meanwhile(conversation: Any) -> None:
        conversation.append([user("not stored")])
        writers[0].refusal = errors.StorageFailed(reason="of a reader")

    writers: list[Writer] = []
    opened = Writer.__init__

    def init(self: Writer, *args: Any) -> None:
        opened(self, *args)
        writers[:] = [self]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Writer, "__init__", init)
        answers = together(change(meanwhile), append("lost too"), append("x", "nowhere"))
    assert [type(answer) for answer in answers] == [errors.StorageFailed] * 3
    assert texts(plain, "c") == []


def test_closing_inside_a_change_harms_no_other_call(plain: Store, url: str, path: Path, clock: Clock) -> None:
    plain.create("c")

    async def scenario() -> list[Any]:
        store = await AsyncStore.open(url, clock=clock)
        with held(path):
            calls = [
                store.transact("c", lambda _: store.store.close()),
                store.append("c", [user("stored")]),
                store.append("nowhere", [user("x")]),
            ]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        thread = on_file(store.store)._groups._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
        return answers

    closed, stored, missing = asyncio.run(scenario())
    assert closed.value is None
    assert stored.value[0].content == "stored"
    assert isinstance(missing, errors.ConversationNotFound)
    assert texts(plain, "c") == ["stored"]


class Stubborn(Exception):
    """It cannot be copied."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@pytest.mark.parametrize("raised", [Stubborn("a", "b"), StopIteration("x"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_a_change_raises_is_its_own(plain: Store, together: Any, raised: BaseException) -> None:
    plain.create("c")

    def fails(_: Any) -> None:
        raise raised

    answers = together(append("a"), guarded(fails), append("b"))
    assert type(answers[1]) is (RuntimeError if isinstance(raised, StopIteration) else type(raised))
    assert texts(plain, "c") == ["a", "b"]


def guarded(action: Callable[[Any], Any]) -> Callable[[AsyncStore], Any]:
    """A task must not die of these: asyncio would stop its loop."""

    async def call(store: AsyncStore) -> Any:
        try:
            return await store.transact("c", action)
        except BaseException as error:  # noqa: BLE001
            return error

    return call


@pytest.mark.one_file
def test_a_writer_that_stumbles_answers_and_goes_on(
    plain: Store, url: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    plain.create("c")

    async def scenario() -> list[Any]:
        async with await AsyncStore.open(url, clock=clock) as store:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Log, "is_due", property(lambda _: [].pop()))
                first = await asyncio.wait_for(store.append("c", [user("committed")]), 10)
            return [first, await asyncio.wait_for(store.append("c", [user("next")]), 10)]

    answers = asyncio.run(scenario())
    assert [answer.value[0].position for answer in answers] == [0, 1]
    assert "stumbled" in caplog.text


def test_a_log_that_cannot_be_looked_at_is_no_error(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")

    def refuses(*_: Any, **__: Any) -> Any:
        raise PermissionError

    monkeypatch.setattr("sessionstore.sqlite.files.os.stat", refuses)
    assert plain.append("c", [user("stored")]).value[0].position == 0


@pytest.mark.one_file
def test_a_thread_that_cannot_be_started_is_busy_once(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    monkeypatch.setattr(type(on_file(plain)._groups), "idle", False)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(errors.Busy):
            plain.append("c", [user("given up")])
    assert plain.append("c", [user("stored")]).value[0].position == 0
    plain.close()


def test_the_replay_stops_at_an_io_error(plain: Store, together: Any) -> None:
    plain.create("c")

    def undoes(conversation: Any) -> None:
        conversation.transaction._connection.execute("ROLLBACK")
        raise _sqlite_error(codes.SQLITE_FULL)

    def fails(_: Any) -> None:
        tries.append(1)
        if len(tries) > 1:
            raise _sqlite_error(codes.SQLITE_IOERR_FSYNC)

    tries: list[int] = []
    answers = together(change(fails), change(undoes), append("after the I/O error"))
    assert [type(answer) for answer in answers[::2]] == [errors.StorageFailed] * 2
    assert texts(plain, "c") == []


def test_the_replay_copies_the_log_back_between_two_calls(plain: Store, together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    monkeypatch.setattr(Log, "is_due", property(lambda _: True))

    def undoes(conversation: Any) -> None:
        conversation.transaction._connection.execute("ROLLBACK")
        raise _sqlite_error(codes.SQLITE_FULL)

    answers = together(append("a"), change(undoes), append("b"), append("c"))
    assert [type(answer).__name__ for answer in answers] == ["Answer", "DiskFull", "Answer", "Answer"]


def in_lanes(*items: tuple[Lane, str]) -> Any:
    lanes = Lanes(10_000)
    for lane, key in items:
        lanes.join(Item(lambda _: None, lane, (key,), 0, 60))
    return lanes


def keys(items: Any) -> list[str]:
    return [item.keys[0] for item in items]


def test_what_was_put_back_goes_before_everybody_else() -> None:
    lanes = in_lanes(*((Lane.FIRST, f"f{n}") for n in range(80)), (Lane.GROUPED, "g"))
    group = lanes.take()
    assert keys(group) == [f"f{n}" for n in range(32)] + ["g"]
    lanes.put_back(group[2:])
    assert keys(lanes.take())[:31] == [f"f{n}" for n in range(2, 32)] + ["g"]


def test_who_goes_alone_does_not_pass_his_own_conversation() -> None:
    lanes = in_lanes(*((Lane.FIRST, f"f{n}") for n in range(70)), (Lane.ALONE, "f69"), (Lane.ALONE, "other"))
    assert len(lanes.take()) == 64
    assert keys(lanes.take()) == [f"f{n}" for n in range(64, 70)]
    assert keys(lanes.take()) == ["f69"]
    assert keys(lanes.take()) == ["other"]


def test_a_flood_of_those_who_go_first_leaves_half_to_the_others() -> None:
    lanes = in_lanes(*((Lane.FIRST, f"f{n}") for n in range(200)), *((Lane.GROUPED, f"g{n}") for n in range(200)))
    assert keys(lanes.take()) == [f"f{n}" for n in range(32)] + [f"g{n}" for n in range(32)]


def test_who_comes_after_close_is_told_so(url: str) -> None:
    lanes = in_lanes((Lane.GROUPED, "a"))
    lanes.close()
    with pytest.raises(errors.Closed):
        lanes.join(Item(lambda _: None, Lane.GROUPED, ("b",), 0, 60))
    assert lanes.wait()
    assert keys(lanes.take()) == ["a"]
    assert not lanes.wait()


@pytest.mark.one_file
def test_a_failed_store_that_is_closed_leaves_no_file_open(url: str) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        store = Store.open(url)
        with pytest.raises(errors.ConversationNotFound):
            store.append("nowhere", [user("x")])
        on_file(store)._writer.refusal = errors.StorageFailed(reason="injected")
        store.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_large_calls_are_prepared_apart_and_wait_like_all_others(plain: Store, url: str, path: Path, clock: Clock) -> None:
    plain.create("c")
    large = "x" * 200_000

    async def scenario() -> None:
        async with await AsyncStore.open(url, clock=clock, busy_timeout_ms=300) as store:
            with held(path):
                began = time.monotonic()
                results = await asyncio.gather(*(store.append("c", [user(large)]) for _ in range(20)), return_exceptions=True)
            assert {type(result) for result in results} == {errors.Busy}
            # All at once, and not one after the other.
            assert time.monotonic() - began < 3
            assert len((await store.append("c", [user(large)])).value[0].content) == len(large)

    asyncio.run(scenario())


def test_what_is_nested_too_deeply_is_refused_by_every_face(plain: Store, url: str) -> None:
    plain.create("c")
    deep: Any = []
    for _ in range(3_000):
        deep = [deep]

    async def scenario() -> None:
        async with await AsyncStore.open(url) as store:
            with pytest.raises(errors.InvalidInput):
                await store.append("c", [user(deep)])

    asyncio.run(scenario())


def growing(text: str, id: str = "r", **rest: Any) -> Callable[[AsyncStore], Any]:
    draft = reply(text, id, status=rest.pop("status", "partial"), metadata=rest.pop("metadata", None))
    return lambda store: store.put("c", draft, token=rest.pop("token", TOKEN), **rest)


@pytest.fixture
def generating(plain: Store) -> int:
    """A conversation with a turn; its version."""
    plain.create("c")
    return plain.acquire("c", "worker", token=TOKEN).value.conversation.version


def test_the_latest_partial_wins_in_the_queue(plain: Store, together: Any, generating: int, commits: list[int]) -> None:
    commits.clear()
    answers = together(*(growing("abcdef"[:length]) for length in range(1, 7)))
    assert sizes(commits) == [1]
    assert [(done.value.message.content, done.value.created) for done in answers] == [("abcdef", False)] * 5 + [
        ("abcdef", True)
    ]
    assert all(done.lease.generation == plain.get("c").generation.number for done in answers)  # type: ignore[union-attr]
    assert (texts(plain, "c"), plain.get("c").version) == (["abcdef"], generating + 1)


@pytest.mark.parametrize(
    "between",
    [
        append("something else of this conversation", token=TOKEN),
        growing("of another message", "s"),
        growing("complete", status="complete"),
        growing("with other labels", metadata={"n": 1}),
        growing("if it is new", only_create=True),
        growing("of somebody else", token=OTHER_TOKEN),
    ],
    ids=["append", "other message", "complete", "other labels", "only create", "other token"],
)
def test_only_partials_that_follow_each_other_are_folded(
    plain: Store, together: Any, generating: int, commits: list[int], between: Any
) -> None:
    commits.clear()
    together(growing("a"), between, growing("b"))
    assert sizes(commits) == [3]


def test_partials_of_other_conversations_do_not_come_between(
    plain: Store, together: Any, generating: int, commits: list[int]
) -> None:
    plain.create("d")
    commits.clear()
    together(growing("a"), append("x", "d"), growing("ab"), append("y", "d"), growing("abc"))
    assert sizes(commits) == [3]
    assert (texts(plain, "c"), texts(plain, "d")) == (["abc"], ["x", "y"])


def test_partials_that_cannot_be_stored_are_all_told(plain: Store, together: Any, generating: int) -> None:
    plain.put("c", reply("whole", "r"), token=TOKEN)
    answers = together(growing("a"), growing("ab"))
    assert [type(answer) for answer in answers] == [errors.MessageComplete] * 2
    assert answers[0] is not answers[1]


def test_an_overtaken_partial_is_no_repeat(plain: Store, together: Any, generating: int) -> None:
    plain.put("c", reply("ab", "r", status="partial"), token=TOKEN)
    first, second = together(growing("abc"), growing("ab"))
    assert (first.replayed, second.replayed, texts(plain, "c")) == (False, True, ["ab"])


def test_the_newest_partial_that_is_still_wanted_is_stored(url: str, path: Path, plain: Store, generating: int) -> None:
    async def main() -> Results:
        async with await AsyncStore.open(url) as store:
            with held(path):
                tasks = [asyncio.ensure_future(growing("abc"[:length])(store)) for length in (1, 2, 3)]
                await asyncio.sleep(0)
                tasks[2].cancel()
                await asyncio.sleep(0)
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first.value.message.content, second.value.message.content) == ("ab", "ab")
    assert isinstance(third, asyncio.CancelledError)
    assert texts(plain, "c") == ["ab"]


def test_partials_for_which_there_was_no_time_are_still_folded(
    plain: Store, together: Any, generating: int, commits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_SECONDS", -1)
    commits.clear()
    answers = together(append("first", "c", token=TOKEN), growing("a"), growing("ab"), growing("abc"))
    assert sizes(commits) == [1, 1]
    assert [done.value.message.content for done in answers[1:]] == ["abc"] * 3
