"""One request, read where it lies."""

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from sessionstore.errors import Malformed, TooLarge
from sessionstore_api.problems import RequestTimeout

ARRIVES = "arrives"
"""In the state of a request: its server sees to it that it arrives in time, or not at all."""


class Incoming:
    """What the server hands over of a request.

    Starlette's own Request builds mappings of headers and state for each, which costs more than the body does.
    """

    __slots__ = ("_several", "headers", "method", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.method: str = scope["method"]
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        # The first of several is the one that counts, where several are allowed.
        self.headers = dict(headers[::-1])
        self._several = len(self.headers) != len(headers)

    @property
    def path_params(self) -> dict[str, Any]:
        """What the address names."""
        return self.scope["path_params"]  # type: ignore[no-any-return]

    @property
    def query_string(self) -> bytes:
        """What stands behind the question mark."""
        return self.scope["query_string"]  # type: ignore[no-any-return]

    def header(self, name: bytes) -> str | None:
        """A header, by its name in small letters."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def single_header(self, name: str) -> str | None:
        """A header that may stand once only. Raises `Malformed`."""
        key = name.lower().encode()
        if self._several and sum(key == other for other, _ in self.scope["headers"]) > 1:
            raise Malformed(reason="The header stands twice", path=name)
        return self.header(key)

    async def body(self, limit: int, seconds: int) -> bytes:
        """The whole body. Raises `RequestTimeout`, and `TooLarge`, before it is sent where its length is announced."""
        announced = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if not announced or self.scope["state"].get(ARRIVES):
            return await self._read(limit)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(limit)
        except TimeoutError:
            raise RequestTimeout(seconds=seconds) from None

    async def _read(self, limit: int) -> bytes:
        announced = self.header(b"content-length") or ""
        if announced.isdigit() and int(announced) > limit:
            raise TooLarge(reason=f"A body has at most {limit} bytes")
        first, more = await self._part()
        if not more and len(first) <= limit:
            return first
        whole = bytearray(first)
        while len(whole) <= limit:
            if not more:
                return bytes(whole)
            part, more = await self._part()
            whole += part
        raise TooLarge(reason=f"A body has at most {limit} bytes")

    async def _part(self) -> tuple[bytes, bool]:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        return message.get("body", b""), message.get("more_body", False)
