"""Backups: made while everybody works, checked before they count; and how one becomes a database again."""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from sessionstore import copies, files, migrate
from sessionstore.dialect import path_of
from sessionstore.errors import BackupUnusable, DatabaseUnusable, DiskFull
from sessionstore.model import BackedUp, Restored

WORKPLACE = ".sessionstore-work-"
FRESH_SECONDS = 60
_STAMP = "%Y%m%dT%H%M%S"
_STAMPED = r"-\d{8}T\d{6}\.\d{3}Z\.db"
_BESIDE = ("", "-wal", "-shm", "-journal")


def back_up(database: Path, folder: Path, now: int, keep: int | None = None) -> BackedUp:
    """See `Store.backup`. A backup is called like `conversations-20261201T013940.123Z.db`."""
    folder = folder.absolute()
    target = folder / f"{database.stem}-{_stamp(now)}.db"
    with _working_in(folder) as workplace:
        made = workplace / "backup.db"
        made.touch(mode=0o600)
        copies.copy(database, made)
        _check(made, f"what was copied from {database}")
        _publish(made, target)
        size = target.stat().st_size
    return BackedUp(file=str(target), bytes=size, removed=0 if keep is None else _remove_old(folder, database.stem, keep))


def restore(backup: Path, url: str, now: int) -> Restored:
    """See `sessionstore.restore`."""
    path, backup = path_of(url), backup.absolute()
    files.check_place(path)
    for name in (f"{path}{suffix}" for suffix in _BESIDE):
        if Path(name).exists():
            raise DatabaseUnusable(reason=f"{name} is there already, and a restore replaces nothing: move it away")
    _check_backup(backup)
    with _working_in(path.parent) as workplace:
        made = workplace / "restored.db"
        made.touch(mode=0o600)
        copies.copy(backup, made)
        migrate.upgrade(f"sqlite:///{made}")
        copies.begin_anew(made, now)
        copies.fold(made)
        _check(made, str(backup))
        _publish(made, path)
    return Restored(file=str(path), bytes=path.stat().st_size)


def _check_backup(backup: Path) -> None:
    if not backup.is_file():
        raise BackupUnusable(reason=f"there is no backup at {backup}")
    if Path(f"{backup}-wal").exists():
        raise BackupUnusable(reason=f"{backup} has a log beside it: it is a database in use, or half of one")
    # What is in it can be judged when it has the newest schema.
    _check(backup, str(backup), only_the_file=True)


def _check(copy: Path, called: str, *, only_the_file: bool = False) -> None:
    faults = copies.faults(copy, only_the_file=only_the_file)
    if faults:
        raise BackupUnusable(reason=f"{called} is damaged: {faults[0]}")


@contextmanager
def _working_in(folder: Path) -> Iterator[Path]:
    """A folder of our own in there, which goes whatever happens."""
    try:
        files.make_folder(folder)
        _clear_up(folder)
        workplace = Path(tempfile.mkdtemp(prefix=WORKPLACE, dir=folder))
    except OSError as error:
        raise DatabaseUnusable(reason=f"{folder} cannot be written: {error.strerror}") from error
    try:
        with _locked(workplace):
            yield workplace
    except OSError as error:
        raise _told(error) from error
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


@contextmanager
def _locked(workplace: Path) -> Iterator[None]:
    """While this process lives, nobody takes the folder for one that was left behind."""
    descriptor = os.open(workplace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _clear_up(folder: Path) -> None:
    """Remove what others have left behind who died half way."""
    for left in folder.glob(f"{WORKPLACE}*"):
        # Who has made one only just now may not have locked it yet.
        if left.is_dir() and time.time() - left.stat().st_mtime > FRESH_SECONDS:
            with suppress(BlockingIOError), _locked(left):
                shutil.rmtree(left)


def _told(error: OSError) -> Exception:
    full = files.is_full(error)
    return DiskFull() if full else DatabaseUnusable(reason=f"{error.filename or 'the copy'}: {error.strerror}")


def _publish(made: Path, target: Path) -> None:
    """Give it its name, for good and only if that is free."""
    copies.sync(made)
    target.hardlink_to(made)
    made.unlink()
    files.sync_folder(target.parent)


def _stamp(now: int) -> str:
    return f"{datetime.fromtimestamp(now // 1000, UTC):{_STAMP}}.{now % 1000:03}Z"


def _remove_old(folder: Path, stem: str, keep: int) -> int:
    ours = re.compile(re.escape(stem) + _STAMPED)
    old = sorted(found for found in folder.iterdir() if ours.fullmatch(found.name))[:-keep]
    for found in old:
        found.unlink()
    return len(old)
