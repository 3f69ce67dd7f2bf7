"""How much an owner may have, and how large it may be."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sessionstore import Draft, Store, creation, errors, statements
from sessionstore.limits import Limits
from sessionstore.transaction import Transaction
from tests.conftest import ENGINE, TOKEN, Clock, Tables, reply, user


def open_with(url: str, clock: Clock, **limits: int) -> Store:
    return Store.open(url, clock=clock, limits=Limits(**limits))


def test_an_owner_has_so_many_conversations_and_no_more(url: str, clock: Clock, tables: Tables) -> None:
    with open_with(url, clock, conversations_per_owner=3) as store:
        store.create("a", messages=[user("hi")])
        store.fork("a", "b")
        store.create("c", parent_id="a")
        before = tables.everything()
        for refused in (
            lambda: store.create("d"),
            lambda: store.fork("a", "d"),
            lambda: store.create("d", parent_id="a"),
            lambda: store.undo("a", "d"),
        ):
            with pytest.raises(errors.OwnerFull) as full:
                refused()
            assert (full.value.what, full.value.limit, full.value.retryable) == ("conversations", 3, True)
        assert tables.everything() == before
        # What was done is answered, room or not.
        assert store.create("c", parent_id="a").replayed
        store.of("another").create("d")
        store.delete("b")
        store.create("d")
        with pytest.raises(errors.OwnerFull):
            store.create("e")


def test_what_others_made_meanwhile_counts(url: str, clock: Clock) -> None:
    """No process's memory of how many there were lets one too many in."""
    with open_with(url, clock, conversations_per_owner=4) as one, open_with(url, clock, conversations_per_owner=4) as other:
        one.create("a")
        for n in range(3):
            other.create(f"b{n}")
        with pytest.raises(errors.OwnerFull):
            one.create("c")


def test_other_owners_lives_are_not_counted_for_long(url: str, clock: Clock) -> None:
    with open_with(url, clock, conversations_per_owner=4) as store:
        store.create("a")
        for n in range(4):
            store.of("another").create(f"b{n}")
        for n in range(3):
            store.create(f"c{n}")
        with pytest.raises(errors.OwnerFull):
            store.create("d")


def test_who_is_full_is_not_counted_for_each_that_he_tries(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """To count a million holds everybody up; so who has too many has them for a while (found by review)."""
    counted: list[Any] = []
    row = Transaction.row
    monkeypatch.setattr(creation, "PACE", 10**9)

    def heard(self: Transaction, statement: Any, **parameters: Any) -> Any:
        if statement is statements.COUNT_LIVING:
            counted.append(statement)
        return row(self, statement, **parameters)

    monkeypatch.setattr(Transaction, "row", heard)
    with open_with(url, clock, conversations_per_owner=2) as store:
        for id in ("a", "b"):
            store.create(id)
        for n in range(5):
            with pytest.raises(errors.OwnerFull):
                store.create(f"c{n}")
        assert len(counted) == (2 if ENGINE == "sqlite" else 0)
        store.delete("a")
        store.create("d")
        with pytest.raises(errors.OwnerFull):
            store.create("e")


def test_what_is_known_of_owners_has_an_end(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "MOST_COUNTED", 3)
    with open_with(url, clock) as store:
        for n in range(10):
            store.of(f"o{n}").create("c")
        assert len(store.database.statements.counted) <= 3  # type: ignore[attr-defined]


@pytest.mark.one_file
def test_of_many_who_want_the_last_places_no_more_get_in_than_there_are(url: str, clock: Clock) -> None:
    stores = [open_with(url, clock, conversations_per_owner=8) for _ in range(2)]
    told: list[str] = []

    def create(store: Store, id: str) -> None:
        try:
            store.create(id)
            told.append("made")
        except errors.OwnerFull:
            told.append("full")

    threads = [threading.Thread(target=create, args=(stores[n % 2], f"c{n}")) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["full"] * 8 + ["made"] * 8
    assert len(stores[0].conversations().items) == 8
    for store in stores:
        store.close()


def test_an_owner_has_so_many_queued_inputs_and_no_more(url: str, clock: Clock, tables: Tables) -> None:
    with open_with(url, clock, inputs_per_owner=3, queued_inputs=2) as store:
        for id in ("a", "b"):
            store.create(id)
            store.acquire(id, "w", token=TOKEN)
        store.queue_inputs("a", [user("1", "i1"), user("2", "i2")])
        before = tables.everything()
        with pytest.raises(errors.OwnerFull, match="3 queued inputs"):
            store.queue_inputs("b", [user("3"), user("4")])
        assert tables.everything() == before
        assert store.queue_inputs("a", [user("1", "i1")]).replayed
        store.queue_inputs("b", [user("3")])
        with pytest.raises(errors.OwnerFull):
            store.queue_inputs("b", [user("4")])
        store.of("another").create("a")
        store.of("another").queue_inputs("a", [user("5")])
        store.claim_inputs("a", token=TOKEN)
        store.queue_inputs("b", [user("4")])


TOO_LARGE: dict[str, tuple[str, Callable[[Store], Any]]] = {
    "content": ("$.messages[0].content", lambda store: store.append("c", [user("x" * 1_000)])),
    "content of wide letters": ("$.messages[0].content", lambda store: store.append("c", [user("\U0001f331" * 130)])),
    "content put": ("$.content", lambda store: store.put("c", user("x" * 1_000, "m"))),
    "metadata": ("$.metadata", lambda store: store.create("d", metadata={"k": "x" * 200})),
    "metadata of a message": (
        "$.messages[0].metadata",
        lambda store: store.append("c", [Draft(role="user", content="", metadata={"k": "x" * 200})]),
    ),
    "a label": ("$.metadata", lambda store: store.label("c", metadata={"k": "x" * 200})),
    "what was used": ("$.usage", lambda store: store.finish("held", [reply("r")], token=TOKEN, usage={"k": "x" * 200})),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_with_the_path_to_it(url: str, clock: Clock, tables: Tables, name: str) -> None:
    path, call = TOO_LARGE[name]
    with open_with(url, clock, message_bytes=512, metadata_bytes=128) as store:
        store.create("c", metadata={"k": "x" * 110})
        store.create("held")
        store.acquire("held", "w", token=TOKEN)
        before = tables.everything()
        with pytest.raises(errors.TooLarge) as refused:
            call(store)
        assert path in refused.value.path
        assert tables.everything() == before
        store.append("c", [user("\U0001f331" * 127)])


def test_metadata_do_not_grow_past_their_limit_by_pieces(url: str, clock: Clock, tables: Tables) -> None:
    with open_with(url, clock, metadata_bytes=128) as store:
        store.create("c", messages=[user("hi", "m")])
        with pytest.raises(errors.TooLarge):
            for n in range(100):
                before = tables.everything()
                store.label("c", metadata={f"k{n}": "x"})
        assert tables.everything() == before
        with pytest.raises(errors.TooLarge):
            for n in range(100):
                store.label_message("c", "m", {f"k{n}": "x"})
