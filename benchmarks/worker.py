"""A process that has one store open and does what it is told: one job a line in, what it took a line out.

    python -m benchmarks.worker MODULE CLASS FOLDER SYNCHRONOUS

Every side of a comparison is such a process, so that they can be measured in turn, each in an environment of its own.
"""

import asyncio
import gc
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = ("The quick brown fox jumps over the lazy dog. " * 23)[:1000]


class Side:
    """A store, in the words of the benchmarks. `append` is a coroutine where `awaited`; sessions exist once appended to."""

    awaited = False

    def __init__(self, folder: Path, synchronous: str) -> None:
        self.folder, self.synchronous = folder, synchronous

    def append(self, session: str, text: str) -> Any:
        """Store one message durably."""
        raise NotImplementedError

    def last(self, session: str, count: int) -> Any:
        """The last messages of a session, as objects."""
        raise NotImplementedError

    def whole(self, session: str) -> Any:
        """All messages of a session, as objects."""
        raise NotImplementedError

    def fill(self, session: str, count: int) -> None:
        """A session of so many messages, by whatever way."""
        raise NotImplementedError

    def durability(self) -> str:
        """What the file and the connections are really set to."""
        raise NotImplementedError

    def stored(self) -> int:
        """How many messages lie in the file."""
        raise NotImplementedError


class Taken:
    """How long calls took."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.errors: list[str] = []
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def result(self) -> dict[str, Any]:
        """Rates and percentiles, in seconds."""
        wall, cpu, times = time.perf_counter() - self._began, time.process_time() - self._cpu, sorted(self.times)
        done = len(times)
        return {
            "done": done,
            "rate": done / wall,
            "cpu_us": cpu / max(1, done) * 1e6,
            "p50": times[done // 2] if done else None,
            "p99": times[int(done * 0.99)] if done else None,
            "max": times[-1] if done else None,
            "errors": len(self.errors),
            "error": self.errors[0] if self.errors else None,
        }


class Jobs:
    """What a worker can be told."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._loop = asyncio.new_event_loop()

    def one(self, seconds: float, session: str = "one") -> dict[str, Any]:
        """One caller appends to one session."""
        return self._callers(seconds, 1, [session])

    def many(self, seconds: float, workers: int = 16, sessions: int = 200) -> dict[str, Any]:
        """Callers append to many sessions: tasks or threads, as the store wants."""
        return self._callers(seconds, workers, [f"many-{n}" for n in range(sessions)])

    def warm(self, sessions: list[str]) -> dict[str, Any]:
        """Make sessions exist."""
        for session in sessions:
            self._wait(self._side.append(session, TEXT))
        return {}

    def fill(self, session: str, count: int) -> dict[str, Any]:
        """A session of so many messages."""
        self._side.fill(session, count)
        return {}

    def last(self, session: str, count: int, times: int) -> dict[str, Any]:
        """Load the end of a session."""
        return self._timed(lambda: self._side.last(session, count), times)

    def whole(self, session: str, times: int) -> dict[str, Any]:
        """Load a session."""
        return self._timed(lambda: self._side.whole(session), times)

    def about(self) -> dict[str, Any]:
        """What it really is."""
        return {"durability": self._side.durability(), "stored": self._side.stored()}

    def generating(self, conversations: int, seconds: float, every: float) -> dict[str, Any]:
        """Many conversations generate at once: see `ours.Awaited`."""
        return self._loop.run_until_complete(self._side.generating(conversations, seconds, every))  # type: ignore[attr-defined,no-any-return]

    def _wait(self, result: Any) -> Any:
        return self._loop.run_until_complete(result) if self._side.awaited else result

    def _timed(self, load: Callable[[], Any], times: int) -> dict[str, Any]:
        taken = Taken()
        end = time.perf_counter() + 5
        while len(taken.times) < times and time.perf_counter() < end:
            began = time.perf_counter()
            self._wait(load())
            taken.times.append(time.perf_counter() - began)
        return taken.result()

    def _callers(self, seconds: float, workers: int, sessions: list[str]) -> dict[str, Any]:
        taken, end = Taken(), time.perf_counter() + seconds
        if self._side.awaited:
            self._loop.run_until_complete(self._tasks(taken, end, workers, sessions))
        elif workers == 1:
            self._thread(taken, end, 0, 1, sessions)
        else:
            threads = [threading.Thread(target=self._thread, args=(taken, end, n, workers, sessions)) for n in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return taken.result()

    def _thread(self, taken: Taken, end: float, mine: int, workers: int, sessions: list[str]) -> None:
        while (began := time.perf_counter()) < end:
            try:
                self._side.append(sessions[mine % len(sessions)], TEXT)
                taken.times.append(time.perf_counter() - began)
            except Exception as error:  # noqa: BLE001  # peers fail in many ways; each is counted
                taken.errors.append(repr(error)[:200])
            mine += workers

    async def _tasks(self, taken: Taken, end: float, workers: int, sessions: list[str]) -> None:
        async def work(mine: int) -> None:
            while (began := time.perf_counter()) < end:
                try:
                    await self._side.append(sessions[mine % len(sessions)], TEXT)
                    taken.times.append(time.perf_counter() - began)
                except Exception as error:  # noqa: BLE001  # see above
                    taken.errors.append(repr(error)[:200])
                mine += workers

        await asyncio.gather(*(work(n) for n in range(workers)))


def main() -> None:
    """Serve standard input until it ends."""
    module, name, folder, synchronous = sys.argv[1:]
    said = sys.stdout
    # What a library prints must not end up between our answers.
    sys.stdout = sys.stderr
    # As any server should: what was loaded is not looked through again.
    gc.collect()
    gc.freeze()
    jobs = Jobs(getattr(importlib.import_module(module), name)(Path(folder), synchronous))
    print("ready", file=said, flush=True)
    for line in sys.stdin:
        job, arguments = json.loads(line)
        print(json.dumps(getattr(jobs, job)(**arguments)), file=said, flush=True)


if __name__ == "__main__":
    main()
