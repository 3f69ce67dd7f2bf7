"""HTTP/1.1 as uvicorn speaks it, with an end to what a client may send, and to the time that he may take.

uvicorn itself waits for a request for ever, whether nothing comes, half of it, or a byte a second; and httptools keeps a header
of any length in memory, where h11 stops at 64 KiB as well.
"""

import asyncio
from typing import Any

from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sessionstore.settings import Settings
from sessionstore_api.incoming import ARRIVES
from sessionstore_api.problems import RequestTimeout, answer_of, status_of

UNREAD_SECONDS = 60
TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
)


class Bounded(asyncio.Protocol):
    """What both parsers are held to: a request that does not come in time ends its connection, and so does an unread answer."""

    transport: Any
    loop: asyncio.AbstractEventLoop
    cycle: Any
    app_state: dict[str, Any]
    receive_seconds = 30
    head_bytes = 64 * 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state[ARRIVES] = True
        self._arrival: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    @property
    def is_arriving(self) -> bool:
        """Whether a request has begun to come and is not there yet."""
        raise NotImplementedError

    # What comes -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Who connects has something to say."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Note when a request begins to arrive, and when it is there."""
        super().data_received(data)
        self._note_arrival()

    def on_response_complete(self) -> None:
        """What had come behind the request that is answered now, is looked at now."""
        super().on_response_complete()  # type: ignore[misc]
        self._note_arrival()

    def _note_arrival(self) -> None:
        if self.is_arriving and not self.transport.is_closing():
            self._expect()
        else:
            self._expect_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is to be let go."""
        super().connection_lost(exc)
        self._expect_no_more()
        self._look_no_more()

    def _expect(self) -> None:
        if self._arrival is None:
            self._arrival = self.loop.call_later(self.receive_seconds, self._give_up)

    def _expect_no_more(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    @property
    def answers_earlier(self) -> bool:
        """Whether an earlier request of this connection is not answered yet: what is written now would be taken for that."""
        return False

    def _give_up(self) -> None:
        self._arrival = None
        if self.answers_earlier:
            self._expect()
            return
        self._count(RequestTimeout.code, status_of(RequestTimeout))
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(answer_of(RequestTimeout(seconds=self.receive_seconds)))
            self.transport.close()
        else:
            self.transport.abort()

    def _count(self, code: str, status: int) -> None:
        """What ends here, no application sees."""
        if "tally" in self.app_state:
            self.app_state["tally"].refused(code, status)

    # What is read ---------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client is slow. Who reads nothing at all for a minute is gone, and what is kept for him is let go."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """He has read what there was."""
        super().resume_writing()
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


class BoundedHttpTools(Bounded, HttpToolsProtocol):
    """httptools, in C. Refuses a request whose line and headers are too long, before they have come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = True, 0

    @property
    def is_arriving(self) -> bool:
        """See `Bounded`."""
        return not self._in_head or self._head_bytes > 0

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is not over yet."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.head_bytes and not self.transport.is_closing():
            self._count("head-too-long", 431)
            self.transport.write(TOO_LONG)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes now is the next one's head, and has its own time."""
        self._in_head, self._head_bytes = True, 0
        self._expect_no_more()
        super().on_message_complete()

    @property
    def answers_earlier(self) -> bool:
        """See `Bounded`."""
        return bool(self.pipeline) or (self._in_head and self.cycle is not None and not self.cycle.response_complete)


class BoundedH11(Bounded, H11Protocol):
    """h11, all Python: slower, and stricter."""

    @property
    def is_arriving(self) -> bool:
        """See `Bounded`."""
        state = self.conn.their_state
        return state is SEND_BODY or (state is IDLE and bool(self.conn.trailing_data[0]))


PARSERS: dict[str, type[Bounded]] = {"httptools": BoundedHttpTools, "h11": BoundedH11}


def protocol_of(settings: Settings) -> type[Bounded]:
    """The protocol with the parser and the limits of the settings."""
    limits = {"receive_seconds": settings.receive_seconds, "head_bytes": settings.head_bytes}
    return type("Protocol", (PARSERS[settings.http_parser],), limits)
