"""The client: what it does when answers are lost, servers die, and others answer in their place."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sessionstore import Mirror, Store, errors
from sessionstore.client import AsyncClient, Client
from sessionstore.drafts import Draft, Save
from sessionstore.model import Answer
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, texts, user
from tests.live import LiveServer
from tests.test_serve import Server


@pytest.fixture
def live(url: str, clock: Clock) -> Iterator[LiveServer]:
    with LiveServer(url, clock) as server:
        yield server


class Lossy(httpx2.BaseTransport):
    """Loses the answer of each call the first time: it was done, and nobody was told."""

    def __init__(self) -> None:
        self._sound = httpx2.HTTPTransport()
        self.lost: set[tuple[str, str, bytes]] = set()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = (request.method, str(request.url), request.content)
        response = self._sound.handle_request(request)
        if request.method == "GET" or call in self.lost:
            return response
        response.read()
        response.close()
        self.lost.add(call)
        raise httpx2.ReadError("the answer was lost")

    def close(self) -> None:
        self._sound.close()


@pytest.fixture
def lossy(live: LiveServer) -> Iterator[Client]:
    with httpx2.Client(transport=Lossy()) as http:
        yield Client(live.address, http=http)


Step = Callable[[Store], Any]
LIFE: list[tuple[str, Step]] = [
    ("create", lambda s: s.create("c", title="t", messages=[user("hi", "m"), user("unnamed")])),
    ("create unnamed", lambda s: s.create()),
    ("label", lambda s: s.label("c", title="new", metadata={"k": 1})),
    ("append", lambda s: s.append("c", [user("a", "a"), user("without an id")])),
    ("put", lambda s: s.put("c", user("b", "b"), only_create=True)),
    ("put an edit", lambda s: s.put("c", user("b, edited", "b"), if_match=s.message("c", "b").tag)),
    ("label a message", lambda s: s.label_message("c", "b", {"k": 2})),
    ("delete a message", lambda s: s.delete_message("c", "a")),
    ("acquire", lambda s: s.acquire("c", "worker", token=TOKEN, messages=[user("q")])),
    ("renew", lambda s: s.renew("c", token=TOKEN, phase="thinking")),
    ("queue", lambda s: s.queue_inputs("c", [user("k", "k"), user("without an id"), user("l", "l")])),
    ("cancel", lambda s: s.cancel_input("c", "l")),
    ("claim", lambda s: s.claim_inputs("c", token=TOKEN)),
    ("save", lambda s: s.save_all([Save(conversation_id="c", token=TOKEN, message=reply("r", "r", status="partial"))])),
    ("interrupt", lambda s: s.interrupt("c")),
    ("finish", lambda s: s.finish("c", [reply("r, whole", "r"), reply("unnamed")], token=TOKEN, usage={"n": 1})),
    ("acquire without a token", lambda s: s.acquire("c", "worker", if_busy="rollback")),
    ("interrupt by force", lambda s: s.interrupt("c", force=True)),
    ("acquire again", lambda s: s.acquire("c", "worker", token=OTHER_TOKEN)),
    ("release", lambda s: s.release("c", token=OTHER_TOKEN)),
    ("truncate", lambda s: s.truncate("c", after_position=3, through_position=4)),
    ("fork", lambda s: s.fork("c", "f", through_position=3)),
    ("fork unnamed", lambda s: s.fork("c")),
    ("delete", lambda s: s.delete("c")),
    ("create anew", lambda s: s.create("c", recreate=1)),
]  # fmt: skip


def test_every_change_happens_once_though_its_first_answer_is_lost(
    lossy: Client, plain: Store, tables: Tables, tmp_path: Path, template: Path, clock: Clock
) -> None:
    """The same life of a conversation, with and without loss, ends in the same tables."""
    sound_path = tmp_path / "sound.db"
    sound_path.write_bytes(template.read_bytes())
    with Store.open(f"sqlite:///{sound_path}", clock=clock) as sound:
        for name, step in LIFE:
            answered = step(lossy)  # type: ignore[arg-type]
            expected = step(sound)
            assert shape(answered) == shape(expected), name
            assert counted(tables) == counted(Tables(sound_path)), name


def shape(answer: Any) -> Any:
    """What an answer says, without what is made by chance."""
    if isinstance(answer, list):
        return [shape(one) for one in answer]
    assert isinstance(answer, Answer)
    value = answer.value
    return type(value), len(value) if isinstance(value, list) else None


def counted(tables: Tables) -> Any:
    """What lies in the tables, without ids that are made by chance."""
    return (
        tables.rows(
            "SELECT pk, title, metadata, version, message_count, queued_count, generation, deleted_at FROM conversations"
        ),
        tables.rows("SELECT position, role, content, metadata, status, mode, version FROM messages ORDER BY pk"),
        tables.rows("SELECT number, holder, phase, first_position, outcome, usage FROM generations"),
    )


def test_a_repeat_that_finds_its_work_done_says_so(lossy: Client) -> None:
    lossy.create("c", messages=[user("hi", "m")])
    assert lossy.put("c", user("edit", "m"), if_match=lossy.message("c", "m").tag).replayed
    assert lossy.fork("c", "f").replayed
    assert lossy.delete_message("c", "m").replayed
    assert lossy.delete("f").replayed
    with pytest.raises(errors.ConversationDeleted):
        lossy.delete("f")
    with pytest.raises(errors.MessageDeleted):
        lossy.delete_message("c", "m")


def test_an_edit_that_was_overtaken_is_no_repeat(lossy: Client, plain: Store) -> None:
    plain.create("c", messages=[user("hi", "m")])
    seen = plain.message("c", "m").tag
    plain.put("c", user("overtaken", "m"))
    with pytest.raises(errors.OutcomeUnknown):
        lossy.put("c", user("late", "m"), if_match=seen)
    assert texts(plain, "c") == ["overtaken"]


def test_a_late_delete_spares_the_next_life(live: LiveServer, plain: Store) -> None:
    """The first copy of a delete is done, its answer lost; before the repeat, the conversation begins a new life."""
    life = plain.create("c").value.conversation.incarnation

    class Reborn(Lossy):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                return super().handle_request(request)
            except httpx2.ReadError:
                plain.create("c", recreate=life)
                raise

    with httpx2.Client(transport=Reborn()) as http:
        assert Client(live.address, http=http).delete("c").replayed
    assert plain.get("c").incarnation == life + 1


def test_a_late_interrupt_spares_the_next_turn(live: LiveServer, plain: Store) -> None:
    plain.create("c")
    plain.acquire("c", "worker", token=TOKEN)

    class NextTurn(Lossy):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                return super().handle_request(request)
            except httpx2.ReadError:
                plain.acquire("c", "worker", token=OTHER_TOKEN)
                raise

    with httpx2.Client(transport=NextTurn()) as http:
        assert Client(live.address, http=http).interrupt("c", force=True).value.state == "idle"
    generation = plain.get("c").generation
    assert generation is not None
    assert not generation.interrupt_requested


def test_what_cannot_be_known_again_is_not_sent_again(live: LiveServer, plain: Store) -> None:
    plain.create("c")
    plain.acquire("c", "worker", token=TOKEN)
    transport = Lossy()
    with httpx2.Client(transport=transport) as http, pytest.raises(errors.OutcomeUnknown):
        Client(live.address, http=http).claim_inputs("c", token=TOKEN)
    assert len(transport.lost) == 1


def test_a_server_that_is_not_there_stored_nothing() -> None:
    with Client("http://127.0.0.1:9", patience=0.2) as client, pytest.raises(errors.Unreachable):
        client.create("c")


def test_an_answer_that_never_comes_leaves_the_outcome_unknown(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Lossy):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            self.lost.clear()
            return super().handle_request(request)

    with httpx2.Client(transport=Silent()) as http, pytest.raises(errors.OutcomeUnknown):
        Client(live.address, http=http, patience=0.2).create("c")


def answering(*responses: httpx2.Response) -> httpx2.Client:
    """Answers one after the other, the last one for ever."""
    left = list(responses)
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: left.pop(0) if len(left) > 1 else left[0]))


def busy(retry_after: str = "0") -> httpx2.Response:
    problem = {"code": "busy", "status": 503, "title": "Busy", "detail": "…", "type": "…", "retryable": True}
    return httpx2.Response(503, json=problem, headers={"Retry-After": retry_after})


READY = httpx2.Response(200, json={"status": "ready", "engine": "SQLite 3", "engine_fault": None, "log_bytes": 0})


def test_a_server_that_has_no_time_is_asked_again() -> None:
    assert Client("http://x", http=answering(busy(), busy(), READY)).check_ready().name == "SQLite 3"
    assert Client("http://x", http=answering(httpx2.Response(502, text="<html>"), READY)).check_ready().fault is None
    with pytest.raises(errors.Busy):
        Client("http://x", http=answering(busy("60"), READY)).check_ready()


@pytest.mark.parametrize(
    "response",
    [
        httpx2.Response(200, json={"something": "else"}),
        httpx2.Response(200, text="<html>"),
        httpx2.Response(404, text="<html>"),
        httpx2.Response(418, json={"code": "teapot"}),
        httpx2.Response(409, json={"code": "generating"}),
        httpx2.Response(301, headers={"Location": "http://elsewhere"}),
    ],
    ids=["other fields", "no JSON", "a page", "another code", "a code without its fields", "a redirection"],
)
def test_what_is_no_session_store_is_told_apart(response: httpx2.Response) -> None:
    with pytest.raises(errors.UnexpectedAnswer):
        Client("http://x", http=answering(response)).check_ready()


def test_an_error_has_its_fields_and_the_lease(live: LiveServer, plain: Store, clock: Clock) -> None:
    plain.create("c")
    turn = plain.acquire("c", "worker", token=TOKEN).value
    plain.interrupt("c")
    with Client(live.address) as client:
        with pytest.raises(errors.Generating) as refused:
            client.delete("c")
        assert (refused.value.holder, refused.value.expires_at, refused.value.retry_after_ms) == (
            "worker", turn.expires_at, 30_000,
        )  # fmt: skip
        with pytest.raises(errors.MessageNotFound) as missing:
            client.label_message("c", "unknown", {}, token=TOKEN)
        lease = missing.value.lease
        assert (lease.generation, lease.interrupt_requested) == (turn.generation, True)


def test_saves_with_metadata_are_refused(live: LiveServer, plain: Store) -> None:
    save = Save(conversation_id="c", token=TOKEN, message=Draft(id="m", role="user", content=1, metadata={"k": 1}))
    with Client(live.address) as client, pytest.raises(errors.InvalidInput):
        client.save_all([save])


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """A server process that is killed and started again on its port."""
    running: list[Server] = []

    def start() -> Server:
        port = "0"
        if running:
            port = running[-1].address.rpartition(":")[2]
            running[-1].process.kill()
            running[-1].process.communicate()
        running.append(Server(f"sqlite:///{tmp_path}/served.db", "--port", port))
        return running[-1]

    yield start
    running[-1].process.kill()
    running[-1].process.communicate()


def test_events_go_on_after_the_server_was_killed(restarting: Callable[[], Server]) -> None:
    server = restarting()
    with Client(server.address) as client:
        client.create("c", messages=[user("hi", "m")])
        mirror = Mirror()
        with client.events("c") as events:
            mirror.apply(next(events))
            restarting()
            client.append("c", [user("after", "a")])
            while len(mirror.messages) < 2:
                mirror.apply(next(events))
            client.delete("c")
            assert list(events) == []
        assert [message.id for message in mirror.messages] == ["m", "a"]


def test_awaited_events_go_on_after_the_server_was_killed(restarting: Callable[[], Server]) -> None:
    async def main() -> None:
        server = restarting()
        async with AsyncClient(server.address) as client:
            await client.create("c", messages=[user("hi", "m")])
            events = client.events("c")
            first = await anext(events)
            assert [message.id for message in first.messages] == ["m"]
            await asyncio.to_thread(restarting)
            await client.append("c", [user("after", "a")])
            assert [message.id for message in (await anext(events)).messages] == ["a"]
            await events.aclose()

    asyncio.run(main())


def test_nothing_is_told_twice_after_a_break(live: LiveServer, plain: Store, url: str, clock: Clock) -> None:
    plain.create("c", messages=[user("hi", "m")])
    with Client(live.address) as client, client.events("c") as events:
        next(events)
        response = events._response
        assert response is not None
        response.extensions["network_stream"].get_extra_info("socket").shutdown(2)
        plain.append("c", [user("after", "a")])
        assert [message.id for message in next(events).messages] == ["a"]


def test_events_are_closed_from_another_thread(live: LiveServer, plain: Store) -> None:
    plain.create("c")
    with Client(live.address) as client:
        events = client.events("c")
        next(events)
        closing = threading.Timer(0.05, events.close)
        closing.start()
        assert list(events) == []
        closing.join()


def test_events_of_a_server_that_is_gone_end_with_an_error(url: str, clock: Clock, plain: Store) -> None:
    plain.create("c")
    with LiveServer(url, clock) as server:
        client = Client(server.address, patience=0.3)
        events = client.events("c")
        next(events)
    with pytest.raises(errors.Unreachable):
        next(events)
    client.close()


def test_a_turn_outlives_its_server(restarting: Callable[[], Server]) -> None:
    server = restarting()
    with Client(server.address) as client:
        client.create("c")
        with client.generate("c", "worker") as turn:
            turn.save("r", "before")
            restarting()
            turn.save("r", "before and after")
            assert not turn.interrupted
        assert [(m.content, m.status) for m in client.messages("c").items] == [("before and after", "complete")]


def test_the_client_has_the_names_of_the_library() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    in_process = {
        "transact", "open", "prune", "purge", "export", "import_", "backup", "check", "repair", "keys",
        "measured", "of", "owners",
    }  # fmt: skip
    assert public(Store) - public(Client) == in_process
    assert public(Store) - public(AsyncClient) == in_process
    assert public(Client) - public(Store) == {"impatient"}


def test_our_own_values_only_are_read(live: LiveServer, plain: Store) -> None:
    """What a newer server says more is left alone."""
    plain.create("c", messages=[user("hi", "m")])

    def newer(request: httpx2.Request) -> httpx2.Response:
        with httpx2.Client() as http:
            body = http.get(request.url).json()
        return httpx2.Response(200, json={**body, "of_a_newer_server": [1]})

    with httpx2.Client(transport=httpx2.MockTransport(newer)) as http:
        assert Client(live.address, http=http).get("c") == plain.get("c")
