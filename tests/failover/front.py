"""One address in front of several servers, as a load balancer is: each connection goes to the next one that takes it."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence


class Front:
    """Forwards bytes. `ports` answers which servers there are now."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self._ports, self._turn = ports, itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Listen. Answers the address."""
        self._listener = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Listen no more."""
        self._listener.close()
        for task in self._tasks:
            task.cancel()

    async def _forward(self, caller: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        # A cancelled handler would be reported as an error.
        with contextlib.suppress(asyncio.CancelledError):
            reached = await self._reach()
            if reached is None:
                answer.close()
            else:
                await self._join(caller, answer, *reached)

    async def _join(
        self,
        caller: asyncio.StreamReader,
        answer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        tasks = [asyncio.create_task(_pipe(caller, writer)), asyncio.create_task(_pipe(reader, answer))]
        self._tasks.update(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for end in (writer, answer):
                end.close()
            self._tasks.difference_update(tasks)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ports = self._ports()
        first = next(self._turn)
        for place in range(len(ports)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + place) % len(ports)])
        return None


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while some := await reader.read(64 * 1024):
            writer.write(some)
            await writer.drain()
