"""One HTTP call: decoded before the handler sees it, and answered in one shape after."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
from starlette.datastructures import QueryParams, State
from starlette.responses import Response

from sessionstore import jsontext
from sessionstore.errors import ConversationDeleted, InvalidInput, Malformed
from sessionstore.model import Answer, IfMatch, Tag
from sessionstore_api.access import Visitor
from sessionstore_api.incoming import Incoming
from sessionstore_api.problems import UnsupportedMediaType
from sessionstore_api.rendering import lease_headers
from sessionstore_api.replies import Headers, Reply
from sessionstore_api.requests import precondition

B = TypeVar("B")
Q = TypeVar("Q")
LARGE_BODY = 64 * 1024
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Claims(TypedDict):
    """What the headers of a call say about the conversation, under the library's names."""

    token: str | None
    incarnation: int | None


class Call(Generic[B, Q]):
    """A decoded call: `body` and `query` are values of the operation's classes."""

    def __init__(self, incoming: Incoming, visitor: Visitor, body: B, query: Q) -> None:
        self._incoming, self.visitor, self.body, self.query = incoming, visitor, body, query
        self.store = visitor.store
        told = incoming.headers
        self.token = self._token() if b"lease-token" in told else None
        self.incarnation = self._incarnation() if b"incarnation" in told else None
        self.if_match = self._if_match() if b"if-match" in told else None
        self.only_create = self._only_create() if b"if-none-match" in told else False

    @property
    def app_state(self) -> State:
        """What the application made of its own routes: `openapi` and `docs`."""
        return self._incoming.scope["app"].state  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        """The conversation's id in the path."""
        return str(self._incoming.path_params["conversation_id"])

    @property
    def head(self) -> bool:
        """Whether only the headers are wanted."""
        return self._incoming.method == "HEAD"

    @property
    def last_event_id(self) -> str | None:
        """The last event that a reader had who reconnects."""
        return self._incoming.single_header("Last-Event-ID")

    @property
    def message_id(self) -> str:
        """The message's id in the path."""
        return str(self._incoming.path_params["message_id"])

    def life_of_cursor(self, incarnation: int) -> int:
        """The life that a cursor belongs to. Raises `ConversationDeleted` when the header names another one.

        What is wrong in the query itself is judged before that.
        """
        self.store.limits.page_size(getattr(self.query, "limit", None))
        if self.incarnation not in (None, incarnation):
            raise ConversationDeleted(conversation_id=self.id, incarnation=incarnation)
        return incarnation

    @property
    def claims(self) -> Claims:
        """Token and incarnation."""
        return {"token": self.token, "incarnation": self.incarnation}

    def _token(self) -> str | None:
        value = self._incoming.single_header("Lease-Token")
        if value == "":
            raise Malformed(reason="The header is empty", path="Lease-Token")
        return None if value is None else self.store.limits.token(value, "Lease-Token")

    def _incarnation(self) -> int | None:
        value = self._incoming.single_header("Incarnation")
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise Malformed(reason="Expected a whole number", path="Incarnation")
        return self.store.limits.number(int(value), "Incarnation", least=1)

    def _if_match(self) -> IfMatch | None:
        value = self._incoming.single_header("If-Match")
        if value is None or value == "*":
            return value  # type: ignore[return-value]
        if len(value) < 2 or not (value[0] == value[-1] == '"') or '"' in value[1:-1]:
            raise Malformed(reason='Expected one strong entity tag ("…") or *', path="If-Match")
        return precondition(value[1:-1])

    def _only_create(self) -> bool:
        value = self._incoming.single_header("If-None-Match")
        if self._incoming.method == "PUT" and value not in (None, "*"):
            raise Malformed(reason="Only * is understood: create, never replace", path="If-None-Match")
        return value == "*"


def moment_of(text: str | None, path: str) -> int | None:
    """The milliseconds of a time in a query. Raises `InvalidInput` for what is none, and for one without a zone."""
    if text is None:
        return None
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        time = datetime.fromisoformat(text.upper())
        milliseconds = (time - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise InvalidInput(reason="Expected a time like 2026-11-30T12:00:00Z", path=path) from None
    if milliseconds < 0:
        raise InvalidInput(reason="That was before 1970", path=path)
    return milliseconds


async def decode_body(incoming: Incoming, kind: type[B] | None, limit: int, seconds: int) -> B:
    """The body as a value of `kind`.

    Raises `Malformed`, `TooLarge`, `RequestTimeout`, `UnsupportedMediaType`, and `InvalidInput` with the path to the fault.
    """
    raw = await incoming.body(limit, seconds)
    if kind is None:
        if raw:
            raise Malformed(reason="This call has no body")
        return None  # type: ignore[return-value]
    if raw or b"content-type" in incoming.headers:
        # Also of nothing: a form that a page has sent says so.
        _check_media_type(incoming)
    if not raw:
        # Where everything may be left out, so may the body.
        return _convert({}, kind) if _all_optional(kind) else _refuse_empty()
    if len(raw) < LARGE_BODY:
        return _convert(jsontext.decode(raw), kind)
    return await asyncio.to_thread(lambda: _convert(jsontext.decode(raw), kind))


def decode_query(incoming: Incoming, kind: type[Q]) -> Q:
    """The query parameters as a value of `kind`. Raises `InvalidInput` for one that is unknown, wrong, or stands twice."""
    if not incoming.query_string:
        return _nothing_asked(kind)  # type: ignore[no-any-return, arg-type]
    pairs = QueryParams(incoming.query_string.decode("latin-1")).multi_items()
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
    headers: Headers = []
    if tag is not None:
        headers.append((b"etag", b'"%d-%d"' % tag))
    if location is not None:
        headers.append((b"location", location.encode("ascii")))
    if done is not None and done.replayed:
        headers.append((b"idempotent-replayed", b"true"))
        status = 200 if status in (201, 202) else status
    if done is not None and done.lease is not None:
        headers += lease_headers(done.lease)
    if body is None:
        return Reply(status, b"", None, headers)
    return Reply(status, msgspec.json.encode(body), b"application/json", headers)


def _check_media_type(incoming: Incoming) -> None:
    given = incoming.header(b"content-type") or ""
    if given == "application/json":
        return
    given = given.partition(";")[0].strip().lower()
    if given != "application/json" and (given, incoming.method) != ("application/merge-patch+json", "PATCH"):
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
    known = _types_of(kind)  # type: ignore[arg-type]
    typed: dict[str, Any] = dict(query)
    for name, text in query.items():
        if "bool" in known.get(name, ""):
            typed[name] = {"true": True, "false": False}.get(text, text)
        elif "int" in known.get(name, "") and _INTEGER.fullmatch(text):
            typed[name] = int(text)
    return typed


@cache
def _types_of(kind: Any) -> dict[str, str]:
    return {field.name: str(field.type) for field in msgspec.structs.fields(kind)}


@cache
def _nothing_asked(kind: Any) -> Any:
    return _convert({}, kind, root="?")


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile("-?(0|[1-9][0-9]{0,30})")
