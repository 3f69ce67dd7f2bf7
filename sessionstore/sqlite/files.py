"""Where a database may lie, whose its files may be, and how they are made. None of it opens them (see `opened`)."""

import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sessionstore.errors import DatabaseUnusable

# Where the log's index cannot be shared memory, or locks are a promise of somebody else's (SQLite, "Over a network").
# fmt: off
NETWORK = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.goofys", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
))
# fmt: on
MOUNTS = Path("/proc/self/mountinfo")
NAMED_TWICE_SECONDS = 1.0


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
    if not found.st_size and _size(Path(f"{path}-wal")):
        # SQLite would take it for a new database, and delete the log.
        raise DatabaseUnusable(reason=f"{path} is empty, but its log is not: it was cut; restore a backup")
    check_writable(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_writable(path: Path) -> None:
    """Raise `DatabaseUnusable` for a file, or a folder for its log, that this user may not write."""
    for name in (path, path.parent):
        # Root may write what nobody may: that somebody has said so counts.
        if not os.access(name, os.W_OK) or not name.stat().st_mode & 0o222:
            raise DatabaseUnusable(reason=f"{name} is read-only for this user")


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
