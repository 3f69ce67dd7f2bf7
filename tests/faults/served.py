"""Processes that something happens to: a server, started with whatever is put in front of it, killed, started again."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

SERVE = ("-m", "sessionstore.cli", "serve")
_logs: list[IO[bytes]] = []
_running: list["subprocess.Popen[str]"] = []


def start(*command: Any, **options: Any) -> "subprocess.Popen[str]":
    """A process that does not outlive the fault that it takes part in."""
    _running.append(subprocess.Popen([*map(str, command)], text=True, **options))
    return _running[-1]


def end_all() -> str:
    """Whatever went wrong: nothing goes on running. Answers what the servers had logged."""
    for process in _running:
        if process.poll() is None:
            process.kill()
            process.communicate()
    _running.clear()
    logged = []
    for file in _logs:
        file.seek(0)
        logged.append(file.read().decode(errors="replace"))
        file.close()
    _logs.clear()
    return "".join(logged)


class Served:
    """`sessionstore serve` as a process of its own."""

    def __init__(self, url: str, *, prefix: Sequence[str] = (), program: Sequence[str] = SERVE, **environment: str) -> None:
        self._url, self._prefix, self._program = url, prefix, program
        self._environment = {**os.environ, "SESSIONSTORE_BUSY_TIMEOUT_MS": "5000", **environment}
        self._port = "0"
        self.start()

    def start(self) -> None:
        """Start it, at the port that it had before."""
        command = [*self._prefix, sys.executable, *self._program, "--database", self._url, "--port", self._port]
        _logs.append(tempfile.TemporaryFile())  # noqa: SIM115  # read when all is over
        self.process = start(*command, stdout=subprocess.PIPE, stderr=_logs[-1], env=self._environment)
        assert self.process.stdout is not None
        listening = self.process.stdout.readline()
        if not listening:
            raise RuntimeError(f"the server did not start: it ended with {self.process.wait()}")
        self.address = listening.split()[2]
        self._port = self.address.rpartition(":")[2]
        self.pid = self._child() if self._prefix else self.process.pid

    def _child(self) -> int:
        """The server itself, and not what was put in front of it."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    @property
    def memory_bytes(self) -> int:
        """How much of the memory it has."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """kill -9. Raises if it was dead already."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.communicate()
        if self.process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the server had ended by itself, with {self.process.returncode}")

    def stop(self, seconds: float = 60) -> int:
        """Have it end in good order."""
        os.kill(self.pid, signal.SIGTERM)
        self.process.communicate(timeout=seconds)
        return self.process.returncode
