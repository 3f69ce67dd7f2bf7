"""The write-ahead log of a database: how long it is, and when something is to be done about it."""

import logging

from sessionstore.sqlite.opened import Files

log = logging.getLogger(__name__)
LOG_LIMIT_BYTES = 4 * 1024 * 1024
"""What the log may grow to. A log that begins anew is cut to this, so a longer file is one that has grown past it since."""
LOG_ALARM_BYTES = 64 * 1024 * 1024
"""From here on somebody must be holding it: a program that reads without end, or forgot to stop."""


class Log:
    """Looked at after each commit. `ours`: it is on us to copy it back, since the engine must not (DESIGN.md, rule 9)."""

    def __init__(self, files: Files, *, ours: bool) -> None:
        self._files, self._ours = files, ours
        self._bytes = self._tried_at = 0
        self._alarm_at = LOG_ALARM_BYTES

    def look(self) -> None:
        """See how long it is now. Raises `StorageFailed` when it, or the database, is not what we opened any more."""
        self._bytes = self._files.check_log()
        self._files.look()
        if self._bytes <= LOG_LIMIT_BYTES:
            self._tried_at, self._alarm_at = 0, LOG_ALARM_BYTES
        elif self._bytes > self._alarm_at:
            self._alarm_at = 2 * self._bytes
            log.warning(
                "the write-ahead log has %d bytes: somebody has been reading for long and holds it, or there is no room",
                self._bytes,
            )

    @property
    def is_due(self) -> bool:
        """Whether it is to be copied back. If a reader holds it, that is tried again when it has grown as much once more."""
        return self._ours and self._bytes > LOG_LIMIT_BYTES and self._bytes >= self._tried_at + LOG_LIMIT_BYTES

    def tried(self) -> None:
        """It was copied back, as far as readers allow."""
        self._tried_at = self._files.log_bytes()
