"""Messages over HTTP."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import Clock

M = f"{C}/c/messages"


@pytest.fixture(autouse=True)
def conversation(client: TestClient) -> None:
    client.post(C, json={"id": "c"})


def append(client: TestClient, *messages: dict[str, Any], **headers: str) -> Any:
    return client.post(M, json={"messages": list(messages)}, headers=headers)


def test_m2_append_repeat_conflict_deleted(client: TestClient) -> None:
    first = append(client, message("hi", "m"))
    assert first.status_code == 201
    again = append(client, message("hi", "m"))
    assert (again.status_code, again.headers["idempotent-replayed"], again.json()) == (200, "true", first.json())
    problem(append(client, message("other", "m")), 409, "message-exists")
    client.put(f"{M}/m", json=message("edited"))
    assert append(client, message("hi", "m")).json()["messages"][0]["content"] == "edited"
    assert client.delete(f"{M}/m").status_code == 204
    problem(append(client, message("hi", "m")), 410, "message-deleted")
    problem(client.get(f"{M}/m"), 410, "message-deleted")
    problem(client.get(f"{M}/n"), 404, "message-not-found")


def test_l20_a_repeat_is_200_although_a_lease_lives(client: TestClient) -> None:
    append(client, message("hi", "m"))
    acquire(client, "c")
    assert append(client, message("hi", "m")).status_code == 200
    problem(append(client, message("new")), 409, "generating")


def test_the_shape_of_a_message(client: TestClient) -> None:
    stored = append(client, message([{"type": "text", "text": "hi"}], "m", metadata={"k": 1})).json()["messages"][0]
    moment = "2027-01-15T08:00:00.000Z"
    assert stored == {
        "id": "m",
        "incarnation": 1,
        "position": 0,
        "role": "user",
        "content": [{"type": "text", "text": "hi"}],
        "metadata": {"k": 1},
        "status": "complete",
        "summary_through": None,
        "generation": None,
        "version": 2,
        "created_at": moment,
        "updated_at": moment,
    }
    assert client.get(f"{M}/m").json() == stored


def test_a_growing_reply(client: TestClient) -> None:
    holder = acquire(client, "c")
    statuses = [
        client.put(f"{M}/r", json=message(text, role="assistant", status="partial"), headers=holder).status_code
        for text in ("H", "He", "Hel", "Hel")
    ]
    assert statuses == [201, 200, 200, 200]
    done = client.put(f"{M}/r", json=message("Hello", role="assistant"), headers=holder)
    assert done.json()["status"] == "complete"
    refused = client.put(f"{M}/r", json=message("Hell", role="assistant", status="partial"), headers=holder)
    problem(refused, 409, "message-complete")


def test_l19_if_match_and_if_none_match(client: TestClient) -> None:
    created = client.put(f"{M}/m", json=message("a"), headers={"If-None-Match": "*"})
    assert created.status_code == 201
    problem(client.put(f"{M}/m", json=message("b"), headers={"If-None-Match": "*"}), 412, "precondition-failed")
    tag = created.headers["etag"]
    assert client.put(f"{M}/m", json=message("b"), headers={"If-Match": tag}).status_code == 200
    late = problem(client.put(f"{M}/m", json=message("b"), headers={"If-Match": tag}), 412, "precondition-failed")
    assert late["same"]
    problem(client.put(f"{M}/none", json=message("b"), headers={"If-Match": "*"}), 412, "precondition-failed")
    problem(client.put(f"{M}/m", json=message("b"), headers={"If-None-Match": '"1-1"'}), 400, "malformed")
    problem(client.delete(f"{M}/m", headers={"If-Match": tag}), 412, "precondition-failed")


def test_m5_an_edit_of_a_deleted_message_is_gone(client: TestClient) -> None:
    tag = client.put(f"{M}/m5", json=message("five")).headers["etag"]
    client.delete(f"{M}/m5")
    append(client, message("after"))
    for headers in ({}, {"If-Match": tag}):
        problem(client.put(f"{M}/m5", json=message("edit"), headers=headers), 410, "message-deleted")


def test_patch_merges_metadata(client: TestClient) -> None:
    append(client, message("hi", "m", metadata={"a": 1}))
    patched = client.patch(f"{M}/m", json={"metadata": {"a": None, "b": 2}})
    assert (patched.json()["metadata"], patched.json()["content"]) == ({"b": 2}, "hi")
    problem(client.patch(f"{M}/none", json={"metadata": {}}), 404, "message-not-found")


def test_pages_both_ways(client: TestClient) -> None:
    append(client, *(message(n) for n in range(10)))
    for order, expected in (("asc", list(range(10))), ("desc", list(range(9, -1, -1)))):
        seen: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            page = client.get(f"{M}?limit=3&order={order}" + (f"&cursor={cursor}" if cursor else "")).json()
            seen += [one["content"] for one in page["data"]]
            cursor = page["next_cursor"]
        assert seen == expected
    last = client.get(f"{M}?order=desc&limit=2&before=8").json()
    assert [one["content"] for one in last["data"]] == [7, 6]


def test_a_cursor_belongs_to_its_list_and_life(client: TestClient) -> None:
    append(client, *(message(n) for n in range(5)))
    cursor = client.get(f"{M}?limit=2").json()["next_cursor"]
    problem(client.get(f"{M}?order=desc&cursor={cursor}"), 422, "invalid")
    problem(client.get(f"{C}?cursor={cursor}"), 400, "malformed")
    client.delete(f"{C}/c")
    client.post(C, json={"id": "c", "recreate": 1})
    problem(client.get(f"{M}?cursor={cursor}"), 410, "conversation-deleted")


@pytest.mark.parametrize("cursor", ["", "x", "%00", "a" * 5000, "W10", "bnVsbA", "WzFd", "WyJhIl0", "🌱", "WzEsMiwzXQ"])
def test_a_made_up_cursor_is_malformed(client: TestClient, cursor: str) -> None:
    problem(client.get(f"{M}?cursor={cursor}"), 400, "malformed")


def test_a_holder_is_told_with_every_answer(client: TestClient) -> None:
    holder = acquire(client, "c")
    client.post(f"{C}/c/interrupt")
    for answered in (
        append(client, message("x"), **holder),
        client.put(f"{M}/m", json=message("x"), headers=holder),
        client.patch(f"{M}/m", json={"metadata": {"a": 1}}, headers=holder),
        client.delete(f"{M}/m", headers=holder),
        client.patch(f"{C}/c", json={"title": "t"}, headers=holder),
        client.patch(f"{C}/c/lease", headers=holder),
        client.post(f"{C}/c/truncate", json={"after_position": 0, "through_position": 9}, headers=holder),
        client.post(f"{C}/c/fork", headers=holder),
    ):
        assert answered.is_success, answered.text
        assert answered.headers["interrupt-requested"] == "true"
        assert answered.headers["queued-inputs"] == "0"
        assert answered.headers["lease-expires-at"] == "2027-01-15T08:00:30.000Z"


def test_a_holder_is_told_with_refusals_too_and_they_renew_nothing(client: TestClient, clock: Clock) -> None:
    holder = acquire(client, "c")
    client.post(f"{C}/c/interrupt")
    clock.advance(10_000)
    client.put(f"{M}/m", json=message("x"), headers=holder)
    clock.advance(5_000)
    for refused, status in (
        (client.delete(f"{M}/none", headers=holder), 404),
        (append(client, message("other", "m"), **holder), 409),
        (client.patch(f"{C}/c", json={}, headers={**holder, "If-Match": '"1-999"'}), 412),
        (client.post(f"{C}/c/fork", json={"through_position": 99}, headers=holder), 422),
    ):
        assert refused.status_code == status
        assert refused.headers["interrupt-requested"] == "true"
        assert refused.headers["lease-expires-at"] == "2027-01-15T08:00:40.000Z"
    assert "lease-expires-at" not in append(client, message("stranger")).headers
