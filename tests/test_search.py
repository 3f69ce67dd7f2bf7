"""The search: what is committed is found, what is gone is not, whether the index has caught up or not."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionstore import Store, errors, matching, migrate
from sessionstore.engine import sqlite3
from sessionstore.sqlite import fulltext, writer
from sessionstore.sqlite.writer import Writer
from tests.conftest import TOKEN, Clock, Tables, reply, user

UNKNOWN = "SELECT count(*) FROM messages WHERE pk > (SELECT through FROM search_state)"


@pytest.fixture(params=["noted", "indexed"])
def caught_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with an index that has not heard of anything yet, and with one that hears of everything at once."""
    if request.param == "indexed":
        monkeypatch.setattr(fulltext, "is_due", lambda _: True)
        monkeypatch.setattr(Writer, "_index_is_due", lambda writer: writer._connection is not None)
    else:
        monkeypatch.setattr(Writer, "_index_is_due", lambda _: False)


def found(store: Store, text: str, **rest: Any) -> list[tuple[str, Any]]:
    page = store.search(text, **rest)
    return [(each.conversation_id, each.message.content) for each in page.items]


@pytest.mark.usefixtures("caught_up")
def test_messages_are_found_by_their_words_the_last_first(store: Store) -> None:
    store.create("a", messages=[user("Any basil left?"), reply("Four packets of BASIL.")])
    store.create("b", messages=[user([{"type": "text", "text": "Basil and mint"}, {"type": "image", "data": "mint"}])])
    assert [each[0] for each in found(store, "basil")] == ["b", "a", "a"]
    assert found(store, "basil packets") == [("a", "Four packets of BASIL.")]
    assert [each[0] for each in found(store, "mint")] == ["b"]
    assert found(store, "basil", conversation_id="a") == [("a", "Four packets of BASIL."), ("a", "Any basil left?")]
    assert found(store, "bas") == found(store, "parsley") == []
    (first,) = store.search("mint").items
    assert [first.snippet[begin:end] for begin, end in first.marks] == ["mint"]
    assert first.message == store.message("b", first.message.id)


@pytest.mark.usefixtures("caught_up")
def test_case_and_accents_do_not_matter(store: Store) -> None:
    store.create("a", messages=[user("Ein Ärgernis in ΑΘΗΝΑ"), user("привет мир")])
    for text in ("argernis", "ÄRGERNIS", "αθηνα", "ПРИВЕТ"):
        assert len(found(store, text)) == 1, text


@pytest.mark.usefixtures("caught_up")
def test_what_is_gone_is_not_found(store: Store) -> None:
    store.create("a", messages=[user("first secret", "m1"), user("second secret", "m2"), user("third secret", "m3")])
    store.create("b", messages=[user("fourth secret")])
    store.put("a", user("now public", "m1"))
    store.delete_message("a", "m2")
    assert [each[1] for each in found(store, "secret")] == ["fourth secret", "third secret"]
    assert [each[1] for each in found(store, "public")] == ["now public"]
    store.truncate("a", after_position=1, through_position=2)
    store.delete("b")
    assert found(store, "secret") == []
    store.create("b", recreate=store.create("x").value.conversation.incarnation - 1, messages=[user("new secret")])
    assert found(store, "secret", conversation_id="b") == [("b", "new secret")]


def test_what_has_changed_since_it_was_indexed_is_found_as_it_is_now(store: Store, plain: Store, monkeypatch: Any) -> None:
    store.create("a", messages=[user("old words", "m"), user("other words", "n")])
    plain.purge()
    monkeypatch.setattr(Writer, "_index_is_due", lambda _: False)
    store.put("a", user("newer text", "m"))
    store.put("a", user("new text", "m"))
    assert found(store, "old") == found(store, "newer") == []
    assert found(store, "words") == [("a", "other words")]
    assert found(store, "text") == [("a", "new text")]


@pytest.mark.usefixtures("caught_up")
def test_a_growing_reply_is_found_when_it_is_whole(store: Store) -> None:
    store.create("a")
    store.acquire("a", "w", token=TOKEN)
    store.put("a", reply("growing basil", "r", status="partial"), token=TOKEN)
    store.queue_inputs("a", [user("waiting basil")])
    assert found(store, "basil") == []
    store.finish("a", token=TOKEN)
    assert found(store, "basil") == [("a", "growing basil")]
    store.claim_inputs("a")
    assert [each[1] for each in found(store, "basil")] == ["waiting basil", "growing basil"]


@pytest.mark.usefixtures("caught_up")
def test_a_fork_is_found_by_itself(store: Store) -> None:
    store.create("a", messages=[user("basil")])
    store.fork("a", "f")
    assert [each[0] for each in found(store, "basil")] == ["f", "a"]
    store.delete("a")
    assert [each[0] for each in found(store, "basil")] == ["f"]


@pytest.mark.usefixtures("caught_up")
def test_pages_neither_skip_nor_repeat_while_messages_come(store: Store) -> None:
    for n in range(7):
        store.create(f"c{n}", messages=[user(f"basil {n}")])
    seen, before = list[Any](), None
    while True:
        page = store.search("basil", before=before, limit=2)
        seen += [each.message.content for each in page.items]
        store.append("c0", [user("more basil")])
        before = page.next
        if before is None:
            break
    assert seen == [f"basil {n}" for n in reversed(range(7))]


@pytest.mark.parametrize("indexed", [False, True])
def test_only_ones_own_messages_are_found(plain: Store, path: Path, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by who asks for a conversation by its number, and whatever the index says."""
    monkeypatch.setattr(Writer, "_index_is_due", lambda _: False)
    plain.create("mine", messages=[user("basil mine")])
    plain.create("theirs", messages=[user("basil theirs")])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE conversations SET owner = 'them' WHERE id = 'theirs'")
    connection.commit()
    if indexed:
        fulltext.catch_up(connection)
        connection.commit()
    assert found(plain, "basil") == [("mine", "basil mine")]
    for owner, shown in (("", 0), ("them", 1)):
        assert len(fulltext.search(connection, ["basil"], owner, 2, 2**62, 10)) == shown
    connection.close()
    with pytest.raises(errors.ConversationNotFound):
        plain.search("basil", conversation_id="theirs")


NASTY = [
    '"', "'", '""', "a OR b", "NOT a", "text : a", "scope : o", "a*", "^a", "a NEAR b", "NEAR(a b, 1)", "(((", "a -b",
    "OPS-306", "{a b}",
    "a + b", "; DROP TABLE messages", "%", "\\", "a\u0301", "‮a", "a\U0001f600b", "-", "col:val", '"unclosed', "a AND",
]  # fmt: skip


def test_nothing_that_is_asked_is_syntax(store: Store) -> None:
    for number, text in enumerate(NASTY):
        store.create(f"c{number}", messages=[user("alpha b"), user(f"beside {text} it")])
        try:
            contents = [each[1] for each in found(store, text, conversation_id=f"c{number}")]
        except errors.InvalidInput:
            assert not any(character.isalnum() for character in text)
        else:
            assert contents == [f"beside {text} it"]


def test_what_cannot_be_looked_for_is_refused(store: Store) -> None:
    for text in ("", "   ", "?!", "\0", "x" * 1001, "\ud800", "\n", "a " * 33):
        with pytest.raises(errors.InvalidInput):
            store.search(text)
    with pytest.raises(errors.ConversationNotFound):
        store.search("a", conversation_id="nowhere")


@settings(max_examples=60, deadline=None)
@given(text=st.text(min_size=1, max_size=30))
def test_no_text_whatever_is_an_error_of_the_database(searched: Store, text: str) -> None:
    with suppress(errors.InvalidInput):
        searched.search(text)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path_factory.mktemp('search')}/store.db"
    with Store.open(url, migrate_first=True) as store:
        store.create("a", messages=[user(f"word {n}") for n in range(fulltext.PIECE_ROWS + 5)])
        yield store


@pytest.mark.usefixtures("caught_up")
def test_half_characters_and_zeros_are_found_around(store: Store) -> None:
    store.create("a", messages=[user("basil \ud800 and \0 mint")])
    assert len(found(store, "basil")) == 1
    assert len(found(store, "mint")) == 1
    store.delete("a")
    assert found(store, "basil") == []


@pytest.mark.usefixtures("caught_up")
def test_nobody_else_sets_marks(store: Store) -> None:
    store.create("a", messages=[user("\x03\x02pre\x03 target \x02x \\u0002")])
    (each,) = store.search("target").items
    assert [each.snippet[begin:end] for begin, end in each.marks] == ["target"]


@pytest.mark.usefixtures("caught_up")
def test_a_message_that_is_very_long_is_searched_to_its_limit_or_not_at_all(plain: Store) -> None:
    plain.create("a", messages=[user("begin " + "x " * fulltext.LONGEST_TEXT + "end", "long")])
    plain.create("b", messages=[user("begin " + "x" * fulltext.LONGEST_CONTENT, "longer")])
    assert [each[0] for each in found(plain, "begin")] == ["a"]
    assert found(plain, "end") == []


@pytest.mark.one_file
def test_the_index_catches_up_in_pieces_after_commits_and_rests_in_between(
    plain: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PACE", 0)
    plain.create("a", messages=[user(f"word{n}") for n in range(700)])
    left = [tables.one(UNKNOWN)]
    plain.append("a", [user("more") for _ in range(fulltext.PIECE_ROWS)])
    left.append(tables.one(UNKNOWN))
    monkeypatch.setattr(writer, "PACE", 10**6)
    for _ in range(2):
        plain.append("a", [user("more") for _ in range(fulltext.PIECE_ROWS)])
        left.append(tables.one(UNKNOWN))
    first = 700 - fulltext.PIECE_ROWS
    assert left == [first, first, first, first + fulltext.PIECE_ROWS]
    assert len(plain.search("word0", limit=5).items) == 1


@pytest.mark.one_file
def test_an_index_that_is_far_behind_does_not_rest(plain: Store, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FAR_BEHIND", 300)
    monkeypatch.setattr(writer, "PACE", 0)
    monkeypatch.setattr(writer, "CHORE_SECONDS", 60)
    plain.create("a", messages=[user(f"word{n}") for n in range(1000)])
    plain.append("a", [user(f"word{n}") for n in range(1000)])
    assert tables.one(UNKNOWN) <= 300


def test_a_migrated_store_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    migrate.upgrade(url, "0001")
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute(
        "INSERT INTO conversations (pk, owner, id, metadata, created_at, updated_at, version, change, next_position,"
        " message_count, queued_count) VALUES (1, '', 'a', '{}', 0, 0, 1, 1, 600, 600, 0)"
    )
    connection.executemany(
        "INSERT INTO messages (conversation_pk, id, position, role, status, created_version, version, created_at, updated_at,"
        " digest, metadata, content) VALUES (1, ?, ?, 'user', 'complete', 1, 1, 0, 0, '', '{}', ?)",
        [(f"m{n}", n, f'"word{n}"') for n in range(600)],
    )
    connection.commit()
    connection.close()
    with Store.open(url, migrate_first=True) as store:
        assert len(store.search("word77").items) == 1
    assert Tables(tmp_path / "x.db").one(UNKNOWN) == 0


@pytest.mark.one_file
def test_what_others_have_left_is_indexed_by_the_next_store(url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_index_is_due", lambda _: False)
        with Store.open(url) as first:
            first.create("a", messages=[user("word") for _ in range(fulltext.PIECE_ROWS)])
    with Store.open(url) as second:
        second.create("b")
    assert tables.one(UNKNOWN) == 0


def test_a_busy_database_holds_no_commit_up_for_the_index(plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is a chore: it waits for nobody, and is done another time."""
    rival = sqlite3.connect(path, isolation_level=None)

    def occupied(connection: Any) -> bool:
        rival.execute("BEGIN IMMEDIATE")
        return True

    monkeypatch.setattr(fulltext, "is_due", occupied)
    plain.create("a", messages=[user("basil")])
    rival.execute("ROLLBACK")
    rival.close()
    assert len(plain.search("basil").items) == 1


def test_the_index_is_what_the_messages_say_after_a_storm(url: str, clock: Clock, path: Path) -> None:
    """Writers and pieces of work come between each other; at the end the index says exactly what the messages say."""
    with Store.open(url, clock=clock) as store:
        for name in "abcd":
            store.create(name)

        def write(name: str) -> None:
            for n in range(150):
                store.append(name, [user(f"{name} word{n}", f"m{n}")])
                if n % 3 == 0:
                    store.put(name, user(f"{name} edited{n}", f"m{n}"))
                if n % 5 == 0:
                    store.delete_message(name, f"m{n}")
                if n == 100:
                    store.truncate(name, after_position=10, through_position=60)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.purge()
        for n in (5, 9, 62, 149):
            word = f"edited{n}" if n % 3 == 0 else f"word{n}"
            living = sum(1 for name in "abcd" if _lives(store, name, f"m{n}"))
            assert len(store.search(word).items) == living, n
    connection = sqlite3.connect(path)
    texts = connection.execute("SELECT message_pk, scope, text FROM search_texts").fetchall()
    anew = sqlite3.connect(":memory:")
    anew.execute(f"CREATE VIRTUAL TABLE search USING fts5({matching.COLUMNS})")
    anew.executemany("INSERT INTO search (rowid, scope, text) VALUES (?, ?, ?)", texts)
    assert _words(connection) == _words(anew)
    connection.close()
    anew.close()


def _words(connection: sqlite3.Connection) -> list[Any]:
    """Every word of an index, with its place."""
    connection.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab('main', 'search', 'instance')")
    return sorted(connection.execute("SELECT * FROM temp.words").fetchall())


def _lives(store: Store, id: str, message_id: str) -> bool:
    try:
        store.message(id, message_id)
    except errors.MessageDeleted:
        return False
    return True
