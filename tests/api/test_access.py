"""Who is let in, and what he may: keys, owners and rights, on every route that is mounted."""

import asyncio
import logging
import socket
import threading
import time
from typing import Any

import pytest
from sessionstore_api import access
from sessionstore_api.app import create_app
from sessionstore_api.operations import Operation
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sessionstore import AsyncStore, Store, errors
from sessionstore.engine import sqlite3
from sessionstore.settings import Settings
from sessionstore.transaction import Statements
from tests.api.conftest import LOCAL, C, message, problem
from tests.api.test_leases import BODIES, mounted
from tests.conftest import TOKEN, Clock, Tables
from tests.live import LiveServer, Stream

QUERIES = {"search_messages": {"q": "secret"}}


@pytest.fixture
def keys(url: str, clock: Clock) -> dict[str, str]:
    """A key of each kind."""
    kinds: dict[str, dict[str, Any]] = {
        "ann": {}, "bob": {}, "carol": {}, "reader": {"read_only": True}, "admin": {"admin": True},
        "expired": {"expires_after_ms": 1}, "revoked": {},
    }  # fmt: skip
    with Store.open(url, clock=clock) as store:
        owner = {"bob": "bob", "carol": "carol"}
        made = {name: store.keys.create(name, owner.get(name, "ann"), **kind).secret for name, kind in kinds.items()}
        store.keys.revoke("revoked")
    clock.advance(1_000)
    return made


@pytest.fixture
def client(keys: dict[str, str], client: TestClient) -> TestClient:
    """A server that wants keys."""
    return client


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def conversation(client: TestClient, keys: dict[str, str]) -> None:
    """Ann has one of everything."""
    ann = bearer(keys["ann"])
    client.post(C, json={"id": "c", "title": "secret", "messages": [message("secret words", "m")]}, headers=ann)
    client.post(f"{C}/c/lease", json={"holder": "secret", "token": TOKEN}, headers=ann)
    client.post(f"{C}/c/inputs", json={"messages": [message("secret", "i")]}, headers=ann)
    client.post(C, json={"id": "gone"}, headers=ann)
    client.delete(f"{C}/gone", headers=ann)


def send(client: TestClient, operation: Operation, id: str = "c", **headers: str) -> Any:
    """Send an operation to a conversation of that id."""
    path = operation.path.format(conversation_id=id, message_id="m")
    body = BODIES.get(operation.name)
    if operation.name == "save_messages":
        body = {"saves": [{"conversation_id": id, "message_id": "m", "token": TOKEN, "role": "user", "content": "no"}]}
    with client.stream(operation.method, path, json=body, headers=headers, params=QUERIES.get(operation.name)) as answered:
        if answered.headers.get("content-type", "").partition(";")[0] != "text/event-stream":
            answered.read()
    return answered


def wanting_keys(app: Starlette) -> list[Operation]:
    """Every operation but those that say the same to everybody."""
    found = [operation for operation in mounted(app) if not operation.public]
    assert len(found) >= 33
    return found


@pytest.mark.usefixtures("conversation")
def test_nobody_is_served_without_a_key_that_is_good(
    app: Starlette, client: TestClient, keys: dict[str, str], tables: Tables
) -> None:
    before = tables.everything()
    strangers: list[dict[str, Any]] = [
        {}, bearer("ssk_" + "x" * 43), bearer(keys["expired"]), bearer(keys["revoked"]), bearer("x" * 5_000),
        {"Authorization": keys["ann"]}, {"Authorization": f"Basic {keys['ann']}"}, {"Authorization": "Bearer "},
        {"Authorization": ""}, {"Authorization": "Bearer caf\u00e9".encode("latin-1")},
    ]  # fmt: skip
    for operation in wanting_keys(app):
        for headers in strangers:
            refused = send(client, operation, **headers)
            if operation.method == "HEAD":
                assert refused.status_code == 401
                continue
            problem(refused, 401, "unauthorized")
            assert refused.headers["www-authenticate"].startswith("Bearer")
    assert tables.everything() == before


def test_a_key_in_an_address_or_a_cookie_is_none(client: TestClient, keys: dict[str, str]) -> None:
    for name in ("key", "access_token", "token", "authorization"):
        refused = client.get(C, params={name: keys["ann"]})
        assert (refused.status_code, keys["ann"] in refused.text) == (401, False)
        problem(client.get(C, params={name: keys["ann"]}, headers=bearer(keys["ann"])), 422, "invalid")
    assert client.get(C, headers={"Cookie": f"key={keys['ann']}"}).status_code == 401


def test_two_keys_in_one_call_are_refused(client: TestClient, keys: dict[str, str]) -> None:
    twice = [("Authorization", f"Bearer {keys[name]}") for name in ("ann", "bob")]
    problem(client.get(C, headers=twice), 400, "malformed")


def test_the_public_pages_say_the_same_to_everybody_and_nothing_of_anybody(client: TestClient, keys: dict[str, str]) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        bare, known = client.get(path), client.get(path, headers=bearer(keys["admin"]))
        assert (bare.status_code, bare.text) == (200, known.text)
    assert client.get("/readyz").json() == {"status": "ready", "engine": None, "engine_fault": None, "log_bytes": None}


@pytest.mark.usefixtures("conversation")
def test_a_strangers_key_gets_nowhere(app: Starlette, client: TestClient, keys: dict[str, str], tables: Tables) -> None:
    """On every route: what is another owner's is answered as what never was, to the letter, and nothing changes."""
    before, bob, swept = tables.everything(), bearer(keys["bob"]), 0
    for operation in wanting_keys(app):
        if operation.name in ("create_conversation", "server_info"):
            continue
        for id in ("c", "gone"):
            there = send(client, operation, id, **bob, **({"Lease-Token": TOKEN} if "Lease-Token" in operation.headers else {}))
            never = send(client, operation, "never", **bob)
            assert there.status_code == never.status_code, operation.name
            if there.headers.get("content-type", "").partition(";")[0] != "text/event-stream":
                assert there.text.replace(f" {id}.", " never.").replace(f'"{id}"', '"never"') == never.text, operation.name
            # The length is that of the id, and every request has an id of its own.
            own = ("content-length", "x-request-id")
            told, wanted = ({k: v for k, v in answered.headers.items() if k not in own} for answered in (there, never))
            assert told == wanted, operation.name
            if "{" in operation.path:
                assert there.status_code == 404, operation.name
            swept += 1
    assert swept >= 60
    assert tables.everything() == before


@pytest.mark.usefixtures("conversation")
def test_what_is_anothers_is_looked_for_in_the_same_way_as_what_never_was(
    app: Starlette, client: TestClient, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time would tell: the same statements, which find as little."""
    monkeypatch.setattr(access, "BELIEVED_SECONDS", 1_000)
    said: list[Any] = []

    def note(statement: Any) -> Any:
        # The watcher looks at what happens, and at keys, whoever calls.
        if not threading.current_thread().name.startswith(("sessionstore-watch", "sessionstore-keys")):
            said.append(statement)

    # However it is run, and on either engine: each is looked up by itself.
    monkeypatch.setattr(Statements, "__getitem__", lambda self, s: note(s) or dict.__getitem__(self, s))
    client.get(C, headers=bearer(keys["bob"]))
    # His own streams would go on looking for a moment when he has left.
    for operation in (operation for operation in wanting_keys(app) if "{" in operation.path):
        heard = []
        for id in ("c", "gone", "never"):
            said.clear()
            send(client, operation, id, **bearer(keys["bob"]))
            # Whoever follows may look twice when he begins.
            heard.append(list(dict.fromkeys(said)))
        assert heard[0], operation.name
        assert heard[0] == heard[1] == heard[2], operation.name


@pytest.mark.usefixtures("conversation")
def test_lists_are_as_empty_as_if_nobody_else_were_there(app: Starlette, client: TestClient, keys: dict[str, str]) -> None:
    for path in (C, f"{C}?since_change=0", "/v1/leases", "/v1/usage", "/v1/search?q=secret", f"{C}?q=secret"):
        assert client.get(path, headers=bearer(keys["bob"])).json() == client.get(path, headers=bearer(keys["carol"])).json()
        assert "secret" not in client.get(path, headers=bearer(keys["bob"])).text
    assert client.get(C, headers=bearer(keys["bob"])).json()["change"] == 0


@pytest.mark.usefixtures("conversation")
def test_cursors_tags_and_parents_of_anothers_lead_nowhere(client: TestClient, keys: dict[str, str]) -> None:
    ann, bob = bearer(keys["ann"]), bearer(keys["bob"])
    for n in range(3):
        client.post(C, json={"id": f"a{n}"}, headers=ann)
    cursor = client.get(C, params={"limit": 1}, headers=ann).json()["next_cursor"]
    assert client.get(C, params={"cursor": cursor}, headers=bob).json()["data"] == []
    etag = client.get(f"{C}/c", headers=ann).headers["etag"].strip('"')
    problem(client.get(f"{C}/c/changes", params={"since": etag}, headers=bob), 404, "conversation-not-found")
    problem(client.post(C, json={"id": "b", "parent_id": "c"}, headers=bob), 404, "conversation-not-found")
    assert client.get(C, params={"parent_id": "c"}, headers=bob).json()["data"] == []


@pytest.mark.usefixtures("conversation")
def test_a_read_only_key_changes_nothing(app: Starlette, client: TestClient, keys: dict[str, str], tables: Tables) -> None:
    before, reader, refused = tables.everything(), bearer(keys["reader"]), 0
    for operation in wanting_keys(app):
        answered = send(client, operation, **reader)
        if operation.method in ("GET", "HEAD") and not operation.admin:
            assert answered.status_code == 200, operation.name
        else:
            problem(answered, 403, "forbidden")
            refused += 1
    assert refused >= 18
    assert tables.everything() == before
    assert client.get("/v1/server_info", headers=reader).json()["you"] == {
        "owner": "ann", "key": "reader", "read_only": True, "admin": False,
    }  # fmt: skip


@pytest.mark.usefixtures("conversation")
def test_only_an_admin_ends_anothers_turn(client: TestClient, keys: dict[str, str], tables: Tables) -> None:
    before, ann, admin = tables.everything(), bearer(keys["ann"]), bearer(keys["admin"])
    problem(client.post(f"{C}/c/interrupt", json={"force": True}, headers=ann), 403, "forbidden")
    # Whatever token is sent along: one that is none, or that of the holder.
    for token in ({}, {"Lease-Token": "x" * 30}, {"Lease-Token": TOKEN}):
        problem(client.delete(f"{C}/c?force=true", headers=ann | token), 403, "forbidden")
        problem(client.post(f"{C}/c/interrupt", json={"force": True}, headers=ann | token), 403, "forbidden")
        for how in ("interrupt", "rollback"):
            body = {"holder": "h", "if_busy": how}
            problem(client.post(f"{C}/c/lease", json=body, headers=ann | token), 403, "forbidden")
    assert tables.everything() == before
    assert client.post(f"{C}/c/interrupt", json={}, headers=ann).status_code == 202
    taken = client.post(f"{C}/c/lease", json={"holder": "h", "if_busy": "interrupt"}, headers=admin)
    assert taken.status_code == 201
    own = {**ann, "Lease-Token": taken.json()["token"]}
    assert client.delete(f"{C}/c", headers=own).status_code == 204
    client.post(C, json={"id": "d"}, headers=ann)
    client.post(f"{C}/d/lease", json={"holder": "h"}, headers=ann)
    assert client.post(f"{C}/d/interrupt", json={"force": True}, headers=admin).status_code == 200


def test_a_new_key_is_good_at_once_and_a_revoked_one_no_longer_than_a_second(
    client: TestClient, keys: dict[str, str], url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get(C, headers=bearer(keys["ann"])).status_code == 200
    with Store.open(url, clock=clock) as store:
        new = store.keys.create("new", "ann").secret
        assert client.get(C, headers=bearer(new)).status_code == 200
        store.keys.revoke("new")
        monkeypatch.setattr(access.Access, "_now", staticmethod(lambda: time.monotonic() + 1.001))
        assert client.get(C, headers=bearer(new)).status_code == 401


def test_as_soon_as_there_is_a_key_nobody_is_served_without(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(Settings(database_url=url), clock=clock), headers=LOCAL) as client:
        assert client.get(C).status_code == 200
        assert client.get("/v1/server_info").json()["you"] == {"owner": "", "key": None, "read_only": False, "admin": True}
        assert client.get("/readyz").json()["engine"] is not None
        with Store.open(url, clock=clock) as store:
            store.keys.create("k", "ann")
            store.keys.revoke("k")
        monkeypatch.setattr(access.Access, "_now", staticmethod(lambda: time.monotonic() + 1.001))
        problem(client.get(C), 401, "unauthorized")
        assert client.get("/readyz").json()["engine"] is None


@pytest.mark.parametrize("here", ["10.0.0.5", "[fd00::5]", "0.0.0.0"])
def test_without_keys_only_this_machine_is_served(app: Starlette, here: str) -> None:
    with TestClient(app, base_url=f"http://{here}:8080") as client:
        problem(client.get(C), 401, "unauthorized")
        assert client.get("/healthz").status_code == 200


def test_no_more_of_a_key_goes_on_at_once_than_is_allowed(keys: dict[str, str], url: str, clock: Clock) -> None:
    with LiveServer(url, clock, streams_per_key=2) as live:
        ann, bob = bearer(keys["ann"]), bearer(keys["bob"])
        streams = [Stream(live.port, "/v1/events", **ann) for _ in range(2)]
        assert [stream.status for stream in streams] == [200, 200]
        refused = Stream(live.port, "/v1/events", **ann)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        other = Stream(live.port, "/v1/events", **bob)
        assert other.status == 200
        assert status(live, ann) == (200, None)
        for stream in (*streams, refused, other):
            stream.close()


@pytest.mark.one_file
def test_requests_of_a_key_beyond_its_limit_are_429_and_leave_others_alone(
    keys: dict[str, str], url: str, path: Any, clock: Clock
) -> None:
    with LiveServer(url, clock, requests_per_key=1) as live:
        ann = bearer(keys["ann"])
        assert status(live, ann) == (200, None)
        rival = sqlite3.connect(path, isolation_level=None)
        rival.execute("BEGIN IMMEDIATE")
        body = b'{"id": "late"}'
        told: list[int] = []

        def post() -> None:
            import httpx2

            told.append(httpx2.post(f"{live.address}{C}", content=body, headers=ann | JSON, timeout=30).status_code)

        waiting = threading.Thread(target=post)
        waiting.start()
        visitors = live.state["access"]._visitors
        end = time.monotonic() + 10
        while not any(visitor.under_way["requests"] for visitor in list(visitors.values())):
            assert time.monotonic() < end
        refused = status(live, ann)
        assert refused == (429, "1")
        assert status(live, bearer(keys["bob"])) == (200, None)
        rival.execute("ROLLBACK")
        rival.close()
        waiting.join(30)
        assert told == [201]
        assert status(live, ann) == (200, None)


def status(live: LiveServer, headers: dict[str, str]) -> tuple[int, str | None]:
    answered = Stream(live.port, C, **headers)
    answered.close()
    return answered.status, answered.headers.get("retry-after")


JSON = {"Content-Type": "application/json"}


def test_a_stream_ends_when_its_key_is_revoked(keys: dict[str, str], url: str, clock: Clock) -> None:
    with LiveServer(url, clock) as live, Store.open(url, clock=clock) as store:
        ann, bob = (Stream(live.port, "/v1/events", **bearer(keys[name])) for name in ("ann", "bob"))
        assert next(ann)["event"] == next(bob)["event"] == "conversations"
        store.keys.revoke("ann")
        closed = next(ann)
        assert (closed["event"], closed["data"]["code"]) == ("closed", "unauthorized")
        store.of("bob").create("b")
        assert next(bob)["data"]["data"][0]["id"] == "b"
        for stream in (ann, bob):
            stream.close()


def test_a_key_that_is_revoked_while_its_stream_is_opened_opens_none(
    keys: dict[str, str], url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the first word of the stream nobody has subscribed to the end of the key (found by review)."""
    asked, go = threading.Event(), threading.Event()
    follow = AsyncStore.follow

    async def first_is_slow(self: AsyncStore, followed: Any, render: Any) -> Any:
        asked.set()
        await asyncio.to_thread(go.wait, 30)
        async for event in follow(self, followed, render):
            yield event

    monkeypatch.setattr(AsyncStore, "follow", first_is_slow)
    with LiveServer(url, clock) as live, Store.open(url, clock=clock) as store:
        opened: list[Stream] = []
        opening = threading.Thread(target=lambda: opened.append(Stream(live.port, "/v1/events", **bearer(keys["ann"]))))
        opening.start()
        assert asked.wait(30)
        store.keys.revoke("ann")
        visitors = live.state["access"]._visitors
        end = time.monotonic() + 30
        while any(visitor.name == "ann" for visitor in list(visitors.values())):
            assert time.monotonic() < end
        go.set()
        opening.join(30)
        closed = next(opened[0])
        assert (closed["event"], closed["data"]["code"]) == ("closed", "unauthorized")
        opened[0].close()


def test_a_stream_from_before_there_were_keys_shows_nothing_more(url: str, clock: Clock) -> None:
    with LiveServer(url, clock) as live, Store.open(url, clock=clock) as store:
        stream = Stream(live.port, "/v1/events")
        assert next(stream)["event"] == "conversations"
        secret = store.keys.create("k", "").secret
        end = time.monotonic() + 30
        while status(live, {})[0] != 401:
            assert time.monotonic() < end
        store.create("private")
        closed = next(stream)
        assert (closed["event"], closed["data"]["code"]) == ("closed", "unauthorized")
        stream.close()
        assert status(live, bearer(secret)) == (200, None)


def test_who_has_a_key_shows_that_keys_are_wanted(url: str, clock: Clock) -> None:
    """Also where nobody ever comes without one."""
    with TestClient(create_app(Settings(database_url=url), clock=clock), headers=LOCAL) as client:
        assert client.get("/readyz").json()["engine"] is not None
        with Store.open(url, clock=clock) as store:
            secret = store.keys.create("k", "").secret
        assert client.get(C, headers=bearer(secret)).status_code == 200
        assert client.get("/readyz").json()["engine"] is None


def test_a_key_that_is_revoked_while_its_request_arrives_does_nothing(keys: dict[str, str], url: str, clock: Clock) -> None:
    """The head was let in; the body comes later (found by review)."""
    with LiveServer(url, clock) as live, Store.open(url, clock=clock) as store:
        assert status(live, bearer(keys["ann"])) == (200, None)
        body = b'{"id": "late"}'
        names = {"Host": "localhost", "Content-Type": "application/json", **bearer(keys["ann"])}
        head = f"POST {C} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in names.items())
        with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
            connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body[:5])
            store.keys.revoke("ann")
            end = time.monotonic() + 30
            while status(live, bearer(keys["ann"]))[0] != 401:
                assert time.monotonic() < end
            connection.sendall(body[5:])
            assert connection.makefile("rb").readline().split()[1] == b"401"
        with pytest.raises(errors.ConversationNotFound):
            store.of("ann").get("late")


def test_a_database_that_is_busy_ends_nobodys_key(
    client: TestClient, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a caller who goes away while his key is looked up: others follow with the same one."""
    found, ann = client.app_state["access"], bearer(keys["ann"])
    assert client.get(C, headers=ann).status_code == 200
    (visitor,) = (one for one in found._visitors.values() if one.name == "ann")

    async def fail(_: str) -> None:
        raise errors.Busy

    with monkeypatch.context() as patch:
        patch.setattr(access.Access, "_now", staticmethod(lambda: time.monotonic() + 1.001))
        patch.setattr(found._keys, "find_hash", fail)
        problem(client.get(C, headers=ann), 503, "busy")
        # Nor is he believed without having been asked for.
        problem(client.get(C, headers=ann), 503, "busy")
    assert not visitor.is_over
    assert client.get(C, headers=ann).status_code == 200
    assert visitor in found._visitors.values()


def test_what_is_known_of_keys_has_an_end(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_KNOWN", 3)
    app = create_app(Settings(database_url=url), clock=clock)
    with Store.open(url, clock=clock) as store, TestClient(app, headers=LOCAL) as client:
        made = [store.keys.create(f"k{n}", "ann").secret for n in range(10)]
        for secret in [*made, *made]:
            assert client.get(C, headers=bearer(secret)).status_code == 200
        assert len(client.app_state["access"]._visitors) <= 3
        for n in range(50):
            assert client.get(C, headers=bearer(f"ssk_{n}")).status_code == 401
        assert len(client.app_state["access"]._visitors) <= 3


def test_no_key_token_or_word_of_a_message_reaches_a_log(
    client: TestClient, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ann = bearer(keys["ann"])
    client.post(C, json={"id": "c", "messages": [message("a private word", "m")]}, headers=ann)
    client.post(f"{C}/c/lease", json={"holder": "h", "token": TOKEN}, headers=ann)
    client.put(f"{C}/c/messages/m", json=message("a private word"), headers={**ann, "Lease-Token": TOKEN})
    client.get(C, headers=bearer("ssk_wrong-one"))
    client.get("/v1/search?q=private", headers=ann)
    client.post(C, content=b'{"a private word": ', headers=ann | JSON)
    # What the client of this test says of itself is its own.
    told = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records if record.name != "httpx2")
    for secret in (keys["ann"], TOKEN, "private", "ssk_wrong-one"):
        assert secret not in told
