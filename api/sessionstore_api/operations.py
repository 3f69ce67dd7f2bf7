"""An operation is one method on one path: what it takes, what it answers, how it can fail. Routes and OpenAPI come from it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessionstore import errors
from sessionstore.errors import SessionStoreError
from sessionstore_api.access import Access, Visitor
from sessionstore_api.calls import Call, decode_body, decode_query
from sessionstore_api.incoming import Incoming
from sessionstore_api.problems import refuse
from sessionstore_api.requests import NoQuery

B = TypeVar("B")
Q = TypeVar("Q")
Handler = Callable[[Call[B, Q]], Awaitable[Response]]
Errors = tuple[type[SessionStoreError], ...]

LIFE: Errors = (errors.ConversationNotFound, errors.ConversationDeleted)
TAGGED: Errors = (errors.PreconditionFailed,)
LEASED: Errors = (errors.LeaseLost,)
GUARDED: Errors = (*LIFE, *LEASED, errors.Generating)


def in_query(error: errors.InvalidInput) -> errors.InvalidInput:
    """What the library says of an argument, said of a query parameter."""
    return type(error)(reason=error.reason, path=error.path.replace("$.", "?", 1)) if error.path.startswith("$.") else error


def check_force(call: Call[Any, Any]) -> None:
    """Raise `Forbidden` for who would end somebody else's turn without the right to.

    A token is no leave: whoever holds the lease needs no force, and others' turns may hang below his.
    """
    busy = getattr(call.body, "if_busy", "reject")
    forced = getattr(call.body, "force", False) or getattr(call.query, "force", False) or busy != "reject"
    if forced and not call.visitor.is_admin:
        raise errors.Forbidden(reason="To end somebody else's turn needs a key with the right `admin`")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the table of routes."""

    method: str
    path: str
    handler: Handler[Any, Any]
    answers: dict[int, Any]
    body: type[Any] | None = None
    query: type[Any] = NoQuery
    errors: Errors = ()
    headers: tuple[str, ...] = ()
    tagged: bool = False
    """Whether a GET answers with an ETag; what changes something may."""
    public: bool = False
    """Whether it needs no key: it says nothing of anybody's conversations."""
    admin: bool = False
    """Whether it needs the right of that name."""
    counted: str = "requests"
    """As what it is counted while it goes on."""

    @property
    def name(self) -> str:
        """The handler's name: the operationId."""
        return self.handler.__name__

    @property
    def about(self) -> str:
        """What it does, in the handler's words."""
        return " ".join((self.handler.__doc__ or "").split())


class Resource:
    """The operations of one path, as an ASGI application. HEAD is GET; its body is dropped by the server."""

    def __init__(self, operations: list[Operation], body_limit: int, receive_seconds: int) -> None:
        self.operations = {operation.method: operation for operation in operations}
        if "GET" in self.operations:
            self.operations["HEAD"] = self.operations["GET"]
        self._body_limit, self._receive_seconds = body_limit, receive_seconds

    def takes(self, method: str) -> bool:
        """Whether there is such an operation."""
        return method in self.operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let in, decode, handle, answer."""
        operation, state = self.operations[scope["method"]], scope["state"]
        incoming = Incoming(scope, receive)
        state["route"], state["stream"] = operation.path, operation.counted == "streams"
        try:
            access: Access = state["access"]
            visitor = access.stranger if operation.public else await access.visitor(incoming)
            state["key"] = visitor.name
            visitor.check(incoming.method, admin=operation.admin)
            visitor.enter(operation.counted)
            try:
                await self._answer(operation, incoming, visitor, send)
            finally:
                visitor.leave(operation.counted)
        except SessionStoreError as error:
            state["code"] = error.code
            await refuse(error)(scope, receive, send)

    async def _answer(self, operation: Operation, incoming: Incoming, visitor: Visitor, send: Send) -> None:
        try:
            response = await self._respond(operation, incoming, visitor)
        except SessionStoreError as error:
            incoming.scope["state"]["code"] = error.code
            response = refuse(error)
        except ClientDisconnect:
            response = Response(status_code=400)
        await response(incoming.scope, incoming.receive, send)

    async def _respond(self, operation: Operation, incoming: Incoming, visitor: Visitor) -> Response:
        try:
            body = await decode_body(incoming, operation.body, self._body_limit, self._receive_seconds)
        except asyncio.CancelledError:
            raise errors.Closed from None
        if not operation.public:
            await incoming.scope["state"]["access"].confirm(visitor)
        call = Call(incoming, visitor, body, decode_query(incoming, operation.query))
        check_force(call)
        try:
            return await operation.handler(call)
        except errors.InvalidInput as error:
            raise in_query(error) if operation.body is None else error from None
        except asyncio.CancelledError:
            # The server stops, and its patience is at an end; what was begun goes on without us.
            raise (errors.Closed if operation.method == "GET" else errors.OutcomeUnknown) from None
