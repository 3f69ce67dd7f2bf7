"""The two doors, and what SQLite does behind one's back."""

import os
import sqlite3 as codes
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

import sessionstore
from sessionstore import Store, errors, keys, queries, statements
from sessionstore.engine import sqlite3
from sessionstore.limits import Limits
from sessionstore.queries import Filters
from sessionstore.sqlite import connections
from sessionstore.sqlite.connections import ImmediateSQLite, engine_fault
from sessionstore.sqlite.database import SQLiteDatabase
from sessionstore.sqlite.log import LOG_LIMIT_BYTES
from sessionstore.sqlite.writer import Writer
from sessionstore.transaction import Transaction
from tests.conftest import Clock, Tables, on_file, texts, user

pytestmark = [pytest.mark.any_sql, pytest.mark.one_file]

INSERT = sqlalchemy.text(
    "INSERT INTO conversations (owner, id, metadata, created_at, updated_at, version, change, next_position, message_count,"
    " queued_count) VALUES ('', :id, '{}', 1, 1, 1, 1, 0, 0, 0)"
)
BROKEN = sqlalchemy.text("INSERT INTO nowhere VALUES (1)")
COUNT = sqlalchemy.text("SELECT count(*) FROM conversations")


@pytest.fixture
def opened(url: str) -> Any:
    found = SQLiteDatabase(url, busy_timeout_ms=200)
    yield found
    found.close()


def test_a_write_holds_the_lock_from_its_first_moment(opened: SQLiteDatabase, path: Path) -> None:
    """With a deferred BEGIN the check would stand outside the transaction (DESIGN.md, rule 2)."""

    def change(_: Transaction) -> None:
        rival = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            rival.execute("BEGIN IMMEDIATE")
        rival.close()

    opened.write(change)


def test_a_failed_begin_leaves_the_connection_usable(opened: SQLiteDatabase, path: Path) -> None:
    """SQLAlchemy's documented `begin` event would run the retry in autocommit (facts, 2.2)."""
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.Busy):
        opened.write(lambda transaction: transaction.run(INSERT, id="a"))
    rival.execute("ROLLBACK")
    rival.close()

    def fails(transaction: Transaction) -> None:
        transaction.run(INSERT, id="b")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        opened.write(fails)
    assert opened.read(lambda transaction: transaction.row(COUNT)) == (0,)


@pytest.mark.parametrize("statement", [INSERT, sqlalchemy.text("DELETE FROM conversations")])
def test_the_read_door_refuses_writes(opened: SQLiteDatabase, statement: Any) -> None:
    with pytest.raises(errors.DatabaseUnusable):
        opened.read(lambda transaction: transaction.run(statement, **({"id": "x"} if statement is INSERT else {})))


def test_a_read_sees_one_snapshot(opened: SQLiteDatabase, plain: Store) -> None:
    def look(transaction: Transaction) -> tuple[int, int]:
        before = transaction.row(COUNT)[0]
        writer = threading.Thread(target=lambda: plain.create("meanwhile"))
        writer.start()
        writer.join()
        return before, transaction.row(COUNT)[0]

    assert opened.read(look) == (0, 0)
    assert opened.read(look) == (1, 1)


def test_a_failed_statement_is_never_committed_even_if_caught(opened: SQLiteDatabase) -> None:
    def change(transaction: Transaction) -> None:
        transaction.run(INSERT, id="a")
        with pytest.raises(sqlite3.OperationalError):
            transaction.run(BROKEN)
        with pytest.raises(sqlite3.OperationalError):
            transaction.run(INSERT, id="b")

    with pytest.raises(errors.DatabaseUnusable, match="nowhere"):
        opened.write(change)
    assert opened.read(lambda transaction: transaction.row(COUNT)) == (0,)


def test_a_part_that_is_refused_is_undone_and_the_rest_is_kept(opened: SQLiteDatabase) -> None:
    def part(transaction: Transaction) -> None:
        transaction.run(INSERT, id="undone")
        raise errors.Busy

    def change(transaction: Transaction) -> list[Any]:
        transaction.run(INSERT, id="before")
        refused = transaction.attempt(part)
        return [refused, transaction.attempt(lambda transaction: transaction.run(INSERT, id="after"))]

    refused, kept = opened.write(change)
    assert isinstance(refused, errors.Busy)
    assert kept == 1
    assert opened.read(lambda transaction: transaction.row(COUNT)) == (2,)


def test_a_lost_transaction_is_never_reported_as_committed(opened: SQLiteDatabase) -> None:
    """SQLITE_FULL and I/O errors roll back by themselves, and the driver's commit() then says nothing (facts, 1.11)."""

    def change(transaction: Transaction) -> None:
        transaction.run(INSERT, id="a")
        opened._writer._connection.execute("ROLLBACK")

    with pytest.raises(errors.StorageFailed):
        opened.write(change)
    with pytest.raises(errors.StorageFailed):
        opened.read(lambda transaction: transaction.row(COUNT))


TELLS_MORE = pytest.mark.skipif(not hasattr(sqlite3, "SQLITE_IOERR_READ"), reason="this driver says of all only that much")


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (codes.SQLITE_FULL, errors.DiskFull),
        pytest.param(codes.SQLITE_IOERR, errors.DiskFull, marks=TELLS_MORE),
        (codes.SQLITE_BUSY, errors.Busy),
        (codes.SQLITE_BUSY_SNAPSHOT, errors.Busy),
        (codes.SQLITE_IOERR_FSYNC, errors.StorageFailed),
        (codes.SQLITE_CORRUPT, errors.NotADatabase),
    ],
)
def test_driver_errors_become_ours_and_nothing_is_stored(
    opened: SQLiteDatabase, code: int, expected: type[Exception], tables: Tables
) -> None:
    def change(transaction: Transaction) -> None:
        transaction.run(INSERT, id="a")
        raise _sqlite_error(code)

    with pytest.raises(expected):
        opened.write(change)
    assert tables.one("SELECT count(*) FROM conversations") == 0


@pytest.mark.parametrize(
    ("code", "expected"), [(codes.SQLITE_IOERR_FSYNC, errors.OutcomeUnknown), (codes.SQLITE_BUSY, errors.Busy)]
)
def test_a_failed_commit_says_what_is_known(
    opened: SQLiteDatabase, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    def do_commit(_: ImmediateSQLite, __: Any) -> None:
        raise _sqlite_error(code)

    opened.write(lambda transaction: transaction.run(INSERT, id="before"))
    monkeypatch.setattr(ImmediateSQLite, "do_commit", do_commit)
    with pytest.raises(expected):
        opened.write(lambda transaction: transaction.run(INSERT, id="a"))


def test_after_an_io_error_the_store_is_unready_and_its_connections_are_closed(plain: Store) -> None:
    plain.create("c")

    def change(_: Any) -> None:
        raise _sqlite_error(codes.SQLITE_IOERR_WRITE)

    with pytest.raises(errors.StorageFailed):
        plain.transact("c", change)
    assert on_file(plain)._writer._connection is None
    for call in (plain.check_ready, lambda: plain.get("c"), lambda: plain.append("c", [user("x")])):
        with pytest.raises(errors.StorageFailed):
            call()


def test_writers_of_one_process_wait_in_line_and_give_up_in_time(opened: SQLiteDatabase) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        inside.set()
        go.wait(10)

    first = threading.Thread(target=lambda: opened.write(slow))
    first.start()
    inside.wait(10)
    with pytest.raises(errors.Busy):
        opened.write(lambda transaction: transaction.row(COUNT))
    go.set()
    first.join()
    assert opened.write(lambda transaction: transaction.row(COUNT)) == (0,)


def test_an_interrupt_at_any_moment_leaves_the_store_usable(plain: Store) -> None:
    """A KeyboardInterrupt at each line of the door, one after the other (found by review)."""
    import sys

    plain.create("c")
    plain.append("c", [user("warm")])
    doors = (SQLiteDatabase.write, Writer.enter, Writer.transact, Writer._apply, Writer._commit, Writer._settle, Writer.leave)
    code = {door.__code__ for door in doors}
    lines = 0

    def interrupting(at: int) -> Any:
        seen = 0

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal seen
            if frame.f_code in code and event == "line":
                seen += 1
                if seen == at:
                    raise KeyboardInterrupt
            return trace

        return trace

    for at in range(1, 60):
        sys.settrace(interrupting(at))
        try:
            plain.append("c", [user(at)])
        except KeyboardInterrupt:
            lines += 1
        finally:
            sys.settrace(None)
        assert plain.append("c", [user("after")]).value[0].content == "after"
    assert lines > 10
    assert plain.get("c").message_count == len(texts(plain, "c"))


def test_close_inside_a_change_waits_for_its_end(plain: Store, tables: Tables) -> None:
    plain.create("c")

    def change(conversation: Any) -> None:
        conversation.append([user("kept")])
        plain.close()

    plain.transact("c", change)
    with pytest.raises(errors.Closed):
        plain.get("c")
    assert tables.one("SELECT count(*) FROM messages") == 1


def test_readers_that_are_all_busy_are_busy(url: str) -> None:
    opened = SQLiteDatabase(url, busy_timeout_ms=100, readers=1)
    try:
        with opened.sqlalchemy_reads():
            with pytest.raises(errors.Busy):
                opened.read(lambda transaction: transaction.row(COUNT))
            with pytest.raises(errors.Busy), opened.sqlalchemy_reads():
                pass
    finally:
        opened.close()


def test_the_log_is_bounded_by_bytes_and_not_by_commits(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "engine_fault", lambda: "pretended")
    with Store.open(url, clock=clock, synchronous="normal") as store:
        store.create("c")
        most = 0
        for _ in range(20):
            store.append("c", [user("x" * 4_000_000)])
            most = max(most, on_file(store).log_bytes())
    assert most < 4 * LOG_LIMIT_BYTES


def test_the_log_is_bounded_whatever_makes_it_grow(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creates, labels, and stores that are opened for a moment each (found by review)."""
    monkeypatch.setattr(connections, "engine_fault", lambda: "pretended")
    labels = {"long": "x" * 1_000_000}
    limits = Limits(metadata_bytes=2_000_000)
    with Store.open(url, clock=clock, synchronous="normal", limits=limits) as store:
        for number in range(2_500):
            store.create(f"c{number}")
        assert on_file(store).log_bytes() < 2 * LOG_LIMIT_BYTES
        for number in range(20):
            store.label(f"c{number}", metadata=labels)
        assert on_file(store).log_bytes() < 3 * LOG_LIMIT_BYTES
        for _ in range(60):
            with Store.open(url, clock=clock, synchronous="normal") as brief:
                brief.append("c0", [user("x" * 200_000)])
        assert on_file(store).log_bytes() < 3 * LOG_LIMIT_BYTES


def test_migrations_make_no_checkpoint_of_their_own_on_an_affected_engine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "engine_fault", lambda: "pretended")
    with connections.migration(url) as connection:
        assert connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() == 0


def test_a_closed_store_refuses_everything(plain: Store) -> None:
    plain.close()
    for call in (lambda: plain.create("x"), lambda: plain.get("x"), plain.check_ready):
        with pytest.raises(errors.Closed):
            call()


def test_a_forked_child_cannot_open_the_file_of_its_parent(plain: Store, url: str, tables: Tables) -> None:
    """It would believe in locks that only the parent has, and lose what it acknowledged (found by review)."""
    plain.create("c")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            Store.open(url)
        except errors.DatabaseUnusable:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    plain.append("c", [user("of the parent")])
    with Store.open(url) as another:
        assert texts(another, "c") == ["of the parent"]


def test_a_forked_child_does_not_touch_the_connections(plain: Store, tables: Tables) -> None:
    plain.create("c", messages=[user("of the parent")])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            plain.append("c", [user("of the child")])
        except errors.Closed:
            plain.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    plain.append("c", [user("of the parent again")])
    assert texts(plain, "c") == ["of the parent", "of the parent again"]


VERSIONS: list[tuple[tuple[int, int, int], bool]] = [
    ((3, 6, 23), False),
    ((3, 7, 0), True),
    ((3, 40, 1), True),
    ((3, 44, 5), True),
    ((3, 44, 6), False),
    ((3, 45, 0), True),
    ((3, 50, 6), True),
    ((3, 50, 7), False),
    ((3, 51, 2), True),
    ((3, 51, 3), False),
    ((3, 53, 4), False),
]


@pytest.mark.parametrize(("version", "affected"), VERSIONS)
def test_the_engines_with_the_checkpoint_fault_are_known(version: tuple[int, int, int], affected: bool) -> None:
    assert (engine_fault(version) is not None) == affected


def test_on_an_affected_engine_the_log_stays_bounded_without_automatic_checkpoints(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "engine_fault", lambda: "pretended")
    with Store.open(url, clock=clock, synchronous="normal") as store:
        store.create("c")
        assert connections.setting(on_file(store)._writer._connection, "wal_autocheckpoint") == 0
        most = 0
        for _ in range(1200):
            store.append("c", [user("x" * 16_000)])
            most = max(most, on_file(store).log_bytes())
        assert store.database.integrity_faults() == []
    assert most < 4 * LOG_LIMIT_BYTES


def test_the_settings_are_in_force(plain: Store) -> None:
    asked = {"synchronous": 2, "foreign_keys": 1, "secure_delete": 1, "journal_mode": "wal"}
    plain.create("c")
    writer = on_file(plain)._writer._connection
    assert {name: connections.setting(writer, name) for name in asked} == asked
    assert on_file(plain).settings()["synchronous"] == "full"


def test_a_file_that_we_make_is_private(tmp_path: Path, clock: Clock) -> None:
    old = os.umask(0)
    try:
        with Store.open(f"sqlite:///{tmp_path}/deep/er/new.db", migrate_first=True, clock=clock) as store:
            store.create("c")
            modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "deep/er").iterdir()}
    finally:
        os.umask(old)
    assert modes == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600, "new.db-gate": 0o600}
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) & 0o077 in (0o077, 0)
    assert stat.S_IMODE((tmp_path / "deep/er").stat().st_mode) == 0o700


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=ro"])
def test_other_urls_are_refused_in_one_line(url: str) -> None:
    with pytest.raises(errors.UnsupportedUrl) as refused:
        Store.open(url)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are not the bytes you are looking for" * 100)
    before = path.read_bytes()
    for migrate_first in (True, False):
        with pytest.raises(errors.NotADatabase):
            Store.open(f"sqlite:///{path}", migrate_first=migrate_first)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_statements_are_compiled_once(plain: Store) -> None:
    plain.create("c", messages=[user("a")])
    plain.append("c", [user("b")])
    known = dict(on_file(plain).statements)
    for _ in range(3):
        plain.append("c", [user("b")])
    assert on_file(plain).statements == known


def test_only_the_dialect_file_knows_a_dialect() -> None:
    """Besides the two rooms, what picks one of them, and the library whose tokenizer is used for both."""
    root = Path(sessionstore.__file__).parent
    allowed = {"dialect.py", "engine.py", "engines.py", "matching.py"}
    words = ("sqlite3", "dialects", "PRAGMA", "dialect.name", "psycopg", "sqlite.", "pg_")
    found = {
        file.name: word
        for file in [*root.glob("*.py"), *(root.parent / "api").rglob("*.py")]
        for word in words
        if file.name not in allowed and word in _code(file)
    }
    assert found == {}


def _code(file: Path) -> str:
    return "\n".join(line.partition("#")[0] for line in file.read_text().splitlines())


PLANS: dict[str, tuple[Callable[[], Any], str]] = {
    "a life": (lambda: statements.LIFE, "uq_conversations_living"),
    "a tombstone": (lambda: statements.TOMBSTONE, "ix_conversations_tombstones"),
    "the next change": (lambda: statements.ADVANCE, "ix_conversations_change"),
    "a message": (lambda: statements.MESSAGE, "sqlite_autoindex_messages_1"),
    "partial messages": (lambda: statements.SETTLE_PARTIAL, "ix_messages_partial"),
    "children": (lambda: statements.CHILDREN, "ix_conversations_children"),
    "a turn by token": (lambda: statements.GENERATION_OF_TOKEN, "sqlite_autoindex_generations_1"),
    "leases": (lambda: queries.LEASES, "ix_conversations_leased"),
    "the transcript": (lambda: queries.list_messages(descending=True), "sqlite_autoindex_messages_2"),
    "changed messages": (lambda: queries.CHANGED, "ix_messages_changed"),
    "the rest of one version's": (
        lambda: queries.CHANGED_AT,
        "ix_messages_changed (conversation_pk=? AND version=? AND rowid>?",
    ),
    "appended messages": (lambda: queries.APPENDED, "sqlite_autoindex_messages_2"),
    "the youngest that is known": (lambda: queries.YOUNGEST_KNOWN, "sqlite_autoindex_messages_2"),
    "waiting messages": (lambda: queries.WAITING, "sqlite_autoindex_messages_2"),
    "the log of turns": (lambda: queries.TURNS, "ix_generations_log"),
    "the list": (
        lambda: queries.list_conversations(Filters(None, roots=False, asked=frozenset(), by="changed")),
        "ix_conversations_list",
    ),
    "what has changed": (lambda: queries.LIST_CHANGED, "ix_conversations_list (owner=? AND change>? AND change<?"),
    "what is gone": (lambda: queries.LIST_GONE, "ix_conversations_gone (owner=? AND change>? AND change<?"),
    "the newest of an owner": (lambda: queries.OWN_CHANGES, "ix_conversations_gone"),
    "a key": (lambda: keys.FIND, "sqlite_autoindex_keys_1"),
    "the roots": (
        lambda: queries.list_conversations(Filters(None, roots=True, asked=frozenset(), by="changed")),
        "ix_conversations_list",
    ),
    "the newest": (
        lambda: queries.list_conversations(Filters(None, roots=False, asked=frozenset(), by="created")),
        "ix_conversations_created",
    ),
    "the children": (
        lambda: queries.list_conversations(Filters(None, roots=False, asked=frozenset({"parent_id"}), by="changed")),
        "ix_conversations_children",
    ),
    "the generating": (
        lambda: queries.list_conversations(Filters(True, roots=False, asked=frozenset(), by="changed")),
        "ix_conversations_leased",
    ),
    "the newest summary": (lambda: queries.NEWEST_SUMMARY, "ix_messages_summaries"),
    "a summary of what has changed": (lambda: statements.CHANGED_THROUGH, "ix_messages_changed"),
    "a summary of what came later": (lambda: statements.YOUNGEST_THROUGH, "sqlite_autoindex_messages_2"),
    "a covered beginning": (lambda: statements.COVERED_SINCE, "ix_messages_summaries"),
    "titles of forks": (lambda: statements.TITLES, "ix_conversations_title"),
    "what was used": (lambda: queries.usage("total", of_one=False, descendants=False), "ix_generations_used"),
}


@pytest.mark.parametrize("name", PLANS)
def test_statements_use_their_index_and_sort_nothing(plain: Store, path: Path, name: str) -> None:
    statement, index = PLANS[name]
    sql, constants = on_file(plain).statements[statement()]
    connection = sqlite3.connect(path)
    asked = dict.fromkeys(_parameters(sql), 1) | constants
    plan = " | ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, asked))
    connection.close()
    assert index in plan
    assert "SCAN messages" not in plan
    assert ("TEMP B-TREE" in plan) == (name in ("children", "the generating", "waiting messages", "what was used"))


def _parameters(sql: str) -> set[str]:
    import re

    return set(re.findall(r":(\w+)", sql))
