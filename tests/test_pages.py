"""A page has no more bytes than there is room for, however many rows were asked for; what did not fit comes with the next."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from sessionstore import Message, Page, Store, errors
from sessionstore.client import Client
from sessionstore.limits import Limits
from sessionstore.room import Room
from sessionstore.transaction import size_of_row
from tests.conftest import TOKEN, Clock, reply, user
from tests.live import LiveServer

PAGE = 1_000
"""Bytes."""


@pytest.fixture(params=["Store", "Client"])
def store(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Store]:
    """A store with small pages, in this process and through a server."""
    limits = Limits(page_bytes=PAGE)
    if request.param == "Store":
        with Store.open(url, clock=clock, limits=limits) as opened:
            yield opened
    else:
        with LiveServer(url, clock, limits=limits) as live, Client(live.address) as client:
            yield client  # type: ignore[misc]  # the same names


def pages(first: Page[Any], following: Callable[[int], Page[Any]]) -> list[list[Any]]:
    found = [first.items]
    while first.next is not None:
        first = following(first.next)
        found.append(first.items)
    return found


def octets(page: list[Message]) -> int:
    return sum(message.octets for message in page)


def all_there_is(found: list[list[Message]]) -> list[str]:
    """The ids; and each page is full and no fuller, unless it has one message only."""
    for page, after in zip(found, [*found[1:], None], strict=True):
        assert len(page) == 1 or octets(page) <= PAGE
        assert after is None or octets([*page, after[0]]) > PAGE
    return [message.id for page in found for message in page]


@pytest.mark.parametrize("view", ["full", "context"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_a_transcript_are_full_and_no_fuller(
    store: Store, order: Literal["asc", "desc"], view: Literal["full", "context"]
) -> None:
    sizes = [10, 300, 300, 300, 990, 10, 5_000, 1, 2_000, 2_000, 300, 300]
    store.create("c", messages=[user("x" * size, f"m{n}") for n, size in enumerate(sizes)])
    end = "after" if order == "asc" else "before"
    first = store.messages("c", order=order, view=view, limit=1_000)
    found = pages(first, lambda place: store.messages("c", order=order, view=view, limit=1_000, **{end: place}))
    ids = [f"m{n}" for n in range(len(sizes))]
    assert all_there_is(found) == (ids if order == "asc" else ids[::-1])
    assert len(found) == 8


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_summary_takes_its_room(store: Store, order: Literal["asc", "desc"]) -> None:
    store.create("c", messages=[user("x" * 300, f"m{n}") for n in range(6)])
    version = store.get("c").version
    store.compact("c", reply("s" * 700, "sum"), through_position=1, seen_version=version)
    end = "after" if order == "asc" else "before"
    first = store.messages("c", order=order, view="context")
    found = pages(first, lambda place: store.messages("c", order=order, view="context", **{end: place}))
    ids = ["sum", "m2", "m3", "m4", "m5"]
    assert [message.id for page in found for message in page] == (ids if order == "asc" else ids[::-1])
    assert all(octets(page) <= PAGE for page in found)


def test_it_is_the_bytes_that_count_and_not_the_characters(store: Store) -> None:
    store.create("c", messages=[user("\U0001f331" * 100), user("\U0001f331" * 100), user("\U0001f331" * 100)])
    assert [len(page.items) for page in (store.messages("c"), store.messages("c", after=1))] == [2, 1]


def test_metadata_count_too(store: Store) -> None:
    store.create("c", messages=[user("x", metadata={"k": "x" * 600}), user("x", metadata={"k": "x" * 600})])
    assert len(store.messages("c").items) == 1


@pytest.mark.parametrize("seed", range(6))
def test_pages_of_changes_bring_everything_in_its_order(store: Store, url: str, clock: Clock, seed: int) -> None:
    """Changed, new and queued rows are looked for apart: what one of them has no room for, the others must not pass."""
    chance = random.Random(seed)
    store.create("c", messages=[user("x" * chance.randrange(400), f"m{n}") for n in range(12)])
    since = store.get("c").tag
    for n in range(25):
        size = chance.choice([1, 100, 400, 1_500])
        match chance.randrange(5):
            case 0:
                store.append("c", [user("a" * size, f"a{n}"), user("b" * size, f"b{n}")])
            case 1:
                store.queue_inputs("c", [user("q" * size, f"q{n}")])
            case 2 if f"m{n % 12}" in {message.id for message in store.messages("c", limit=1).items}:
                store.delete_message("c", f"m{n % 12}")
            case _:
                store.put("c", user("p" * size, f"p{n % 4}"))
    for known in (since, None):
        page = store.changes("c", known, limit=1_000)
        found = [page]
        while page.next is not None:
            page = store.changes("c", known, next=page.next, limit=1_000)
            found.append(page)
        rows = [(message.version, message.id) for one in found for message in one.messages]
        assert len(found) > 3
        assert all(len(one.messages) == 1 or octets(one.messages) <= PAGE for one in found)
        assert page.since == store.get("c").tag
        with Store.open(url, clock=clock) as roomy:
            assert rows == [(message.version, message.id) for message in roomy.changes("c", known, limit=1_000).messages]


def test_whoever_follows_is_told_everything_in_events_of_that_size(store: Store) -> None:
    store.create("c", messages=[user("x" * 400, f"m{n}") for n in range(7)])
    with store.events("c") as events:
        told = [message for _ in range(4) for message in next(events).messages]
        assert [message.id for message in told] == [f"m{n}" for n in range(7)]


def test_pages_of_inputs_go_on_where_the_room_ended(store: Store) -> None:
    store.create("c")
    store.queue_inputs("c", [user("x" * 400, f"q{n}") for n in range(5)])
    found = pages(store.inputs("c"), lambda place: store.inputs("c", after=place))
    assert [[one.message.id for one in page] for page in found] == [["q0", "q1"], ["q2", "q3"], ["q4"]]


def test_pages_of_a_search_go_on_where_the_room_ended(store: Store) -> None:
    store.create("c", messages=[user("seed " + "x" * 400, f"m{n}") for n in range(5)])
    found = pages(store.search("seed"), lambda place: store.search("seed", before=place))
    assert [[one.message.id for one in page] for page in found] == [["m4", "m3"], ["m2", "m1"], ["m0"]]


def test_a_context_has_as_many_whole_turns_as_there_is_room_for(store: Store) -> None:
    turns = [[user("u" * 200, f"u{n}"), reply("a" * 200, f"a{n}")] for n in range(4)]
    store.create("c", messages=[user("be kind", "sys", role="system"), *(message for turn in turns for message in turn)])
    found = store.context("c")
    assert [message.id for message in found.messages] == ["sys", "u2", "a2", "u3", "a3"]
    assert found.cut
    store.append("c", [user("u" * 700, "big"), reply("a" * 700)])
    with pytest.raises(errors.BudgetTooSmall, match=r"bytes") as refused:
        store.context("c")
    assert (refused.value.bytes or 0) > PAGE


def test_a_call_is_found_however_much_stands_between_it_and_its_result(store: Store) -> None:
    called = reply([{"type": "tool_use", "id": "t1"}], "call")
    result = user([{"type": "tool_result", "tool_use_id": "t1"}], "result")
    store.create(
        "c", messages=[user("go", "u"), called, *(reply("x" * 700, f"between{n}") for n in range(5)), result, user("and?")]
    )
    assert [message.content for message in store.context("c").messages] == ["and?"]


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_rows_count_as_before(store: Store, rows: int) -> None:
    store.create("c", messages=[user("x", f"m{n}") for n in range(9)])
    found = pages(store.messages("c", limit=rows), lambda place: store.messages("c", after=place, limit=rows))
    assert [len(page) for page in found] == {1: [1] * 9, 3: [3] * 3, 50: [9]}[rows]


def test_no_more_is_kept_than_is_shown(url: str, clock: Clock) -> None:
    """Of fifty megabytes, two."""
    megabyte = 1024 * 1024
    with Store.open(url, clock=clock, limits=Limits(page_bytes=2 * megabyte)) as store:
        store.create("c")
        for n in range(50):
            store.append("c", [user(f"{n}"), reply("x" * megabyte)])
        behind = store.create("d").value.conversation.tag
        store.queue_inputs("d", [user("q" * megabyte) for _ in range(10)])
        store.queue_inputs("d", [user("q" * megabyte) for _ in range(15)])
        looks: tuple[Callable[[], Any], ...] = (
            lambda: store.messages("c", limit=1_000),
            lambda: store.messages("c", limit=1_000, order="desc"),
            lambda: store.changes("c", limit=1_000),
            lambda: store.changes("d", behind, limit=1_000),
            lambda: store.inputs("d", limit=1_000),
            lambda: store.context("c"),
        )
        for look in looks:
            tracemalloc.start()
            look()
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < 20 * megabyte


def test_an_operator_says_how_large_pages_are() -> None:
    assert Limits().room(None) == Room(50, 32 * 1024 * 1024)
    with pytest.raises(errors.InvalidInput):
        Limits(page_bytes=0)


def test_rows_are_measured_where_they_have_their_content(plain: Store) -> None:
    plain.create("c", messages=[user("12345", metadata={"k": 1})])
    message = plain.messages("c").items[0]
    row = [getattr(message, name) for name in message.__struct_fields__]
    assert size_of_row(row) == message.octets == len('"12345"') + len('{"k":1}')


def test_all_that_waits_is_claimed_however_few_fit_into_a_page(store: Store) -> None:
    store.create("c")
    store.acquire("c", "worker", token=TOKEN)
    store.queue_inputs("c", [user("x" * 700, "q1"), user("x" * 700, "q2")])
    assert [message.id for message in store.claim_inputs("c", token=TOKEN).value] == ["q1", "q2"]
    assert [message.id for message in store.messages("c").items] == ["q1"]


def test_instructions_stay_or_it_is_said_that_there_is_no_room(store: Store) -> None:
    """Those that did not fit into the first look at the beginning were taken for old messages (found by review)."""
    systems = [user("s" * 300, f"s{n}", role="system") for n in range(4)]
    store.create("c", messages=[*systems[:3], user("hi", "u"), reply("hello", "r")])
    assert [message.id for message in store.context("c").messages] == ["s0", "s1", "s2", "u", "r"]
    store.create("d", messages=[*systems, user("hi"), reply("hello")])
    with pytest.raises(errors.BudgetTooSmall):
        store.context("d")


def test_more_inputs_than_a_call_may_name_are_claimed_at_once(url: str, clock: Clock) -> None:
    limits = Limits(messages_per_call=3)
    with LiveServer(url, clock, limits=limits) as live, Client(live.address, limits=limits) as client:
        client.create("c")
        client.acquire("c", "worker", token=TOKEN)
        for text in ("x", "y"):
            client.queue_inputs("c", [user(text), user(text)])
        assert len(client.claim_inputs("c", token=TOKEN).value) == 4
