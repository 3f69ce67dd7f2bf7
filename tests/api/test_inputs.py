"""Inputs over HTTP."""

import pytest
from sessionstore_api.app import create_app
from starlette.testclient import TestClient

from sessionstore import Limits
from sessionstore.settings import Settings
from tests.api.conftest import LOCAL, C, acquire, message, problem
from tests.conftest import TOKEN

I = f"{C}/c/inputs"  # noqa: E741


@pytest.fixture(autouse=True)
def generating(client: TestClient) -> None:
    client.post(C, json={"id": "c", "messages": [message("hi", "m")]})


def test_queue_list_claim_cancel(client: TestClient) -> None:
    holder = acquire(client, "c", token=TOKEN)
    body = {"messages": [message("one", "one"), message("two", "two")], "mode": "steer"}
    queued, again = client.post(I, json=body), client.post(I, json=body)
    assert (queued.status_code, again.status_code, again.headers["idempotent-replayed"]) == (202, 200, "true")
    assert [entry["status"] for entry in queued.json()["messages"]] == ["queued", "queued"]
    listed = client.get(I).json()
    assert [(entry["id"], entry["mode"], entry["position"]) for entry in listed["data"]] == [
        ("one", "steer", None), ("two", "steer", None)
    ]  # fmt: skip
    assert client.patch(f"{C}/c/lease", headers=holder).headers["queued-inputs"] == "2"
    problem(client.post(f"{I}/claim", json={}), 409, "generating")
    claimed = client.post(f"{I}/claim", json={"ids": ["one"]}, headers=holder)
    assert [(entry["id"], entry["position"]) for entry in claimed.json()["messages"]] == [("one", 1)]
    assert client.post(f"{I}/claim", json={"ids": ["one"]}, headers=holder).headers["idempotent-replayed"] == "true"
    problem(client.delete(f"{I}/one"), 409, "input-claimed")
    assert client.delete(f"{I}/two").status_code == 204
    problem(client.delete(f"{I}/two"), 410, "message-deleted")
    problem(client.delete(f"{I}/claim"), 404, "message-not-found")
    assert client.post(f"{I}/claim", headers=holder).json() == {"messages": []}


def test_pages(client: TestClient) -> None:
    client.post(I, json={"messages": [message(str(n)) for n in range(3)]})
    first = client.get(f"{I}?limit=2").json()
    second = client.get(f"{I}?limit=2&cursor={first['next_cursor']}").json()
    assert [entry["content"] for entry in first["data"] + second["data"]] == ["0", "1", "2"]
    assert second["next_cursor"] is None
    problem(client.get(f"{I}?cursor=nonsense"), 400, "malformed")


def test_a_full_queue_is_429_with_retry_after(url: str) -> None:
    app = create_app(Settings(database_url=url, limits=Limits(queued_inputs=1)))
    with TestClient(app, headers=LOCAL) as client:
        client.post(C, json={"id": "c"})
        refused = client.post(I, json={"messages": [message("1"), message("2")]})
        assert problem(refused, 429, "inputs-full")["sent"] == 2
        assert int(refused.headers["retry-after"]) > 0


def test_rollback_over_http(client: TestClient) -> None:
    holder = acquire(client, "c", token=TOKEN)
    client.post(f"{C}/c/messages", json={"messages": [message("undone")]}, headers=holder)
    client.post(f"{C}/c/lease", json={"holder": "next", "if_busy": "rollback"})
    assert [entry["content"] for entry in client.get(f"{C}/c/messages").json()["data"]] == ["hi"]
