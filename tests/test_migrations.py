"""The schema: every revision up and down with data, models and migrations agree, failures and newer files leave no trace."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from sessionstore import Store, errors, migrate
from sessionstore.engine import sqlite3
from sessionstore.engines import migration
from sessionstore.schema import ONLY_IN, metadata
from sessionstore.sqlite.connections import path_of
from tests.conftest import TOKEN, Clock, Tables, reply, user

OURS = [table for table in metadata.tables.values() if table.info.get(ONLY_IN) != "postgresql"]
"""The tables of a file."""
ROOT = Path(__file__).parents[1]
REVISIONS = [script.revision for script in reversed(list(migrate.scripts().walk_revisions()))]


def schema_of(path: Path, *, kinds: tuple[str, ...] = ("table", "index")) -> dict[str, Any]:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE '%alembic%'").fetchall()
    connection.close()
    return {name: _normal(sql) for kind, name, sql in found if kind in kinds and not _is_of_the_index(name)}


def _is_of_the_index(name: str) -> bool:
    """What FTS5 keeps its index in is its own."""
    return name.startswith("search_") and name not in ("search_pending", "search_state", "search_texts")


def _normal(sql: str | None) -> Any:
    """A statement as a set of its parts: the order of columns and constraints says nothing."""
    if sql is None:
        return None
    head, _, rest = sql.partition("(")
    # A column that was added later stands in the line of the one before it.
    lines = re.sub(r", (\w+ (?:INTEGER|TEXT)\b)", r"\n\1", rest.replace("\t", " ")).split("\n")
    parts = (" ".join(line.strip().rstrip(",").split()) for line in lines)
    return (" ".join(head.split()), frozenset(part for part in parts if part))


def populate(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock) as store:
        store.create("parent", messages=[user("hi", "m"), user("two")])
        store.create("child", parent_id="parent", metadata={"a": 1})
        store.acquire("child", "w", token=TOKEN)
        store.put("child", reply("half", "r", status="partial"), token=TOKEN)
        store.fork("parent", "fork")
        store.create("gone")
        store.delete("gone")


def test_models_and_migrations_build_the_same_schema(path: Path, tmp_path: Path) -> None:
    built = tmp_path / "models.db"
    engine = create_engine(f"sqlite:///{built}")
    metadata.create_all(engine, OURS)
    engine.dispose()
    migrated = schema_of(path)
    del migrated["search"]
    assert migrated == schema_of(built)


def test_alembic_itself_sees_no_difference(url: str) -> None:
    config = Config(ROOT / "alembic.ini")
    with migration(url) as connection:
        config.attributes["connection"] = connection
        command.check(config)


def test_every_table_is_strict_and_every_constraint_has_a_name(path: Path) -> None:
    for table in (one.name for one in OURS):
        sql = Tables(path).one("SELECT sql FROM sqlite_master WHERE name = ?", table)
        assert sql.rstrip().endswith("STRICT")
        unnamed = [line for line in sql.split("\n") if line.strip().startswith(("CHECK", "UNIQUE", "FOREIGN", "PRIMARY"))]
        assert unnamed == []


def test_every_revision_goes_down_and_up_again_on_populated_data(url: str, path: Path, clock: Clock) -> None:
    populate(url, clock)
    newest = schema_of(path, kinds=("table", "index", "view"))
    for revision in reversed(REVISIONS):
        below = migrate.scripts().get_revision(revision).down_revision or "base"
        assert isinstance(below, str)
        migrate.downgrade(url, below)
        migrate.upgrade(url, revision)
        assert Tables(path).rows("PRAGMA foreign_key_check") == []
    migrate.upgrade(url)
    assert schema_of(path, kinds=("table", "index", "view")) == newest
    populate(url, clock)


def test_a_table_rebuild_keeps_the_children_and_the_checks(url: str, path: Path, clock: Clock) -> None:
    """Batch mode with foreign keys on would delete them, silently (facts, 2.7)."""
    from alembic.operations import Operations

    populate(url, clock)
    before, schema = Tables(path).everything(), schema_of(path)
    with migration(url) as connection:
        operations = Operations(MigrationContext.configure(connection, opts={"target_metadata": metadata}))
        with operations.batch_alter_table("conversations", recreate="always"):
            pass
    assert Tables(path).everything() == before
    assert set(schema_of(path)) == set(schema)
    with pytest.raises(sqlite3.IntegrityError):
        sqlite3.connect(path).execute("UPDATE conversations SET version = 0")


def test_a_migration_that_raises_leaves_schema_and_revision_as_before(url: str, path: Path, clock: Clock) -> None:
    populate(url, clock)
    before, schema = Tables(path).everything(), schema_of(path)
    with pytest.raises(RuntimeError), migration(url) as connection:
        connection.exec_driver_sql("CREATE TABLE half (a)")
        connection.exec_driver_sql("DELETE FROM messages")
        raise RuntimeError
    assert (Tables(path).everything(), schema_of(path)) == (before, schema)


def test_a_migration_that_breaks_references_is_rolled_back(url: str, path: Path, clock: Clock) -> None:
    populate(url, clock)
    before = Tables(path).everything()
    with pytest.raises(errors.DatabaseUnusable, match="refer to nothing"), migration(url) as connection:
        connection.exec_driver_sql("DELETE FROM conversations")
    assert Tables(path).everything() == before


def test_f2_a_newer_database_is_refused_and_left_untouched(url: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'from the future'")
    connection.commit()
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    before = path.read_bytes()
    for migrate_first in (True, False):
        with pytest.raises(errors.SchemaAhead):
            Store.open(url, migrate_first=migrate_first)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_database_without_schema_is_refused_unless_told_to_migrate(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with pytest.raises(errors.DatabaseUnusable):
        Store.open(url)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new.db").touch()
    with pytest.raises(errors.SchemaBehind):
        Store.open(url)
    Store.open(url, migrate_first=True).close()
    assert not migrate.upgrade(url)


def test_f3_a_locked_file_is_busy_and_stays_the_same_file(url: str, path: Path) -> None:
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("PRAGMA locking_mode=EXCLUSIVE")
    rival.execute("BEGIN EXCLUSIVE")
    inode = path.stat().st_ino
    with pytest.raises(errors.Busy):
        Store.open(url, busy_timeout_ms=100)
    rival.close()
    assert path.stat().st_ino == inode
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}


OPEN_AND_APPEND = """
import sys
from sessionstore import Draft, Store
url, name = sys.argv[1:]
sys.stdin.readline()
with Store.open(url, migrate_first=True) as store:
    try:
        store.create("c")
    except Exception as error:
        print(type(error).__name__)
    store.append("c", [Draft(role="user", content=name)])
"""


def test_f1_eight_processes_open_migrate_and_append_at_once(tmp_path: Path) -> None:
    for round in range(2):
        url = f"sqlite:///{tmp_path}/round{round}.db"
        arguments = [sys.executable, "-c", OPEN_AND_APPEND, url]
        processes = [
            subprocess.Popen([*arguments, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for n in range(8)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        results = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0] * 8, results
        tables = Tables(path_of(url))
        assert {row[0] for row in tables.rows("SELECT content FROM messages")} == {f'"{n}"' for n in range(8)}
        assert tables.rows("SELECT version_num FROM alembic_version") == [(REVISIONS[-1],)]


def test_the_alembic_command_works_in_the_checkout(empty: str, tmp_path: Path) -> None:
    url = empty
    run = [sys.executable, "-m", "alembic", "-c", str(ROOT / "alembic.ini"), "-x", f"url={url}"]
    for arguments in (["upgrade", "head"], ["check"], ["upgrade", "head", "--sql"]):
        done = subprocess.run([*run, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    Store.open(url).close()


def test_the_views_speak_to_people(url: str, path: Path, clock: Clock) -> None:
    populate(url, clock)
    tables = Tables(path)
    states = dict(tables.rows("SELECT id, state FROM v_conversations"))
    # The tests' clock stands in the year 2027, so to the database's own clock this lease is far ahead of its time to live.
    assert states == {"parent": "idle", "child": "expired", "fork": "idle", "gone": "deleted"}
    assert tables.rows("SELECT conversation_id, position, role, content FROM v_transcripts WHERE message_id = 'r'") == [
        ("child", 0, "assistant", '"half"')
    ]
    assert tables.one("SELECT created_at FROM v_conversations WHERE id = 'parent'") == "2027-01-15T08:00:00.000Z"
    assert tables.rows("SELECT conversation_id, holder, state FROM v_leases") == [("child", "w", "expired")]
    assert tables.rows("SELECT conversation_id, generation, outcome FROM v_generations") == [("child", 1, None)]
    assert tables.rows("SELECT * FROM v_inputs") == []
    contexts = tables.rows("SELECT conversation_id, message_id FROM v_contexts WHERE conversation_id = 'parent'")
    assert contexts[0] == ("parent", "m")


def test_a_context_is_the_newest_summary_and_what_follows_it(url: str, path: Path, clock: Clock) -> None:
    with Store.open(url, clock=clock) as store:
        store.create("c", messages=[user(n) for n in range(6)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE messages SET summary_through = 1 WHERE position = 3")
    connection.execute("UPDATE messages SET summary_through = 2 WHERE position = 4")
    connection.commit()
    connection.close()
    assert [row[0] for row in Tables(path).rows("SELECT position FROM v_contexts")] == [4, 5]


INSERTS = {
    "a lease without a token": "UPDATE conversations SET generation = 1",
    "half a fork": "UPDATE conversations SET forked_from_id = 'x'",
    "a tombstone with a title": "UPDATE conversations SET deleted_at = 1, title = 'x'",
    "a negative count": "UPDATE conversations SET message_count = -1",
    "an unknown status": "UPDATE messages SET status = 'lost'",
    "an unknown mode": "UPDATE messages SET mode = 'shout'",
    "a deleted message with content": "UPDATE messages SET status = 'deleted'",
    "a message without content": "UPDATE messages SET content = NULL",
    "a queued message with a place": "UPDATE messages SET status = 'queued'",
    "a message without a place": "UPDATE messages SET position = NULL",
    "a version before the first": "UPDATE messages SET version = 0",
    "an end without an outcome": "UPDATE generations SET ended_at = 1",
    "an unknown outcome": "UPDATE generations SET ended_at = 1, outcome = 'shrug'",
    "a message of nobody": "UPDATE messages SET conversation_pk = 99",
    "a second life of one id": "UPDATE conversations SET id = 'same'",
    "a text where a number belongs": "UPDATE messages SET created_at = 'now'",
}


@pytest.mark.parametrize("name", INSERTS)
def test_the_database_refuses_what_may_not_be(url: str, path: Path, clock: Clock, name: str) -> None:
    populate(url, clock)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys=ON")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(INSERTS[name])
    connection.close()


def test_the_newest_revision_is_known_without_reading_the_scripts() -> None:
    assert migrate.scripts().get_current_head() == migrate.HEAD


def test_opening_a_current_database_needs_no_alembic(url: str) -> None:
    """It is a third of what starting costs."""
    opened = f"Store.open({url!r}, migrate_first=True).close()"
    code = f"import sys; from sessionstore import Store; {opened}; print('alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
