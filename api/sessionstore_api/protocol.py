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
        self._look: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is not over yet."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LONG)
            self.transport.close()

    def pause_writing(self) -> None:
        """The client is slow. Who reads nothing at all for a minute is gone, and what is kept for him is let go."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """He has read what there was."""
        super().resume_writing()
        self._look_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is to be let go."""
        super().connection_lost(exc)
        self._look_no_more()

    @property
    def waits_for_reader(self) -> bool:
        """Whether something is kept for a client who does not read it."""
        return self._look is not None

    def _look_again(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(UNREAD_SECONDS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._look_again()
        else:
            self.transport.abort()

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes now is the next one's head."""
        self._in_head = True
        super().on_message_complete()
