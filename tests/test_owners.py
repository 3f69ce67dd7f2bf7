"""Owners: to each of them nobody else's conversations are there, through every face of the store."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessionstore import AsyncStore, Draft, Save, Store, errors, migrate, restore
from sessionstore.client import AsyncClient, Client
from tests.conftest import FACES, TOKEN, Awaited, Clock, Tables, reply, texts, user
from tests.live import LiveServer


async def of(url: str, clock: Clock, owner: str) -> AsyncStore:
    return (await AsyncStore.open(url, clock=clock)).of(owner)


async def connected(address: str, key: str) -> AsyncClient:
    return AsyncClient(address, key=key)


@pytest.fixture(params=FACES)
def owned(request: pytest.FixtureRequest, url: str, clock: Clock) -> Iterator[Callable[[str], Any]]:
    """The store of an owner, behind one of its faces."""
    with ExitStack() as stack:
        keys, live = {}, None
        if "Client" in request.param:
            with Store.open(url) as store:
                keys = {owner: store.keys.create(owner, owner, admin=True).secret for owner in ("ann", "bob")}
            live = stack.enter_context(LiveServer(url, clock))

        def open_for(owner: str) -> Any:
            opened: Any
            if request.param == "Store":
                opened = stack.enter_context(Store.open(url, clock=clock)).of(owner)
            elif request.param == "AsyncStore":
                opened = Awaited(partial(of, url, clock, owner))
            elif live is not None and request.param == "Client":
                opened = Client(live.address, key=keys[owner])
            elif live is not None:
                opened = Awaited(partial(connected, live.address, keys[owner]))
            stack.callback(opened.close)
            return opened

        yield open_for


@pytest.fixture
def ann(owned: Callable[[str], Any]) -> Store:
    """She has one of everything."""
    store: Store = owned("ann")
    store.create("c", title="secret title", metadata={"k": "secret"}, messages=[user("secret words", "m")])
    store.create("child", parent_id="c")
    store.acquire("c", "secret holder", token=TOKEN)
    store.queue_inputs("c", [user("secret input", "i")])
    store.create("used")
    store.finish("used", [reply("r")], token=store.acquire("used", "w").value.token, usage={"input_tokens": 7})
    store.create("gone")
    store.delete("gone")
    return store


@pytest.fixture
def bob(ann: Store, owned: Callable[[str], Any]) -> Store:
    return owned("bob")  # type: ignore[no-any-return]


CALLS: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get("c"),
    "messages": lambda store: store.messages("c"),
    "context": lambda store: store.context("c"),
    "message": lambda store: store.message("c", "m"),
    "inputs": lambda store: store.inputs("c"),
    "changes": lambda store: store.changes("c"),
    "generations": lambda store: store.generations("c"),
    "search in it": lambda store: store.search("secret", conversation_id="c"),
    "usage of it": lambda store: store.usage(conversation_id="c"),
    "events": lambda store: next(iter(store.events("c"))),
    "label": lambda store: store.label("c", title="x"),
    "append": lambda store: store.append("c", [user("x")]),
    "append with her token": lambda store: store.append("c", [user("x")], token=TOKEN),
    "put": lambda store: store.put("c", user("x", "m")),
    "put with her token": lambda store: store.put("c", user("x", "m"), token=TOKEN),
    "label_message": lambda store: store.label_message("c", "m", {"x": 1}),
    "delete_message": lambda store: store.delete_message("c", "m"),
    "truncate": lambda store: store.truncate("c", after_position=-1, through_position=9),
    "compact": lambda store: store.compact("c", user("x"), through_position=0, seen_version=1),
    "fork": lambda store: store.fork("c", "f"),
    "fork settled": lambda store: store.fork("c", "f", settled=True),
    "undo": lambda store: store.undo("c"),
    "acquire": lambda store: store.acquire("c", "x", if_busy="interrupt"),
    "renew": lambda store: store.renew("c", token=TOKEN),
    "release": lambda store: store.release("c", token=TOKEN),
    "finish": lambda store: store.finish("c", token=TOKEN),
    "interrupt": lambda store: store.interrupt("c", force=True),
    "queue": lambda store: store.queue_inputs("c", [user("x")]),
    "claim": lambda store: store.claim_inputs("c", token=TOKEN),
    "cancel": lambda store: store.cancel_input("c", "i"),
    "delete": lambda store: store.delete("c", force=True),
    "a child of it": lambda store: store.create("mine", parent_id="c"),
    "recreate": lambda store: store.create("gone", recreate=1),
}


def test_what_is_anothers_is_not_there_whatever_is_called(bob: Store, tables: Tables) -> None:
    before = tables.everything()
    for name, call in CALLS.items():
        with pytest.raises(errors.ConversationNotFound):
            call(bob)
        assert tables.everything() == before, name


def test_a_deleted_one_of_anothers_never_was(bob: Store) -> None:
    with pytest.raises(errors.ConversationNotFound):
        bob.get("gone")
    assert not bob.create("gone").replayed


def test_saves_reach_only_the_own_conversations(bob: Store, tables: Tables) -> None:
    bob.create("mine")
    bob.acquire("mine", "w", token=TOKEN)
    saves = [Save(conversation_id=id, token=TOKEN, message=reply("x", "r")) for id in ("c", "mine")]
    stranger, own = bob.save_all(saves)
    assert isinstance(stranger, errors.ConversationNotFound)
    assert own.value.created  # type: ignore[union-attr]
    assert tables.rows("SELECT count(*) FROM messages m JOIN conversations c ON c.pk = conversation_pk WHERE owner = ?", "ann")


def test_lists_searches_sums_and_leases_have_nothing_of_anothers(ann: Store, bob: Store) -> None:
    assert ann.search("secret").items
    assert ann.leases()
    assert bob.conversations().items == []
    assert bob.conversations(containing="secret").items == []
    assert bob.search("secret").items == []
    assert bob.leases() == []
    assert [sums.turns for sums in bob.usage().items] in ([], [0])
    assert bob.conversations(generating=True).items == []


def test_the_list_of_changes_tells_nothing_of_anothers(ann: Store, bob: Store) -> None:
    assert (bob.list_changes().change, bob.conversations().change) == (0, 0)
    bob.create("mine")
    known = bob.list_changes()
    assert [conversation.id for conversation in known.conversations] == ["mine"]
    ann.create("another")
    ann.delete("another")
    moved = bob.list_changes(known.change)
    assert (moved.conversations, moved.deleted, moved.change, moved.reset) == ([], [], known.change, False)
    assert bob.conversations().change == known.change
    bob.delete("mine")
    assert [gone.id for gone in bob.list_changes(known.change).deleted] == ["mine"]


def test_an_id_of_anothers_is_free_and_both_live_their_lives(ann: Store, bob: Store) -> None:
    assert not bob.create("c", messages=[user("mine", "m")]).replayed
    with pytest.raises(errors.ConversationExists):
        bob.create("c")
    bob.append("c", [user("too")])
    assert texts(bob, "c") == ["mine", "too"]
    assert texts(ann, "c") == ["secret words"]
    bob.fork("c", "used")
    bob.delete("c")
    assert ann.get("c").title == "secret title"
    with pytest.raises(errors.ConversationDeleted):
        bob.get("c")


def test_events_of_the_list_are_the_own_ones(ann: Store, bob: Store) -> None:
    with bob.list_events() as events:
        assert next(iter(events)).conversations == []
        ann.create("hers")
        bob.create("his")
        assert [conversation.id for conversation in next(iter(events)).conversations] == ["his"]


def test_saves_of_two_owners_under_the_same_names_are_never_taken_for_one(url: str, clock: Clock) -> None:
    """What is saved again before it was stored is stored once; but not when it is somebody else's."""

    async def save_both() -> list[str]:
        async with await AsyncStore.open(url, clock=clock) as store:
            both = [store.of("ann"), store.of("bob")]
            for one in both:
                await one.create("c")
                await one.acquire("c", "w", token=TOKEN)
            growing = [
                one.put("c", Draft(id="r", role="assistant", content=f"{one.store.owner} {n}", status="partial"), token=TOKEN)
                for n in range(8)
                for one in both
            ]
            await asyncio.gather(*growing)
            return [(await one.message("c", "r")).content for one in both]

    assert asyncio.run(save_both()) == ["ann 7", "bob 7"]


def test_events_of_two_owners_share_no_channel(url: str, clock: Clock) -> None:
    async def follow_both() -> list[str]:
        async with await AsyncStore.open(url, clock=clock) as store:
            seen = []
            for owner in ("ann", "bob"):
                one = store.of(owner)
                await one.create("c", title=owner)
                events = one.events("c")
                seen.append((await anext(events)).conversation.title or "")
                await events.aclose()
            return seen

    assert asyncio.run(follow_both()) == ["ann", "bob"]


def test_an_owner_who_reads_a_lot_leaves_others_their_readers(url: str, clock: Clock) -> None:
    """And who may come in is looked up whatever goes on inside (found by review)."""
    go = threading.Event()

    async def read_beside_him() -> tuple[int, bool]:
        async with await AsyncStore.open(url, clock=clock) as store:
            bob = store.of("bob")
            await bob.create("c")
            secret = (await store.keys.create("k", "bob")).secret
            heavy = [asyncio.ensure_future(store.awaiting.read("ann", lambda: go.wait(60))) for _ in range(50)]
            try:
                await asyncio.sleep(0)
                told = await asyncio.wait_for(bob.get("c"), 30)
                others = [asyncio.ensure_future(store.awaiting.read("carol", lambda: go.wait(60))) for _ in range(50)]
                heavy += others
                found = await asyncio.wait_for(store.keys.find(secret), 30)
            finally:
                go.set()
                await asyncio.gather(*heavy)
            assert store.awaiting._shares == {}
            return told.version, found is not None

    assert asyncio.run(read_beside_him()) == (1, True)


def test_what_is_pruned_exported_and_imported_is_the_owners(plain: Store, clock: Clock) -> None:
    ann, bob = plain.of("ann"), plain.of("bob")
    for one in (ann, bob):
        one.create("c", messages=[user("hi")])
    written = io.BytesIO()
    ann.export(written)
    plain.of("carol").import_(io.BytesIO(written.getvalue()))
    assert texts(plain.of("carol"), "c") == ["hi"]
    clock.advance(1_000)
    assert ann.prune(older_than_ms=1).conversations == 1
    assert bob.get("c").id == "c"
    assert plain.owners() == ["ann", "bob", "carol"]
    assert plain.conversations().items == []


@pytest.mark.parametrize("owner", ["*", "a/b", " a", "x" * 201, "\x00", 7])
def test_some_names_are_no_owners(plain: Store, owner: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        plain.of(owner)


def test_a_key_is_told_once_and_found_by_itself_alone(plain: Store, clock: Clock) -> None:
    made = plain.keys.create("laptop", "ann", read_only=True)
    assert made.secret.startswith("ssk_")
    assert len(made.secret) == 4 + 43
    assert plain.keys.find(made.secret) == made.key
    assert (made.key.owner, made.key.read_only, made.key.admin, made.key.created_at) == ("ann", True, False, clock.now)
    for other in (made.secret[:-1], made.secret + "x", made.secret.swapcase(), "", "laptop", "\ud800"):
        assert plain.keys.find(other) is None
    assert plain.keys.list() == [made.key]
    assert made.secret not in repr(made)


def test_two_keys_are_never_the_same(plain: Store) -> None:
    assert len({plain.keys.create(f"k{n}", "ann").secret for n in range(50)}) == 50


def test_a_key_is_over_when_it_is_revoked_or_has_expired(plain: Store, clock: Clock) -> None:
    short, kept = plain.keys.create("short", "ann", expires_after_ms=1_000), plain.keys.create("kept", "ann")
    clock.advance(999)
    assert plain.keys.find(short.secret) == short.key
    clock.advance(1)
    assert plain.keys.find(short.secret) is None
    assert plain.keys.revoke("kept").revoked_at == clock.now
    assert plain.keys.find(kept.secret) is None
    with pytest.raises(errors.KeyNotFound):
        plain.keys.revoke("kept")
    assert [key.name for key in plain.keys.list()] == ["kept", "short"]


def test_a_name_has_one_key_at_a_time(plain: Store) -> None:
    first = plain.keys.create("laptop", "ann")
    with pytest.raises(errors.KeyExists):
        plain.keys.create("laptop", "bob")
    plain.keys.revoke("laptop")
    second = plain.keys.create("laptop", "bob")
    assert (plain.keys.find(first.secret), plain.keys.find(second.secret)) == (None, second.key)


def test_there_were_keys_also_when_all_are_revoked(plain: Store) -> None:
    assert not plain.keys.any()
    plain.keys.create("k", "ann")
    plain.keys.revoke("k")
    assert plain.keys.any()


def test_a_key_that_would_never_expire_in_any_calendar_is_refused(plain: Store) -> None:
    with pytest.raises(errors.InvalidInput):
        plain.keys.create("k", "ann", expires_after_ms=2_932_000 * 86_400_000)
    assert plain.keys.list() == []


def test_a_restored_backup_brings_no_revoked_key_back(plain: Store, tmp_path: Path, path: Path) -> None:
    secret = plain.keys.create("k", "ann").secret
    made = Path(plain.backup(tmp_path / "backups").file)
    plain.keys.revoke("k")
    for name, keep, found in (("anew", False, False), ("kept", True, True)):
        url = f"sqlite:///{tmp_path}/{name}.db"
        assert restore(made, url, keep_keys=keep).revoked_keys == (0 if keep else 1)
        with Store.open(url) as restored:
            assert (restored.keys.find(secret) is not None, restored.keys.any()) == (found, True)


def test_a_schema_without_keys_is_not_gone_back_to_while_there_are_some(plain: Store, url: str) -> None:
    plain.keys.create("k", "ann")
    plain.close()
    with pytest.raises(RuntimeError, match="There are keys"):
        migrate.downgrade(url, "0002")
    with Store.open(url) as store:
        assert store.keys.any()


def test_no_key_and_no_token_lies_in_the_file(plain: Store, path: Path) -> None:
    made = plain.keys.create("k", "ann")
    plain.create("c")
    plain.acquire("c", "w", token=TOKEN)
    plain.close()
    stored = b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))
    for secret in (made.secret.encode(), made.secret.removeprefix("ssk_").encode(), TOKEN.encode()):
        assert secret not in stored
