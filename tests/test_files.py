"""Where a database may lie, whose it may be, and what is noticed when its files are taken away."""

import logging
import os
import shutil
import sqlite3 as codes
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionstore import Store, errors, migrate
from sessionstore.engine import sqlite3
from sessionstore.items import Lane, ThreadItem
from sessionstore.sqlite import connections, files, log, opened, room
from sessionstore.sqlite.connections import ImmediateSQLite
from sessionstore.sqlite.database import SQLiteDatabase
from sessionstore.sqlite.room import Room
from tests.conftest import Clock, Tables, on_file, user
from tests.test_database import _sqlite_error

pytestmark = [pytest.mark.any_sql, pytest.mark.one_file]
CONNECT = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
TOUCH = CONNECT + "c.execute('SELECT count(*) FROM conversations').fetchone(); c.close()"
SEEN = """
print(*c.execute("PRAGMA integrity_check").fetchone())
print(*(row[0].strip(chr(34)) for row in c.execute("SELECT content FROM messages ORDER BY pk")))
"""


def elsewhere(program: str, *arguments: Any, **options: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=60, **options
    )
    return done.stdout


def refusal(url: str) -> str:
    refusals = []
    for opening in (Store.open, lambda url: Store.open(url, migrate_first=True), SQLiteDatabase):
        with pytest.raises(errors.DatabaseUnusable) as refused:
            opening(url)
        refusals.append(str(refused.value))
    assert len(set(refusals)) == 1
    assert "\n" not in refusals[0]
    return refusals[0]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_symbolic_links_are_refused(path: Path, url: str, tmp_path: Path, suffix: str) -> None:
    link = Path(f"{path}{suffix}")
    elsewhere_ = tmp_path / "elsewhere"
    if not suffix:
        path.rename(elsewhere_)
    link.symlink_to(elsewhere_)
    assert "symbolic link" in refusal(url)


def test_a_file_with_two_names_is_refused(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would have a log of its own (SQLite, "How to corrupt", §2.5)."""
    monkeypatch.setattr(files, "NAMED_TWICE_SECONDS", 0.01)
    path.with_name("other.db").hardlink_to(path)
    assert "another name" in refusal(url)
    path.with_name("other.db").unlink()
    Store.open(url).close()


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_is_read_only_is_refused_also_for_root(path: Path, url: str, which: str) -> None:
    target = path if which == "file" else path.parent
    target.chmod(0o400 if which == "file" else 0o500)
    try:
        assert "read-only" in refusal(url)
    finally:
        target.chmod(0o700)


AS_ANOTHER_USER = """
import os, sys
sys.path[:0] = sys.argv[2:]
from sessionstore import Store, errors
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Store.open(f"sqlite:///{sys.argv[1]}")
except errors.DatabaseUnusable as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_file_is_refused(path: Path) -> None:
    # Not in pytest's folder, which each of its sessions closes to others again.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        shared = Path(shutil.copy(path, folder))
        shared.chmod(0o666)
        said = elsewhere(AS_ANOTHER_USER, shared, *sys.path, cwd="/")
    assert "belongs to another user (0)" in said
    assert said.count("\n") == 1


def mounts(tmp_path: Path, *lines: tuple[Path, str]) -> Path:
    table = tmp_path / "mountinfo"
    text = "".join(f"36 35 98:0 / {str(point).replace(' ', chr(92) + '040')} rw - {kind} source rw\n" for point, kind in lines)
    table.write_text(text)
    return table


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_network_file_systems_are_refused(path: Path, url: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(files, "MOUNTS", mounts(path.parent, (Path("/"), "ext4"), (path.parent, kind)))
    assert f"network file system ({kind})" in refusal(url)


def test_the_mount_that_lies_above_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below, spaced = tmp_path / "below", tmp_path / "with space"
    lines = ((below, "nfs"), (below, "tmpfs"), (spaced, "xfs"), (Path("/"), "ext4"))
    monkeypatch.setattr(files, "MOUNTS", mounts(tmp_path, *lines))
    found = [files.file_system_of(folder / "x.db") for folder in (tmp_path, below, spaced, tmp_path / "below-no-more")]
    assert found == ["ext4", "tmpfs", "xfs", "ext4"]
    monkeypatch.setattr(files, "MOUNTS", mounts(tmp_path, (Path("/"), "ext4"), (Path("/odd\x85name"), "nfs")))
    assert files.file_system_of(tmp_path) == "ext4"
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "nothing says so")
    assert files.file_system_of(tmp_path) is None


def test_an_empty_file_beside_its_log_is_refused_and_both_are_kept(path: Path, url: str) -> None:
    """SQLite would take it for a new database and delete the log."""
    log = Path(f"{path}-wal")
    log.write_bytes(b"all that was said")
    os.truncate(path, 0)
    assert "restore a backup" in refusal(url)
    path.unlink()
    with pytest.raises(errors.DatabaseUnusable, match="a log of one"):
        Store.open(url, migrate_first=True)
    assert log.read_bytes() == b"all that was said"
    assert not path.exists()


def damage(path: Path, at: int, text: bytes) -> bytes:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(text)
    return path.read_bytes()


@pytest.mark.parametrize(("at", "text"), [(0, b"SQLite format 4\0"), (100, b"\xff" * 200), (16, b"\x00\x03")])
def test_a_corrupt_file_is_refused_and_never_replaced(path: Path, url: str, at: int, text: bytes) -> None:
    before = damage(path, at, text)
    for migrate_first in (False, True):
        with pytest.raises(errors.NotADatabase):
            Store.open(url, migrate_first=migrate_first)
    assert path.read_bytes() == before
    assert {entry.name for entry in path.parent.iterdir() if entry.name.endswith((".db", "-wal"))} == {path.name}


def test_a_page_that_went_bad_is_told_by_the_call_that_meets_it(path: Path, url: str, plain: Store) -> None:
    plain.create("c", messages=[user("x" * 20_000, "m")])
    plain.create("other")
    plain.close()
    root = Tables(path).one("SELECT rootpage FROM sqlite_master WHERE name = 'messages'")
    damage(path, (root - 1) * Tables(path).one("PRAGMA page_size"), b"\xff" * 512)
    with Store.open(url) as store:
        for call in (lambda: store.messages("c"), lambda: store.append("c", [user("y")])):
            with pytest.raises(errors.NotADatabase, match="damaged"):
                call()
        assert store.get("other").id == "other"


def as_others_see_it(path: Path) -> str:
    """Not from this process, whose engine still has the lost log's index."""
    return " ".join(elsewhere(CONNECT + SEEN, path).split())


THEIRS = """
import sys
from sessionstore import Draft, Store
with Store.open(sys.argv[1]) as store:
    store.append("c", [Draft(role="user", content="theirs")])
"""


def test_a_log_that_was_unlinked_under_us_is_noticed(plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open and close the file drops SQLite's locks: the next process takes itself for the last one (facts, 1.10)."""
    # With the very next commit, and not when it is time to look.
    monkeypatch.setattr(opened, "LOOK_EVERY_SECONDS", 3_600)
    plain.create("c", messages=[user("kept")])
    path.open("rb").close()
    elsewhere(TOUCH, path)
    assert not Path(f"{path}-wal").exists()
    with pytest.raises(errors.OutcomeUnknown):
        plain.append("c", [user("written to nowhere")])
    for call in (plain.check_ready, lambda: plain.get("c"), lambda: plain.append("c", [user("x")])):
        with pytest.raises(errors.StorageFailed, match="removed while it was in use"):
            call()
    assert as_others_see_it(path) == "ok kept"


def test_what_was_lost_is_not_copied_back_over_what_others_wrote(url: str, path: Path, clock: Clock) -> None:
    store = Store.open(url, clock=clock)
    store.create("c", messages=[user("kept")])
    path.open("rb").close()
    elsewhere(TOUCH, path)
    elsewhere(THEIRS, url)
    with pytest.raises(errors.OutcomeUnknown):
        store.append("c", [user("ours")])
    store.close()
    assert as_others_see_it(path) == "ok kept theirs"


TAKE_AWAY = """
import os, sys
for suffix in ("-wal", "-shm"):
    os.unlink(sys.argv[1] + suffix)
"""


def taken_away(path: Path, url: str) -> None:
    """Log and index are deleted, and another process begins new ones."""
    elsewhere(TAKE_AWAY, path)
    elsewhere(THEIRS, url)


@pytest.mark.parametrize("looking", ["get", "check_ready", "append", "backup"])
def test_who_has_only_read_notices_it_too(
    plain: Store, url: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, looking: str
) -> None:
    """He would take the new log for the one that he knows, and write into both (review)."""
    # Who writes for the first time looks because his connection is a new one.
    monkeypatch.setattr(opened, "LOOK_EVERY_SECONDS", 3_600 if looking == "append" else 0)
    plain.create("c", messages=[user("kept")])
    plain.close()
    with Store.open(url, clock=clock) as store:
        store.get("c")
        taken_away(path, url)
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: store.get("c"),
            "check_ready": store.check_ready,
            "append": lambda: store.append("c", [user("ours")]),
            "backup": lambda: store.backup(tmp_path / "backups"),
        }
        with pytest.raises(errors.StorageFailed, match="replaced"):
            calls[looking]()
        with pytest.raises(errors.StorageFailed):
            store.get("c")
    assert as_others_see_it(path) == "ok kept theirs"


def test_who_closes_without_having_noticed_copies_nothing_back(url: str, path: Path, clock: Clock) -> None:
    store = Store.open(url, clock=clock)
    store.create("c", messages=[user("kept")])
    elsewhere(TOUCH, path)
    for number in range(20):
        store.append("c", [user(f"in the lost log {number}" * 100)])
    taken_away_before = Path(f"{path}-wal").stat().st_size
    assert taken_away_before
    elsewhere(TAKE_AWAY, path)
    elsewhere("import sys; from sessionstore import Store\nwith Store.open(sys.argv[1]) as s: s.create('theirs')", url)
    store.close()
    assert "theirs" in elsewhere(CONNECT + "print(*c.execute('SELECT id FROM conversations'))", path)
    assert as_others_see_it(path).split()[0] == "ok"


def test_a_process_that_has_lost_a_log_cannot_open_that_file_again(plain: Store, url: str, path: Path) -> None:
    """It still has the lost log's index, and would mix the two (review)."""
    plain.create("c", messages=[user("kept")])
    plain.close()
    store = Store.open(url)
    store.label("c", title="lost")
    taken_away(path, url)
    with pytest.raises(errors.OutcomeUnknown):
        store.append("c", [user("ours")])
    store.close()
    for opening in (Store.open, lambda url: SQLiteDatabase(url).facts()):
        with pytest.raises(errors.DatabaseUnusable, match="start"):
            opening(url)
    assert as_others_see_it(path) == "ok kept theirs"


def test_who_opens_a_file_again_expects_nothing_of_its_last_log(plain: Store, url: str, path: Path) -> None:
    plain.create("c")
    plain.close()
    assert not Path(f"{path}-wal").exists()
    for number in range(10):
        path.with_name(f"takes the log's number {number}").touch()
    with Store.open(url) as store:
        assert store.append("c", [user("x")]).value[0].position == 0
        assert store.check_ready()


def test_a_connection_that_is_given_up_is_no_lost_log(plain: Store, path: Path) -> None:
    """After a failed ROLLBACK it is closed, and if it was the last one, the log goes with it (review)."""
    plain.create("c")
    on_file(plain)._reads.dispose()
    on_file(plain)._writer._checked_out.invalidate()
    on_file(plain)._writer._connection = None
    assert not Path(f"{path}-wal").exists()
    Path(path.with_name("takes the number")).touch()
    assert plain.check_ready()
    assert plain.append("c", [user("x")]).value[0].position == 0
    assert plain.check_ready()


def test_a_new_connection_looks_before_it_is_used(
    plain: Store, url: str, path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(opened, "LOOK_EVERY_SECONDS", 3_600)
    plain.create("c", messages=[user("kept")])
    plain.close()
    with Store.open(url, clock=clock) as store:
        store.get("c")
        taken_away(path, url)
        with pytest.raises(errors.StorageFailed), store.database.pulse():
            raise AssertionError


def test_a_database_without_a_log_gets_one_from_the_first_who_writes(plain: Store, path: Path, url: str, clock: Clock) -> None:
    """A backup that was put in its place by hand, say, which is in no log's mode."""
    plain.create("c", messages=[user("kept")])
    plain.close()
    elsewhere(CONNECT + "c.execute('PRAGMA journal_mode=DELETE')", path)
    with Store.open(url, clock=clock) as store, Store.open(url, clock=clock) as other:
        assert store.get("c").message_count == 1
        store.append("c", [user("more")])
        other.append("c", [user("and more")])
        store.check_ready()
    assert as_others_see_it(path) == "ok kept more and more"


def test_two_stores_of_one_process_share_one_log(url: str, path: Path, clock: Clock) -> None:
    first, second = Store.open(url, clock=clock), Store.open(url, clock=clock)
    first.create("c")
    second.append("c", [user("one")])
    first.close()
    second.append("c", [user("two")])
    second.close()
    assert opened._opened.get(opened._identity(path) or (0, 0)) is None
    with Store.open(url, clock=clock) as again:
        assert again.get("c").message_count == 2


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_database_that_was_taken_away_is_noticed(plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(opened, "LOOK_EVERY_SECONDS", 0)
    plain.create("c")
    plain.create("d")
    if how == "removed":
        path.rename(path.with_name("moved.db"))
    else:
        path.with_name("other.db").write_bytes(b"")
        path.with_name("other.db").rename(path)
    with pytest.raises(errors.OutcomeUnknown):
        plain.append("c", [user("x")])
    with pytest.raises(errors.StorageFailed, match=how):
        plain.check_ready()


def test_an_idle_reader_makes_the_log_grow_with_an_alarm_and_it_shrinks_when_he_has_left(
    plain: Store, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "LOG_ALARM_BYTES", 3 * log.LOG_LIMIT_BYTES)
    plain.create("c")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchone()
    with caplog.at_level(logging.WARNING):
        for _ in range(16):
            plain.append("c", [user("x" * 900_000)])
    assert on_file(plain).log_bytes() > log.LOG_ALARM_BYTES
    assert len([record for record in caplog.records if "somebody has been reading" in record.message]) == 1
    assert plain.check_ready().log_bytes == on_file(plain).log_bytes()
    reader.close()
    for _ in range(5):
        plain.append("c", [user("x" * 1_500_000)])
    assert on_file(plain).log_bytes() <= 2 * log.LOG_LIMIT_BYTES


# Another schema --------------------------------------------------------------------------------------------------------


def upgrade(path: Path, revision: str, statement: str = "CREATE TABLE more (x INTEGER)") -> None:
    """What a newer version's migration does."""
    program = """
c.execute("BEGIN IMMEDIATE")
c.execute(sys.argv[3])
c.execute("UPDATE alembic_version SET version_num = ?", (sys.argv[2],))
c.execute("COMMIT")
c.close()
"""
    elsewhere(CONNECT + program, path, revision, statement)


def test_a_store_whose_file_was_migrated_writes_nothing_more(plain: Store, path: Path, tables: Tables) -> None:
    plain.create("c", messages=[user("before")])
    upgrade(path, "9999")
    with pytest.raises(errors.SchemaChanged, match="9999") as refused:
        plain.append("c", [user("after")])
    assert refused.value.retryable
    for call in (lambda: plain.get("c"), plain.check_ready, lambda: plain.append("c", [user("x")])):
        with pytest.raises(errors.SchemaChanged):
            call()
    assert tables.one("SELECT count(*) FROM messages") == 1


def test_a_store_whose_file_was_migrated_reads_nothing_more(plain: Store, path: Path) -> None:
    plain.create("c")
    upgrade(path, "9999")
    for call in (lambda: plain.get("c"), lambda: plain.append("c", [user("after")])):
        with pytest.raises(errors.SchemaChanged):
            call()


@pytest.mark.parametrize("done", ["rows alone", "no revision at all"])
def test_a_migration_that_leaves_the_schema_as_it_is_is_noticed(plain: Store, url: str, path: Path, done: str) -> None:
    plain.create("c")
    if done == "rows alone":
        program = """
import sys
from sessionstore.sqlite.connections import migration
with migration(sys.argv[1]) as connection:
    connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
"""
        elsewhere(program, url)
    else:
        elsewhere(CONNECT + "c.execute('DROP TABLE alembic_version')", path)
    for _ in range(2):
        with pytest.raises(errors.SchemaChanged):
            plain.append("c", [user("after")])


def test_somebodys_own_table_is_no_other_schema(plain: Store, path: Path) -> None:
    plain.create("c")
    upgrade(path, migrate.HEAD)
    assert plain.append("c", [user("after")]).value[0].position == 0
    assert plain.get("c").message_count == 1


# Company -----------------------------------------------------------------------------------------------------------------


def test_litestream_beside_an_affected_engine_is_refused(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checkpoints by itself, and such an engine does not survive that (DESIGN.md, rule 9)."""
    left = path.with_name(".store.db-litestream")
    with Store.open(url) as store:
        left.mkdir()
        monkeypatch.setattr(connections, "engine_fault", lambda: None)
        Store.open(url).close()
        monkeypatch.setattr(connections, "engine_fault", lambda: "SQLite 3.40.1 is known for it")
        with pytest.raises(errors.DatabaseUnusable) as refused:
            Store.open(url)
        assert "Litestream" in str(refused.value)
        assert str(left) in str(refused.value)
        left.rmdir()
        store.check_ready()


def test_who_is_ready_notices_litestream(path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "engine_fault", lambda: "SQLite 3.40.1 is known for it")
    with Store.open(url) as store:
        path.with_name(".store.db-litestream").mkdir()
        with pytest.raises(errors.DatabaseUnusable, match="Litestream"):
            store.check_ready()


# Room --------------------------------------------------------------------------------------------------------------------


class Disk:
    """A disk on which commits find room, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.free, self.tried, self.now = True, 1_000, 0, 100.0
        do_commit = ImmediateSQLite.do_commit

        def commit(dialect: ImmediateSQLite, connection: Any) -> None:
            self.tried += 1
            if self.full:
                raise _sqlite_error(codes.SQLITE_FULL)
            do_commit(dialect, connection)

        monkeypatch.setattr(ImmediateSQLite, "do_commit", commit)
        monkeypatch.setattr(Room, "_free", lambda _: self.free)
        monkeypatch.setattr("sessionstore.sqlite.room.time.monotonic", lambda: self.now)


@pytest.fixture
def disk(plain: Store, monkeypatch: pytest.MonkeyPatch) -> Disk:
    plain.create("c")
    found = Disk(monkeypatch)
    with pytest.raises(errors.OutcomeUnknown):
        plain.append("c", [user("no room")])
    return found


def refused_in_both_ways(store: Store) -> None:
    """In the caller's own thread, and in the writer's."""
    with pytest.raises(errors.DiskFull):
        store.append("c", [user("x")])
    item = ThreadItem(lambda _: None, Lane.GROUPED, ("c",), 0, 10, None)
    with pytest.raises(errors.DiskFull):
        on_file(store)._groups.run(item)


def test_once_the_disk_was_full_nothing_is_tried_and_nothing_is_unknown(plain: Store, disk: Disk) -> None:
    tried = disk.tried
    for _ in range(3):
        refused_in_both_ways(plain)
    assert disk.tried == tried
    assert plain.get("c").message_count == 0


def test_as_soon_as_there_is_more_room_it_is_tried_again(plain: Store, disk: Disk) -> None:
    disk.full = False
    refused_in_both_ways(plain)
    disk.free += room.MORE_BYTES
    assert plain.append("c", [user("room")]).value[0].position == 0
    assert plain.append("c", [user("more")]).value[0].position == 1


def test_after_a_second_it_is_tried_whatever_the_disk_says_and_however_many_asked(plain: Store, disk: Disk) -> None:
    disk.now += room.TRY_AGAIN_SECONDS - 0.1
    refused_in_both_ways(plain)
    disk.now += 0.2
    with pytest.raises(errors.OutcomeUnknown):
        plain.append("c", [user("still no room")])
    disk.full, disk.now = False, disk.now + room.TRY_AGAIN_SECONDS
    assert plain.append("c", [user("room")]).value[0].position == 0
