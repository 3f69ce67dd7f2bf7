"""Races, each started behind a barrier: threads on one store, threads on two stores of one file, and separate processes."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store, errors
from tests.conftest import Clock, Tables, texts, user

RIVALS = 8
ROUNDS = 10


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Start all calls at one moment; answer what each returned or raised."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = calls[index]()
        except errors.SessionStoreError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def kinds(results: list[Any]) -> Counter[str]:
    return Counter(result.code if isinstance(result, errors.SessionStoreError) else "done" for result in results)


@pytest.fixture
def stores(url: str, clock: Clock) -> Any:
    """Two stores on one file: what a lock in one process's memory could settle, it could not settle here."""
    opened = [Store.open(url, clock=clock, busy_timeout_ms=30_000) for _ in range(2)]
    yield opened
    for one in opened:
        one.close()


def test_r1_the_same_create_by_many_happens_once(stores: list[Store], tables: Tables) -> None:
    for round in range(ROUNDS):
        id = f"x{round}"
        results = together([lambda n=n: stores[n % 2].create(id, messages=[user("hi")]) for n in range(RIVALS)])  # type: ignore[misc]
        assert kinds(results) == {"done": RIVALS}
        assert sum(not result.replayed for result in results) == 1
        assert len({result.value.messages[0].id for result in results}) == 1
        assert texts(stores[0], id) == ["hi"]
    assert tables.one("SELECT count(*) FROM messages") == ROUNDS


def test_r4_the_same_fork_by_many_happens_once(stores: list[Store], tables: Tables) -> None:
    stores[0].create("s", messages=[user(n) for n in range(3)])
    for round in range(ROUNDS):
        id = f"f{round}"
        results = together([lambda n=n: stores[n % 2].fork("s", id) for n in range(RIVALS)])  # type: ignore[misc]
        assert kinds(results) == {"done": 1, "conversation-exists": RIVALS - 1}
        assert all(result.same for result in results if isinstance(result, errors.ConversationExists))
        assert texts(stores[1], id) == [0, 1, 2]
    assert stores[0].get("s").version == 1
    assert tables.one("SELECT count(*) FROM messages") == 3 * (ROUNDS + 1)


def test_r7_create_against_delete_ends_in_some_order(stores: list[Store], tables: Tables) -> None:
    for round in range(ROUNDS * 3):
        id = f"x{round}"
        created, deleted = together([lambda: stores[0].create(id, messages=[user("hi")]), lambda: stores[1].delete(id)])
        assert not isinstance(created, errors.SessionStoreError)
        assert isinstance(deleted, errors.ConversationNotFound) or not isinstance(deleted, errors.SessionStoreError)
        living = tables.one("SELECT count(*) FROM conversations WHERE id = ? AND deleted_at IS NULL", id)
        assert living == isinstance(deleted, errors.ConversationNotFound)


def test_r9_only_one_delete_is_the_delete(stores: list[Store]) -> None:
    for round in range(ROUNDS):
        stores[0].create(f"x{round}")
        results = together([lambda n=n: stores[n % 2].delete(f"x{round}") for n in range(4)])  # type: ignore[misc]
        assert kinds(results) == {"done": 1, "conversation-deleted": 3}


def test_r10_a_read_against_a_delete_is_whole_or_gone(stores: list[Store]) -> None:
    for round in range(ROUNDS * 3):
        id = f"x{round}"
        stores[0].create(id, messages=[user(n) for n in range(20)])
        page, _ = together([lambda: stores[0].messages(id), lambda: stores[1].delete(id)])
        assert isinstance(page, errors.ConversationDeleted) or len(page.items) == 20
        with pytest.raises(errors.ConversationDeleted):
            stores[0].get(id)


def test_r17_a_child_never_outlives_its_parent(stores: list[Store], tables: Tables) -> None:
    for round in range(ROUNDS * 3):
        parent, child = f"p{round}", f"c{round}"
        stores[0].create(parent)
        together([lambda: stores[0].create(child, parent_id=parent), lambda: stores[1].delete(parent)])
    alive = "SELECT count(*) FROM conversations c JOIN conversations p ON p.pk = c.parent_pk"
    assert tables.one(f"{alive} WHERE c.deleted_at IS NULL AND p.deleted_at IS NOT NULL") == 0


def test_l1_of_many_that_acquire_one_wins(stores: list[Store], tables: Tables) -> None:
    for round in range(ROUNDS):
        id = f"x{round}"
        stores[0].create(id)
        results = together([lambda n=n: stores[n % 2].acquire(id, f"worker-{n}") for n in range(RIVALS)])  # type: ignore[misc]
        assert kinds(results) == {"done": 1, "generating": RIVALS - 1}
        winner = next(result.value for result in results if not isinstance(result, errors.SessionStoreError))
        holder = stores[0].get(id).generation
        assert holder is not None
        assert holder.number == winner.generation
        assert {result.holder for result in results if isinstance(result, errors.Generating)} == {holder.holder}
    assert tables.one("SELECT count(*) FROM generations") == ROUNDS


def test_m1_appends_by_many_take_each_position_once_and_batches_stay_together(stores: list[Store], tables: Tables) -> None:
    stores[0].create("c")
    calls = [lambda n=n: stores[n % 2].append("c", [user([n, 0]), user([n, 1])]) for n in range(25)]
    results = together(calls)  # type: ignore[arg-type]
    stored = {message.id: message for message in stores[0].messages("c", limit=1000).items}
    assert sorted(message.position for message in stored.values()) == list(range(50))  # type: ignore[type-var]
    for result in results:
        first, second = result.value
        assert (stored[first.id], stored[second.id]) == (first, second)
        assert second.position == first.position + 1


def test_m2_the_same_message_by_many_is_stored_once(stores: list[Store]) -> None:
    stores[0].create("c")
    for round in range(ROUNDS):
        results = together([lambda n=n: stores[n % 2].append("c", [user("hi", f"m{round}")]) for n in range(RIVALS)])  # type: ignore[misc]
        assert len({result.value[0].position for result in results}) == 1
        assert sum(not result.replayed for result in results) == 1
    assert stores[0].get("c").message_count == ROUNDS


RIVAL = """
import json, sys
from sessionstore import Draft, Store, errors
url, job, name = sys.argv[1:]
with Store.open(url, busy_timeout_ms=30_000) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        id = line.strip()
        try:
            if job == "create":
                answer = store.create(id, messages=[Draft(role="user", content="hi")])
                said = ["replayed" if answer.replayed else "done", answer.value.messages[0].id]
            elif job == "acquire":
                said = ["done", store.acquire(id, name).value.generation]
            else:
                said = ["done", [m.position for m in store.append(id, [Draft(role="user", content=name)] * 2).value]]
        except errors.SessionStoreError as error:
            said = [error.code, None]
        print(json.dumps(said), flush=True)
"""


class Rivals:
    """Processes that all do the same job at the same moment, again and again."""

    def __init__(self, url: str, job: str, count: int = RIVALS) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", RIVAL, url, job, f"process-{n}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(count)
        ]
        for process in self._processes:
            assert self._line(process) == "ready"

    def round(self, id: str) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(id + "\n")
            process.stdin.flush()
        return [json.loads(self._line(process)) for process in self._processes]

    def stop(self) -> None:
        for process in self._processes:
            process.communicate(timeout=30)

    def _line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()


def test_processes_settle_the_same_races(url: str, plain: Store, tables: Tables) -> None:
    creators, acquirers, appenders = (Rivals(url, job, 4) for job in ("create", "acquire", "append"))
    for round in range(ROUNDS):
        id = f"x{round}"
        created = creators.round(id)
        assert Counter(word for word, _ in created) == {"done": 1, "replayed": 3}
        assert len({message for _, message in created}) == 1
        appended = appenders.round(id)
        assert sorted(position for _, positions in appended for position in positions) == list(range(1, 9))
        assert all(second == first + 1 for _, (first, second) in appended)
        acquired = acquirers.round(id)
        assert Counter(word for word, _ in acquired) == {"done": 1, "generating": 3}
    for rivals in (creators, acquirers, appenders):
        rivals.stop()
    assert tables.one("SELECT count(*) FROM generations") == ROUNDS
    assert Path(plain.database.path).exists()


def test_l7_a_killed_holder_leaves_a_lease_that_runs_out_and_what_it_saved(url: str, plain: Store, clock: Clock) -> None:
    plain.create("c")
    code = """
import sys, time
from sessionstore import Draft, Store
store = Store.open(sys.argv[1], clock=lambda: int(sys.argv[2]))
turn = store.acquire("c", "victim", ttl_ms=1000).value
store.put("c", Draft(id="r", role="assistant", content="half", status="partial"), token=turn.token)
print("saved", flush=True)
time.sleep(60)
"""
    victim = subprocess.Popen([sys.executable, "-c", code, url, str(clock.now)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "saved\n"
    victim.kill()
    victim.communicate()
    with pytest.raises(errors.Generating):
        plain.acquire("c", "next")
    clock.advance(1001)
    assert plain.acquire("c", "next").value.generation == 2
    assert (plain.message("c", "r").content, plain.message("c", "r").status) == ("half", "interrupted")
