"""A real server in this process: real sockets, and the test's own clock and file."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from sessionstore_api.app import create_app
from sessionstore_api.serve import Server

from sessionstore.settings import Settings


class Prompt(Server):
    """Looks more often whether it is to stop than a server needs to that is not one of hundreds."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.005)


class LiveServer:
    """Serves a database in a thread, as `sessionstore serve` does."""

    def __init__(self, url: str, clock: Callable[[], int], port: int = 0, **settings_of: Any) -> None:
        settings = Settings(database_url=url, **settings_of)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server = Prompt(create_app(settings, clock=clock), settings)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    @property
    def state(self) -> dict[str, Any]:
        """What its requests find in their state."""
        return self._server.lifespan.state  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop it in good order."""
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream:
    """The events of a server, read from a socket as they come."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "127.0.0.1", **headers}.items())
        self._socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value

        self._events = self._read()

    def _lines(self) -> Iterator[bytes]:
        # Chunked transfer: a length, so many bytes, an empty line; a length of zero is the end.
        rest = b""
        while length := int(self._line(), 16):
            rest += self._file.read(length + 2)[:-2]
            *whole, rest = rest.split(b"\n")
            yield from whole

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line:
            raise ConnectionError
        return line

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def _read(self) -> Iterator[dict[str, Any]]:
        event: dict[str, Any] = {}
        for line in self._lines():
            if line == b"":
                if "data" in event:
                    yield {**event, "data": json.loads(event["data"])}
                event = {}
            elif not line.startswith(b":"):
                name, _, value = line.decode().partition(": ")
                event[name] = value

    def close(self) -> None:
        self._file.close()
        self._socket.close()
