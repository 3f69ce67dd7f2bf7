"""Whether the database and its log still are those that this process has opened.

Nothing here opens them: to close such a descriptor would drop SQLite's own locks, and with them committed rows (DESIGN.md,
rule 9). What is to be known is asked by name.
"""

import copy
import os
import threading
import time
from pathlib import Path

from sessionstore.errors import DatabaseUnusable, StorageFailed

# A database that was taken away is no accident of ours, and who only reads has lost nothing: both are noticed a little later.
LOOK_EVERY_SECONDS = 0.002
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


def _identity(path: Path | str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # see above
    except OSError:
        return None
    return found.st_dev, found.st_ino
