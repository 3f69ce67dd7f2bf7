"""The files of a database, as files: where they may lie, whose they may be, and whether they still are those we opened.

Nothing here ever opens the database, its log or its index: to close such a descriptor would drop SQLite's own locks, and with
them committed rows (DESIGN.md, rule 9). What is to be known is asked by name.
"""

import copy
import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sessionstore.errors import DatabaseUnusable, StorageFailed

# Where the log's index cannot be shared memory, or locks are a promise of somebody else's (SQLite, "Over a network").
# fmt: off
NETWORK = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.goofys", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
))
# fmt: on
MOUNTS = Path("/proc/self/mountinfo")
# A database that was taken away is no accident of ours, and who only reads has lost nothing: both are noticed a little later.
LOOK_EVERY_SECONDS = 0.002
NAMED_TWICE_SECONDS = 1.0
Identity = tuple[int, int]


class Opened:
    """A database that this process has open, through however many connections, and the log that goes with it.

    SQLite has one index of the log for each process and file. So when the log is not the one that was opened any more (somebody
    has deleted it, or has opened and closed the database in this process behind SQLite's back, so that another process took
    itself for the last one; facts, 1.10), it is lost for all of them, and for as long as the process lives.
    """

    def __init__(self, path: Path, database: Identity) -> None:
        self._path, self._log_path = path, f"{path}-wal"
        self._database, self._log = database, _identity(self._log_path)
        self.connections = 0
        self.lost: StorageFailed | None = None

    def join(self) -> None:
        """There is a connection more."""
        self.connections += 1
        self.note_log()

    def note_log(self) -> None:
        """A file that has no log yet gets one from the first who writes."""
        self._log = self._log or _identity(self._log_path)

    def check_log(self) -> int:
        """The size of the log. Raises `StorageFailed` when it is another one than was opened: that one is lost."""
        return self._look(self._log_path, self._log)

    def check(self) -> None:
        """Raise `StorageFailed` when the database, or its log, is not the one that was opened."""
        self._look(self._path, self._database)
        if self._log is not None:
            self._look(self._log_path, self._log)

    def leave(self) -> bool:
        """There is a connection less, unless it must not be closed: a lost log would be copied over what others wrote."""
        with _changing:
            try:
                self.check()
            except StorageFailed:
                return False
            self.connections -= 1
            if not self.connections:
                _opened.pop(self._database, None)
        return True

    def _look(self, path: Path | str, opened: Identity | None) -> int:
        if self.lost is not None:
            raise copy.copy(self.lost)
        try:
            found = os.stat(path)  # noqa: PTH116  # after every commit; a Path costs more than the look
        except FileNotFoundError:
            raise self._lose(path, "removed") from None
        except OSError:
            return 0
        if (found.st_dev, found.st_ino) != opened:
            raise self._lose(path, "replaced")
        return found.st_size

    def _lose(self, path: Path | str, how: str) -> StorageFailed:
        self.lost = StorageFailed(reason=f"{path} was {how} while it was in use")
        return self.lost


_opened: dict[Identity, Opened] = {}
_changing = threading.RLock()


def enter(path: Path) -> Opened:
    """Note that SQLite has it open now, through one connection more."""
    with _changing:
        database = _identity(path)
        if database is None:
            raise DatabaseUnusable(reason=f"{path} was removed while it was opened")
        opened = _opened.setdefault(database, Opened(path, database))
        opened.join()
    return opened


def _forget_in_the_child() -> None:
    # What the parent has open is refused there (see `turn`); the lock may be one of its threads'.
    global _changing
    _changing = threading.RLock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget_in_the_child)


def refuse_lost(path: Path) -> None:
    """Raise `DatabaseUnusable` for a database whose log this process has lost: it would mix the old one with the new one."""
    found = _opened.get(_identity(path) or (0, 0))
    if found is not None and found.lost is not None:
        raise DatabaseUnusable(reason=f"{found.lost.reason}; this process cannot use it any more, and has to be started again")


class Files:
    """A store's view of its database's file and log."""

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, f"{path}-wal"
        self.opened: Opened | None = None
        """Since the first connection."""
        self._look_at = 0.0

    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 where there is none."""
        try:
            return os.stat(self._log).st_size  # noqa: PTH116  # see above
        except OSError:
            return 0

    def check_log(self) -> int:
        """See `Opened.check_log`."""
        return 0 if self.opened is None else self.opened.check_log()

    def check(self) -> None:
        """See `Opened.check`."""
        if self.opened is not None and self.opened.connections:
            self.opened.check()

    def look(self) -> None:
        """The same, every now and then."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_SECONDS
            self.check()

    def check_writable(self) -> None:
        """Raise `DatabaseUnusable` for a file, or a folder for its log, that this user may not write."""
        for path in (self.path, self.path.parent):
            # Root may write what nobody may: that somebody has said so counts.
            if not os.access(path, os.W_OK) or not path.stat().st_mode & 0o222:
                raise DatabaseUnusable(reason=f"{path} is read-only for this user")


def check_place(path: Path) -> None:
    """Raise `DatabaseUnusable`, in one line, for a file that a database must not be, or a place where it must not be."""
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if name.is_symlink():
            raise DatabaseUnusable(reason=f"{name} is a symbolic link; name the file itself")
    kind = file_system_of(path)
    if kind in NETWORK:
        raise DatabaseUnusable(reason=f"{path} is on a network file system ({kind}), whose locks cannot be relied on")
    if path.exists():
        _check_file(path)
    elif Path(f"{path}-wal").exists():
        raise DatabaseUnusable(reason=f"there is no database at {path}, but a log of one: move it back, or the log away")


def check_companions(path: Path, fault: str | None) -> None:
    """Raise `DatabaseUnusable` for a database that Litestream replicates, on an engine that its checkpoints may damage.

    Litestream copies the log back by itself, at no gate and beside our own commits (DESIGN.md, rule 9).
    """
    left = path.with_name(f".{path.name}-litestream")
    if fault is not None and left.exists():
        raise DatabaseUnusable(reason=f"{path} is replicated by Litestream, and {fault}; remove {left}, or use a newer SQLite")


def _check_file(path: Path) -> None:
    found, user = path.stat(), os.geteuid()
    if not stat.S_ISREG(found.st_mode):
        raise DatabaseUnusable(reason=f"{path} is not a file")
    if user not in (0, found.st_uid):
        raise DatabaseUnusable(reason=f"{path} belongs to another user ({found.st_uid}), not to this one ({user})")
    if _has_two_names(path):
        raise DatabaseUnusable(reason=f"{path} has another name (a hard link), under which it would have another log")
    if not found.st_size and Files(path).log_bytes():
        # SQLite would take it for a new database, and delete the log.
        raise DatabaseUnusable(reason=f"{path} is empty, but its log is not: it was cut; restore a backup")
    Files(path).check_writable()


def _has_two_names(path: Path) -> bool:
    """Not for a moment only: a file that is made, or restored, has two until it has its own."""
    end = time.monotonic() + NAMED_TWICE_SECONDS
    while path.stat().st_nlink > 1:
        if time.monotonic() > end:
            return True
        time.sleep(0.01)
    return False


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, if there is none. SQLite gives its log the same mode."""
    if path.exists():
        return
    try:
        make_folder(path.parent)
        # Under another name first: to close a descriptor of a file that SQLite has open would drop SQLite's locks.
        descriptor, made = tempfile.mkstemp(prefix=".sessionstore-", dir=path.parent)
        os.close(descriptor)
        give_to_owner(Path(made), path.parent)
        try:
            os.link(made, path)
        except FileExistsError:
            pass
        finally:
            Path(made).unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise DatabaseUnusable(reason=f"{path} cannot be created: {error.strerror}") from error


def make_folder(folder: Path) -> None:
    """Make it, for its owner only, so that it is there after a power failure as well."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o700, exist_ok=True)
        sync_folder(parent.parent)


def is_full(error: OSError) -> bool:
    """Whether it says that there is no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have nothing to sync there, or make names durable by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def give_to_owner(made: Path, folder: Path) -> None:
    """What root makes belongs to whoever owns the folder: a service shall find its database its own."""
    if os.geteuid() == 0:
        found = folder.stat()
        os.chown(made, found.st_uid, found.st_gid)


def file_system_of(path: Path) -> str | None:
    """The kind of file system that a file lies on, or would; None where the system does not say."""
    real = path.resolve()
    try:
        found = [(point, kind) for point, kind in _mounts() if real.is_relative_to(point)]
    except OSError:
        return None
    # What was mounted later lies above.
    return max(enumerate(found), key=lambda each: (len(each[1][0].parts), each[0]))[1][1] if found else None


def _mounts() -> Iterator[tuple[Path, str]]:
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n").split("\n"):
        fields, _, rest = line.partition(" - ")
        yield Path(_unescaped(fields.split()[4])), rest.split()[0]


def _unescaped(name: str) -> str:
    for octal, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        name = name.replace(octal, character)
    return name


def _identity(path: Path | str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # see above
    except OSError:
        return None
    return found.st_dev, found.st_ino
