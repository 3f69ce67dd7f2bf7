"""Where a race is run: threads on one store, separate processes on one file, two HTTP servers on one file.

Each arena has seats; `together` starts one operation on each of several seats at the same moment.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from sessionstore import Store
from tests.races.operations import Op, Outcome, on_store, over_http
from tests.test_serve import Server

PATIENCE_MS = 30_000


class Arena:
    """Seats that perform operations, each seat one at a time."""

    def __init__(self, seats: list[Callable[[Op], Outcome]]) -> None:
        self._seats = seats

    def together(self, operations: list[Op]) -> list[Outcome]:
        """All at one moment; the outcomes in their order."""
        started = [Running(self._seats[index], operation) for index, operation in enumerate(operations)]
        barrier = threading.Barrier(len(started) + 1)
        for running in started:
            running.start(barrier)
        barrier.wait()
        return [running.outcome() for running in started]

    def begin(self, operation: Op, seat: int = 0) -> "Running":
        """Start an operation and go on."""
        running = Running(self._seats[seat], operation)
        running.start(threading.Barrier(1))
        return running

    def do(self, operation: Op, seat: int = 0) -> Outcome:
        """One operation, waited for."""
        return self._seats[seat](operation)

    def close(self) -> None:
        """Leave nothing running."""


class Running:
    """An operation on its way."""

    def __init__(self, seat: Callable[[Op], Outcome], operation: Op) -> None:
        self._seat, self._operation = seat, operation
        self._result: list[Outcome | BaseException] = []

    def start(self, barrier: threading.Barrier) -> None:
        """Go when the barrier opens."""
        self._thread = threading.Thread(target=self._run, args=(barrier,))
        self._thread.start()

    def _run(self, barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            self._result.append(self._seat(self._operation))
        except BaseException as error:  # noqa: BLE001  # it is raised where the outcome is asked for
            self._result.append(error)

    def outcome(self) -> Outcome:
        """What came of it."""
        self._thread.join(60)
        result = self._result[0]
        if isinstance(result, BaseException):
            raise result
        return result


class Threads(Arena):
    """Threads on one store."""

    def __init__(self, url: str, seats: int) -> None:
        self._store = Store.open(url, busy_timeout_ms=PATIENCE_MS)
        super().__init__([lambda operation: on_store(self._store, operation)] * seats)

    def close(self) -> None:
        self._store.close()


class Processes(Arena):
    """A process for each seat."""

    def __init__(self, url: str, seats: int) -> None:
        self._processes = [Process(url) for _ in range(seats)]
        super().__init__([process.perform for process in self._processes])

    def close(self) -> None:
        for process in self._processes:
            process.stop()


class Process:
    """A worker, perhaps with a failpoint in it."""

    def __init__(self, url: str, *failpoint: str, patience_ms: int = PATIENCE_MS) -> None:
        module = ["tests.races.failpoints", *failpoint, "tests.races.worker"] if failpoint else ["tests.races.worker"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module, url, str(patience_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._line() == "ready"

    def perform(self, operation: Op) -> Outcome:
        """Have an operation done; a worker that died says `killed`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([operation.name, operation.id, dict(operation.arguments)]) + "\n")
        self.process.stdin.flush()
        line = self._line()
        return Outcome(*json.loads(line)) if line else Outcome("killed")

    def stop(self) -> None:
        """End it."""
        self.process.communicate(timeout=30)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class Servers(Arena):
    """Two HTTP servers on one file, with a socket for each seat."""

    def __init__(self, url: str, seats: int) -> None:
        patience = {"SESSIONSTORE_BUSY_TIMEOUT_MS": str(PATIENCE_MS)}
        self._servers = [Server(url, **patience) for _ in range(2)]
        self._clients = [httpx2.Client(base_url=self._servers[seat % 2].address, timeout=60) for seat in range(seats)]
        super().__init__([_seat(client) for client in self._clients])

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self._servers:
            server.stop()


def _seat(client: httpx2.Client) -> Callable[[Op], Outcome]:
    return lambda operation: over_http(client, operation)


ARENAS: dict[str, Any] = {"threads": Threads, "processes": Processes, "servers": Servers}
