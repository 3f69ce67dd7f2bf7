"""One HTTP call: decoded before the handler sees it, and answered in one shape after."""

import asyncio
import base64
import binascii
import re
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response

from sessionstore import AsyncStore, jsontext
from sessionstore.errors import InvalidInput, Malformed, TooLarge
from sessionstore.model import Answer, IfMatch, Tag
from sessionstore_api.problems import UnsupportedMediaType
from sessionstore_api.rendering import lease_headers

B = TypeVar("B")
Q = TypeVar("Q")
LARGE_BODY = 64 * 1024
NO_STATE = Tag(0, 0)


class Claims(TypedDict):
    """What the headers of a call say about the conversation, under the library's names."""

    token: str | None
    incarnation: int | None


class Call(Generic[B, Q]):
    """A decoded call: `body` and `query` are values of the operation's classes."""

    def __init__(self, request: Request, body: B, query: Q) -> None:
        self._request, self.body, self.query = request, body, query
        self.store: AsyncStore = request.state.store
        self.token = self._token()
        self.incarnation = self._incarnation()
        self.if_match = self._if_match()
        self.only_create = self._only_create()

    @property
    def app_state(self) -> State:
        """What the application made of its own routes: `openapi` and `docs`."""
        return self._request.app.state  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        """The conversation's id in the path."""
        return str(self._request.path_params["conversation_id"])

    @property
    def message_id(self) -> str:
        """The message's id in the path."""
        return str(self._request.path_params["message_id"])

    @property
    def claims(self) -> Claims:
        """Token and incarnation."""
        return {"token": self.token, "incarnation": self.incarnation}

    def _header(self, name: str) -> str | None:
        values = self._request.headers.getlist(name)
        if len(values) > 1:
            raise Malformed(reason="The header stands twice", path=name)
        return values[0] if values else None

    def _token(self) -> str | None:
        value = self._header("Lease-Token")
        if value == "":
            raise Malformed(reason="The header is empty", path="Lease-Token")
        return None if value is None else self.store.limits.token(value, "Lease-Token")

    def _incarnation(self) -> int | None:
        value = self._header("Incarnation")
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise Malformed(reason="Expected a whole number", path="Incarnation")
        return self.store.limits.number(int(value), "Incarnation", least=1)

    def _if_match(self) -> IfMatch | None:
        value = self._header("If-Match")
        if value is None or value == "*":
            return value  # type: ignore[return-value]
        if len(value) < 2 or not (value[0] == value[-1] == '"') or '"' in value[1:-1]:
            raise Malformed(reason='Expected one strong entity tag ("…") or *', path="If-Match")
        # A tag that is none of ours is the tag of no state: the precondition fails.
        return Tag.parse(value[1:-1]) or NO_STATE

    def _only_create(self) -> bool:
        value = self._header("If-None-Match")
        if self._request.method == "PUT" and value not in (None, "*"):
            raise Malformed(reason="Only * is understood: create, never replace", path="If-None-Match")
        return value == "*"


async def decode_body(request: Request, kind: type[B] | None, limit: int) -> B:
    """The body as a value of `kind`.

    Raises `Malformed`, `TooLarge`, `UnsupportedMediaType`, and `InvalidInput` with the path to the fault.
    """
    raw = await _read(request, limit)
    if kind is None:
        if raw:
            raise Malformed(reason="This call has no body")
        return None  # type: ignore[return-value]
    if not raw:
        # Where everything may be left out, so may the body.
        return _convert({}, kind) if _all_optional(kind) else _refuse_empty()
    _check_media_type(request)
    if len(raw) < LARGE_BODY:
        return _convert(jsontext.decode(raw), kind)
    return await asyncio.to_thread(lambda: _convert(jsontext.decode(raw), kind))


def decode_query(request: Request, kind: type[Q]) -> Q:
    """The query parameters as a value of `kind`. Raises `InvalidInput` for one that is unknown, wrong, or stands twice."""
    pairs = request.query_params.multi_items()
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidInput(reason="A query parameter stands twice", path="?")
    return _convert(_typed(kind, query), kind, root="?")


def answer(
    status: int,
    body: msgspec.Struct | None,
    done: Answer[Any] | None = None,
    *,
    tag: Tag | None = None,
    location: str | None = None,
) -> Response:
    """The response, with what every answer says: a repeat (200 for 201 and 202) and how the caller's lease stands."""
    headers = {"Cache-Control": "no-store"}
    if tag is not None:
        headers["ETag"] = f'"{tag}"'
    if location is not None:
        headers["Location"] = location
    if done is not None and done.replayed:
        headers["Idempotent-Replayed"] = "true"
        status = 200 if status in (201, 202) else status
    if done is not None and done.lease is not None:
        headers |= lease_headers(done.lease)
    content = b"" if body is None else msgspec.json.encode(body)
    return Response(content, status, headers, None if body is None else "application/json")


def encode_cursor(cursor: msgspec.Struct | None) -> str | None:
    """An opaque cursor, or none."""
    return None if cursor is None else base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def decode_cursor(cursor: str, kind: type[B]) -> B:
    """The cursor. Raises `Malformed` for one that was not made here."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Malformed(reason="This is no cursor of this list", path="?cursor") from None


async def _read(request: Request, limit: int) -> bytes:
    # Starlette's own max_body_size answers in plain text; ours is a problem like all others.
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise TooLarge(reason=f"A body has at most {limit} bytes")
    whole = bytearray()
    async for chunk in request.stream():
        whole += chunk
        if len(whole) > limit:
            raise TooLarge(reason=f"A body has at most {limit} bytes")
    return bytes(whole)


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json" and (given, request.method) != ("application/merge-patch+json", "PATCH"):
        raise UnsupportedMediaType(expected="application/json")


def _refuse_empty() -> Any:
    raise Malformed(reason="This call needs a body")


def _all_optional(kind: type[Any]) -> bool:
    return all(not field.required for field in msgspec.structs.fields(kind))


def _convert(value: Any, kind: type[B], *, root: str = "$") -> B:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        at = path.strip("`").replace("$.", root + ("." if root == "$" else ""), 1)
        raise InvalidInput(reason=reason.replace("`", "'"), path=at or root) from None
    except UnicodeEncodeError:
        raise InvalidInput(reason="Lone surrogates are refused", path=root) from None


def _typed(kind: type[Any], query: dict[str, str]) -> dict[str, Any]:
    """Numbers and truth values as what they are, where a parameter is one; anything else stays a text."""
    known = {field.name: str(field.type) for field in msgspec.structs.fields(kind)}
    typed: dict[str, Any] = dict(query)
    for name, text in query.items():
        if "bool" in known.get(name, ""):
            typed[name] = {"true": True, "false": False}.get(text, text)
        elif "int" in known.get(name, "") and _INTEGER.fullmatch(text):
            typed[name] = int(text)
    return typed


_INTEGER = re.compile("-?(0|[1-9][0-9]{0,30})")
