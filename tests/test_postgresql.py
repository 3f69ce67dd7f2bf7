"""What is PostgreSQL's alone: what happens when transactions are refused, cut off, late, or acknowledged by half."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionstore import Limits, Save, Store, creation, errors, importing, migrate
from sessionstore.client import Client
from sessionstore.conversation import GuardedConversation
from sessionstore.postgresql import connections, pulse
from sessionstore.postgresql.connections import migration
from sessionstore.postgresql.pulse import Teller
from sessionstore.postgresql.transaction import PostgreSQLTransaction
from sessionstore.postgresql.writing import Writing
from sessionstore.schema import conversations
from sessionstore.watch import Topic
from tests.conftest import TOKEN, Clock, Tables, in_line, reply, texts, user
from tests.live import LiveServer
from tests.servers import DURABLE, Server, binaries, free_port

pytestmark = pytest.mark.a_server


def cut(conversation: GuardedConversation) -> None:
    """End the session that this transaction is in, as the server does on its way down."""
    connection = conversation.transaction._connection.session
    with psycopg.connect(**_address(connection), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))


def _address(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    return {name: connection.info.get_parameters()[name] for name in ("host", "port", "user", "dbname")}


@contextmanager
def held(store: Store, id: str) -> Iterator[None]:
    """Somebody else has the row of a conversation locked meanwhile."""
    url = store.database._postgresql.parameters  # type: ignore[attr-defined]
    with psycopg.connect(**url) as other:
        other.execute("SELECT pk FROM conversations WHERE id = %s AND deleted_at IS NULL FOR UPDATE", (id,))
        yield
        other.rollback()


# What is made again, and what is not --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected])
def test_what_the_server_could_not_put_in_an_order_is_made_again(plain: Store, error: type[Exception]) -> None:
    plain.create("c")
    runs: list[int] = []

    def change(conversation: GuardedConversation) -> int:
        conversation.append([user("once", "m")])
        runs.append(1)
        if len(runs) < 3:
            raise error
        return len(runs)

    assert plain.transact("c", change).value == 3
    assert texts(plain, "c") == ["once"]


def test_a_database_that_never_finds_an_order_is_busy(plain: Store) -> None:
    plain.create("c")

    def change(conversation: GuardedConversation) -> None:
        conversation.append([user("never")])
        raise psycopg.errors.SerializationFailure

    with pytest.raises(errors.Busy):
        plain.transact("c", change)
    assert texts(plain, "c") == []


def test_a_real_deadlock_ends_and_both_are_done(plain: Store, url: str, clock: Clock) -> None:
    """Two forks onto each other's names wait for each other."""
    for id in ("a", "b"):
        plain.create(id)
    inside = threading.Barrier(2)

    def fork(store: Store, source: str, target: str) -> str:
        met: list[int] = []

        def change(conversation: GuardedConversation) -> str:
            if not met:
                met.append(1)
                inside.wait(10)
            try:
                return conversation.fork(target).id
            except errors.ConversationExists as exists:
                return exists.code

        try:
            return store.transact(source, change).value
        except errors.ConversationExists as exists:
            return exists.code

    with Store.open(url, clock=clock) as other, ThreadPoolExecutor(2) as pool:
        done = [pool.submit(fork, plain, "a", "b"), pool.submit(fork, other, "b", "a")]
        assert [one.result(30) for one in done] == ["conversation-exists"] * 2


def test_a_connection_that_is_lost_before_the_commit_is_made_again(plain: Store) -> None:
    plain.create("c")
    runs: list[int] = []

    def change(conversation: GuardedConversation) -> None:
        conversation.append([user("once", "m")])
        runs.append(1)
        if len(runs) == 1:
            cut(conversation)
        # As long as nothing was sent to be committed, a lost connection is only that.
        conversation.view()

    plain.transact("c", change)
    assert len(runs) == 2
    assert texts(plain, "c") == ["once"]


def test_a_commit_whose_answer_is_lost_is_unknown_and_never_made_again(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    end, ends = Writing._end, list[int]()

    def lost(self: Writing, wire: Any) -> None:
        ends.append(1)
        end(self, wire)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(Writing, "_end", lost)
        with pytest.raises(errors.OutcomeUnknown):
            plain.append("c", [user("once", "m")])
    assert len(ends) == 1
    assert plain.append("c", [user("once", "m")]).replayed
    assert texts(plain, "c") == ["once"]


def test_a_commit_that_no_standby_has_is_not_acknowledged(clock: Clock) -> None:
    """Cancelled while it waits for its standby, a COMMIT succeeds with a warning: a failover would lose it."""
    with Server() as server:
        server.execute("CREATE DATABASE store")
        with Store.open(server.url("store"), clock=clock, migrate_first=True) as store:
            store.create("c")
            server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
            caught: list[BaseException] = []

            def append() -> None:
                try:
                    store.append("c", [user("here alone", "m")])
                except errors.SessionStoreError as error:
                    caught.append(error)

            thread = threading.Thread(target=append)
            # The setting comes to a session at its next command.
            while server.execute("SHOW synchronous_standby_names") != [("nobody",)]:
                time.sleep(0.01)
            thread.start()
            while not caught and thread.is_alive():
                server.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                time.sleep(0.01)
            thread.join(30)
            assert isinstance(caught[0], errors.OutcomeUnknown)


def test_an_id_that_an_import_and_a_create_want_goes_to_one_of_them(plain: Store, url: str) -> None:
    """The index decides, and whoever comes second is told what he would have been told a moment later."""

    def change(transaction: Any) -> None:
        raise _taken()

    with pytest.raises(errors.Busy):
        plain.database.write(change)


def _taken() -> psycopg.Error:
    class Taken(psycopg.errors.UniqueViolation):
        @property
        def diag(self) -> Any:
            return type("D", (), {"constraint_name": "uq_conversations_living"})()

    return Taken("duplicate key")


def test_a_call_for_several_that_is_given_up_harms_nobody(url: str, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It waited for too long: nothing of it is done, and whoever stands behind it is served."""
    with Store.open(url, clock=clock, busy_timeout_ms=300) as store:
        for id in ("a", "b"):
            store.create(id)
            store.acquire(id, "w", token=f"{TOKEN}-{id}")
        saves = [Save(conversation_id=id, token=f"{TOKEN}-{id}", message=reply("late", "r")) for id in ("a", "b")]
        inside, go = threading.Event(), threading.Event()

        def slow(_: GuardedConversation) -> None:
            inside.set()
            go.wait(10)

        with ThreadPoolExecutor(20) as pool:
            holder = [pool.submit(store.transact, id, slow, token=f"{TOKEN}-{id}") for id in ("a", "b")]
            inside.wait(10)
            given_up = [pool.submit(store.save_all, saves) for _ in range(17)]
            assert {_code(call.result) for call in given_up} == {"busy"}
            go.set()
            for call in holder:
                call.result(30)
            assert store.append("a", [user("served")], token=f"{TOKEN}-a").value[0].position == 0
            calls = [pool.submit(store.append, "b", [user(n)], token=f"{TOKEN}-b") for n in range(8)]
            assert {_code(call.result) for call in calls} == {"done"}
        assert texts(store, "a") == ["served"]
    assert caplog.records == []


def test_a_group_judges_each_by_the_time_at_which_it_has_the_lock(plain: Store) -> None:
    """What the first one locked is given back when it is undone; somebody else may have come in since."""
    times: list[int] = []

    def change(transaction: Any) -> None:
        times.append(transaction.now())
        if len(times) == 1:
            raise errors.Stale(conversation_id="c", version=1)

    with plain.database._writing._transaction() as wire:  # type: ignore[attr-defined]
        writing = plain.database._writing  # type: ignore[attr-defined]
        plain.database._schema._clock = iter([1, 2, 3]).__next__  # type: ignore[attr-defined]
        from sessionstore.items import Item, Lane

        before = None
        for _ in range(2):
            wire.send("SAVEPOINT item")
            before = PostgreSQLTransaction(wire, writing._statements, writing._schema, before=before)
            writing._try(Item(change, Lane.GROUPED, ("c",), 0, 5), before, wire)
    assert times == [1, 2]


def test_the_servers_clock_is_read_when_the_lock_is_had(url: str) -> None:
    """A caller who waited is judged by the time after the wait, by the clock of the server."""
    with Store.open(url) as store:
        store.create("c")
        with ThreadPoolExecutor(1) as pool:
            with held(store, "c"):
                waiting = pool.submit(store.append, "c", [user("late")])
                time.sleep(0.3)
                before = Tables(url).one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            stored = waiting.result(30).value[0]
        assert stored.created_at >= before


# Who waits for whom -------------------------------------------------------------------------------------------------------


def test_conversations_do_not_wait_for_each_other(plain: Store) -> None:
    for id in ("a", "b"):
        plain.create(id)
    with ThreadPoolExecutor(1) as pool:
        with held(plain, "a"):
            waiting = pool.submit(plain.append, "a", [user("later")])
            assert plain.append("b", [user("now")]).value[0].position == 0
            assert not waiting.done()
        waiting.result(30)
    assert texts(plain, "a") == ["later"]


def test_the_calls_of_a_hot_conversation_share_a_transaction(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    end, ends = Writing._end, list[int]()

    def counted(self: Writing, wire: Any) -> Any:
        ends.append(1)
        return end(self, wire)

    monkeypatch.setattr(Writing, "_end", counted)
    with ThreadPoolExecutor(16) as pool:
        with held(plain, "c"):
            calls = [pool.submit(plain.append, "c", [user(n, f"m{n}")]) for n in range(16)]
            while in_line(plain) < 14:
                time.sleep(0.001)
        stored = [call.result(30).value[0] for call in calls]
    assert sorted(message.position or 0 for message in stored) == list(range(16))
    assert len(ends) <= 3


def test_one_that_fails_in_a_group_harms_no_other(plain: Store) -> None:
    plain.create("c", messages=[user("there", "m0")])
    with ThreadPoolExecutor(8) as pool:
        with held(plain, "c"):
            calls = [pool.submit(plain.append, "c", [user(n, f"m{n % 6}")]) for n in range(8)]
            while in_line(plain) < 6:
                time.sleep(0.001)
        codes = [_code(call.result) for call in calls]
    assert codes.count("message-exists") == 3
    assert codes.count("done") == 5
    assert len(texts(plain, "c")) == 6


def test_an_error_that_nobody_waited_for_is_of_the_call_that_made_it(plain: Store) -> None:
    plain.create("c")

    def bad(conversation: GuardedConversation) -> None:
        conversation.transaction.do(sqlalchemy.text("SELECT 1 / 0"))
        raise errors.PreconditionFailed(version=7)

    with ThreadPoolExecutor(8) as pool:
        with held(plain, "c"):
            calls = [
                pool.submit(plain.transact, "c", bad) if n == 4 else pool.submit(plain.append, "c", [user(n)]) for n in range(8)
            ]
            while in_line(plain) < 6:
                time.sleep(0.001)
        codes = [_code(call.result) for call in calls]
    assert codes[:4] + codes[5:] == ["done"] * 7
    assert codes[4] == "precondition-failed"


def test_a_store_closes_though_its_server_stands_still(url: str, clock: Clock) -> None:
    """A socket that takes everything and answers nothing: what a stopped machine looks like for a while."""
    store = Store.open(url, clock=clock)
    store.create("c")
    session, _ = store.database._writers._idle[-1]  # type: ignore[attr-defined]
    assert session._pipeline_kept is not None
    backend = session.info.backend_pid
    os.kill(backend, signal.SIGSTOP)
    try:
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < 5
    finally:
        os.kill(backend, signal.SIGCONT)
    store.close()


def test_a_group_that_the_server_undoes_is_made_one_by_one(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c")
    run = PostgreSQLTransaction._run

    def full(self: PostgreSQLTransaction, statement: Any, parameters: Any) -> Any:
        if parameters.get("content") == '"too much"':
            self.failed = psycopg.errors.DiskFull("no space left")
            raise self.failed
        return run(self, statement, parameters)

    monkeypatch.setattr(PostgreSQLTransaction, "_run", full)
    with ThreadPoolExecutor(8) as pool:
        with held(plain, "c"):
            calls = [pool.submit(plain.append, "c", [user("too much" if n == 5 else n)]) for n in range(8)]
            while in_line(plain) < 6:
                time.sleep(0.001)
        codes = [_code(call.result) for call in calls]
    assert sorted(codes) == [*["disk-full"], *["done"] * 7]
    assert len(texts(plain, "c")) == 7


def _code(result: Callable[[float], Any]) -> str:
    try:
        result(30)
    except errors.SessionStoreError as error:
        return error.code
    return "done"


def test_of_saves_for_several_conversations_one_that_fails_harms_no_other(
    plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in ("a", "b", "c"):
        plain.create(id)
        plain.acquire(id, "w", token=f"{TOKEN}-{id}")
    run = PostgreSQLTransaction._run

    def full(self: PostgreSQLTransaction, statement: Any, parameters: Any) -> Any:
        if parameters.get("content") == '"of b"':
            self.failed = psycopg.errors.DiskFull("no space left")
            raise self.failed
        return run(self, statement, parameters)

    monkeypatch.setattr(PostgreSQLTransaction, "_run", full)
    saves = [Save(conversation_id=id, token=f"{TOKEN}-{id}", message=reply(f"of {id}", "r")) for id in ("a", "b", "c", "a")]
    results = plain.save_all(saves)
    assert [type(result).__name__ for result in results] == ["Answer", "DiskFull", "Answer", "Answer"]
    assert [texts(plain, id) for id in ("a", "b", "c")] == [["of a"], [], ["of c"]]


def test_who_stands_still_inside_a_transaction_holds_nobody_up_for_ever(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_MS", 200)
    runs: list[int] = []
    with Store.open(url, clock=clock) as stopped, Store.open(url, clock=clock) as rival:
        stopped.create("c")
        inside = threading.Event()

        def change(conversation: GuardedConversation) -> None:
            runs.append(1)
            inside.set()
            if len(runs) == 1:
                time.sleep(1.0)
            conversation.append([user("of the stopped", "m")])

        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(stopped.transact, "c", change)
            inside.wait(10)
            assert rival.append("c", [user("of the rival")]).value[0].position == 0
            slow.result(30)
        assert len(runs) == 2
        assert texts(rival, "c") == ["of the rival", "of the stopped"]


# The order of changes -----------------------------------------------------------------------------------------------------


def test_the_feed_of_the_list_misses_nobody_who_commits_late(plain: Store, url: str, clock: Clock) -> None:
    """He began first and has the lower number; the one behind him is not told before it is certain that nobody comes."""
    for id in ("late", "quick"):
        plain.create(id)
    since = plain.list_changes().change
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        conversation.append([user("late")])
        conversation.view()
        inside.set()
        go.wait(10)

    with Store.open(url, clock=clock) as other, ThreadPoolExecutor(1) as pool:
        late = pool.submit(other.transact, "late", slow)
        inside.wait(10)
        plain.append("quick", [user("quick")])
        told = plain.list_changes(since)
        assert not told.reset
        go.set()
        late.result(30)
    rest = plain.list_changes(told.change)
    assert not rest.reset
    assert {c.id for c in (*told.conversations, *rest.conversations)} == {"late", "quick"}
    assert "late" in {c.id for c in rest.conversations}


def test_many_that_change_in_one_transaction_have_places_of_their_own(plain: Store, tables: Tables) -> None:
    plain.create("root")
    for n in range(30):
        plain.create(f"c{n}", parent_id="root")
    plain.delete("root", children="orphan")
    changes = tables.rows("SELECT change FROM conversations")
    assert len(set(changes)) == len(changes) == 31
    seen, page = list[str](), plain.conversations(limit=7)
    while True:
        seen += [c.id for c in page.items]
        if page.next is None:
            break
        page = plain.conversations(limit=7, before=page.next)
    assert sorted(seen) == sorted(f"c{n}" for n in range(30))


def test_rows_from_a_server_with_higher_numbers_are_followed_by_higher_ones(url: str, clock: Clock) -> None:
    """A dump that is restored elsewhere brings changes along that are still to come there."""
    with Store.open(url, clock=clock) as store:
        store.create("old")
    with psycopg.connect(url) as operator:
        operator.execute("UPDATE conversations SET change = change + 1000000000000")
    with Store.open(url, clock=clock) as store:
        since = store.list_changes().change
        store.create("new")
        assert [c.id for c in store.list_changes(since).conversations] == ["new"]
        assert [c.id for c in store.conversations().items] == ["new", "old"]


def test_opening_a_store_while_others_write_hides_nothing(plain: Store, url: str, clock: Clock) -> None:
    """Whoever has drawn a number and has not committed would come in behind what is taken for complete."""
    for id in ("slow", "quick"):
        plain.create(id)
    since = plain.list_changes().change
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        conversation.append([user("slow")])
        conversation.view()
        inside.set()
        go.wait(10)

    with Store.open(url, clock=clock) as other, ThreadPoolExecutor(1) as pool:
        late = pool.submit(other.transact, "slow", slow)
        inside.wait(10)
        plain.append("quick", [user("quick")])
        Store.open(url, clock=clock).close()
        told = plain.list_changes(since)
        go.set()
        late.result(30)
    rest = plain.list_changes(told.change)
    assert {c.id for c in (*told.conversations, *rest.conversations)} == {"slow", "quick"}


def test_a_change_that_is_still_to_come_is_found(plain: Store, url: str) -> None:
    plain.create("c")
    with psycopg.connect(url) as operator:
        operator.execute("UPDATE conversations SET change = change + 1000000000000")
    assert [fault.invariant for fault in plain.check().faults] == ["order"]
    with psycopg.connect(url) as operator:
        operator.execute("UPDATE conversations SET change = change - 1000000000000")


def test_a_create_does_not_bring_back_what_was_deleted_meanwhile(
    plain: Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id never was when it looked first. Only what is looked up behind the insert sees the tombstone."""
    insert = creation._insert

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(creation, "_insert", insert)
        other.create("x")
        other.delete("x")
        return insert(*arguments)

    with Store.open(url, clock=clock) as other:
        monkeypatch.setattr("sessionstore.postgresql.database.in_a_change", lambda: False)
        monkeypatch.setattr(creation, "_insert", meanwhile)
        with pytest.raises(errors.ConversationDeleted):
            plain.create("x", messages=[user("late")])
        with pytest.raises(errors.ConversationDeleted):
            other.get("x")


def test_an_import_does_not_bring_back_what_was_deleted_meanwhile(
    plain: Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its first look and its last step somebody creates the id and deletes it."""
    import io

    with Store.open(url, clock=clock) as other:
        other.create("x", messages=[user("m")])
        file = io.BytesIO()
        other.export(file)
        other.delete("x")
        clock.advance(40 * 86_400_000)
        other.create("newest")
        other.prune()
        look = creation.check_vacant

        def meanwhile(transaction: Any, owner: str, id: str, digest: str) -> None:
            look(transaction, owner, id, digest)
            other.create("x")
            other.delete("x")

        monkeypatch.setattr(importing, "check_vacant", meanwhile)
        monkeypatch.setattr("sessionstore.postgresql.database.in_a_change", lambda: False)
        with pytest.raises(errors.ConversationDeleted):
            plain.import_(io.BytesIO(file.getvalue()))
        with pytest.raises(errors.ConversationDeleted):
            plain.get("x")


@pytest.mark.parametrize("default", ["default_transaction_isolation = 'repeatable read'", "default_transaction_read_only = on"])
def test_the_defaults_of_a_database_change_no_promise(url: str, clock: Clock, default: str) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as operator:
        for setting in (default, "synchronous_commit = off", "client_min_messages = error"):
            operator.execute(f"ALTER DATABASE {name} SET {setting}")
        try:
            with Store.open(url, clock=clock) as store:
                store.create("c")
                found = store.database.write(
                    lambda transaction: [
                        transaction.row(sqlalchemy.text(f"SHOW {setting}"))[0]
                        for setting in ("transaction_isolation", "synchronous_commit", "client_min_messages")
                    ]
                )
            assert found == ["read committed", "on", "warning"]
        finally:
            operator.execute("SET default_transaction_read_only = off")
            operator.execute(f"ALTER DATABASE {name} RESET ALL")


def test_a_blocked_conversation_starves_no_other(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock) as store:
        for id in ("a", "b"):
            store.create(id)

        async def main() -> None:
            from sessionstore import AsyncStore

            async with AsyncStore(store) as awaited:
                await awaited.append("a", [user("a thread is there")])
                with held(store, "a"):
                    first = asyncio.create_task(awaited.append("a", [user("blocked")]))
                    second = asyncio.create_task(awaited.append("b", [user("free")]))
                    await asyncio.wait_for(second, 3)
                    assert not first.done()
                await first

        asyncio.run(main())


# Events across servers ----------------------------------------------------------------------------------------------------

APPEND = """
import sys
from sessionstore import Draft, Store
with Store.open(sys.argv[1]) as store:
    store.append("c", [Draft(role="user", content="from elsewhere")])
"""


@contextmanager
def watching(store: Store) -> Iterator[threading.Event]:
    """A bell that rings when the watcher has heard of a change of conversation c."""
    bell = threading.Event()

    def ring(_: Any) -> None:
        bell.set()

    store.watch.subscribe(Topic("", "c"), ring)
    try:
        # It rings once of itself, and is silent then.
        assert bell.wait(10)
        bell.clear()
        yield bell
    finally:
        store.watch.unsubscribe(Topic("", "c"), ring)


def test_what_another_process_commits_is_told_by_a_notification(
    plain: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "LOOK_EVERY_SECONDS", 3600)
    plain.create("c")
    with watching(plain) as bell:
        subprocess.run([sys.executable, "-c", APPEND, url], check=True)
        assert bell.wait(10)


def test_a_notification_that_is_lost_is_made_good_by_looking(
    plain: Store, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(Teller, "committed", lambda _: None)
    plain.create("c")
    with watching(plain) as bell, Store.open(url, clock=clock) as other:
        other.append("c", [user("silent")])
        assert bell.wait(10)


def test_a_follower_whose_connection_was_lost_goes_on(plain: Store, url: str, clock: Clock) -> None:
    plain.create("c")
    with plain.events("c") as events, Store.open(url, clock=clock) as other:
        next(events)
        with psycopg.connect(url, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LISTEN%'"
                             " AND pid <> pg_backend_pid()")  # fmt: skip
        other.append("c", [user("after")])
        told = events.wait(20)
    assert told is not None


# The schema ---------------------------------------------------------------------------------------------------------------


def test_a_store_refuses_everything_once_another_process_has_migrated(plain: Store, url: str, tables: Tables) -> None:
    plain.create("c")
    with psycopg.connect(url) as operator:
        operator.execute("UPDATE alembic_version SET version_num = '9999'")
    before = tables.everything()
    try:
        for call in (lambda: plain.append("c", [user("no")]), lambda: plain.get("c"), lambda: plain.prune(keep=0)):
            with pytest.raises(errors.SchemaChanged):
                call()
        assert tables.everything() == before
    finally:
        with psycopg.connect(url) as operator:
            operator.execute("UPDATE alembic_version SET version_num = %s", (migrate.HEAD,))


def test_a_create_that_waited_for_a_migration_is_told_of_it(plain: Store, url: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(url) as migrating:
            migrating.execute("LOCK TABLE conversations IN ACCESS EXCLUSIVE MODE")
            migrating.execute("UPDATE alembic_version SET version_num = '9999'")
            creating = pool.submit(plain.create, "c")
            while not migrating.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                time.sleep(0.005)
        try:
            with pytest.raises(errors.SchemaChanged):
                creating.result(30)
            assert Tables(url).rows("SELECT id FROM conversations") == []
        finally:
            with psycopg.connect(url) as operator:
                operator.execute("UPDATE alembic_version SET version_num = %s", (migrate.HEAD,))


def test_who_was_let_in_before_a_migration_is_done_before_it(plain: Store, url: str) -> None:
    """Whoever has locked a row has looked for the schema under that lock: a migration that touches no row waits too."""
    plain.create("c")
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        inside.set()
        go.wait(10)
        conversation.append([user("in time")])

    def migrates() -> None:
        with migration(url) as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(plain.transact, "c", slow)
        inside.wait(10)
        migrating = pool.submit(migrates)
        while not (migrating.done() or Tables(url).rows("SELECT 1 FROM pg_locks WHERE NOT granted")):
            time.sleep(0.005)
        try:
            assert not migrating.done()
            go.set()
            writing.result(30)
            migrating.result(30)
            with pytest.raises(errors.SchemaChanged):
                plain.append("c", [user("late")])
        finally:
            go.set()
            with psycopg.connect(url) as operator:
                operator.execute("UPDATE alembic_version SET version_num = %s", (migrate.HEAD,))
    assert Tables(url).rows("SELECT content FROM messages") == [('"in time"',)]


def test_every_revision_goes_down_and_up_again_on_populated_data(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock) as store:
        store.create("c", title="Grüße", messages=[user("hi"), user({"a": ["\x00\ud800"]})])
        store.acquire("c", "w", token=TOKEN)
        store.put("c", reply("half", "r", status="partial"), token=TOKEN)
    before = Tables(url).everything()
    migrate.downgrade(url, "0001")
    migrate.upgrade(url)
    assert Tables(url).everything() == before
    with Store.open(url, clock=clock) as store:
        assert len(store.search("hi").items) == 1
        assert store.finish("c", [reply("whole", "r")], token=TOKEN).value.messages[0].content == "whole"
    migrate.downgrade(url, "base")
    assert Tables(url).rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("alembic_version",)]
    assert Tables(url).rows("SELECT proname FROM pg_proc WHERE proname LIKE 'sessionstore%'") == []
    migrate.upgrade(url)


def test_a_fork_of_what_was_edited_is_told_whole(plain: Store, url: str) -> None:
    """Edited rows lie at the end of a table that is read as it lies: in the copy they were younger than the rest (review)."""
    plain.create("c", messages=[user(n, f"m{n}") for n in range(20)])
    for n in range(4):
        plain.put("c", user("edited", f"m{n}"))
    with psycopg.connect(url, autocommit=True) as operator:
        operator.execute("ANALYZE")
    plain.fork("c", "copy")
    page = plain.changes("copy", limit=5)
    told = [message.position for message in page.messages]
    while page.next is not None:
        page = plain.changes("copy", next=page.next, limit=5)
        told += [message.position for message in page.messages]
    assert told == list(range(20))


def test_many_that_migrate_at_once_all_succeed(empty: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: Store.open(empty, migrate_first=True).close(), range(6)))
    with Store.open(empty) as store:
        store.create("c")


def test_the_views_speak_to_people(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock) as store:
        store.create("c", messages=[user("hi", "m")])
        store.acquire("c", "w", token=TOKEN)
        store.queue_inputs("c", [user("later", "i")])
        store.finish("c", token=TOKEN, usage={"input_tokens": 3, "cost": 0.5, "note": "\x00"})
    tables = Tables(url)
    assert tables.rows("SELECT id, state, created_at FROM v_conversations") == [("c", "idle", "2027-01-15T08:00:00.000Z")]
    assert tables.rows("SELECT message_id, content FROM v_transcripts") == [("m", '"hi"')]
    assert tables.rows("SELECT message_id FROM v_contexts") == [("m",)]
    assert tables.rows("SELECT message_id, queued_at FROM v_inputs") == [("i", "2027-01-15T08:00:00.000Z")]
    assert tables.rows("SELECT generation, outcome FROM v_generations") == [(1, "completed")]
    assert tables.rows("SELECT day, input_tokens, cost FROM v_usage") == [("2027-01-15", 3, 0.5)]
    assert tables.rows("SELECT * FROM v_leases") == []


# What is stored, and what is found ---------------------------------------------------------------------------------------

Odd = st.text(st.one_of(st.characters(), st.sampled_from("\x00\x02\ud800\udfff\\\"u0'éÉßς²Ⅷǿ ")), max_size=30)
Content = st.recursive(
    st.one_of(Odd, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(Odd, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=Content, metadata=st.dictionaries(Odd, Content, max_size=2))
def test_whatever_json_can_say_is_stored_and_indexed_exactly(plain: Store, content: Any, metadata: Any) -> None:
    id = plain.create(metadata=metadata).value.conversation.id
    stored = plain.append(id, [user(content, metadata=metadata)]).value[0]
    assert plain.message(id, stored.id).content == content
    assert plain.get(id).metadata == metadata
    for key in metadata:
        try:
            found = plain.conversations(metadata_key=key, limit=1).items
        except errors.InvalidInput:
            # Nobody can ask for that.
            continue
        assert [c.id for c in found] == [id]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(st.characters(categories=["L", "N", "P", "Mn"]), min_size=1, max_size=8), min_size=1, max_size=4))
def test_a_message_is_found_by_each_of_its_words(plain: Store, words: list[str]) -> None:
    """The index of words names at least whom SQLite's own tokenizer finds."""
    from sessionstore.matching import looked_through, question

    id = plain.create().value.conversation.id
    text = " ".join(words)
    plain.append(id, [user({"text": [text]})])
    for word in {*words, *(word.upper() for word in words)}:
        if not any(letter.isalnum() for letter in word):
            continue
        expected = bool(looked_through([(1, "s", text.encode())], question([word], ["s"])))
        assert bool(plain.search(word, conversation_id=id).items) == expected, word


def test_while_no_server_is_there_an_api_server_says_so_and_goes_on_afterwards(clock: Clock) -> None:
    with Server() as database:
        database.execute("CREATE DATABASE store")
        with LiveServer(database.url("store"), clock) as served, httpx2.Client(base_url=served.address) as http:
            body = {"id": "c", "messages": [{"id": "m", "role": "user", "content": "hi"}]}
            assert http.post("/v1/conversations", json=body).status_code == 201
            database.stop()
            for answer in (http.get("/v1/conversations/c"), http.post("/v1/conversations", json=body), http.get("/readyz")):
                assert (answer.status_code, answer.json()["code"]) == (503, "unreachable")
                assert answer.headers["retry-after"]
            with closing(Client(served.address, patience=0)) as client, pytest.raises(errors.Unreachable):
                client.get("c")
            database.start()
            assert http.post("/v1/conversations", json=body).status_code == 200
            assert http.get("/readyz").status_code == 200


# The words of the README --------------------------------------------------------------------------------------------------


def test_the_readme_leads_from_a_file_to_two_servers_in_five_commands(postgresql: Server, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text().partition("## Beyond one machine")[2]
    (block,) = re.findall(r"```sh\n(.*?)```", page.partition("\n## ")[0], flags=re.DOTALL)
    assert len(block.strip().splitlines()) == 5
    with Store.open(f"sqlite:///{tmp_path}/conversations.db", migrate_first=True) as store:
        store.create("garden", messages=[user("Any basil left?")])
        store.acquire("garden", "worker", token=TOKEN)
    ports = [free_port(), free_port()]
    script = block.replace("--host db.example", "--host 127.0.0.1").replace("@db.example/", f"@127.0.0.1:{postgresql.port}/")
    for written, free in zip(("8081", "8082"), ports, strict=True):
        script = script.replace(f"--port {written}", f"--port {free}")
    found = binaries()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{found}:/usr/bin:/bin", "PGPORT": str(postgresql.port), "HOME": str(tmp_path),
    }  # fmt: skip
    # The servers are told to stop when somebody closes the script's input.
    ending = "\ntrap 'kill $(jobs -p); wait' EXIT\nread -r\n"
    running = subprocess.Popen(
        ["bash", "-euc", script + ending],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack = ExitStack()
    try:
        clients = [stack.enter_context(closing(Client(f"http://127.0.0.1:{port}"))) for port in ports]
        for client in clients:
            _until_it_answers(client)
        first, second = clients
        with second.events("garden") as events:
            next(events)
            # The lease that was held on the file is held here.
            with pytest.raises(errors.Generating):
                first.append("garden", [user("not now")])
            first.append("garden", [reply("Four packets.", "r")], token=TOKEN)
            told = next(events)
        assert [message.content for message in told.messages] == ["Four packets."]
        assert second.finish("garden", token=TOKEN).value.conversation.message_count == 2
    finally:
        stack.close()
        running.communicate("\n", timeout=60)
        postgresql.execute("DROP DATABASE conversations WITH (FORCE)")


def _until_it_answers(client: Client) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            client.get("garden")
            return
        except errors.Unavailable:
            assert time.monotonic() < end
            time.sleep(0.05)


# Where it is, and how it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["\u4e00" * 1000, "😀" * 1000])
def test_a_long_title_in_any_script_is_stored_and_numbered(plain: Store, title: str) -> None:
    import random

    letters = [chr(random.Random(n).randrange(0x4E00, 0x9FFF)) for n in range(1000)] if title[0] == "\u4e00" else list(title)
    plain.create("c", title="".join(letters))
    plain.fork("c", "f")
    plain.fork("c", "g")
    assert [plain.get(id).title[-4:] for id in ("f", "g")] == [" (2)", " (3)"]  # type: ignore[index]


def test_what_is_too_long_for_an_index_is_refused(url: str, clock: Clock) -> None:
    import random

    limits = Limits(id_length=1000)
    with Store.open(url, clock=clock, limits=limits) as store, pytest.raises(errors.InvalidInput, match="too long"):
        store.create("".join(chr(random.Random(n).randrange(0x4E00, 0x9FFF)) for n in range(1000)))


@pytest.mark.parametrize(
    ("text", "word"),
    [("HAUPTSTRA\u1e9eE", "hauptstraße"), ("5µm", "5μm"), ("foo\u0305bar", "foo"), ("\ufb00 \u03c2 \u03a3", "\u03c3")],
)
def test_letters_that_are_the_same_are_found(plain: Store, text: str, word: str) -> None:
    from sessionstore.matching import looked_through, question

    plain.create("c", messages=[user(text)])
    assert bool(plain.search(word).items) == bool(looked_through([(1, "s", text.encode())], question([word], ["s"])))


def test_a_value_with_a_zero_is_no_value_with_a_space(plain: Store) -> None:
    plain.create("c", metadata={"k": "v\x00", "a\x00b": 1})
    assert plain.conversations(metadata_key="k", metadata_value="v ").items == []
    assert plain.conversations(metadata_key="a b").items == []


def test_a_closed_store_waits_for_who_is_inside_and_keeps_no_connection(url: str, clock: Clock) -> None:
    store = Store.open(url, clock=clock)
    store.create("c")
    inside, go = threading.Event(), threading.Event()

    def slow(conversation: GuardedConversation) -> None:
        inside.set()
        go.wait(10)
        conversation.append([user("in time")])

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(store.transact, "c", slow)
        inside.wait(10)
        closing = pool.submit(store.close)
        time.sleep(0.1)
        assert not closing.done()
        go.set()
        writing.result(30)
        closing.result(30)
    with psycopg.connect(url) as operator:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        end = time.monotonic() + 10
        while operator.execute(count).fetchone() != (0,) and time.monotonic() < end:
            time.sleep(0.01)
            operator.rollback()
        assert operator.execute(count).fetchone() == (0,)
    assert Tables(url).rows("SELECT content FROM messages") == [('"in time"',)]


def test_a_server_that_is_not_there_is_unreachable_and_no_password_is_told() -> None:
    url = "postgresql://store:hunter2@127.0.0.1:9/store"
    with pytest.raises(errors.Unreachable) as refused:
        Store.open(url)
    assert "hunter2" not in str(refused.value)
    assert "127.0.0.1:9/store" in str(refused.value)
    with pytest.raises(errors.UnsupportedUrl) as unknown:
        Store.open("postgresql://store:hunter2@h/d?nonsense=1")
    assert "hunter2" not in str(unknown.value)
    for wrong in ("sslmode=maybe", "connect_timeout=soon"):
        with pytest.raises(errors.UnsupportedUrl) as unknown:
            Store.open(f"postgresql://store:hunter2@127.0.0.1:9/d?{wrong}")
        assert "hunter2" not in str(unknown.value)


def test_a_database_that_is_not_there_is_unusable(url: str) -> None:
    with pytest.raises(errors.DatabaseUnusable, match="does not exist"):
        Store.open(f"{url}_not", migrate_first=True)


def test_a_database_that_is_not_in_unicode_is_refused(postgresql: Server) -> None:
    postgresql.execute("CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    with pytest.raises(errors.DatabaseUnusable, match="UTF8"):
        migrate.upgrade(postgresql.url("ascii"))
    postgresql.execute("DROP DATABASE ascii")


def test_another_programs_database_is_left_alone(empty: str) -> None:
    with psycopg.connect(empty) as other:
        other.execute("CREATE TABLE theirs (n int)")
    with pytest.raises(errors.NotADatabase):
        Store.open(empty)


def test_reads_cannot_write(plain: Store) -> None:
    from sqlalchemy import insert

    with pytest.raises(errors.SessionStoreError):
        plain.database.read(lambda transaction: transaction.run(insert(conversations).values(id="x")))


def test_a_backup_is_the_servers_own_business(plain: Store, tmp_path: Any) -> None:
    with pytest.raises(errors.BackupUnusable, match="pg_dump"):
        plain.backup(tmp_path)


def test_a_forked_child_has_nothing_open(plain: Store) -> None:
    plain.create("c")
    child = os.fork()
    if child == 0:
        try:
            plain.get("c")
        except errors.Closed:
            plain.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    plain.append("c", [user("still there")])


def test_the_doctor_knows_a_server(url: str) -> None:
    from sessionstore.doctor import examine
    from sessionstore.engines import open_database

    database = open_database(url)
    found = examine(database)
    database.close()
    assert found["problems"] == [
        "fsync is off: a crash of the machine may destroy everything",
        "full_page_writes is off: a crash of the machine may destroy everything",
    ]
    assert found["leases"] == {"live": 0, "expired": 0}


def test_a_standby_is_not_ready(clock: Clock) -> None:
    with Server(DURABLE) as primary:
        primary.execute("CREATE DATABASE store")
        with Store.open(primary.url("store"), clock=clock, migrate_first=True) as store:
            store.create("c")
        with Server(DURABLE, follows=primary) as standby, Store.open(standby.url("store"), clock=clock) as store:
            assert store.get("c").version == 1
            with pytest.raises(errors.DatabaseUnusable, match="standby"):
                store.check_ready()
            with pytest.raises(errors.Unreachable):
                store.append("c", [user("not here")])


def test_a_closed_store_leaves_no_session_behind(url: str, clock: Clock) -> None:
    store = Store.open(url, clock=clock)
    store.create("c")
    with store.events("c") as events:
        next(events)
    store.close()
    with psycopg.connect(url) as operator:
        end = time.monotonic() + 10
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        while operator.execute(count).fetchone() != (0,) and time.monotonic() < end:
            time.sleep(0.01)
            operator.rollback()
        assert operator.execute(count).fetchone() == (0,)
