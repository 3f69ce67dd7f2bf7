"""Compaction, contexts, forks, search and usage over HTTP."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import TOKEN


@pytest.fixture(autouse=True)
def conversation(client: TestClient) -> None:
    said = [message(f"m{n}", f"m{n}", "assistant" if n % 2 else "user", metadata={"tokens": 2}) for n in range(6)]
    client.post(C, json={"id": "c", "title": "Basil", "messages": said})


def compact(client: TestClient, through: int, seen: int, id: str | None = None, **headers: str) -> Any:
    body = {"through_position": through, "seen_version": seen, "summary": {"role": "system", "content": "in short"}}
    return client.post(f"{C}/c/compact", json=body if id is None else {**body, "id": id}, headers=headers)


def test_a_compaction_is_201_and_its_repeat_200(client: TestClient) -> None:
    done = compact(client, 3, 1, "s")
    assert done.status_code == 201
    assert done.json()["summary"]["summary_through"] == 3
    assert done.headers["etag"] == '"1-2"'
    again = compact(client, 3, 1, "s")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    stale = problem(compact(client, 3, 1), 409, "stale")
    assert (stale["version"], stale["conversation_id"], stale["retryable"]) == (2, "c", False)
    problem(compact(client, 99, 2), 422, "invalid")
    problem(client.post(f"{C}/c/compact", json={"through_position": 3, "seen_version": 1}), 422, "invalid")
    problem(compact(client, 3, 2, **{"If-Match": '"1-1"'}), 412, "precondition-failed")


def test_the_context_has_pages_with_a_cursor(client: TestClient) -> None:
    compact(client, 3, 1)
    seen, cursor = list[str](), ""
    while cursor is not None:
        page = client.get(f"{C}/c/messages?view=context&limit=1{cursor and '&cursor=' + cursor}").json()
        seen += [entry["content"] for entry in page["data"]]
        assert "cut" not in page
        cursor = page["next_cursor"]
    assert seen == ["in short", "m4", "m5"]
    cursor = client.get(f"{C}/c/messages?limit=1").json()["next_cursor"]
    problem(client.get(f"{C}/c/messages?view=context&cursor={cursor}"), 422, "invalid")


def test_the_context_by_budget_is_one_answer(client: TestClient) -> None:
    found = client.get(f"{C}/c/messages?view=context&max_messages=5").json()
    assert ([entry["id"] for entry in found["data"]], found["cut"], found["state"]) == (["m2", "m3", "m4", "m5"], True, "1-1")
    assert "tokens" not in found
    found = client.get(f"{C}/c/messages?view=context&max_tokens=100").json()
    assert (found["tokens"], found["cut"], found["next_cursor"]) == (12, False, None)
    small = problem(client.get(f"{C}/c/messages?view=context&max_tokens=3"), 422, "budget-too-small")
    assert (small["messages"], small["tokens"]) == (2, 4)
    client.post(f"{C}/c/messages", json={"messages": [message("silent")]})
    problem(client.get(f"{C}/c/messages?view=context&max_tokens=100"), 422, "invalid")
    for query in ("max_messages=5", "view=context&max_messages=5&order=desc", "view=context&max_tokens=5&after=1"):
        problem(client.get(f"{C}/c/messages?{query}"), 422, "invalid")


def test_a_fork_by_message_and_its_title(client: TestClient) -> None:
    made = client.post(f"{C}/c/fork", json={"id": "f", "through_message": "m3"})
    assert (made.status_code, made.json()["conversation"]["title"]) == (201, "Basil (2)")
    assert made.json()["conversation"]["forked_from"] == {"id": "c", "position": 3}
    problem(client.post(f"{C}/c/fork", json={"id": "f", "before_message": "m4"}), 409, "conversation-exists")
    problem(client.post(f"{C}/c/fork", json={"through_message": "nowhere"}), 404, "message-not-found")
    problem(client.post(f"{C}/c/fork", json={"through_message": "m1", "before_message": "m1"}), 422, "invalid")


def test_lists_are_filtered(client: TestClient) -> None:
    client.post(C, json={"id": "child", "parent_id": "c", "metadata": {"team": "x"}})

    def ids(query: str) -> list[str]:
        answered = client.get(f"{C}?{query}")
        assert answered.status_code == 200, answered.text
        return [entry["id"] for entry in answered.json()["data"]]

    assert ids("roots=true") == ["c"]
    assert ids("metadata_key=team") == ids("metadata_key=team&metadata_value=x") == ["child"]
    assert ids("order=created") == ["child", "c"]
    assert ids("changed_since=2027-01-15T08:00:00Z") == ["child", "c"]
    assert ids("changed_before=2027-01-15T08:00:00Z") == []
    assert ids("changed_since=2027-01-15t08:00:00.000z") == ["child", "c"]
    times = ("yesterday", "2027-01-15T08:00:00", "2027-W01-1T00:00Z", "20270115T080000Z", "9999-12-31T23:59:60Z")
    for query in (*(f"changed_since={time}" for time in times), "order=up", "metadata_value=x"):
        problem(client.get(f"{C}?{query}"), 422, "invalid")
    cursor = client.get(f"{C}?limit=1").json()["next_cursor"]
    problem(client.get(f"{C}?order=created&cursor={cursor}"), 422, "invalid")
    problem(client.get(f"{C}/c/messages?cursor={cursor}"), 400, "malformed")
    problem(client.get(f"{C}?since_change=0&roots=true"), 422, "invalid")


def test_search_has_pages_and_marks(client: TestClient) -> None:
    client.post(f"{C}/c/messages", json={"messages": [message(f"Basil {n}") for n in range(3)]})
    page = client.get("/v1/search?q=basil&limit=2").json()
    first = page["data"][0]
    assert (first["conversation_id"], first["message"]["content"]) == ("c", "Basil 2")
    assert [first["snippet"][begin:end] for begin, end in first["marks"]] == ["Basil"]
    rest = client.get(f"/v1/search?q=basil&limit=2&cursor={page['next_cursor']}").json()
    assert ([entry["message"]["content"] for entry in rest["data"]], rest["next_cursor"]) == (["Basil 0"], None)
    assert client.get("/v1/search?q=m1&conversation_id=c").json()["data"][0]["message"]["id"] == "m1"
    problem(client.get("/v1/search"), 422, "invalid")
    assert problem(client.get("/v1/search?q=%22"), 422, "invalid")["path"] == "?q"
    problem(client.get("/v1/search?q=a&conversation_id=nowhere"), 404, "conversation-not-found")
    problem(client.get("/v1/search?q=a&cursor=x"), 400, "malformed")


def test_usage_is_one_sum_or_many(client: TestClient) -> None:
    held = acquire(client, "c", token=TOKEN)
    problem(client.post(f"{C}/c/lease/finish", json={"usage": {"cost": -1}}, headers=held), 422, "invalid")
    client.post(f"{C}/c/lease/finish", json={"usage": {"input_tokens": 5, "cost": 0.25}}, headers=held)
    (total,) = client.get("/v1/usage").json()["data"]
    assert total == {
        "key": 0, "of": None, "turns": 1, "input_tokens": 5, "output_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0,
        "cost": 0.25,
    }  # fmt: skip
    assert client.get("/v1/usage?by=day").json()["data"][0]["of"] == "2027-01-15"
    assert client.get("/v1/usage?conversation_id=c&descendants=true").json()["data"][0]["turns"] == 1
    assert client.get("/v1/usage?since=2028-01-01T00:00:00Z").json()["data"] == []
    for query in ("by=week", "descendants=true", "since=x", "cursor=x"):
        assert client.get(f"/v1/usage?{query}").status_code in (400, 422), query
    problem(client.get("/v1/usage?conversation_id=nowhere"), 404, "conversation-not-found")
