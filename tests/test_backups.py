"""Backups while everybody writes, what is refused as one, and what a restored database begins anew."""

import errno
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessionstore
from sessionstore import Store, errors, migrate
from sessionstore.engine import sqlite3
from sessionstore.sqlite import backups, connections, copies, files, opened
from sessionstore.sqlite.writer import Writer
from tests.conftest import TOKEN, Clock, Tables, faults, on_file, reply, texts, user

pytestmark = [pytest.mark.any_sql, pytest.mark.one_file]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/restored/store.db"


@pytest.fixture
def filled(plain: Store) -> Store:
    plain.create("garden", messages=[user("basil", "m"), reply("four packets", "r")])
    plain.create("child", parent_id="garden")
    plain.acquire("child", "worker", token=TOKEN)
    plain.put("child", reply("half", "p", status="partial"), token=TOKEN)
    plain.queue_inputs("child", [user("wait", "q")])
    plain.create("gone", messages=[user("to be forgotten")])
    plain.delete("gone")
    # So that the index knows what is there.
    assert plain.purge()
    return plain


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def contents(path: Path) -> list[Any]:
    joined = "messages m JOIN conversations c ON c.pk = m.conversation_pk"
    return Tables(path).rows(f"SELECT c.id, m.id, m.position, m.content FROM {joined} ORDER BY 1, 3, 2")


def test_a_backup_is_whole_private_and_alone(filled: Store, path: Path, folder: Path) -> None:
    old = os.umask(0)
    try:
        made = filled.backup(folder)
    finally:
        os.umask(old)
    found = Path(made.file)
    assert re.fullmatch(r"store-[0-9a-f]{6}-\d{8}T\d{6}\.\d{3}Z\.db", found.name)
    assert [entry.name for entry in folder.iterdir()] == [found.name]
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert made.bytes == found.stat().st_size
    assert contents(found) == contents(path)
    assert made.faults == copies.damage(found) == []
    assert b"to be forgotten" not in found.read_bytes()


def test_a_backup_while_others_write_has_all_that_was_acknowledged_before(plain: Store, folder: Path) -> None:
    """Each of 16 writers appends until the backup is done; what it had acknowledged before the backup began is in there."""
    acknowledged, done = [0] * 16, threading.Event()
    started = threading.Barrier(17)

    def write(number: int) -> None:
        id = f"c{number}"
        plain.create(id)
        started.wait()
        while not done.is_set():
            plain.append(id, [user(acknowledged[number])])
            acknowledged[number] += 1

    writers = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    started.wait()
    while min(acknowledged) < 3:
        pass
    for _ in range(3):
        before = list(acknowledged)
        made = plain.backup(folder)
        counts = dict(Tables(Path(made.file)).rows("SELECT id, message_count FROM conversations"))
        assert all(counts[f"c{number}"] >= before[number] for number in range(16))
        assert faults(Path(made.file)) == []
        Path(made.file).unlink()
    done.set()
    for writer in writers:
        writer.join()


def test_the_newest_are_kept_and_what_is_not_ours_is_left_alone(filled: Store, folder: Path, clock: Clock) -> None:
    made = []
    for _ in range(4):
        clock.advance(1)
        made.append(filled.backup(folder))
    others = [folder / name for name in ("store-notes.db", "other-20261201T013940.123Z.db", "store-20261201T013940.123Z.db.gz")]
    for other in others:
        other.touch()
    clock.advance(1)
    last = filled.backup(folder, keep=2)
    assert last.removed == 3
    assert {entry.name for entry in folder.iterdir()} == {
        Path(made[-1].file).name,
        Path(last.file).name,
        *(o.name for o in others),
    }


@pytest.mark.parametrize("keep", [0, -1, "2"])
def test_a_number_to_keep_is_checked(filled: Store, folder: Path, keep: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        filled.backup(folder, keep=keep)
    assert not folder.exists()


def test_a_backup_of_a_damaged_database_is_none(filled: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "damage", lambda _: ["row 1 missing from index"])
    with pytest.raises(errors.BackupUnusable, match="row 1 missing"):
        filled.backup(folder)
    assert list(folder.iterdir()) == []


def test_a_broken_invariant_stops_no_backup_and_no_restore(
    filled: Store, path: Path, folder: Path, target: str, clock: Clock
) -> None:
    """A job that makes backups at night would make none, and what it had made could not be used (review)."""
    change(path, "UPDATE conversations SET message_count = 7 WHERE id = 'garden'")
    made = filled.backup(folder)
    assert made.faults == ["counts: counts 7 and 0, has 2 and 0"]
    assert sessionstore.restore(made.file, target, clock=clock).faults == made.faults
    with Store.open(target, clock=clock) as store:
        assert len(store.repair()) == 1
        assert texts(store, "garden") == ["basil", "four packets"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(OSError(errno.ENOSPC, "No space"), errors.DiskFull), (OSError(errno.EIO, "x"), errors.DatabaseUnusable)],
)
def test_a_backup_that_fails_leaves_nothing(
    filled: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, raised: OSError, expected: type[Exception]
) -> None:
    def fails(_: Path) -> None:
        raise raised

    monkeypatch.setattr(copies, "sync", fails)
    with pytest.raises(expected):
        filled.backup(folder)
    assert list(folder.iterdir()) == []


def test_a_backup_is_never_replaced(filled: Store, folder: Path) -> None:
    """The clock stands still, so both have the same name."""
    made = Path(filled.backup(folder).file)
    before = made.read_bytes()
    with pytest.raises(errors.DatabaseUnusable, match="File exists"):
        filled.backup(folder)
    assert made.read_bytes() == before


def test_what_a_backup_left_that_died_half_way_is_removed(filled: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not what another one works in, nor what was made only just now."""
    left, fresh, used = (folder / f"{backups.WORKPLACE}{name}" for name in ("left", "fresh", "used"))
    for one in (left, fresh, used):
        one.mkdir(parents=True)
        (one / "backup.db").touch()
    for one in (left, used):
        os.utime(one, (1, 1))
    with backups._locked(used):
        os.utime(used, (1, 1))
        filled.backup(folder)
    assert sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) == sorted([fresh.name, used.name])


def test_a_folder_that_cannot_be_written_is_one_clear_line(filled: Store, path: Path) -> None:
    with pytest.raises(errors.DatabaseUnusable) as refused:
        filled.backup(path / "in-a-file")
    assert "\n" not in str(refused.value)


# Restore ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def backup(filled: Store, folder: Path) -> Path:
    return Path(filled.backup(folder).file)


@pytest.fixture
def restored(backup: Path, target: str, clock: Clock) -> Iterator[Store]:
    done = sessionstore.restore(backup, target, clock=clock)
    assert stat.S_IMODE(Path(done.file).stat().st_mode) == 0o600
    with Store.open(target, clock=clock) as store:
        yield store
        assert faults(Path(done.file)) == []


def test_what_is_restored_is_what_was_backed_up(restored: Store, path: Path, backup: Path) -> None:
    assert contents(on_file(restored).path) == contents(path) == contents(backup)
    assert texts(restored, "garden") == ["basil", "four packets"]
    assert restored.get("child").parent_id == "garden"
    for within in (None, "garden"):
        assert [found.message.id for found in restored.search("packets", conversation_id=within).items] == ["r"]
    assert [entry.name for entry in on_file(restored).path.parent.iterdir() if entry.name.startswith(".")] == []


def test_what_was_being_generated_is_interrupted(restored: Store, filled: Store) -> None:
    """Its holder went on after the backup was made: nothing of his is taken any more."""
    assert filled.finish("child", token=TOKEN).value.conversation.generation is None
    child = restored.get("child")
    assert (child.generation, child.last_generation.outcome if child.last_generation else None) == (None, "interrupted")
    assert restored.message("child", "p").status == "interrupted"
    with pytest.raises(errors.LeaseLost):
        restored.put("child", reply("too late", "p"), token=TOKEN)


def test_nothing_seen_since_the_backup_is_taken_for_what_was_restored(restored: Store, filled: Store, clock: Clock) -> None:
    seen = filled.get("garden")
    for number in range(3):
        filled.append("garden", [user(f"after the backup {number}")])
    later = filled.get("garden")
    new = filled.create("new").value.conversation
    fence = filled.acquire("new", "worker").value.generation

    for number in range(9):
        restored.append("garden", [user(f"after the restore {number}")])
    for known in (seen, later):
        with pytest.raises(errors.ConversationDeleted):
            restored.append("garden", [user("x")], incarnation=known.incarnation)
        with pytest.raises(errors.PreconditionFailed):
            restored.append("garden", [user("x")], if_match=known.tag)
        assert restored.changes("garden", known.tag).reset
    assert restored.create("new").value.conversation.incarnation > new.incarnation
    assert restored.acquire("new", "worker").value.generation > fence
    assert restored.list_changes(filled.list_changes().change).reset
    with pytest.raises(errors.ConversationDeleted):
        restored.get("gone")


def test_a_copy_of_a_copy_begins_anew_as_well(restored: Store, folder: Path, tmp_path: Path, clock: Clock) -> None:
    seen = restored.get("garden")
    clock.advance(1)
    again = f"sqlite:///{tmp_path}/again.db"
    sessionstore.restore(Path(restored.backup(folder).file), again, clock=clock)
    with Store.open(again, clock=clock) as store:
        assert store.get("garden").incarnation > seen.incarnation
        assert texts(store, "garden") == texts(restored, "garden")
        assert store.list_changes(restored.list_changes().change).reset


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_restore_never_replaces_anything(backup: Path, target: str, clock: Clock, suffix: str) -> None:
    there = Path(target.removeprefix("sqlite:///") + suffix)
    there.parent.mkdir()
    there.write_bytes(b"somebody's")
    with pytest.raises(errors.DatabaseUnusable):
        sessionstore.restore(backup, target, clock=clock)
    assert there.read_bytes() == b"somebody's"
    assert [entry.name for entry in there.parent.iterdir()] == [there.name]


def test_a_live_database_is_not_restored_over(filled: Store, backup: Path, url: str, tables: Tables) -> None:
    before = tables.everything()
    with pytest.raises(errors.DatabaseUnusable, match="replaces nothing"):
        sessionstore.restore(backup, url)
    assert tables.everything() == before
    assert filled.append("garden", [user("still there")]).value[0].position == 2


def test_two_restores_at_once_make_one_database(
    backup: Path, target: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)
    sync, told = copies.sync, []

    def meeting(path: Path) -> None:
        together.wait(30)
        sync(path)

    def one() -> None:
        try:
            sessionstore.restore(backup, target, clock=clock)
            told.append("restored")
        except errors.DatabaseUnusable:
            told.append("refused")

    monkeypatch.setattr(copies, "sync", meeting)
    both = [threading.Thread(target=one) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(told) == ["refused", "restored"]
    with Store.open(target, clock=clock) as store:
        assert texts(store, "garden") == ["basil", "four packets"]


@pytest.mark.parametrize("damage", ["cut", "garbled", "no database", "missing"])
def test_a_damaged_backup_is_refused_and_nothing_is_made(backup: Path, target: str, clock: Clock, damage: str) -> None:
    if damage == "cut":
        os.truncate(backup, backup.stat().st_size - 4096)
    elif damage == "garbled":
        with backup.open("r+b") as file:
            file.seek(5 * 4096)
            file.write(b"\xff" * 4096)
    elif damage == "no database":
        backup.write_text("notes")
    else:
        backup.unlink()
    with pytest.raises(errors.BackupUnusable) as refused:
        sessionstore.restore(backup, target, clock=clock)
    assert "\n" not in str(refused.value)
    assert not Path(target.removeprefix("sqlite:///")).exists()


def test_a_database_in_use_is_no_backup(filled: Store, path: Path, target: str, clock: Clock) -> None:
    with pytest.raises(errors.BackupUnusable, match="in use"):
        sessionstore.restore(path, target, clock=clock)


def test_an_older_backup_is_brought_to_the_newest_schema(backup: Path, target: str, clock: Clock, tmp_path: Path) -> None:
    older = Path(shutil.copy(backup, tmp_path / "older.db"))
    migrate.downgrade(f"sqlite:///{older}", "0001")
    sessionstore.restore(older, target, clock=clock)
    with Store.open(target, clock=clock) as store:
        assert texts(store, "garden") == ["basil", "four packets"]
        assert [found.conversation_id for found in store.search("packets").items] == ["garden"]
    assert Tables(older).one("SELECT version_num FROM alembic_version") == "0001"


def test_a_backup_of_a_newer_version_is_refused(backup: Path, target: str, clock: Clock) -> None:
    change(backup, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(errors.SchemaAhead):
        sessionstore.restore(backup, target, clock=clock)
    assert not Path(target.removeprefix("sqlite:///")).exists()


def test_what_is_made_durable_has_its_name_and_content_on_the_disk(
    filled: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for module, name in ((copies, "sync"), (files, "sync_folder")):
        original = getattr(module, name)

        def noted(path: Path, original: Any = original) -> None:
            order.append("folder" if path.is_dir() else "content")
            original(path)

        monkeypatch.setattr(module, name, noted)
    filled.backup(folder)
    assert order[-2:] == ["content", "folder"]


def test_a_backup_of_another_database_of_that_name_is_left_alone(
    filled: Store, tmp_path: Path, folder: Path, clock: Clock
) -> None:
    (tmp_path / "other").mkdir()
    first = filled.backup(folder)
    with Store.open(f"sqlite:///{tmp_path}/other/store.db", migrate_first=True, clock=clock) as other:
        for _ in range(3):
            clock.advance(1)
            last = other.backup(folder, keep=1)
    assert sorted(str(found) for found in folder.iterdir()) == sorted([first.file, last.file])


def test_a_backup_that_was_just_made_stays_whatever_the_clock_says(filled: Store, folder: Path, clock: Clock) -> None:
    older = filled.backup(folder)
    clock.advance(-3_600_000)
    made = filled.backup(folder, keep=1)
    assert made.removed == 1
    assert [str(found) for found in folder.iterdir()] == [made.file]
    assert made.file != older.file


def test_the_same_backup_restored_twice_begins_twice(backup: Path, tmp_path: Path, clock: Clock) -> None:
    """The first one was used, and somebody has seen what was in it (review)."""
    seen = []
    for number in range(2):
        clock.advance(1)
        url = f"sqlite:///{tmp_path}/restored{number}.db"
        sessionstore.restore(backup, url, clock=clock)
        with Store.open(url, clock=clock) as store:
            garden = store.append("garden", [user("after")]).value[0].incarnation
            seen.append((garden, store.acquire("garden", "worker").value.generation, store.list_changes().change))
    assert all(before < after for before, after in zip(*seen, strict=True))


def test_a_backup_in_which_nothing_was_generated_begins_anew_as_well(
    plain: Store, folder: Path, target: str, clock: Clock
) -> None:
    plain.create("garden")
    made = plain.backup(folder)
    fence, change_ = plain.acquire("garden", "worker").value.generation, plain.list_changes().change
    sessionstore.restore(made.file, target, clock=clock)
    with Store.open(target, clock=clock) as store:
        assert store.acquire("garden", "worker").value.generation > fence
        assert store.list_changes(change_).reset


def test_a_backup_with_nothing_in_it_begins_anew_as_well(plain: Store, folder: Path, target: str, clock: Clock) -> None:
    made = plain.backup(folder)
    plain.create("another")
    seen = plain.create("garden").value.conversation
    known = plain.list_changes().change
    sessionstore.restore(made.file, target, clock=clock)
    with Store.open(target, clock=clock) as store:
        assert store.list_changes(known).reset
        assert store.list_changes(known).conversations == store.conversations().items == []
        again = store.create("garden").value.conversation
        assert again.incarnation > seen.incarnation
        assert store.changes("garden", seen.tag).reset
        news = store.list_changes()
        assert [one.id for one in store.list_changes(known).conversations] == ["garden"]
        assert not store.list_changes(news.change).reset
        store.label("garden", title="later")
        assert [one.id for one in store.list_changes(news.change).conversations] == ["garden"]
        assert store.check().sound


@pytest.mark.parametrize("state", ["closed", "inside a change", "failed", "migrated"])
def test_who_may_not_read_makes_no_backup(
    filled: Store, path: Path, folder: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is not what is done every now and then that notices it.
    monkeypatch.setattr(opened.Files, "look", lambda _: None)
    monkeypatch.setattr(Writer, "_index_is_due", lambda _: False)
    if state == "inside a change":
        with pytest.raises(errors.Nested):
            filled.transact("garden", lambda _: filled.backup(folder))
        return
    if state == "closed":
        filled.close()
    elif state == "failed":
        Path(f"{path}-wal").unlink()
    else:
        change(path, "UPDATE alembic_version SET version_num = '9999'")
        change(path, "CREATE TABLE more (x INTEGER)")
        with pytest.raises(errors.SchemaChanged):
            filled.get("garden")
    with pytest.raises(errors.Unavailable):
        filled.backup(folder)
    assert not folder.exists()


def test_a_folder_where_there_are_no_links_and_no_locks_will_do(
    filled: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where backups go is often another machine's disk."""

    def refuses(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuses)
    monkeypatch.setattr("sessionstore.sqlite.backups.fcntl.flock", refuses)
    made = Path(filled.backup(folder).file)
    assert [entry.name for entry in folder.iterdir()] == [made.name]
    with pytest.raises(errors.DatabaseUnusable):
        filled.backup(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_restores_belongs_to_the_folders_owner(backup: Path, tmp_path: Path, clock: Clock) -> None:
    for name in ("restored", "made"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 65534, 65534)
    sessionstore.restore(backup, f"sqlite:///{tmp_path}/restored/store.db", clock=clock)
    migrate.upgrade(f"sqlite:///{tmp_path}/made/store.db")
    assert [(tmp_path / name / "store.db").stat().st_uid for name in ("restored", "made")] == [65534, 65534]


def test_a_backup_on_a_read_only_medium_is_restored_and_nothing_is_left_beside_it(
    filled: Store, path: Path, tmp_path: Path, target: str, clock: Clock
) -> None:
    """Also one that was copied by hand when nothing ran."""
    filled.close()
    medium = tmp_path / "medium"
    medium.mkdir()
    copied = Path(shutil.copy(path, medium))
    copied.chmod(0o400)
    medium.chmod(0o500)
    sessionstore.restore(copied, target, clock=clock)
    assert [entry.name for entry in medium.iterdir()] == [copied.name]
    medium.chmod(0o700)


def test_a_place_that_is_called_like_an_escape_will_do(backup: Path, tmp_path: Path, clock: Clock) -> None:
    place = tmp_path / "a%20b"
    sessionstore.restore(backup, connections.url_of(place / "store.db"), clock=clock)
    assert [entry.name for entry in place.iterdir()] == ["store.db"]
    assert not (tmp_path / "a b").exists()


def test_no_database_of_ours_is_no_backup(tmp_path: Path, target: str, clock: Clock) -> None:
    empty, foreign = tmp_path / "empty.db", tmp_path / "foreign.db"
    empty.touch()
    change(foreign, "CREATE TABLE somebodys (x INTEGER)")
    for file in (empty, foreign):
        with pytest.raises(errors.BackupUnusable, match="no database of sessionstore"):
            sessionstore.restore(file, target, clock=clock)
