"""Changes and turns over HTTP."""

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import TOKEN


@pytest.fixture(autouse=True)
def conversation(client: TestClient) -> None:
    client.post(C, json={"id": "c", "messages": [message("hi", "m")]})


def test_follow_with_pages(client: TestClient) -> None:
    first = client.get(f"{C}/c/changes")
    assert first.headers["etag"] == f'"{first.json()["next_since"]}"'
    assert (first.json()["reset"], first.json()["next_cursor"], len(first.json()["messages"])) == (True, None, 1)
    since = first.json()["next_since"]
    client.post(f"{C}/c/messages", json={"messages": [message(str(n), f"n{n}") for n in range(3)]})
    client.delete(f"{C}/c/messages/m")
    page = client.get(f"{C}/c/changes?since={since}&limit=2").json()
    rest = client.get(f"{C}/c/changes?since={since}&limit=2&cursor={page['next_cursor']}").json()
    assert [entry["id"] for entry in page["messages"] + rest["messages"]] == ["n0", "n1", "n2", "m"]
    assert rest["messages"][-1]["status"] == "deleted"
    assert (page["reset"], page["next_since"], rest["next_cursor"]) == (False, since, None)
    assert client.get(f"{C}/c/changes?since={rest['next_since']}").json()["messages"] == []


def test_what_cannot_be_meant_is_refused(client: TestClient) -> None:
    problem(client.get(f"{C}/c/changes?since=nonsense"), 400, "malformed")
    problem(client.get(f"{C}/c/changes?cursor=nonsense"), 400, "malformed")
    problem(client.get(f"{C}/c/changes?limit=0"), 422, "invalid")
    problem(client.get(f"{C}/unknown/changes"), 404, "conversation-not-found")
    problem(client.get(f"{C}/c/generations?cursor=nonsense"), 400, "malformed")
    client.post(f"{C}/c/messages", json={"messages": [message("x"), message("y")]})
    cursor = client.get(f"{C}/c/changes?limit=1").json()["next_cursor"]
    other_life = {"Incarnation": "99"}
    problem(client.get(f"{C}/c/changes?cursor={cursor}", headers=other_life), 410, "conversation-deleted")
    client.delete(f"{C}/c")
    problem(client.get(f"{C}/c/changes?since=1-1"), 410, "conversation-deleted")


def test_the_log_of_turns(client: TestClient) -> None:
    for n in range(3):
        holder = acquire(client, "c", f"w{n}", token=f"{TOKEN}{n}")
        client.post(f"{C}/c/lease/finish", json={"usage": {"n": n}}, headers=holder)
    page = client.get(f"{C}/c/generations?limit=2").json()
    rest = client.get(f"{C}/c/generations?limit=2&cursor={page['next_cursor']}").json()
    assert [(turn["holder"], turn["outcome"], turn["usage"]) for turn in page["data"] + rest["data"]] == [
        ("w2", "completed", {"n": 2}), ("w1", "completed", {"n": 1}), ("w0", "completed", {"n": 0})
    ]  # fmt: skip
    assert rest["next_cursor"] is None
    assert TOKEN not in client.get(f"{C}/c/generations").text
