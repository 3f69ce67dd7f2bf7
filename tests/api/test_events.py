"""Server-sent events, over real sockets."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sessionstore_api import events as handlers
from sessionstore_api import protocol
from sse_starlette.sse import AppStatus
from starlette.testclient import TestClient

from sessionstore import Store
from tests.api.conftest import C, problem
from tests.conftest import TOKEN, Clock, reply, user
from tests.live import LiveServer, Stream
from tests.test_serve import Server


@pytest.fixture
def live(url: str, clock: Clock) -> Iterator[LiveServer]:
    with LiveServer(url, clock) as server:
        yield server


Follow = Callable[..., Stream]


@pytest.fixture
def follow(live: LiveServer) -> Iterator[Follow]:
    """Opens streams of the live server, and closes them."""
    opened: list[Stream] = []

    def open_stream(path: str, port: int = live.port, **headers: str) -> Stream:
        opened.append(Stream(port, path, **headers))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts servers of one file, as processes."""
    servers: list[Server] = []

    def start() -> Server:
        servers.append(Server(f"sqlite:///{tmp_path}/served.db"))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(autouse=True)
def conversation(plain: Store) -> None:
    plain.create("c", messages=[user("hi", "m")])


def port_of(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


def ids(event: dict[str, Any]) -> list[str]:
    return [message["id"] for message in event["data"]["messages"]]


def test_a_stream_begins_with_the_state_and_goes_on_with_what_changes(follow: Follow, plain: Store) -> None:
    stream = follow(f"{C}/c/events")
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert stream.headers["cache-control"] == "no-store"
    first = next(stream)
    assert (first["event"], first["id"], first["retry"]) == ("changes", str(plain.get("c").tag), "1000")
    assert (ids(first), first["data"]["reset"], first["data"]["next_since"]) == (["m"], True, first["id"])
    plain.append("c", [user("from another process", "o")])
    told = next(stream)
    assert (ids(told), told["data"]["reset"], told["id"]) == (["o"], False, str(plain.get("c").tag))


@pytest.mark.parametrize("how", ["header", "query"])
def test_whoever_reconnects_is_told_what_changed_meanwhile(follow: Follow, plain: Store, how: str) -> None:
    known = str(plain.get("c").tag)
    plain.append("c", [user("meanwhile", "w")])
    headers, query = ({"Last-Event-ID": known}, "") if how == "header" else ({}, f"?since={known}")
    first = next(follow(f"{C}/c/events{query}", **headers))
    assert (ids(first), first["data"]["reset"]) == (["w"], False)


def test_the_header_of_a_reconnect_outdoes_the_query_of_the_first_connect(follow: Follow, plain: Store) -> None:
    old = str(plain.get("c").tag)
    plain.append("c", [user("meanwhile", "w")])
    known = {"Last-Event-ID": str(plain.get("c").tag)}
    assert ids(next(follow(f"{C}/c/events?since={old}", **known))) == []


def test_e3_a_deletion_is_the_last_event(follow: Follow, plain: Store) -> None:
    events = follow(f"{C}/c/events")
    known = next(events)["id"]
    plain.delete("c")
    (last,) = list(events)
    assert (last["event"], last["data"]["code"], last["data"]["status"]) == ("deleted", "conversation-deleted", 410)
    assert follow(f"{C}/c/events", **{"Last-Event-ID": known}).status == 410
    plain.create("c", messages=[user("new", "n")], recreate=last["data"]["incarnation"])
    again = next(follow(f"{C}/c/events", **{"Last-Event-ID": known}))
    assert (again["data"]["reset"], ids(again)) == (True, ["n"])


def test_what_is_wrong_with_the_call_is_a_problem(client: TestClient) -> None:
    problem(client.get(f"{C}/unknown/events"), 404, "conversation-not-found")
    problem(client.get(f"{C}/c/events", headers={"Incarnation": "99"}), 410, "conversation-deleted")
    for path in (f"{C}/c/events", "/v1/events"):
        problem(client.get(path, headers={"Last-Event-ID": "soon"}), 400, "malformed")
        problem(client.get(f"{path}?sinse=1"), 422, "invalid")
        problem(client.post(path), 405, "method-not-allowed")
    problem(client.get(f"{C}/c/events?since=soon"), 400, "malformed")
    problem(client.get("/v1/events?since_change=-1"), 422, "invalid")


def test_head_answers_and_follows_nothing(client: TestClient) -> None:
    for path in (f"{C}/c/events", "/v1/events"):
        answered = client.head(path)
        assert (answered.status_code, answered.content) == (200, b"")
        assert answered.headers["content-type"].startswith("text/event-stream")
    assert client.app_state["store"].awaiting.channels == {}


def test_the_list_is_followed(follow: Follow, plain: Store) -> None:
    events = follow("/v1/events")
    first = next(events)
    assert (first["event"], first["data"]["reset"], [one["id"] for one in first["data"]["data"]]) == (
        "conversations", True, ["c"],
    )  # fmt: skip
    plain.create("d")
    made = next(events)
    assert (made["id"], [one["id"] for one in made["data"]["data"]]) == (str(made["data"]["change"]), ["d"])
    life = plain.get("d").incarnation
    plain.delete("d")
    assert next(events)["data"]["deleted"] == [{"id": "d", "incarnation": life}]
    again = next(follow("/v1/events", **{"Last-Event-ID": first["id"]}))
    assert (again["data"]["reset"], again["data"]["data"], len(again["data"]["deleted"])) == (False, [], 1)


def test_what_moved_in_the_list_comes_in_pages(client: TestClient, plain: Store) -> None:
    change = client.get(C).json()["change"]
    for n in range(3):
        plain.create(f"n{n}")
    plain.delete("n1")
    page = client.get(f"{C}?since_change={change}&limit=2").json()
    assert ([one["id"] for one in page["data"]], page["deleted"], page["reset"]) == (["n0", "n2"], [], False)
    rest = client.get(f"{C}?since_change={change}&limit=2&cursor={page['next_cursor']}").json()
    assert (rest["data"], [one["id"] for one in rest["deleted"]], rest["next_cursor"]) == ([], ["n1"], None)
    assert rest["change"] == client.get(C).json()["change"]
    assert client.get(f"{C}?since_change={rest['change'] + 1}").json()["reset"] is True
    problem(client.get(f"{C}?since_change=0&q=n"), 422, "invalid")
    problem(client.get(f"{C}?since_change=0&cursor=zzz"), 400, "malformed")
    assert "deleted" not in client.get(C).json()


def test_a_server_that_stops_says_so_to_those_who_follow(tmp_path: Path, serve: Callable[[], Server], follow: Follow) -> None:
    server = serve()
    with Store.open(f"sqlite:///{tmp_path}/served.db") as store:
        store.create("c")
    streams = [follow(f"{C}/c/events", port_of(server)) for _ in range(3)]
    for events in streams:
        assert next(events)["event"] == "changes"
    assert server.stop() == 0
    for events in streams:
        (last,) = list(events)
        assert (last["event"], last["data"]["code"], last["data"]["retryable"]) == ("closed", "stopping", True)


def test_e1_another_server_of_the_same_file_goes_on_where_a_killed_one_stopped(
    tmp_path: Path, serve: Callable[[], Server], follow: Follow
) -> None:
    first, second = serve(), serve()
    with Store.open(f"sqlite:///{tmp_path}/served.db") as store:
        store.create("c", messages=[user("hi", "m")])
        events = follow(f"{C}/c/events", port_of(first))
        known = next(events)["id"]
        first.process.kill()
        with pytest.raises(ConnectionError):
            list(events)
        store.append("c", [user("meanwhile", "w")])
        again = follow(f"{C}/c/events", port_of(second), **{"Last-Event-ID": known})
        assert ids(next(again)) == ["w"]
        store.append("c", [user("more", "x")])
        assert ids(next(again)) == ["x"]


def test_a_slow_reader_is_told_and_loses_nothing(follow: Follow, plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "SLOW_SECONDS", 0.2)
    events = follow(f"{C}/c/events")
    mirror = {message["id"]: message["content"] for message in next(events)["data"]["messages"]}
    plain.acquire("c", "worker", token=TOKEN)
    for n in range(40):
        plain.put("c", reply(f"{n}" * 500_000, "r", status="partial"), token=TOKEN)
        time.sleep(0.02)
    time.sleep(0.3)
    known = ""
    for event in events:
        if event["event"] == "closed":
            break
        known = event["id"]
        mirror.update({message["id"]: message["content"] for message in event["data"]["messages"]})
    assert (event["event"], event["data"]["code"]) == ("closed", "slow-reader")
    again = next(follow(f"{C}/c/events", **{"Last-Event-ID": known}))
    mirror.update({message["id"]: message["content"] for message in again["data"]["messages"]})
    assert mirror == {"m": "hi", "r": "39" * 500_000}


def test_a_client_that_reads_nothing_is_let_go(follow: Follow, plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.2)
    stream = follow(f"{C}/c/events")
    plain.acquire("c", "worker", token=TOKEN)
    for n in range(20):
        plain.put("c", reply(f"{n}" * 500_000, "r", status="partial"), token=TOKEN)
        time.sleep(0.02)
    time.sleep(0.4)
    with pytest.raises(ConnectionError):
        list(stream)


class Buffer:
    """A transport whose client has so many bytes left to read, and a loop whose time passes when told."""

    def __init__(self) -> None:
        self.left, self.aborted, self.due = 0, False, list[Callable[[], None]]()

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, _: float, look: Callable[[], None]) -> object:
        self.due.append(look)
        return look

    def wait(self) -> None:
        self.due.pop()()


def test_a_slow_but_steady_reader_is_not_cut_off() -> None:
    buffer = Buffer()
    reader: Any = protocol.BoundedHttpTools.__new__(protocol.BoundedHttpTools)
    reader.transport = reader.loop = buffer
    for buffer.left in (1000, 999, 10):
        buffer.wait() if buffer.due else reader._look_again()
        assert not buffer.aborted
    buffer.wait()
    assert buffer.aborted


def test_a_server_stops_although_somebody_who_follows_reads_nothing(
    tmp_path: Path, serve: Callable[[], Server], follow: Follow
) -> None:
    server = serve()
    with Store.open(f"sqlite:///{tmp_path}/served.db") as store:
        store.create("c", messages=[user("x" * 3_000_000, f"m{n}") for n in range(5)])
    for _ in range(3):
        follow(f"{C}/c/events", port_of(server))
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 15


def test_one_server_that_stopped_leaves_the_next_one_of_its_process_alone(url: str, clock: Clock) -> None:
    server = LiveServer(url, clock)
    server._server.handle_exit(15, None)
    server.close()
    assert not AppStatus.should_exit


def test_the_document_says_where_there_is_an_etag(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    tagged = {
        path
        for path, operations in paths.items()
        if "ETag" in operations.get("get", {}).get("responses", {}).get("200", {}).get("headers", {})
    }
    one = "/v1/conversations/{conversation_id}"
    assert tagged == {one, f"{one}/lease", f"{one}/changes", f"{one}/messages/{{message_id}}"}
    client.post(f"{C}/c/messages", json={"messages": [{"role": "user", "content": "x", "id": "m1"}]})
    for path in tagged:
        assert "etag" in client.get(path.format(conversation_id="c", message_id="m")).headers
    for path in (C, f"{C}/c/messages", f"{C}/c/inputs", f"{C}/c/generations"):
        assert "etag" not in client.get(path).headers
