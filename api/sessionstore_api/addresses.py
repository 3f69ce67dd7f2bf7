"""Addresses: those that mean one thing only, and a short way to the operations for those that are plain.

Routing sees addresses decoded. `%2F` would turn an id into a path to something else; bytes that are no UTF-8 would all become
the same character; and the end of a route's pattern also matches in front of a line feed. So these are refused before routing.
"""

from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from sessionstore.errors import InvalidInput, Malformed, SessionStoreError
from sessionstore_api.operations import Resource
from sessionstore_api.problems import refuse

CONVERSATION = "/v1/conversations/{conversation_id}"
MESSAGE_ID = "/{message_id}"
BEFORE_ID = CONVERSATION.partition("{")[0]


class Addresses:
    """Middleware in front of the routes. What it does not know itself, it leaves to them."""

    def __init__(self, app: ASGIApp, resources: Mapping[str, Resource]) -> None:
        self._app = app
        below = _below(CONVERSATION, resources)
        self._fixed, self._of_conversation = _without_names(resources), _without_names(below)
        self._of_message = {path.removesuffix(MESSAGE_ID): resource for path, resource in below.items() if MESSAGE_ID in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, go the short way, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not _plain(scope):
            fault = _fault(scope)
            await (self._app if fault is None else refuse(fault))(scope, receive, send)
        else:
            resource, params = self._find(scope["path"])
            if resource is None or not resource.takes(scope["method"]):
                await self._app(scope, receive, send)
            else:
                scope["path_params"] = params
                await resource(scope, receive, send)

    def _find(self, path: str) -> tuple[Resource | None, dict[str, str]]:
        if not path.startswith(BEFORE_ID):
            return self._fixed.get(path), {}
        conversation_id, slash, below = path[len(BEFORE_ID) :].partition("/")
        params = {"conversation_id": conversation_id}
        if not conversation_id:
            return None, params
        resource = self._of_conversation.get(slash + below)
        if resource is not None:
            return resource, params
        above, _, params["message_id"] = below.rpartition("/")
        return (self._of_message.get(slash + above) if params["message_id"] else None), params


def _below(path: str, resources: Mapping[str, Resource]) -> dict[str, Resource]:
    return {longer.removeprefix(path): resource for longer, resource in resources.items() if longer.startswith(path)}


def _without_names(resources: Mapping[str, Resource]) -> dict[str, Resource]:
    return {path: resource for path, resource in resources.items() if "{" not in path}


def _plain(scope: Scope) -> bool:
    """Whether nothing in the address needs decoding."""
    path: bytes = scope.get("raw_path") or b"%"
    query: bytes = scope["query_string"]
    decoded = b"%" not in path and path.isascii() and b"%" not in query and query.isascii()
    # Under another application's path it is the router who knows what is left of the address.
    return decoded and not scope.get("root_path")


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
