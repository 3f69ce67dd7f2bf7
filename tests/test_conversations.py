"""Creation, repetition, deletion and re-creation of conversations (cases R)."""

import pytest

from sessionstore import Store, errors
from sessionstore.model import Tag
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, texts, user


def test_a_new_conversation_has_what_it_was_given(store: Store, clock: Clock) -> None:
    created = store.create("c", title="Hello", metadata={"a": [1, 1.0]}, messages=[user("hi"), reply({"x": None})]).value
    conversation = created.conversation
    assert (conversation.id, conversation.title, conversation.metadata) == ("c", "Hello", {"a": [1, 1.0]})
    assert (conversation.version, conversation.message_count, conversation.created_at) == (1, 2, clock.now)
    assert [(message.position, message.content) for message in created.messages] == [(0, "hi"), (1, {"x": None})]
    assert store.get("c") == conversation
    assert store.messages("c").items == created.messages


def test_ids_are_made_where_none_are_given(store: Store) -> None:
    first, second = (store.create(messages=[user("hi")]).value for _ in range(2))
    assert first.conversation.id != second.conversation.id
    assert first.messages[0].id < second.messages[0].id


def test_r3_the_same_create_again_is_answered_and_another_one_refused(store: Store, tables: Tables) -> None:
    first = store.create("x", messages=[user("hi")])
    store.append("x", [reply("hello")])
    before = tables.everything()
    again = store.create("x", messages=[user("hi")])
    assert again.replayed
    assert not first.replayed
    assert again.value.messages == first.value.messages
    with pytest.raises(errors.ConversationExists) as refused:
        store.create("x", messages=[user("something else")])
    assert not refused.value.same
    assert tables.everything() == before


@pytest.mark.parametrize("other", [{"title": "t"}, {"metadata": {"a": 1.0}}, {"messages": [user("hi", status="complete")]}])
def test_any_difference_makes_another_create(store: Store, other: dict[str, object]) -> None:
    store.create("x", metadata={"a": 1})
    with pytest.raises(errors.ConversationExists):
        store.create("x", **{"metadata": {"a": 1}, **other})  # type: ignore[arg-type]


def test_r8_a_deleted_conversation_comes_back_only_when_its_tombstone_is_named(store: Store) -> None:
    first = store.create("x", messages=[user("old")]).value.conversation
    store.delete("x")
    with pytest.raises(errors.ConversationDeleted) as gone:
        store.create("x", messages=[user("old")])
    assert gone.value.incarnation == first.incarnation
    second = store.create("x", messages=[user("new")], recreate=gone.value.incarnation).value.conversation
    assert second.incarnation > first.incarnation
    assert texts(store, "x") == ["new"]
    assert store.create("x", messages=[user("new")], recreate=gone.value.incarnation).replayed
    store.delete("x")
    with pytest.raises(errors.ConversationDeleted) as gone_again:
        store.create("x", messages=[user("new")], recreate=first.incarnation)
    assert gone_again.value.incarnation == second.incarnation


def test_an_id_that_never_was_cannot_be_recreated(store: Store, tables: Tables) -> None:
    with pytest.raises(errors.ConversationNotFound):
        store.create("never", recreate=1)
    assert tables.one("SELECT count(*) FROM conversations") == 0


def test_r14_a_create_with_a_bad_last_message_leaves_nothing(store: Store) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        store.create("x", messages=[user("fine"), user("bad", role="no spaces")])
    assert refused.value.path == "$.messages[1].role"
    with pytest.raises(errors.ConversationNotFound):
        store.get("x")
    assert not store.create("x", messages=[user("fine")]).replayed


def test_delete_leaves_a_tombstone_without_content(store: Store, tables: Tables) -> None:
    store.create("x", title="secret", metadata={"k": "secret"}, messages=[user("secret")])
    turn = store.acquire("x", "w", token=TOKEN).value
    store.finish("x", [reply("secret")], token=turn.token, usage={"tokens": 3})
    store.delete("x")
    assert tables.one("SELECT count(*) FROM messages") == 0
    row = tables.rows("SELECT title, metadata, create_digest, message_count, deleted_at FROM conversations")[0]
    assert row[:4] == (None, "{}", None, 0)
    assert row[4] is not None
    assert tables.rows("SELECT end_digest, usage FROM generations") == [(None, '{"tokens":3}')]


def test_r9_a_second_delete_says_that_it_is_gone(store: Store) -> None:
    store.create("x")
    store.delete("x")
    for call in (store.delete, store.get, store.messages, store.label):
        with pytest.raises(errors.ConversationDeleted):
            call("x")


def test_r12_a_leased_conversation_is_not_deleted(store: Store, clock: Clock, tables: Tables) -> None:
    store.create("x", messages=[user("hi")])
    turn = store.acquire("x", "worker-1", token=TOKEN).value
    before = tables.everything()
    with pytest.raises(errors.Generating) as refused:
        store.delete("x")
    assert (refused.value.holder, refused.value.expires_at) == ("worker-1", clock.now + 30_000)
    assert tables.everything() == before
    assert store.append("x", [reply("still here")], token=turn.token).value[0].position == 1


def test_r11_a_late_save_never_brings_a_deleted_conversation_back(store: Store, tables: Tables) -> None:
    life = store.create("x", messages=[user("hi", "m1")]).value.conversation
    turn = store.acquire("x", "worker", token=TOKEN).value
    transcript = store.messages("x").items
    store.delete("x", force=True)
    for message in transcript:
        with pytest.raises(errors.ConversationDeleted):
            store.put("x", user("late", message.id), token=turn.token)
    assert tables.one("SELECT count(*) FROM messages") == 0

    store.create("x", messages=[user("the new life", "n1")], recreate=life.incarnation)
    before = tables.everything()
    for message in transcript:
        with pytest.raises(errors.ConversationDeleted):
            store.put("x", user("late", message.id), token=turn.token, incarnation=life.incarnation)
        with pytest.raises(errors.LeaseLost):
            store.put("x", user("late", message.id), token=turn.token)
    assert tables.everything() == before


def test_r16_a_delayed_delete_does_not_hit_the_next_life(store: Store, tables: Tables) -> None:
    first = store.create("x").value.conversation
    store.delete("x")
    store.create("x", recreate=first.incarnation)
    before = tables.everything()
    with pytest.raises(errors.ConversationDeleted):
        store.delete("x", incarnation=first.incarnation)
    assert tables.everything() == before


def test_r13_nothing_late_changes_a_tombstone(store: Store, tables: Tables) -> None:
    store.create("x")
    store.acquire("x", "w", token=TOKEN)
    store.delete("x", force=True)
    before = tables.everything()
    late = (
        lambda: store.label("x", title="late"),
        lambda: store.append("x", [user("late")]),
        lambda: store.finish("x", [reply("late")], token=TOKEN, usage={"tokens": 1}),
        lambda: store.renew("x", token=TOKEN),
        lambda: store.release("x", token=TOKEN),
        lambda: store.fork("x"),
        lambda: store.interrupt("x"),
        lambda: store.acquire("x", "other"),
        lambda: store.truncate("x", after_position=-1, through_position=9),
    )
    for call in late:
        with pytest.raises(errors.ConversationDeleted):
            call()
    assert tables.everything() == before


def test_children_go_with_their_parent(store: Store) -> None:
    store.create("parent")
    store.create("child", parent_id="parent")
    store.create("grandchild", parent_id="child")
    store.delete("parent")
    for id in ("parent", "child", "grandchild"):
        with pytest.raises(errors.ConversationDeleted):
            store.get(id)


def test_a_long_line_of_children_goes_in_one_transaction(store: Store, tables: Tables) -> None:
    store.create("c0")
    for n in range(1, 1200):
        store.create(f"c{n}", parent_id=f"c{n - 1}")
    store.delete("c0")
    assert tables.one("SELECT count(*) FROM conversations WHERE deleted_at IS NULL") == 0


def test_orphans_become_roots(store: Store) -> None:
    store.create("parent")
    store.create("child", parent_id="parent")
    assert store.get("child").parent_id == "parent"
    store.delete("parent", children="orphan")
    assert store.get("child").parent_id is None
    assert store.get("child").version == 2


def test_r17_a_generating_child_keeps_its_parent(store: Store, tables: Tables) -> None:
    store.create("parent")
    store.create("child", parent_id="parent")
    store.acquire("child", "w", token=TOKEN)
    store.acquire("parent", "v", token=OTHER_TOKEN)
    before = tables.everything()
    with pytest.raises(errors.Generating) as refused:
        store.delete("parent", token=OTHER_TOKEN)
    assert refused.value.conversation_id == "child"
    assert tables.everything() == before
    store.delete("parent", force=True)
    with pytest.raises(errors.ConversationDeleted):
        store.renew("child", token=TOKEN)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_child_needs_a_living_parent(store: Store, deleted: bool) -> None:
    if deleted:
        store.create("parent")
        store.delete("parent")
    with pytest.raises(errors.ConversationDeleted if deleted else errors.ConversationNotFound) as refused:
        store.create("child", parent_id="parent")
    assert refused.value.fields["conversation_id"] == "parent"
    with pytest.raises(errors.ConversationNotFound):
        store.get("child")


def test_labels_merge_and_an_equal_label_changes_nothing(store: Store) -> None:
    store.create("x", title="old", metadata={"keep": 1, "drop": 2, "deep": {"a": 1, "b": 2}})
    labelled = store.label("x", metadata={"drop": None, "deep": {"b": 3}}).value
    assert labelled.metadata == {"keep": 1, "deep": {"a": 1, "b": 3}}
    assert (labelled.title, labelled.version) == ("old", 2)
    again = store.label("x", title="old", metadata={"drop": None})
    assert (again.value.version, again.replayed) == (2, True)
    assert store.label("x", title=None).value.title is None


def test_a_label_is_possible_while_somebody_generates_but_not_with_a_wrong_token(store: Store) -> None:
    store.create("x")
    store.acquire("x", "w", token=TOKEN)
    assert store.label("x", title="named").value.title == "named"
    with pytest.raises(errors.LeaseLost):
        store.label("x", title="no", token=OTHER_TOKEN)
    lease = store.label("x", title="mine", token=TOKEN).lease
    assert lease is not None
    assert not lease.interrupt_requested


def test_if_match_names_the_state_that_was_seen(store: Store, tables: Tables) -> None:
    seen = store.create("x").value.conversation
    store.append("x", [user("hi")])
    before = tables.everything()
    for stale in (seen.tag, Tag(seen.incarnation + 1, 2)):
        with pytest.raises(errors.PreconditionFailed) as refused:
            store.label("x", title="late", if_match=stale)
        assert refused.value.version == 2
    with pytest.raises(errors.PreconditionFailed):
        store.delete("x", if_match=seen.tag)
    assert tables.everything() == before
    assert store.label("x", title="now", if_match=store.get("x").tag).value.title == "now"
    assert store.label("x", title="any", if_match="*").value.title == "any"


def test_m6_an_append_and_a_rename_from_old_reads_are_both_there(store: Store) -> None:
    store.create("x")
    for round in range(10):
        store.append("x", [user(round)])
        store.label("x", title=str(round))
    assert (store.get("x").title, texts(store, "x")) == ("9", list(range(10)))
