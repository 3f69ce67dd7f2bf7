"""The files of a database, as files: where they may lie, whose they may be, and whether they still are those we opened.

Nothing here ever opens the database, its log or its index: to close such a descriptor would drop SQLite's own locks, and with
them committed rows (DESIGN.md, rule 9). What is to be known is asked by name.
"""

import errno
import os
import stat
import tempfile
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
Identity = tuple[int, int]


class Files:
    """A database's file and its log: noted when they are opened, looked at ever after."""

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, f"{path}-wal"
        self._opened: tuple[Identity | None, Identity | None] = (None, None)
        self.lost = False
        """Whether they are no longer those that were opened."""

    def note(self) -> None:
        """Note which files these are. SQLite has them open now."""
        self._opened = (_identity(self.path), _identity(self._log))

    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 where there is none."""
        try:
            return os.stat(self._log).st_size  # noqa: PTH116  # after every commit; a Path costs more than the look
        except OSError:
            return 0

    def check_log(self) -> int:
        """The size of the log that was opened. Raises `StorageFailed` when that one is gone: what is written to it is lost.

        Somebody has deleted it, or has opened and closed the database in this process behind SQLite's back, so that another
        process took itself for the last one (facts, 1.10).
        """
        return self._look(self._log, self._opened[1])

    def check_database(self) -> None:
        """Raise `StorageFailed` when the database that was opened is not there any more."""
        self._look(self.path, self._opened[0])

    def _look(self, path: Path | str, opened: Identity | None) -> int:
        try:
            found = os.stat(path)  # noqa: PTH116  # see above
        except FileNotFoundError:
            self.lost = True
            raise StorageFailed(reason=f"{path} was removed while it was in use") from None
        except OSError:
            return 0
        if (found.st_dev, found.st_ino) != opened:
            self.lost = True
            raise StorageFailed(reason=f"{path} was replaced while it was in use")
        return found.st_size

    def check(self) -> None:
        """Both, for who does not write just now."""
        if self._opened[1] is not None:
            self.check_log()
            self.check_database()

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
    if not found.st_size and Files(path).log_bytes():
        # SQLite would take it for a new database, and delete the log.
        raise DatabaseUnusable(reason=f"{path} is empty, but its log is not: it was cut; restore a backup")
    Files(path).check_writable()


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, if there is none. SQLite gives its log the same mode."""
    if path.exists():
        return
    try:
        make_folder(path.parent)
        # Under another name first: to close a descriptor of a file that SQLite has open would drop SQLite's locks.
        descriptor, made = tempfile.mkstemp(prefix=".sessionstore-", dir=path.parent)
        os.close(descriptor)
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
    finally:
        os.close(descriptor)


def file_system_of(path: Path) -> str | None:
    """The kind of file system that a file lies on, or would; None where the system does not say."""
    if not MOUNTS.exists():
        return None
    real = path.resolve()
    found = [(point, kind) for point, kind in _mounts() if real.is_relative_to(point)]
    # What was mounted later lies above.
    return max(enumerate(found), key=lambda each: (len(each[1][0].parts), each[0]))[1][1] if found else None


def _mounts() -> Iterator[tuple[Path, str]]:
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
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
