"""The client in trouble: breaks after a long quiet, late answers, crowds, strangers, and text that JSON can only half say."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import anyio
import httpx2
import pytest

from sessionstore import Draft, Store, errors
from sessionstore.client import AsyncClient, Client
from sessionstore.client.exchange import Exchange
from sessionstore.client.persistence import Persistence
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, texts, user
from tests.live import LiveServer
from tests.test_client import Lossy, answering

HALF = "\ud83d"


@pytest.fixture
def live(url: str, clock: Clock) -> Iterator[LiveServer]:
    with LiveServer(url, clock) as server:
        yield server


@pytest.fixture(autouse=True)
def conversation(plain: Store) -> None:
    plain.create("c", messages=[user("hi", "m")])


class Meddling(Lossy):
    """Loses answers as `Lossy` does, and somebody else does something before the repeat."""

    def __init__(self, meddle: Callable[[], Any]) -> None:
        super().__init__()
        self._meddle = meddle

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return super().handle_request(request)
        except httpx2.ReadError:
            self._meddle()
            raise


Meddled = Callable[[Callable[[], Any]], Client]


@pytest.fixture
def meddled(live: LiveServer) -> Iterator[Meddled]:
    with ExitStack() as stack:
        yield lambda meddle: Client(live.address, http=stack.enter_context(httpx2.Client(transport=Meddling(meddle))))


class Between(httpx2.BaseTransport):
    """Something happens before a request goes on its way."""

    def __init__(self, happens: Callable[[httpx2.Request], Any]) -> None:
        self._sound, self._happens = httpx2.HTTPTransport(), happens

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self._happens(request)
        return self._sound.handle_request(request)

    def close(self) -> None:
        self._sound.close()


@pytest.mark.parametrize(
    "content", [HALF, {"k" + HALF: [HALF + "x", "\\u" + HALF, "\\" + HALF]}, "\ud83d\ude00\udc00", "\uf8ffd83d"]
)
def test_half_a_character_comes_back(live: LiveServer, plain: Store, content: Any) -> None:
    with Client(live.address) as client:
        client.create("h", metadata={"half": content})
        stored = client.append("h", [Draft(id="x", role="user", content=content, metadata={"half": content})]).value[0]
        assert (stored.content, stored.metadata) == (plain.message("h", "x").content, {"half": plain.message("h", "x").content})
        assert stored == client.message("h", "x") == client.messages("h").items[0] == plain.message("h", "x")
        assert client.get("h") == plain.get("h")
        assert {found.id for found in client.conversations().items} == {"c", "h"}
        with client.events("h") as events:
            assert next(events).messages == [stored]


def test_events_outlast_a_break_after_a_long_quiet(live: LiveServer, plain: Store) -> None:
    with Client(live.address, patience=1) as client, client.events("c") as events:
        next(events)
        time.sleep(1.1)
        connect, refused = events._connect, iter([httpx2.ConnectError("refused")] * 2)

        def refusing(exchange: Exchange) -> Any:
            for error in refused:
                raise error
            return connect(exchange)

        events._connect = refusing
        assert events._response is not None
        events._response.extensions["network_stream"].get_extra_info("socket").shutdown(2)
        plain.append("c", [user("after", "a")])
        assert [message.id for message in next(events).messages] == ["a"]


def test_awaited_events_outlast_a_break_after_a_long_quiet(url: str, clock: Clock, plain: Store) -> None:
    async def main() -> None:
        server = LiveServer(url, clock)
        async with AsyncClient(server.address, patience=5) as client:
            events = client.events("c")
            await anext(events)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.to_thread(server.close)
            again = LiveServer(url, clock, server.port)
            plain.append("c", [user("after", "a")])
            assert [message.id for message in (await waiting).messages] == ["a"]
            await events.aclose()
            await asyncio.to_thread(again.close)

    asyncio.run(main())


def test_a_hundred_who_follow_leave_room_for_calls(live: LiveServer) -> None:
    async def main() -> None:
        async with AsyncClient(live.address, patience=1) as client:
            followers = [client.events("c") for _ in range(110)]
            await asyncio.gather(*(anext(one) for one in followers))
            assert (await client.get("c")).id == "c"
            async with client.generate("c", "worker") as turn:
                await turn.save("r", "whole")
            for one in followers:
                await one.aclose()

    asyncio.run(main())


def test_a_repeat_does_not_undo_what_somebody_put_meanwhile(meddled: Meddled, plain: Store) -> None:
    client = meddled(lambda: plain.put("c", user("newer", "m")))
    with pytest.raises(errors.OutcomeUnknown):
        client.put("c", user("older", "m"))
    assert texts(plain, "c") == ["newer"]


def test_a_repeat_does_not_undo_a_newer_title(meddled: Meddled, plain: Store) -> None:
    client = meddled(lambda: plain.label("c", title="newer"))
    with pytest.raises(errors.OutcomeUnknown):
        client.label("c", title="older")
    assert plain.get("c").title == "newer"
    untouched = meddled(lambda: plain.append("c", [user("unrelated")]))
    assert untouched.label("c", title="mine", metadata={"k": 1}).replayed
    assert untouched.label_message("c", "m", {"k": 1}).value.metadata == {"k": 1}


def test_a_busy_conversation_does_not_keep_an_edit_out(live: LiveServer, plain: Store) -> None:
    """Between looking the state up and putting, somebody else puts: the last writer wins, as in the library."""
    others = iter(range(3))

    def rival(request: httpx2.Request) -> None:
        if request.method == "PUT" and (n := next(others, None)) is not None:
            plain.put("c", user(f"rival {n}", "m"))

    with httpx2.Client(transport=Between(rival)) as http:
        assert Client(live.address, http=http).put("c", user("last", "m")).value.message.content == "last"
    assert texts(plain, "c") == ["last"]


def test_silence_is_tried_once_more_however_long_it_took() -> None:
    patience = Persistence(Exchange("GET", "/"), 0.001)
    time.sleep(0.01)
    assert patience.after_silence(httpx2.ReadTimeout("late")) < 1
    with pytest.raises(errors.Unreachable):
        patience.after_silence(httpx2.ReadTimeout("late"))
    with pytest.raises(errors.Unreachable):
        Persistence(Exchange("GET", "/"), 0).after_silence(httpx2.ConnectError("refused"))


def test_renewals_are_in_a_hurry(live: LiveServer) -> None:
    with Client(live.address) as client:
        hurried = client.impatient(3_000)
        assert (hurried.patience, hurried.timeout.read) == (0.5, 0.5)
        client.close()
        with pytest.raises(errors.Closed):
            hurried.get("c")


def test_a_claim_outlives_a_cancel_that_comes_between(live: LiveServer, plain: Store) -> None:
    plain.queue_inputs("c", [user("a", "q1"), user("b", "q2")])

    cancelling = iter(["q1"])

    def cancel(request: httpx2.Request) -> None:
        if request.url.path.endswith("/claim") and (message_id := next(cancelling, None)):
            plain.cancel_input("c", message_id)

    with httpx2.Client(transport=Between(cancel)) as http:
        assert [message.id for message in Client(live.address, http=http).claim_inputs("c").value] == ["q2"]


def test_what_was_done_under_a_precondition_is_not_called_refused(meddled: Meddled, plain: Store) -> None:
    plain.acquire("c", "worker", token=TOKEN)
    client = meddled(lambda: None)
    for call in (
        lambda: client.renew("c", token=TOKEN, phase="thinking", if_match=plain.get("c").tag),
        lambda: client.interrupt("c", if_match=plain.get("c").tag),
    ):
        with pytest.raises(errors.OutcomeUnknown):
            call()
    assert client.queue_inputs("c", [user("k", "k")], if_match=plain.get("c").tag).replayed


def test_a_queue_call_is_a_repeat_before_its_precondition_is_judged(plain: Store) -> None:
    seen = plain.get("c").tag
    plain.queue_inputs("c", [user("k", "k")], if_match=seen)
    assert plain.queue_inputs("c", [user("k", "k")], if_match=seen).replayed
    assert plain.queue_inputs("c", [user("k", "k")], token=OTHER_TOKEN).replayed
    with pytest.raises(errors.PreconditionFailed):
        plain.queue_inputs("c", [user("k", "k"), user("l", "l")], if_match=seen)


def test_a_fork_that_was_done_is_answered_though_its_source_has_gone(meddled: Meddled, plain: Store) -> None:
    client = meddled(lambda: plain.delete("c"))
    forked = client.fork("c", "f")
    assert (forked.replayed, forked.value.id) == (True, "f")


def test_a_release_that_was_done_is_not_called_unstored(live: LiveServer, plain: Store) -> None:
    plain.acquire("c", "worker", token=TOKEN)

    def gone(request: httpx2.Request) -> None:
        if request.method == "GET":
            raise httpx2.ConnectError("gone")

    with httpx2.Client(transport=Between(gone)) as http, pytest.raises(errors.OutcomeUnknown):
        Client(live.address, http=http, patience=0.01).release("c", token=TOKEN)
    assert plain.get("c").generation is None


def test_a_closed_client_says_so_and_ends_its_events(live: LiveServer) -> None:
    client = Client(live.address)
    events, ended = client.events("c"), list[Any]()
    next(events)
    reading = threading.Thread(target=lambda: ended.extend(events))
    reading.start()
    time.sleep(0.05)
    client.close()
    reading.join(30)
    assert (reading.is_alive(), ended) == (False, [])
    for call in (lambda: client.get("c"), lambda: client.create("x"), lambda: next(client.events("c"))):
        with pytest.raises(errors.Closed):
            call()


@pytest.mark.parametrize("kind", ["a call", "a stream"])
def test_who_is_connecting_while_the_client_is_closed_leaves_nothing_open(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A renewal is sent from a thread of its own: it gave its connection back to a pool that had been closed."""
    connected, go, made = threading.Event(), threading.Event(), list[socket.socket]()
    connect = socket.create_connection

    def slowly(*args: Any, **options: Any) -> socket.socket:
        made.append(connect(*args, **options))
        connected.set()
        go.wait(10)
        return made[0]

    def call_or_follow() -> None:
        with suppress(errors.Closed):
            list(client.events("c")) if kind == "a stream" else client.get("c")

    client = Client(live.address)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "create_connection", slowly)
        call = threading.Thread(target=call_or_follow)
        call.start()
        connected.wait(10)
        client.close()
        go.set()
        call.join(10)
    assert made[0].fileno() == -1


@pytest.mark.parametrize("kind", ["a call", "a stream"])
def test_who_is_connecting_while_the_awaited_client_is_closed_leaves_nothing_open(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def main() -> None:
        connected, go, made = asyncio.Event(), asyncio.Event(), list[Any]()
        connect = anyio.connect_tcp

        async def slowly(*args: Any, **options: Any) -> Any:
            made.append(await connect(*args, **options))
            connected.set()
            await go.wait()
            return made[0]

        async def call_or_follow() -> None:
            with suppress(errors.Closed):
                if kind == "a call":
                    await client.get("c")
                else:
                    _ = [event async for event in client.events("c")]

        client = AsyncClient(live.address)
        monkeypatch.setattr(anyio, "connect_tcp", slowly)
        call = asyncio.create_task(call_or_follow())
        await asyncio.wait_for(connected.wait(), 10)
        await client.close()
        go.set()
        await asyncio.wait_for(call, 10)
        assert made[0].extra(anyio.abc.SocketAttribute.raw_socket).fileno() == -1

    asyncio.run(main())


def test_an_awaited_client_that_is_closed_says_so(live: LiveServer) -> None:
    async def main() -> None:
        client = AsyncClient(live.address)
        await client.close()
        with pytest.raises(errors.Closed):
            await client.get("c")
        with pytest.raises(errors.Closed):
            await anext(client.events("c"))

    asyncio.run(main())


def problem(kind: type[errors.SessionStoreError], status: int, **fields: Any) -> httpx2.Response:
    return httpx2.Response(status, json={"code": kind.code, "status": status, **fields})


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (problem(errors.Malformed, 400, reason="r", path="p"), errors.Malformed),
        (problem(errors.TooLarge, 413, reason="r", path="$"), errors.TooLarge),
        (problem(errors.SchemaAhead, 503, reason="r"), errors.SchemaAhead),
        (
            problem(errors.Generating, 409, conversation_id="c", holder="h", generation=1, expires_at="x"),
            errors.UnexpectedAnswer,
        ),
        (httpx2.Response(200, text="<html>"), errors.UnexpectedAnswer),
        (httpx2.Response(201, json={}), errors.UnexpectedAnswer),
        (httpx2.Response(200, json={"status": "ok"}), errors.UnexpectedAnswer),
        (httpx2.Response(204, headers={"Lease-Generation": "x"}), errors.UnexpectedAnswer),
    ],
    ids=["malformed", "too large", "schema ahead", "no time", "a page", "nothing", "something", "no lease"],
)
def test_errors_are_themselves_and_strangers_are_strangers(response: httpx2.Response, kind: type[Exception]) -> None:
    client = Client("http://x", http=answering(response), patience=0)
    for call in (
        lambda: client.append("c", [user("x")]),
        lambda: client.cancel_input("c", "k"),
        lambda: client.acquire("c", "worker"),
        lambda: client.delete("c", incarnation=1),
    ):
        with pytest.raises(kind):
            call()


def test_a_server_that_stops_ends_no_turn() -> None:
    """It may start again: to a client it is out of reach, while a client that was closed itself keeps no turn."""
    client = Client("http://x", http=answering(problem(errors.Closed, 503)), patience=0)
    with pytest.raises(errors.Unreachable) as unreachable:
        client.renew("c", token=TOKEN)
    assert not isinstance(unreachable.value, client.final)
    client.close()
    with pytest.raises(client.final):
        client.renew("c", token=TOKEN)


def test_what_cannot_be_unpacked_is_no_answer() -> None:
    packed = httpx2.MockTransport(lambda _: httpx2.Response(200, content=b"no gzip", headers={"Content-Encoding": "gzip"}))
    with httpx2.Client(transport=packed) as http, pytest.raises(errors.Unreachable):
        Client("http://x", http=http, patience=0).get("c")


def test_no_content_reaches_a_log(live: LiveServer, plain: Store, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sse_starlette", "sse_starlette.sse", "httpx2", "httpcore2", "sessionstore", "uvicorn"):
        caplog.set_level(logging.DEBUG, name)
    with Client(live.address) as client, client.events("c") as events:
        next(events)
        with client.generate("c", "worker", token=TOKEN) as turn:
            turn.save("r", "the secret of the reply")
        while not next(events).conversation.last_generation:
            pass
    assert "the secret of the reply" not in caplog.text
    assert TOKEN not in caplog.text
