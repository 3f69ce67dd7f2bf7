"""The fair gate: processes that write to one file pass it one at a time, so that none of them starves.

It makes waiting fair and nothing else: what is right is settled by BEGIN IMMEDIATE. SQLite's own waiting sleeps for longer the
longer it lasts, so that newcomers win: with 8 processes the worst wait was 6.2 s (DESIGN.md, rule 8). Here all look equally
often. A gate that cannot be had, because it stays shut or because the file system has no such locks, is gone past.
"""

import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

# A transaction takes about a millisecond. The kernel's own waiting would be a little quicker, but knows no deadline.
LOOK_EVERY_SECONDS = 0.000_2
LATER_EVERY_SECONDS = 0.001
LATER_SECONDS = 0.1


class Gate:
    """A lock on a file of its own, never on the database: to close that would drop SQLite's locks.

    The kernel frees it when its process dies. It is not passed on by exec, and a forked child lets go of it.
    """

    def __init__(self, database: Path) -> None:
        self._database, self._path = database, f"{database}-gate"
        self._file: int | None = None
        self.inside = False
        """Whether nobody else is: not so for who went past."""
        _gates.add(self)

    def enter(self) -> bool:
        """Pass, if nobody is inside."""
        try:
            if self._file is None:
                self._file = self._open()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.inside = True
        except BlockingIOError:
            return False
        except OSError:
            # Somebody else's file, or no locks here.
            return True
        return True

    def wait(self, seconds: float) -> None:
        """Pass when nobody is inside, or when that time is over: a process that was stopped in there stops no other one."""
        began = time.monotonic()
        while not self.enter():
            waited = time.monotonic() - began
            if waited > seconds:
                return
            time.sleep(LOOK_EVERY_SECONDS if waited < LATER_SECONDS else LATER_EVERY_SECONDS)

    def leave(self) -> None:
        """Let the next process in. Does nothing outside."""
        self.inside = False
        if self._file is not None:
            try:  # noqa: SIM105  # once a transaction; suppress() costs more than the call
                fcntl.flock(self._file, fcntl.LOCK_UN)
            except OSError:
                pass

    def close(self) -> None:
        """Let go of it for good."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open(self) -> int:
        """Open it for whoever may write the database: SQLite gives its log the same mode and owner."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(self._path, flags)
        like = self._database.stat()
        with suppress(OSError):
            os.fchown(file, like.st_uid, like.st_gid)
        os.fchmod(file, like.st_mode & 0o777)
        return file


def _close_in_the_child() -> None:
    for gate in list(_gates):
        gate.close()


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_the_child)
