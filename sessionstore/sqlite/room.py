"""Room on the disk. A commit that finds none may have been stored or not; so once it has run out, none is tried for a while."""

import os
import time
from pathlib import Path

from sessionstore.errors import DiskFull

MORE_BYTES = 64 * 1024
TRY_AGAIN_SECONDS = 1.0


class Room:
    """Whether to try at all: when there is more room than there was then, or a second has passed."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._left: int | None = None
        self._try_at = 0.0

    def ran_out(self) -> None:
        """There was none for a commit."""
        self._left, self._try_at = self._free(), time.monotonic() + TRY_AGAIN_SECONDS

    def check(self) -> None:
        """Raise `DiskFull` while it is no use to try."""
        if self._left is None:
            return
        if time.monotonic() < self._try_at and self._free() < self._left + MORE_BYTES:
            raise DiskFull
        self._left = None

    def _free(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize
