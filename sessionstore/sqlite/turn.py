"""Whose turn it is to write in this process, and what a forked child must leave alone."""

import os
import threading
from pathlib import Path
from typing import Any

from sessionstore.errors import DatabaseUnusable
from sessionstore.nesting import insides


class Turn:
    """One thread at a time. That a thread has the turn is the lock's own knowledge, so no interrupt can part the two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inherited = False
        self._lock: Any = threading.RLock()
        _turns.append(self)
        insides.append(self)

    @property
    def mine(self) -> bool:
        """Whether this thread has it."""
        return bool(self._lock._is_owned())  # noqa: SLF001  # what threading.Condition asks as well

    def take(self, timeout: float) -> bool:
        """Wait for it, at most so many seconds; without end if they are negative."""
        return bool(self._lock.acquire(timeout=timeout))

    def retire(self) -> None:
        """The file is closed: no child inherits anything, and nobody waits here."""
        if self in _turns:
            _turns.remove(self)
            insides.remove(self)

    def give_back(self) -> None:
        """Let the next one go."""
        self._lock.release()


def refuse_inherited(path: Path) -> None:
    """Refuse a file that was open when this process was forked off.

    SQLite keeps one table of locks for each process and file, and a fork copies it: what the child opens believes in locks that
    only the parent has, and the parent's close then deletes the log that the child writes (SQLite, "How to corrupt", §2.6).
    """
    if _inherited and path.exists() and _identity(path) in _inherited:
        raise DatabaseUnusable(
            reason=f"{path} was open when this process was forked; spawn the process, or open after the fork"
        )


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _leave_to_the_parent() -> None:
    for turn in _turns:
        turn.inherited = True
        if turn.path.exists():
            _inherited.add(_identity(turn.path))


_turns: list[Turn] = []
_inherited: set[tuple[int, int]] = set()
os.register_at_fork(after_in_child=_leave_to_the_parent)
