"""Turns over HTTP, and the sweep over every route that can change something."""

from collections.abc import Iterator
from typing import Any

import pytest
from sessionstore_api.app import OPERATIONS
from sessionstore_api.operations import Operation, Resource
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables

L = f"{C}/c/lease"

# PROTOCOL.md's closed list, by operation: what may happen while somebody else is generating.
NOT_GUARDED = {"create_conversation", "label_conversation", "interrupt_turn", "queue_inputs", "cancel_input"}


@pytest.fixture(autouse=True)
def conversation(client: TestClient) -> None:
    client.post(C, json={"id": "c", "messages": [message("hi", "m")]})


def test_l1_one_generator(client: TestClient) -> None:
    first = client.post(L, json={"holder": "first", "messages": [message("q")]})
    assert (first.status_code, first.json()["generation"], len(first.json()["messages"])) == (201, 1, 1)
    refused = client.post(L, json={"holder": "second"})
    document = problem(refused, 409, "generating")
    assert (document["holder"], document["generation"], refused.headers["retry-after"]) == ("first", 1, "30")
    assert client.get(L).json()["generation"]["holder"] == "first"
    assert "token" not in client.get(L).text


def test_l17_and_l18_over_http(client: TestClient) -> None:
    begin = {"holder": "w", "token": TOKEN}
    assert client.post(L, json=begin).status_code == 201
    again = client.post(L, json=begin)
    assert (again.status_code, again.headers["idempotent-replayed"], again.json()["token"]) == (200, "true", TOKEN)
    holder = {"Lease-Token": TOKEN}
    end = {"messages": [message("bye", "r", role="assistant")], "usage": {"out": 1}}
    finished = client.post(f"{L}/finish", json=end, headers=holder)
    assert finished.status_code == 200
    assert finished.json()["conversation"]["last_generation"]["usage"] == {"out": 1}
    repeated = client.post(f"{L}/finish", json=end, headers=holder)
    assert (repeated.headers["idempotent-replayed"], repeated.json()) == ("true", finished.json())
    other = problem(client.post(f"{L}/finish", json={}, headers=holder), 409, "lease-lost")
    assert (other["outcome"], other["ended_at"]) == ("completed", "2027-01-15T08:00:00.000Z")
    problem(client.post(L, json=begin), 409, "lease-lost")


def test_renew_and_release(client: TestClient, clock: Clock) -> None:
    holder = acquire(client, "c")
    clock.advance(10_000)
    renewed = client.patch(L, json={"phase": "tools", "ttl_ms": 5000}, headers=holder).json()
    assert (renewed["ttl_ms"], renewed["expires_at"]) == (5000, "2027-01-15T08:00:15.000Z")
    assert renewed["conversation"]["generation"]["phase"] == "tools"
    assert client.patch(L, headers=holder).status_code == 200
    assert client.delete(L, headers=holder).status_code == 204
    assert client.delete(L, headers=holder).status_code == 204
    problem(client.patch(L, headers=holder), 409, "lease-lost")


@pytest.mark.parametrize("held", [False, True])
def test_renew_release_finish_need_a_token(client: TestClient, held: bool) -> None:
    if held:
        acquire(client, "c")
    for refused in (client.patch(L), client.delete(L), client.post(f"{L}/finish")):
        problem(refused, 409, "lease-lost")


def test_l8_interrupt(client: TestClient) -> None:
    assert client.post(f"{C}/c/interrupt").status_code == 200
    holder = acquire(client, "c")
    assert [client.post(f"{C}/c/interrupt").status_code for _ in range(2)] == [202, 202]
    assert client.patch(L, headers=holder).headers["interrupt-requested"] == "true"
    ended = client.post(f"{C}/c/interrupt", json={"force": True, "generation": 1})
    assert (ended.status_code, ended.json()["conversation"]["generation"]) == (200, None)


def test_headers_that_cannot_be_meant_are_refused(client: TestClient, tables: Tables) -> None:
    before = tables.everything()
    for headers, status in (
        ([("Lease-Token", "")], 400),
        ([("Lease-Token", TOKEN), ("Lease-Token", TOKEN)], 400),
        ([("Lease-Token", "short")], 422),
        ([("Lease-Token", "x" * 201)], 422),
        ([("Incarnation", "x")], 400),
        ([("Incarnation", "-1")], 400),
        ([("Incarnation", "1" * 40)], 400),
        ([("Incarnation", "0")], 422),
        ([("Incarnation", "1"), ("Incarnation", "1")], 400),
    ):
        refused = client.request("DELETE", f"{C}/c/messages/m", headers=headers)
        assert refused.status_code == status, (headers, refused.text)
        assert refused.json()["path"] == headers[0][0]
    assert tables.everything() == before


BODIES: dict[str, dict[str, Any]] = {
    "create_conversation": {"id": "new"},
    "label_conversation": {"title": "no"},
    "truncate_conversation": {"after_position": -1, "through_position": 99},
    "fork_conversation": {"id": "fork"},
    "compact_conversation": {"through_position": 0, "seen_version": 1, "summary": {"role": "user", "content": "in short"}},
    "append_messages": {"messages": [message("no")]},
    "put_message": message("no"),
    "label_message": {"metadata": {"no": 1}},
    "acquire_lease": {"holder": "other"},
    "renew_lease": {"phase": "no"},
    "finish_turn": {"messages": [message("no")]},
    "interrupt_turn": {},
    "queue_inputs": {"messages": [message("no")]},
    "claim_inputs": {},
    "save_messages": {
        "saves": [{"conversation_id": "c", "message_id": "m", "token": OTHER_TOKEN, "role": "assistant", "content": "no"}]
    },
}


def mounted(app: Starlette) -> Iterator[Operation]:
    """What the application really routes, whatever any table says."""
    for route in app.routes:
        resource = route.endpoint  # type: ignore[attr-defined]
        assert isinstance(resource, Resource)
        yield from resource.operations.values()


def test_every_operation_is_mounted(app: Starlette) -> None:
    assert {operation.name for operation in mounted(app)} == {operation.name for operation in OPERATIONS}


def test_l2_no_route_lets_a_stranger_change_a_leased_conversation(app: Starlette, client: TestClient, tables: Tables) -> None:
    """Walks the routes of the application: a route that is added later is tested the moment it is mounted."""
    acquire(client, "c", "holder", token=TOKEN)
    before = tables.everything()
    swept = 0
    for operation in mounted(app):
        if operation.method in ("GET", "HEAD"):
            continue
        assert operation.body is None or operation.name in BODIES, f"{operation.name}: say what to send it"
        path = operation.path.format(conversation_id="c", message_id="m")
        for headers in ({}, {"Lease-Token": OTHER_TOKEN}):
            if operation.name in NOT_GUARDED and not (headers and operation.name != "create_conversation"):
                continue
            answered = client.request(operation.method, path, json=BODIES.get(operation.name), headers=headers)
            refused = answered.json().get("results", [{"status": answered.status_code, "problem": answered.json()}])[0]
            assert refused["status"] == 409, (operation.name, headers, answered.text)
            assert refused["problem"]["code"] in ("generating", "lease-lost"), operation.name
            assert tables.everything() == before, operation.name
            swept += 1
    assert swept >= 20
