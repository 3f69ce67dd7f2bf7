"""A server that something happens to: started with whatever is put in front of it, killed, started again at the same place."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SERVE = ("-m", "sessionstore.cli", "serve")


class Served:
    """`sessionstore serve` as a process of its own."""

    def __init__(self, url: str, *, prefix: Sequence[str] = (), program: Sequence[str] = SERVE, **environment: str) -> None:
        self._url, self._prefix, self._program = url, prefix, program
        self._environment = {**os.environ, "SESSIONSTORE_BUSY_TIMEOUT_MS": "5000", **environment}
        self._port = "0"
        self.start()

    def start(self) -> None:
        """Start it, at the port that it had before."""
        self.process = subprocess.Popen(
            [*self._prefix, sys.executable, *self._program, "--database", self._url, "--port", self._port],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        assert self.process.stdout is not None
        listening = self.process.stdout.readline()
        self.address = listening.split()[2] if listening else ""
        self._port = self.address.rpartition(":")[2] or "0"
        self.pid = self._child() if self._prefix else self.process.pid

    def _child(self) -> int:
        """The server itself, and not what was put in front of it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    @property
    def memory_bytes(self) -> int:
        """How much of the memory it has."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.communicate()

    def stop(self, seconds: float = 60) -> int:
        """Have it end in good order."""
        os.kill(self.pid, signal.SIGTERM)
        self.process.communicate(timeout=seconds)
        return self.process.returncode
