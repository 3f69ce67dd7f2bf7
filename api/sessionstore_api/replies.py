"""One answer, whole."""

from starlette.responses import Response

Headers = list[tuple[bytes, bytes]]
ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


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
