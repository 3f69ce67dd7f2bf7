"""Lists of conversations: filters, pages, order."""

from typing import Any

import pytest

from sessionstore import Store, errors
from tests.conftest import TOKEN, Clock, Tables, user


def ids(store: Store, **filters: Any) -> list[str]:
    return [conversation.id for conversation in store.conversations(**filters).items]


def test_the_latest_change_comes_first(store: Store, tables: Tables) -> None:
    for id in ("a", "b", "c"):
        store.create(id)
    store.append("a", [user("hi")])
    assert ids(store) == ["a", "c", "b"]
    assert store.conversations().change == tables.one("SELECT max(change) FROM conversations")


def test_pages_of_a_list_that_stands_still_are_complete(store: Store) -> None:
    expected = [f"c{n}" for n in range(10)]
    for id in expected:
        store.create(id)
    store.create("deleted")
    store.delete("deleted")
    seen, before = [], None
    while True:
        page = store.conversations(before=before, limit=3)
        seen += [conversation.id for conversation in page.items]
        before = page.next
        if before is None:
            break
    assert seen == expected[::-1]


def test_generating_means_live_and_not_expired(store: Store, clock: Clock) -> None:
    for id in ("idle", "live", "expired", "stepped back"):
        store.create(id)
    store.acquire("expired", "w", ttl_ms=1000)
    clock.advance(3_600_000)
    store.acquire("stepped back", "w", ttl_ms=1000)
    clock.advance(-60_000)
    store.acquire("live", "w")
    assert ids(store, generating=True) == ["live"]
    assert sorted(ids(store, generating=False)) == ["expired", "idle", "stepped back"]
    assert [conversation.id for conversation in store.leases()] == ["expired", "stepped back", "live"]


def test_children_of_a_parent(store: Store) -> None:
    store.create("p")
    store.create("k1", parent_id="p")
    store.create("k2", parent_id="p")
    assert ids(store, parent_id="p") == ["k2", "k1"]
    assert ids(store, parent_id="nobody") == []


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("grüss", ["1"]),
        ("GRÜSS", ["1"]),
        ("%", ["2"]),
        ("_", ["3"]),
        ("\\", []),
        ("/", ["4"]),
        ("50", ["2"]),
        ("", ["id-5", "4", "3", "2", "1"]),
        ("ID-", ["id-5"]),
        ("' OR 1=1 --", []),
        ("日本", ["4"]),
    ],
)
def test_a_part_of_a_title_or_id_in_any_case_and_no_syntax(store: Store, part: str, expected: list[str]) -> None:
    titles = {"1": "Grüsse", "2": "50% off", "3": "snake_case", "4": "日本 / x", "id-5": None}
    for id, title in titles.items():
        store.create(id, title=title)
    assert ids(store, containing=part) == expected


def test_filters_combine(store: Store) -> None:
    store.create("p")
    store.create("one", parent_id="p", title="Alpha")
    store.create("two", parent_id="p", title="Alpha")
    store.acquire("two", "w", token=TOKEN)
    assert ids(store, parent_id="p", containing="alpha", generating=True) == ["two"]
    assert ids(store, parent_id="p", containing="alpha", generating=False) == ["one"]


def test_the_right_incarnation_is_asked_for(store: Store) -> None:
    first = store.create("c", messages=[user("old", "m")]).value.conversation.incarnation
    store.delete("c")
    second = store.create("c", recreate=first, messages=[user("new", "m")]).value.conversation.incarnation
    for look in (
        lambda life: store.get("c", incarnation=life),
        lambda life: store.messages("c", incarnation=life),
        lambda life: store.message("c", "m", incarnation=life),
    ):
        look(second)
        with pytest.raises(errors.ConversationDeleted):
            look(first)


def test_what_is_not_there_is_not_found(store: Store) -> None:
    store.create("c")
    with pytest.raises(errors.MessageNotFound):
        store.message("c", "m")
    for call in (store.get, store.messages, store.label, store.delete):
        with pytest.raises(errors.ConversationNotFound):
            call("nobody")


def test_values_are_frozen_and_their_json_is_a_copy(store: Store) -> None:
    message = store.create("c", metadata={"a": [1]}, messages=[user({"deep": [1]})]).value.messages[0]
    message.content["deep"].append(2)
    assert message.content == {"deep": [1]}
    with pytest.raises(AttributeError):
        message.role = "other"  # type: ignore[misc]
