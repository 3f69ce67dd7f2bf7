"""Backups: made while everybody works, checked before they count; and how one becomes a database again."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from sessionstore.errors import BackupUnusable, DatabaseUnusable, DiskFull
from sessionstore.model import BackedUp, Restored
from sessionstore.sqlite import copies, files
from sessionstore.sqlite.connections import path_of, url_of

WORKPLACE = ".sessionstore-work-"
FRESH_SECONDS = 60
_STAMP = "%Y%m%dT%H%M%S"
_STAMPED = r"-\d{8}T\d{6}\.\d{3}Z\.db"
_BESIDE = ("", "-wal", "-shm", "-journal")


def back_up(database: Path, folder: Path, now: int, keep: int | None = None) -> BackedUp:
    """See `Store.backup`. A backup is called like `conversations-7d2f61-20261201T013940.123Z.db`."""
    folder, name = folder.absolute(), _name_of(database)
    target = folder / f"{name}-{_stamp(now)}.db"
    with _working_in(folder) as workplace:
        made = _empty(workplace)
        copies.copy_live(database, made)
        _check(made, f"what was copied from {database}")
        faults = copies.faults(made)
        _publish(made, target)
        size = target.stat().st_size
    removed = 0 if keep is None else _remove_old(folder, name, keep, target)
    return BackedUp(file=str(target), bytes=size, removed=removed, faults=faults)


def restore(backup: Path, url: str, now: int, upgrade: Callable[[str], object], *, keep_keys: bool) -> Restored:
    """See `sessionstore.restore`. `upgrade` brings a database to the newest schema."""
    path, backup = path_of(url), backup.absolute()
    files.check_place(path)
    for name in (f"{path}{suffix}" for suffix in _BESIDE):
        if Path(name).exists():
            raise DatabaseUnusable(reason=f"{name} is there already, and a restore replaces nothing: move it away")
    _check_backup(backup)
    with _working_in(path.parent) as workplace:
        made = _empty(workplace)
        copies.copy_still(backup, made)
        upgrade(url_of(made))
        keys = copies.begin_anew(made, now, keep_keys=keep_keys)
        _check(made, str(backup))
        faults = copies.faults(made)
        files.give_to_owner(made, path.parent)
        _publish(made, path)
    return Restored(file=str(path), bytes=path.stat().st_size, faults=faults, revoked_keys=keys)


def _name_of(database: Path) -> str:
    """A database's own name among backups: there may be others that are called the same, in other folders."""
    return f"{database.stem}-{hashlib.sha256(os.fsencode(database)).hexdigest()[:6]}"


def _empty(workplace: Path) -> Path:
    made = workplace / "copy.db"
    made.touch(mode=0o600)
    return made


def _check_backup(backup: Path) -> None:
    if not backup.is_file():
        raise BackupUnusable(reason=f"there is no backup at {backup}")
    if Path(f"{backup}-wal").exists():
        raise BackupUnusable(reason=f"{backup} has a log beside it: it is a database in use, or half of one")
    _check(backup, str(backup))


def _check(copy: Path, called: str) -> None:
    try:
        damage = copies.damage(copy)
    except DatabaseUnusable as error:
        raise BackupUnusable(reason=error.reason) from error
    if damage:
        raise BackupUnusable(reason=f"{called} is damaged: {damage[0]}")


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
def _locked(workplace: Path) -> Iterator[bool]:
    """While this process lives, nobody takes the folder for one that was left behind. Answers whether it was free."""
    descriptor = os.open(workplace / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Somebody has it, or there are no locks here.
        return False
    return True


def _clear_up(folder: Path) -> None:
    """Remove what others have left behind who died half way."""
    for left in folder.glob(f"{WORKPLACE}*"):
        # It may be another user's, or go away meanwhile.
        with suppress(OSError):
            # Who has made one only just now may not have locked it yet.
            if time.time() - left.stat().st_mtime > FRESH_SECONDS:
                _remove_left(left)


def _remove_left(left: Path) -> None:
    with _locked(left) as free:
        if free:
            shutil.rmtree(left)


def _told(error: OSError) -> Exception:
    full = files.is_full(error)
    named = error.filename2 or error.filename or "the copy"
    return DiskFull() if full else DatabaseUnusable(reason=f"{named}: {error.strerror}")


def _publish(made: Path, target: Path) -> None:
    """Give it its name, for good and only if that is free."""
    copies.sync(made)
    try:
        target.hardlink_to(made)
    except OSError as error:
        # There are file systems that have no links; there nobody else may take the name at the same moment.
        if error.errno == errno.EEXIST or target.exists():
            raise
        made.rename(target)
    # A database with two names is refused.
    made.unlink(missing_ok=True)
    files.sync_folder(target.parent)


def _stamp(now: int) -> str:
    return f"{datetime.fromtimestamp(now // 1000, UTC):{_STAMP}}.{now % 1000:03}Z"


def _remove_old(folder: Path, name: str, keep: int, made: Path) -> int:
    """All but the newest, of which the one that was just made is one whatever the clock says."""
    ours = re.compile(re.escape(name) + _STAMPED)
    others = sorted(found for found in folder.iterdir() if ours.fullmatch(found.name) and found != made)
    old = others[: max(0, len(others) - keep + 1)]
    for found in old:
        found.unlink()
    return len(old)
