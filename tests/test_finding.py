"""Finding conversations, and what they cost."""

from typing import Any

import pytest

from sessionstore import Store, errors
from tests.conftest import TOKEN, Clock, Tables, user

DAY = 86_400_000


def ids(store: Store, **filters: Any) -> list[str]:
    return [conversation.id for conversation in store.conversations(**filters).items]


def test_roots_are_listed_without_what_came_from_them(store: Store) -> None:
    store.create("root")
    store.create("child", parent_id="root")
    store.create("grandchild", parent_id="child")
    assert ids(store, roots=True) == ["root"]
    assert ids(store, parent_id="root") == ["child"]
    store.delete("root", children="orphan")
    assert ids(store, roots=True) == ["child"]
    with pytest.raises(errors.InvalidInput):
        store.conversations(roots=True, parent_id="child")


LOOKED_UP: list[tuple[str, str | None, list[str]]] = [
    ("team", None, ["b", "a"]),
    ("team", "blue", ["a"]),
    ("team", "red", []),
    ("n", "5", ["b"]),
    ("n", "5.0", []),
    ("third", "0.30000000000000004", ["b"]),
    ("third", "0.3", []),
    ("long", str(10**30), ["b"]),
    ("objects", '{"a":[1]}', ["b"]),
    ("on", "true", ["a"]),
    ("on", "1", []),
    ("none", "null", ["a"]),
    ("we\"ird.$[0]'", "x", ["a"]),
    ("list", None, ["b"]),
    ("nowhere", None, []),
    ("deep", None, []),
]


def test_metadata_is_looked_up_by_key_and_value(store: Store) -> None:
    store.create("a", metadata={"team": "blue", "on": True, "none": None, "we\"ird.$[0]'": "x"})
    green = {"team": "green", "n": 5, "third": 0.1 + 0.2, "long": 10**30, "objects": {"a": [1]}, "list": [{"deep": 1}]}
    store.create("b", metadata=green)
    store.create("c")
    for key, value, found in LOOKED_UP:
        assert ids(store, metadata_key=key, metadata_value=value) == found, (key, value)


def test_a_value_needs_its_key(store: Store) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        store.conversations(metadata_value="x")
    assert refused.value.path in ("$.metadata_value", "?metadata_value")


def test_conversations_are_found_by_the_time_of_their_change(store: Store, clock: Clock) -> None:
    moments = []
    for name in "abc":
        moments.append(clock.now)
        store.create(name)
        clock.advance(DAY)
    assert ids(store, changed_since=moments[1]) == ["c", "b"]
    assert ids(store, changed_before=moments[1]) == ["a"]
    assert ids(store, changed_since=moments[1], changed_before=moments[2]) == ["b"]
    store.append("a", [user("hi")])
    assert ids(store, changed_since=moments[2] + 1) == ["a"]


def test_filters_go_together_and_come_in_pages(store: Store) -> None:
    for n in range(7):
        store.create(f"c{n}", title=f"Invoice {n % 2}", metadata={"team": "x"})
    seen, before = list[str](), None
    while True:
        page = store.conversations(containing="invoice 1", metadata_key="team", roots=True, before=before, limit=2)
        seen += [conversation.id for conversation in page.items]
        before = page.next
        if before is None:
            break
    assert seen == ["c5", "c3", "c1"]


def test_pages_by_creation_neither_skip_nor_repeat_while_rows_move(store: Store) -> None:
    for n in range(9):
        store.create(f"c{n}")
    seen, before = list[str](), None
    while True:
        page = store.conversations(order="created", before=before, limit=2)
        seen += [conversation.id for conversation in page.items]
        for n in (0, 8, 4):
            store.append(f"c{n}", [user("moves")])
        before = page.next
        if before is None:
            break
    assert seen == [f"c{n}" for n in reversed(range(9))]


def test_pages_by_change_and_what_moved_since_miss_nothing(store: Store) -> None:
    for n in range(9):
        store.create(f"c{n}")
    first = store.conversations(limit=3)
    seen, before = [c.id for c in first.items], first.next
    store.append("c0", [user("moves in front of the pages that are still to come")])
    while before is not None:
        page = store.conversations(before=before, limit=3)
        seen, before = seen + [c.id for c in page.items], page.next
    assert sorted(seen) == [f"c{n}" for n in range(1, 9)]
    assert [c.id for c in store.list_changes(first.change).conversations] == ["c0"]


def use(store: Store, id: str, **usage: Any) -> None:
    store.acquire(id, "w", token=TOKEN + str(store.get(id).version) + id)
    store.finish(id, token=TOKEN + str(store.get(id).version - 1) + id, usage=usage)


@pytest.fixture
def used(store: Store, clock: Clock) -> Store:
    store.create("root")
    store.create("child", parent_id="root")
    store.create("other")
    use(store, "root", input_tokens=100, output_tokens=10, cost=0.5, model="m")
    use(store, "child", input_tokens=7, cached_tokens=3)
    clock.advance(DAY)
    use(store, "other", input_tokens=1, reasoning_tokens=2, cost=1)
    use(store, "root", output_tokens=5)
    return store


def test_usage_is_added_up(used: Store) -> None:
    (total,) = used.usage().items
    assert (total.turns, total.input_tokens, total.output_tokens, total.cost) == (4, 108, 15, 1.5)
    assert (total.cached_tokens, total.reasoning_tokens, total.of) == (3, 2, None)
    (own,) = used.usage(conversation_id="root").items
    assert (own.turns, own.input_tokens, own.output_tokens) == (2, 100, 15)
    (family,) = used.usage(conversation_id="root", descendants=True).items
    assert (family.turns, family.input_tokens) == (3, 107)


def test_usage_is_told_by_day_and_by_conversation(used: Store, clock: Clock) -> None:
    days = used.usage(by="day").items
    assert [(day.of, day.turns, day.input_tokens) for day in days] == [("2027-01-15", 2, 107), ("2027-01-16", 2, 1)]
    assert [day.of for day in used.usage(by="day", since=clock.now).items] == ["2027-01-16"]
    assert [day.of for day in used.usage(by="day", until=clock.now).items] == ["2027-01-15"]
    first = used.usage(by="conversation", limit=2)
    rest = used.usage(by="conversation", limit=2, after=first.next)
    assert [each.of for each in (*first.items, *rest.items)] == ["root", "child", "other"]
    assert rest.next is None


def test_what_was_deleted_has_cost_all_the_same(used: Store) -> None:
    used.delete("root")
    assert used.usage().items[0].turns == 4
    with pytest.raises(errors.ConversationDeleted):
        used.usage(conversation_id="root")


def test_nothing_used_is_no_row(store: Store) -> None:
    assert store.usage().items == []
    store.create("c")
    use(store, "c", words=5)
    assert store.usage().items[0].input_tokens == 0


@pytest.mark.parametrize("value", ["5", True, -1, 10**12 + 1, 1e300, []])
def test_what_is_added_up_is_a_number(store: Store, value: Any, tables: Tables) -> None:
    store.create("c")
    store.acquire("c", "w", token=TOKEN)
    with pytest.raises(errors.InvalidInput) as refused:
        store.finish("c", token=TOKEN, usage={"input_tokens": value})
    assert refused.value.path == "$.usage.input_tokens"
    assert tables.one("SELECT count(*) FROM generations WHERE ended_at IS NOT NULL") == 0


@pytest.mark.parametrize(
    "asked", [{"by": "week"}, {"descendants": True}, {"since": -1}, {"limit": 0}, {"conversation_id": "a/b"}]
)
def test_impossible_sums_are_refused(store: Store, asked: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        store.usage(**asked)


def test_sql_has_what_was_used(used: Store, tables: Tables) -> None:
    rows = tables.rows("SELECT conversation_id, day, sum(cost) FROM v_usage GROUP BY 1, 2 ORDER BY 1, 2")
    assert rows[-1] == ("root", "2027-01-16", None)
    assert ("other", "2027-01-16", 1) in rows
