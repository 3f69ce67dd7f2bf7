"""The fair gate: processes that write to one file pass it one at a time, so that none of them starves.

It makes waiting fair and nothing else: what is right is settled by BEGIN IMMEDIATE, and a process that skips the gate is merely
impolite. SQLite's own waiting is asleep for longer the longer it lasts, so that newcomers win: with 8 processes the worst wait
was 6.2 s, with a lock of the kernel on a file beside the database 0.3 s (DESIGN.md, rule 8).
"""

import fcntl
import os
import weakref
from pathlib import Path

from sessionstore.errors import DatabaseUnusable


class Gate:
    """A lock on a file of its own, never on the database: to close that would drop SQLite's locks.

    The kernel frees it when its process dies. It is not passed on by exec, and a forked child lets go of it.
    """

    def __init__(self, database: Path) -> None:
        self._path = f"{database}-gate"
        self._file: int | None = None
        _gates.add(self)

    def enter(self) -> bool:
        """Pass if nobody is inside."""
        try:
            fcntl.flock(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Pass when it is our turn.

        However long that takes: the kernel's lock knows no deadline, so whoever waits for what is done inside watches his own.
        """
        fcntl.flock(self._opened(), fcntl.LOCK_EX)

    def leave(self) -> None:
        """Let the next process in. Does nothing outside."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of it for good."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _opened(self) -> int:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise DatabaseUnusable(reason=f"{self._path} cannot be opened: {error.strerror}") from error
        return self._file


def _close_in_the_child() -> None:
    for gate in list(_gates):
        gate.close()


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_the_child)
