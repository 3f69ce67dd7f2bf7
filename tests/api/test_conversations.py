"""Conversations over HTTP."""

from typing import Any

from starlette.testclient import TestClient

from tests.api.conftest import C, acquire, message, problem
from tests.conftest import Clock, Tables


def test_r3_create_repeat_conflict(client: TestClient) -> None:
    body = {"id": "x", "title": "T", "metadata": {"a": 1}, "messages": [message("hi")]}
    first = client.post(C, json=body)
    assert (first.status_code, first.headers["location"], first.headers["etag"]) == (201, f"{C}/x", '"1-1"')
    again = client.post(C, json=body)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json() == first.json()
    assert not problem(client.post(C, json={"id": "x"}), 409, "conversation-exists")["same"]
    assert client.get(f"{C}/x").json() == first.json()["conversation"]


def test_the_shape_of_a_conversation(client: TestClient, clock: Clock) -> None:
    conversation = client.post(C, json={"id": "x"}).json()["conversation"]
    moment = "2027-01-15T08:00:00.000Z"
    assert conversation == {
        "id": "x",
        "incarnation": 1,
        "title": None,
        "metadata": {},
        "created_at": moment,
        "updated_at": moment,
        "version": 1,
        "message_count": 0,
        "queued_inputs": 0,
        "parent_id": None,
        "forked_from": None,
        "generation": None,
        "last_generation": None,
    }
    acquire(client, "x", "worker-1")
    assert client.get(f"{C}/x").json()["generation"] == {
        "number": 1,
        "holder": "worker-1",
        "phase": "",
        "acquired_at": moment,
        "expires_at": "2027-01-15T08:00:30.000Z",
        "expired": False,
        "interrupt_requested": False,
    }


def test_r8_deleted_and_recreated(client: TestClient) -> None:
    body = {"id": "x", "messages": [message("hi")]}
    client.post(C, json=body)
    assert client.delete(f"{C}/x").status_code == 204
    gone = problem(client.post(C, json=body), 410, "conversation-deleted")
    recreated = client.post(C, json={**body, "recreate": gone["incarnation"]})
    assert recreated.status_code == 201
    assert recreated.json()["conversation"]["incarnation"] > gone["incarnation"]
    assert client.delete(f"{C}/x").status_code == 204
    problem(client.post(C, json={**body, "recreate": gone["incarnation"]}), 410, "conversation-deleted")
    problem(client.delete(f"{C}/x"), 410, "conversation-deleted")
    problem(client.delete(f"{C}/never"), 404, "conversation-not-found")


def test_r12_a_leased_conversation_is_not_deleted(client: TestClient) -> None:
    client.post(C, json={"id": "x"})
    holder = acquire(client, "x", "worker-1")
    refused = client.delete(f"{C}/x")
    document = problem(refused, 409, "generating")
    assert (document["holder"], document["expires_at"]) == ("worker-1", "2027-01-15T08:00:30.000Z")
    assert document["retryable"]
    assert refused.headers["retry-after"] == "30"
    saved = client.put(f"{C}/x/messages/m", json=message("still here"), headers=holder)
    assert (saved.status_code, saved.headers["lease-expires-at"]) == (201, "2027-01-15T08:00:30.000Z")


def test_r11_late_saves_after_a_forced_delete(client: TestClient, tables: Tables) -> None:
    client.post(C, json={"id": "x", "messages": [message("hi", "m")]})
    holder = acquire(client, "x")
    assert client.delete(f"{C}/x?force=true").status_code == 204
    late = message("late")
    problem(client.put(f"{C}/x/messages/m", json=late, headers=holder), 410, "conversation-deleted")
    client.post(C, json={"id": "x", "messages": [message("new", "n")], "recreate": 1})
    before = tables.everything()
    life = {**holder, "Incarnation": "1"}
    problem(client.put(f"{C}/x/messages/m", json=late, headers=life), 410, "conversation-deleted")
    problem(client.put(f"{C}/x/messages/m", json=late, headers=holder), 409, "lease-lost")
    assert tables.everything() == before


def test_patch_merges_and_keeps(client: TestClient) -> None:
    client.post(C, json={"id": "x", "title": "T", "metadata": {"a": 1, "b": 2}})
    patched = client.patch(f"{C}/x", json={"metadata": {"b": None, "c": 3}})
    assert (patched.json()["title"], patched.json()["metadata"]) == ("T", {"a": 1, "c": 3})
    assert client.patch(f"{C}/x", json={"title": None}).json()["title"] is None
    merge = {"Content-Type": "application/merge-patch+json"}
    assert client.patch(f"{C}/x", content=b'{"title":"M"}', headers=merge).json()["title"] == "M"


def test_if_match_on_a_conversation(client: TestClient) -> None:
    tag = client.post(C, json={"id": "x"}).headers["etag"]
    client.post(f"{C}/x/messages", json={"messages": [message("hi")]})
    refused = client.patch(f"{C}/x", json={"title": "late"}, headers={"If-Match": tag})
    assert problem(refused, 412, "precondition-failed")["version"] == 2
    problem(client.patch(f"{C}/x", json={}, headers={"If-Match": '"of-somebody-else"'}), 412, "precondition-failed")
    now = client.get(f"{C}/x").headers["etag"]
    assert client.patch(f"{C}/x", json={"title": "now"}, headers={"If-Match": now}).status_code == 200
    assert client.patch(f"{C}/x", json={"title": "any"}, headers={"If-Match": "*"}).status_code == 200
    for bad in ("x", 'W/"1-1"', '"a", "b"', "", '"'):
        problem(client.patch(f"{C}/x", json={}, headers={"If-Match": bad}), 400, "malformed")


def test_lists_page_through_everything_once(client: TestClient) -> None:
    for n in range(7):
        client.post(C, json={"id": f"c{n}"})
    seen, cursor = [], ""
    while cursor is not None:
        page = client.get(f"{C}?limit=3" + (f"&cursor={cursor}" if cursor else "")).json()
        seen += [conversation["id"] for conversation in page["data"]]
        cursor = page["next_cursor"]
    assert seen == [f"c{n}" for n in reversed(range(7))]
    assert page["change"] >= 7


def test_filters(client: TestClient) -> None:
    client.post(C, json={"id": "p", "title": "Grüße"})
    client.post(C, json={"id": "k", "parent_id": "p"})
    acquire(client, "k")

    def ids(query: str) -> list[Any]:
        return [conversation["id"] for conversation in client.get(f"{C}?{query}").json()["data"]]

    assert ids("q=GRÜSS") == []
    assert ids("q=GRÜ") == ["p"]
    assert ids("parent_id=p") == ["k"]
    assert ids("generating=true") == ["k"]
    assert ids("generating=false") == ["p"]


def test_children(client: TestClient) -> None:
    client.post(C, json={"id": "p"})
    client.post(C, json={"id": "k", "parent_id": "p"})
    assert client.delete(f"{C}/p?children=orphan").status_code == 204
    assert client.get(f"{C}/k").json()["parent_id"] is None
    problem(client.post(C, json={"id": "l", "parent_id": "p"}), 410, "conversation-deleted")
    problem(client.post(C, json={"id": "l", "parent_id": "nobody"}), 404, "conversation-not-found")


def test_truncate_and_fork(client: TestClient) -> None:
    client.post(C, json={"id": "s", "messages": [message(n, f"m{n}") for n in range(5)]})
    forked = client.post(f"{C}/s/fork", json={"id": "f", "through_position": 1})
    assert (forked.status_code, forked.headers["location"]) == (201, f"{C}/f")
    assert forked.json()["conversation"]["forked_from"] == {"id": "s", "position": 1}
    assert problem(client.post(f"{C}/s/fork", json={"id": "f", "through_position": 1}), 409, "conversation-exists")["same"]
    document = problem(client.post(f"{C}/s/fork", json={"through_position": 99}), 422, "invalid")
    assert document["path"] == "$.through_position"
    cut = client.post(f"{C}/s/truncate", json={"after_position": 2, "through_position": 4})
    assert (cut.status_code, cut.json()["removed"], cut.json()["conversation"]["message_count"]) == (200, 2, 3)
    again = client.post(f"{C}/s/truncate", json={"after_position": 2, "through_position": 4})
    assert (again.status_code, again.json()["removed"]) == (200, 0)
    assert client.post(f"{C}/s/fork").status_code == 201


def test_an_id_that_needs_quoting_works_everywhere(client: TestClient) -> None:
    id = "a b?c#d%e;é🌱"
    location = client.post(C, json={"id": id, "messages": [message("hi", id)]}).headers["location"]
    assert client.get(location).json()["id"] == id
    assert client.get(f"{location}/messages/{location.rpartition('/')[2]}").json()["id"] == id
