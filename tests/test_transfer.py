"""Export and import: the round trip is exact, comes whole or not at all, and keeps no secret."""

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store, errors, importing
from sessionstore.model import Exported, Imported
from tests.conftest import OTHER_TOKEN, TOKEN, Clock, Tables, reply, texts, user


@pytest.fixture
def other(second: str, clock: Clock) -> Any:
    with Store.open(second, clock=clock) as store:
        yield store


def exported(store: Store, ids: list[str] | None = None, **rest: Any) -> bytes:
    file = io.BytesIO()
    store.export(file, ids, **rest)
    return file.getvalue()


@pytest.fixture
def full(plain: Store, clock: Clock) -> Store:
    """One of everything."""
    plain.create(
        "root", title="Basil \u00e9", metadata={"n": 10**30, "x": [1.0, 1, None, "\ud800\0"]}, messages=[user("hi", "m")]
    )
    clock.advance(7)
    plain.acquire("root", "worker", token=TOKEN, messages=[user({"deep": [[]]})])
    plain.queue_inputs("root", [user("steer", "i1")], mode="steer")
    plain.claim_inputs("root", token=TOKEN)
    plain.put("root", reply("half", "r", status="partial"), token=TOKEN)
    plain.finish("root", token=TOKEN, outcome="failed", usage={"cost": 0.25})
    clock.advance(7)
    plain.put("root", user("edited", "m"))
    plain.delete_message("root", "i1")
    plain.compact("root", user("in short", role="system"), through_position=1, seen_version=plain.get("root").version)
    plain.queue_inputs("root", [user("waits", "i2"), user("waits too", "i3")])
    plain.cancel_input("root", "i3")
    plain.create("child", parent_id="root")
    plain.fork("root", "fork", through_position=0)
    plain.create("gone", messages=[user("gone")])
    plain.delete("gone")
    plain.create("held")
    plain.acquire("held", "worker", token=OTHER_TOKEN)
    plain.put("held", reply("half", "r", status="partial"), token=OTHER_TOKEN)
    return plain


def test_the_round_trip_is_exact(full: Store, other: Store) -> None:
    first = exported(full)
    done = other.import_(io.BytesIO(first))
    assert (done.conversations, done.skipped, done.bytes) == (4, 0, len(first))
    assert first.splitlines()[-1] == b'{"end":{"conversations":4}}'
    assert exported(other) == first
    for id in ("root", "child", "fork"):
        there, here = full.get(id), other.get(id)
        same = ("title", "metadata", "version", "message_count", "queued_inputs", "parent_id", "created_at", "updated_at")
        assert [getattr(there, name) for name in same] == [getattr(here, name) for name in same]
        assert there.forked_from == here.forked_from
        for view in ("full", "context"):
            pages = (store.messages(id, view=view).items for store in (full, other))
            old, new = ([(m.id, m.position, m.content_json, m.metadata_json, m.status) for m in page] for page in pages)
            assert old == new
    assert [(i.message.id, i.mode) for i in other.inputs("root").items] == [("i2", "follow_up")]
    (turn,) = other.generations("root").items
    assert (turn.holder, turn.outcome, turn.usage) == ("worker", "failed", {"cost": 0.25})


def test_what_is_imported_goes_on_as_it_was(full: Store, other: Store) -> None:
    other.import_(io.BytesIO(exported(full)))
    assert other.append("root", [user("next")]).value[0].position == full.append("root", [user("next")]).value[0].position
    assert other.append("root", [user("hi", "m")]).replayed
    with pytest.raises(errors.MessageDeleted):
        other.put("root", user("again", "i1"))
    assert other.create("child", parent_id="root").replayed
    assert other.search("edited").items
    assert {each.id for each in other.list_changes().conversations} == {"root", "child", "fork", "held"}


def test_what_was_being_generated_is_interrupted(full: Store, other: Store) -> None:
    other.import_(io.BytesIO(exported(full, ["held"])))
    held = other.get("held")
    assert held.generation is None
    assert held.last_generation is not None
    assert held.last_generation.outcome == "interrupted"
    assert other.message("held", "r").status == "interrupted"


def test_no_secret_is_exported(full: Store, tables: Tables) -> None:
    text = exported(full).decode()
    for secret in (TOKEN, OTHER_TOKEN, *(row[0] for row in tables.rows("SELECT token_hash FROM generations"))):
        assert secret not in text


def test_only_what_is_named_is_exported(full: Store, other: Store) -> None:
    seen = list[Exported]()
    full.export(io.BytesIO(), ["child", "fork"], progress=seen.append)
    assert [(each.conversations, each.total) for each in seen] == [(1, 2), (2, 2)]
    assert other.import_(io.BytesIO(exported(full, ["child"]))).conversations == 1
    assert other.get("child").parent_id is None
    for missing, error in (("nowhere", errors.ConversationNotFound), ("gone", errors.ConversationDeleted)):
        file = io.BytesIO()
        with pytest.raises(error):
            full.export(file, ["root", missing])
        assert file.getvalue() == b""


def test_an_id_that_is_taken_stops_the_import_or_is_left_out(full: Store, other: Store) -> None:
    text = exported(full)
    other.create("fork", messages=[user("mine")])
    other.create("held")
    other.delete("held")
    with pytest.raises(errors.ConversationExists):
        other.import_(io.BytesIO(text))
    done = other.import_(io.BytesIO(text), skip_existing=True)
    # What came before is there from the first time.
    assert (done.conversations, done.skipped) == (0, 4)
    assert texts(other, "fork") == ["mine"]
    with pytest.raises(errors.ConversationDeleted):
        other.get("held")


def lines(text: bytes) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


WRONG: list[tuple[Any, str]] = [
    (lambda rows: rows[3]["message"].update(summary_through=2**40), "stands behind"),
    (lambda rows: rows[-3]["message"].pop("mode"), "has a mode"),
    (lambda rows: rows[1]["conversation"].update(parent_id="\ud800"), "Line 2"),
    (lambda rows: rows.pop(0), "Line 1: This is no export"),
    (lambda rows: rows[0]["sessionstore"].update(format=2), "Line 1: This is no export"),
    (lambda rows: rows[1]["conversation"].update(id="a/b"), "Line 2"),
    (lambda rows: rows[1]["conversation"].update(more=1), "Line 2"),
    (lambda rows: rows[1]["conversation"].update(version="1"), "Line 2"),
    (lambda rows: rows[1]["conversation"].update(forked_from_id="x"), "A fork has"),
    (lambda rows: rows[2]["turn"].update(turn=2), "Line 3"),
    (lambda rows: rows[3]["message"].update(role="No"), "Line 4"),
    (lambda rows: rows[3]["message"].update(turn=9), "no such turn"),
    (lambda rows: rows[3]["message"].update(version=999), "ahead of its conversation"),
    (lambda rows: rows[3]["message"].update(position=999), "ahead of its conversation"),
    (lambda rows: rows[3]["message"].update(status="deleted"), "content and digest"),
    (lambda rows: rows[3]["message"].update(status="queued"), "has no position"),
    (lambda rows: rows[3]["message"].update(digest="x"), "Line 4"),
    (lambda rows: rows[4]["message"].update(id=rows[3]["message"]["id"]), "contradicts itself"),
    (lambda rows: rows[4]["message"].update(position=0), "contradicts itself"),
    (lambda rows: rows.insert(-1, []), "Line"),
    (lambda rows: rows.insert(-1, {}), "one thing"),
    (lambda rows: rows.append(rows[0]), "behind the end"),
    (lambda rows: rows.insert(-1, rows[0]), "begins once"),
    (lambda rows: rows.pop(), "ends before the export does"),
    (lambda rows: rows.pop(-2), "messages, and not"),
    (lambda rows: rows.pop(1), "belongs to no conversation"),
    (lambda rows: rows[-1]["end"].update(conversations=2), "1 conversations, and not 2"),
    (lambda rows: rows[1]["conversation"].update(updated_at=2**60), "Line 2"),
    (lambda rows: rows[1]["conversation"].update(forked_from_id="a/b", forked_from_position=1), "Line 2"),
]


@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_a_line_that_is_wrong_is_named_and_its_conversation_is_not_there(
    full: Store, other: Store, wrong: int, second: str
) -> None:
    change, reason = WRONG[wrong]
    rows = lines(exported(full, ["root"]))
    change(rows)
    text = "\n".join(json.dumps(row) for row in rows).encode()
    with pytest.raises(errors.InvalidInput, match=reason):
        other.import_(io.BytesIO(text))
    if reason in ("behind the end", "1 conversations, and not 2"):
        # The conversation itself was whole.
        assert [each.id for each in other.conversations().items] == ["root"]
        return
    assert other.conversations().items == []
    other.create("root")
    assert Tables(second).one("SELECT count(*) FROM messages") == 0


@pytest.mark.parametrize("raw", [b"\xff", b"{", b'{"sessionstore": {"format": 1}, "sessionstore": {"format": 1}}', b"\0", b""])
def test_what_is_no_json_is_refused(other: Store, raw: bytes) -> None:
    with pytest.raises(errors.InvalidInput, match="Line 1"):
        other.import_(io.BytesIO(raw + b"\n"))
    with pytest.raises(errors.InvalidInput, match="ends before"):
        other.import_(io.BytesIO())


def test_a_long_conversation_comes_in_pieces_and_is_seen_only_whole(
    plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(importing, "PIECE_ROWS", 10)
    plain.create("long", messages=[user(n) for n in range(95)])
    seen = list[int]()

    def look(_: Imported) -> None:
        seen.append(len(other.conversations().items))
        # Somebody tidies up meanwhile.
        other.prune(keep=0 if not seen[-1] else None)
        clock.advance(60_000)

    text = exported(plain)
    other.import_(io.BytesIO(text), progress=look)
    assert seen == [0] * (len(seen) - 1) + [1]
    assert exported(other) == text


def test_an_import_that_breaks_off_leaves_nothing_that_is_seen(
    plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    monkeypatch.setattr(importing, "PIECE_ROWS", 10)
    plain.create("long", messages=[user(n) for n in range(95)])
    cut = b"\n".join(exported(plain).splitlines()[:50]) + b"\n{"
    with pytest.raises(errors.InvalidInput, match="Line 51"):
        other.import_(io.BytesIO(cut))
    assert other.conversations().items == []
    assert Tables(second).one("SELECT count(*) FROM messages") == 0
    other.create("long")


def test_an_import_that_stood_still_for_too_long_does_not_go_on(
    plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Somebody has tidied its first messages up: it must not be seen without them (found by review)."""
    monkeypatch.setattr(importing, "PIECE_ROWS", 10)
    plain.create("long", messages=[user(n) for n in range(95)])

    def sleep(done: Imported) -> None:
        if done.bytes > 5000:
            clock.advance(7_200_000)
            other.prune()

    with pytest.raises(errors.InvalidInput, match="stood still"):
        other.import_(io.BytesIO(exported(plain)), progress=sleep)
    assert other.conversations().items == []


def test_what_arrives_is_no_news_before_it_is_there(
    plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(importing, "PIECE_ROWS", 10)
    plain.create("long", messages=[user(n) for n in range(95)])
    other.create("there")
    known = other.list_changes().change
    told = list[Any]()
    other.import_(io.BytesIO(exported(plain)), progress=lambda _: told.append(other.list_changes(known)))
    assert all(each.deleted == [] and each.conversations == [] for each in told[:-1])
    assert [each.id for each in other.list_changes(known).conversations] == ["long"]


@pytest.mark.parametrize("deleted", [False, True])
def test_who_was_quicker_than_an_import_is_left_alone(
    plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    monkeypatch.setattr(importing, "PIECE_ROWS", 10)
    plain.create("long", messages=[user(n) for n in range(25)])
    text = exported(plain)

    hurried: list[int] = []

    def hurry(done: Imported) -> None:
        if done.bytes > len(text) // 2 and not hurried:
            hurried.append(1)
            other.create("long", messages=[user("mine")])
            if deleted:
                other.delete("long")

    error = errors.ConversationDeleted if deleted else errors.ConversationExists
    with pytest.raises(error):
        other.import_(io.BytesIO(text), progress=hurry)
    assert [each.id for each in other.conversations().items] == ([] if deleted else ["long"])
    assert deleted or texts(other, "long") == ["mine"]
    assert other.import_(io.BytesIO(text), skip_existing=True).skipped == 1


def test_who_was_quicker_than_an_import_may_be_skipped(plain: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.create("c", messages=[user(n) for n in range(25)])
    meet = importing.Importing._meet

    def hurry(self: Any, line: Any) -> Imported:
        done = meet(self, line)
        other.create("c", messages=[user("mine")])
        return done

    monkeypatch.setattr(importing.Importing, "_meet", hurry)
    assert other.import_(io.BytesIO(exported(plain)), skip_existing=True) == Imported(skipped=1, bytes=len(exported(plain)))
    assert texts(other, "c") == ["mine"]


def test_memory_does_not_grow_with_the_conversation(plain: Store, other: Store, tmp_path: Path) -> None:
    plain.create("long")
    for _ in range(40):
        plain.append("long", [user("x" * 1000) for _ in range(250)])
    file = tmp_path / "export.jsonl"
    tracemalloc.start()
    with file.open("wb") as out:
        plain.export(out)
    with file.open("rb") as lines:
        other.import_(lines)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert file.stat().st_size > 10_000_000
    assert peak < 6_000_000


def test_markdown_is_to_be_read(full: Store) -> None:
    full.append("child", [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), user({"a": "```"})])
    text = exported(full, ["child", "root"], format="markdown").decode()
    assert text.startswith("# Basil \u00e9\n\n## user\n\nedited\n\n")
    assert "## assistant (interrupted)\n\nhalf\n\n" in text
    assert "## system, a summary\n\nin short\n\n" in text
    assert "# child\n\n## user\n\none\n\ntwo\n\n" in text
    full.append("child", [user("\x1b[31mred\0\ud800")])
    assert "\ufffd[31mred\ufffd\ufffd" in exported(full, ["child"], format="markdown").decode()
    assert '````json\n{"a":"```"}\n````' in text
    with pytest.raises(errors.InvalidInput):
        exported(full, format="html")
