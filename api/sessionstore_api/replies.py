"""One answer, whole."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]
ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


# A larger answer is sent in pieces, each when the one before it is on its way: until it is read, its request is not over.
PIECE_BYTES = 256 * 1024


class Reply(Response):
    """A response whose headers are put together only once: names in small letters, as ASGI wants them."""

    def __init__(self, status: int, body: bytes, media_type: bytes | None, headers: Headers) -> None:
        # Not Response's own: it encodes and looks through what is known here.
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = headers
        headers += ALWAYS
        if media_type is not None:
            headers.append((b"content-type", media_type))
            headers.append((b"content-length", b"%d" % len(body)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        body = memoryview(self.body)
        if len(body) <= PIECE_BYTES or scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for begin in range(0, len(body), PIECE_BYTES):
            end = begin + PIECE_BYTES
            await send({"type": "http.response.body", "body": bytes(body[begin:end]), "more_body": end < len(body)})
