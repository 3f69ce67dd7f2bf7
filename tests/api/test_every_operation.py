"""What holds for every operation that is mounted, so that one added later is held to it as well."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from sessionstore_api.operations import Operation
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sessionstore import AsyncStore, errors
from sessionstore.engine import sqlite3
from tests.api.conftest import C, acquire, message, problem
from tests.api.test_leases import BODIES, mounted
from tests.conftest import TOKEN, Tables
from tests.test_serve import Server


@pytest.fixture(autouse=True)
def conversation(client: TestClient) -> None:
    client.post(C, json={"id": "c", "messages": [message("hi", "m"), message("and", "n")]})


def call(client: TestClient, operation: Operation, **headers: str) -> Any:
    path = operation.path.format(conversation_id="c", message_id="m")
    with client.stream(operation.method, path, json=BODIES.get(operation.name), headers=headers) as answered:
        # Events have no end that could be read to.
        if answered.headers.get("content-type", "").partition(";")[0] != "text/event-stream":
            answered.read()
    return answered


def held(operation: Operation) -> dict[str, str]:
    """The token, for what only a holder may do."""
    return {"Lease-Token": TOKEN} if "Lease-Token" in operation.headers else {}


def test_another_state_than_the_one_that_was_seen_is_412(app: Starlette, client: TestClient, tables: Tables) -> None:
    matched = [operation for operation in mounted(app) if "If-Match" in operation.headers]
    assert len(matched) >= 13
    # Acquire first, while nobody holds the lease.
    for operation in sorted(matched, key=lambda operation: operation.name != "acquire_lease"):
        before = tables.everything()
        problem(call(client, operation, **{"If-Match": '"1-999"'}, **held(operation)), 412, "precondition-failed")
        assert tables.everything() == before, operation.name
        if operation.name == "acquire_lease":
            acquire(client, "c", token=TOKEN)


def test_another_life_than_the_one_that_is_meant_is_410(app: Starlette, client: TestClient, tables: Tables) -> None:
    acquire(client, "c", token=TOKEN)
    before = tables.everything()
    tested = 0
    for operation in mounted(app):
        if "Incarnation" in operation.headers:
            problem(call(client, operation, Incarnation="99", **held(operation)), 410, "conversation-deleted")
            tested += 1
    assert tested >= 15
    assert tables.everything() == before


def test_no_answer_is_ever_stored_by_a_cache(app: Starlette, client: TestClient) -> None:
    for operation in mounted(app):
        assert call(client, operation).headers["cache-control"] == "no-store", operation.name
    assert client.get("/nowhere").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "where", "body"),
    [
        ("GET", f"{C}/c", None),
        ("PATCH", f"{C}/c", {"title": "t"}),
        ("GET", f"{C}/c/messages/m", None),
        ("PUT", f"{C}/c/messages/m", message("new")),
        ("PATCH", f"{C}/c/messages/m", {"metadata": {"a": 1}}),
        ("POST", f"{C}/c/truncate", {"after_position": 0, "through_position": 9}),
        ("POST", f"{C}/c/fork", {"id": "f"}),
        ("POST", f"{C}/c/interrupt", {}),
        ("GET", f"{C}/c/lease", None),
        ("PATCH", f"{C}/c/lease", {"phase": "p"}),
        ("POST", f"{C}/c/lease/finish", {}),
    ],
)
def test_what_answers_one_thing_tells_its_state(client: TestClient, method: str, where: str, body: Any) -> None:
    holder = acquire(client, "c", token=TOKEN)
    answered = client.request(method, where, json=body, headers=holder)
    assert answered.is_success, answered.text
    shown = answered.json()
    version = shown.get("conversation", shown).get("version") or client.get(f"{C}/c").json()["version"]
    incarnation = shown.get("conversation", {}).get("incarnation", 1)
    assert answered.headers["etag"] == f'"{incarnation}-{version}"'


def test_options_reach_the_store(client: TestClient) -> None:
    holder = acquire(client, "c", token=TOKEN)
    client.put(f"{C}/c/messages/r", json=message("half", status="partial"), headers=holder)
    settled = client.post(f"{C}/c/fork", json={"id": "s", "settled": True, "title": "Settled"})
    assert (settled.json()["conversation"]["title"], settled.json()["conversation"]["message_count"]) == ("Settled", 2)
    refused = client.post(f"{C}/c/lease", json={"holder": "other"})
    problem(refused, 409, "generating")
    assert (
        client.post(f"{C}/c/lease", json={"holder": "other", "if_busy": "interrupt", "token": TOKEN[::-1]}).status_code == 201
    )
    finished = client.post(f"{C}/c/lease/finish", json={"outcome": "waiting"}, headers={"Lease-Token": TOKEN[::-1]})
    assert finished.json()["conversation"]["last_generation"]["outcome"] == "waiting"
    before_user = client.post(f"{C}/c/fork", json={"id": "u", "before_user_message": 1})
    assert before_user.json()["conversation"]["message_count"] == 1


def test_finish_keeps_the_lease_while_inputs_wait(client: TestClient) -> None:
    holder = acquire(client, "c", token=TOKEN)
    client.post(f"{C}/c/inputs", json={"messages": [message("wait"), message("and see")], "mode": "steer"})
    refused = client.post(f"{C}/c/lease/finish", json={"unless_inputs": True}, headers=holder)
    assert problem(refused, 409, "inputs-pending")["queued_inputs"] == 2
    assert client.patch(f"{C}/c/lease", headers=holder).headers["queued-inputs"] == "2"
    assert client.post(f"{C}/c/lease/finish", json={"unless_inputs": False}, headers=holder).status_code == 200


def test_a_token_that_began_with_other_messages_is_told_so(client: TestClient) -> None:
    acquire(client, "c", token=TOKEN, messages=[message("q")])
    refused = client.post(f"{C}/c/lease", json={"holder": "worker", "token": TOKEN, "messages": [message("another")]})
    problem(refused, 409, "token-used")


def test_the_change_of_a_list_is_that_of_its_first_page(client: TestClient) -> None:
    for n in range(3):
        client.post(C, json={"id": f"c{n}"})
    first = client.get(f"{C}?limit=2").json()
    client.post(C, json={"id": "later"})
    second = client.get(f"{C}?limit=2&cursor={first['next_cursor']}").json()
    assert second["change"] == first["change"]
    assert client.get(C).json()["change"] > first["change"]


def test_a_cursor_does_not_outvote_the_incarnation(client: TestClient) -> None:
    cursor = client.get(f"{C}/c/messages?limit=1").json()["next_cursor"]
    assert client.get(f"{C}/c/messages?cursor={cursor}", headers={"Incarnation": "1"}).status_code == 200
    refused = client.get(f"{C}/c/messages?cursor={cursor}", headers={"Incarnation": "99"})
    problem(refused, 410, "conversation-deleted")


def test_calls_past_the_servers_patience_are_told_that_nobody_knows(url: str, path: Path) -> None:
    """SIGTERM while calls wait for the database longer than the server waits for them: 503, and never a bare 500."""
    server = Server(url, SESSIONSTORE_SHUTDOWN_SECONDS="1", SESSIONSTORE_BUSY_TIMEOUT_MS="20000")
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    calls = [server.post(C, {"id": f"late-{number}"}) for number in range(16)]
    server.wait_until_read()
    server.process.send_signal(signal.SIGTERM)
    told = [call.answer() for call in calls]
    rival.execute("ROLLBACK")
    rival.close()
    assert server.stop() == 0
    assert {(status, body["code"]) for status, body in told} <= {(503, "outcome-unknown"), (503, "stopping")}


def test_what_was_cancelled_before_it_began_never_happens(url: str, path: Path) -> None:
    rival = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")

    async def scenario() -> Any:
        async with await AsyncStore.open(url) as store:
            never, kept = (asyncio.create_task(store.create(id)) for id in ("never", "kept"))
            await asyncio.sleep(0)
            never.cancel()
            rival.execute("ROLLBACK")
            results = await asyncio.gather(never, kept, return_exceptions=True)
            with pytest.raises(errors.ConversationNotFound):
                await store.get("never")
            return results

    cancelled, kept = asyncio.run(scenario())
    rival.close()
    assert isinstance(cancelled, asyncio.CancelledError)
    assert kept.value.conversation.id == "kept"


def test_names_of_parameters_are_ordinary_ids(client: TestClient) -> None:
    """The short way past the router must not take a template for an address (found by review)."""
    problem(client.get(f"{C}/c/messages/{{message_id}}"), 404, "message-not-found")
    assert client.put(f"{C}/c/messages/{{message_id}}", json=message("x")).status_code == 201
    problem(client.get(f"{C}/{{conversation_id}}"), 404, "conversation-not-found")


def test_the_short_way_and_the_router_agree(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = ("/c", "/c/", "//c", "/c//m", "/c/nothing", "/c/lease/finish", "/c/inputs/claim", "/c/inputs/x")
    addresses = (*(C + path for path in (*conversation, "/c/messages", "/c/messages/m", "/c/messages/m/")), "/v1/saves", "/x")
    calls = [(method, address) for method in ("GET", "HEAD", "OPTIONS", "TRACE", "POST") for address in addresses]

    def answers() -> list[tuple[int, str | None, bytes]]:
        given = [client.request(method, address) for method, address in calls]
        return [(answered.status_code, answered.headers.get("allow"), answered.content) for answered in given]

    short = answers()
    monkeypatch.setattr("sessionstore_api.addresses._plain", lambda _: False)
    assert short == answers()
