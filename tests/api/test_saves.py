"""POST /v1/saves."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import OTHER_TOKEN, TOKEN, Tables

SAVES = "/v1/saves"


@pytest.fixture(autouse=True)
def generating(client: TestClient) -> None:
    for id in ("a", "b"):
        client.post(C, json={"id": id, "messages": [message("hi", "m")]})
        acquire(client, id, token=TOKEN + id)


def save(id: str, text: Any = "x", **rest: Any) -> dict[str, Any]:
    given = {"conversation_id": id, "message_id": "r", "token": TOKEN + id, "role": "assistant", "content": text}
    return {**given, "status": "partial", **rest}


def test_each_has_a_result_of_its_own(client: TestClient) -> None:
    client.post(f"{C}/b/interrupt")
    answered = client.post(
        SAVES, json={"saves": [save("a", {"n": 1}), save("b"), save("b", "y", token=OTHER_TOKEN), save("zzz")]}
    )
    assert answered.status_code == 200
    first, second, stranger, nowhere = answered.json()["results"]
    assert (first["status"], first["message"]["content"], first["etag"]) == (201, {"n": 1}, "1-3")
    assert (first["interrupt_requested"], first["queued_inputs"]) == (False, 0)
    assert first["lease_expires_at"] == "2027-01-15T08:00:30.000Z"
    assert second["interrupt_requested"] is True
    assert (stranger["status"], stranger["problem"]["code"]) == (409, "lease-lost")
    assert (nowhere["status"], nowhere["problem"]["code"]) == (404, "conversation-not-found")
    assert "message" not in stranger
    assert "problem" not in first


def test_a_repeat_and_a_precondition(client: TestClient) -> None:
    one = client.post(SAVES, json={"saves": [save("a", "one")]}).json()["results"][0]
    again = client.post(SAVES, json={"saves": [save("a", "one")]}).json()["results"][0]
    assert (again["status"], again["replayed"]) == (200, True)
    assert client.get(f"{C}/a/messages/r").headers["etag"] == f'"{one["etag"]}"'
    fine = client.post(SAVES, json={"saves": [save("a", "two", if_match=one["etag"])]}).json()["results"][0]
    assert fine["status"] == 200
    stale = client.post(SAVES, json={"saves": [save("a", "late", if_match=one["etag"])]}).json()["results"][0]
    assert (stale["status"], stale["problem"]["code"]) == (412, "precondition-failed")
    nonsense = client.post(SAVES, json={"saves": [save("a", "late", if_match="nonsense")]}).json()["results"][0]
    assert nonsense["status"] == 412


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"saves": []}, "$.saves"),
        ({"saves": [save("a")] * 65}, "$.saves"),
        ({"saves": [save("a"), save("b", role="No")]}, "$.saves[1].role"),
        ({"saves": [save("a"), {"conversation_id": "b"}]}, "$.saves[1]"),
        ({"saves": [save("a", unknown=1)]}, "$.saves[0]"),
        ({"saves": [save("a", status="queued")]}, "$.saves[0].status"),
        ({"saves": [save("a", token="short")]}, "$.saves[0].token"),
        ({}, "$"),
    ],
)
def test_what_is_wrong_in_the_call_changes_nothing(client: TestClient, tables: Tables, body: Any, where: str) -> None:
    before = tables.everything()
    assert problem(client.post(SAVES, json=body), 422, "invalid")["path"] == where
    assert tables.everything() == before


def test_no_token_is_told_again(client: TestClient) -> None:
    answered = client.post(SAVES, json={"saves": [save("a"), save("b", token=OTHER_TOKEN)]})
    assert TOKEN not in answered.text
    assert OTHER_TOKEN not in answered.text
