"""Addresses that mean one thing only: refused before routing, because routing sees them decoded.

`%2F` would turn an id into a path to something else; bytes that are no UTF-8 would all become the same character; and the end
of a route's pattern also matches in front of a line feed.
"""

from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from sessionstore.errors import InvalidInput, Malformed, SessionStoreError
from sessionstore_api.problems import refuse


class StrictAddresses:
    """Middleware in front of the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        fault = _fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
        else:
            await refuse(fault)(scope, receive, send)


def _fault(scope: Scope) -> SessionStoreError | None:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    if b"%2f" in path.lower():
        return InvalidInput(reason="An id has no '/'", path="the address")
    for part in (path, scope["query_string"]):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            return Malformed(reason="The address is not UTF-8", path="the address")
        if part is path and text.endswith("\n"):
            return InvalidInput(reason="Control characters are refused", path="the address")
    return None
