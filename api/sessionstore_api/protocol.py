"""HTTP/1.1 as httptools reads it, with an end to what a client may say before the body.

httptools itself keeps a header of any length in memory; h11, the other parser, stops at 64 KiB as well.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
UNREAD_SECONDS = 60
TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
)


class BoundedHead(HttpToolsProtocol):
    """Refuses a request whose line and headers are longer than 64 KiB, before they have come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = True, 0
        self._gone: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is not over yet."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LONG)
            self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read. Who reads nothing for a minute is gone, and what is kept for him is let go."""
        super().pause_writing()
        self._gone = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """He does."""
        super().resume_writing()
        if self._gone is not None:
            self._gone.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is to be let go."""
        super().connection_lost(exc)
        if self._gone is not None:
            self._gone.cancel()

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes now is the next one's head."""
        self._in_head = True
        super().on_message_complete()
