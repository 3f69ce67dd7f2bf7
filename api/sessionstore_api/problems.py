"""From errors to RFC 9457 problem documents: one table from what the library raises to what HTTP calls it."""

import logging
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sessionstore import errors
from sessionstore.errors import SessionStoreError
from sessionstore_api.rendering import lease_headers, moment
from sessionstore_api.replies import Headers, Reply

log = logging.getLogger("sessionstore_api")

STATUS: dict[type[SessionStoreError], int] = {
    errors.Malformed: 400,
    errors.TooLarge: 413,
    errors.InvalidInput: 422,
    errors.ConversationNotFound: 404,
    errors.ConversationDeleted: 410,
    errors.ConversationExists: 409,
    errors.Generating: 409,
    errors.LeaseLost: 409,
    errors.TokenUsed: 409,
    errors.MessageNotFound: 404,
    errors.MessageDeleted: 410,
    errors.MessageExists: 409,
    errors.MessageQueued: 409,
    errors.MessageComplete: 409,
    errors.PreconditionFailed: 412,
    errors.Stale: 409,
    errors.BudgetTooSmall: 422,
    errors.InputsPending: 409,
    errors.InputClaimed: 409,
    errors.InputsFull: 429,
    errors.OwnerFull: 429,
    errors.TooManyRequests: 429,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.Unavailable: 503,
    errors.DatabaseUnusable: 503,
}
RETRY_AFTER_SECONDS: dict[type[SessionStoreError], int] = {
    errors.Busy: 1,
    errors.OutcomeUnknown: 1,
    errors.DiskFull: 10,
    errors.TooManyRequests: 1,
}
RETRY_AFTER_DEFAULT = 5
PLACED = (errors.DatabaseUnusable, errors.SchemaChanged, errors.StorageFailed, errors.Unreachable)
PLACES = {"reason": "see the server's log", "database": "the database"}
MOMENTS = ("expires_at", "ended_at")
MEDIA_TYPE = "application/problem+json"


class UnsupportedMediaType(SessionStoreError):
    """A body is sent as {expected}."""

    code = "unsupported-media-type"
    expected: str


class SlowReader(SessionStoreError):
    """Events were not read for too long. Reconnect with the last one that you had: nothing is lost."""

    code = "slow-reader"
    retryable = True


class HostRefused(SessionStoreError):
    """This server is not called by that name. `SESSIONSTORE_ALLOWED_HOSTS` says which names it has beside localhost."""

    code = "host-refused"


class OriginRefused(SessionStoreError):
    """Pages from elsewhere may not call this server. `SESSIONSTORE_ALLOWED_ORIGINS` says which may."""

    code = "origin-refused"


class RequestTimeout(SessionStoreError):
    """The request did not come within {seconds} seconds. Nothing of it was looked at."""

    code = "request-timeout"
    retryable = True
    seconds: int


STATUS |= {UnsupportedMediaType: 415, SlowReader: 503, HostRefused: 403, OriginRefused: 403, RequestTimeout: 408}


def status_of(kind: type[SessionStoreError]) -> int:
    """The HTTP status of an error class: its own, or that of the nearest class above it."""
    return next(STATUS[parent] for parent in kind.__mro__ if parent in STATUS)


def title_of(code: str) -> str:
    """What all problems of one code are called."""
    return code.replace("-", " ").capitalize()


def document(status: int, code: str, detail: str, *, retryable: bool = False, **fields: Any) -> dict[str, Any]:
    """A problem document."""
    return {
        "type": f"/docs#{code}",
        "title": title_of(code),
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": retryable,
        **fields,
    }


def without_place(error: SessionStoreError) -> SessionStoreError:
    """The same, but for where the database is, which is nobody's business who calls from outside; the log says it."""
    if not isinstance(error, PLACED):
        return error
    told = {name: value for name, value in PLACES.items() if name in error.fields}
    if error.fields != told:
        log.warning("%s", error)
    return type(error)(**{**error.fields, **told})


def problem_of(error: SessionStoreError) -> dict[str, Any]:
    """The document of an error, its fields with it and its moments readable."""
    error = without_place(error)
    fields = {name: value for name, value in error.fields.items() if name != "retry_after_ms"}
    for name in MOMENTS:
        if name in fields:
            fields[name] = moment(fields[name])
    return document(status_of(type(error)), error.code, str(error), retryable=error.retryable, **fields)


def retry_after(error: SessionStoreError) -> int | None:
    """Seconds until it may be worth to try again (RFC 9110 §10.2.3), where there is a point in trying."""
    if isinstance(error, errors.Generating):
        return -(-error.retry_after_ms // 1000)
    if status_of(type(error)) in (429, 503):
        return RETRY_AFTER_SECONDS.get(type(error), RETRY_AFTER_DEFAULT)
    return None


def respond(problem: dict[str, Any], headers: Headers | None = None) -> Response:
    """The response of a problem document."""
    return Reply(problem["status"], msgspec.json.encode(problem), MEDIA_TYPE.encode(), [] if headers is None else headers)


def refuse(error: SessionStoreError) -> Response:
    """The response of an error."""
    seconds = retry_after(error)
    headers: Headers = [] if seconds is None else [(b"retry-after", b"%d" % seconds)]
    if isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="sessionstore"'))
    if isinstance(error, RequestTimeout):
        headers.append((b"connection", b"close"))
    return respond(problem_of(error), headers + (lease_headers(error.lease) if error.lease else []))


def answer_of(error: SessionStoreError) -> bytes:
    """The same for a request that no application ever sees, as it goes over the wire."""
    response = refuse(error)
    phrase = HTTPStatus(response.status_code).phrase.encode()
    lines = [b"HTTP/1.1 %d %s" % (response.status_code, phrase), *(b"%s: %s" % header for header in response.raw_headers)]
    return b"\r\n".join((*lines, b"", bytes(response.body)))


async def on_http_error(_: Request, error: Exception) -> Response:
    """What routing refused: no such path, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "http-error")
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return respond(document(error.status_code, code, error.detail), headers)


async def on_bug(request: Request, error: Exception) -> Response:
    """What nobody thought of. The log has the trace, the client learns nothing of our insides."""
    log.error("unexpected error", exc_info=error)
    problem = document(500, "internal-error", "An unexpected error; the server's log has more.")
    return respond(problem, [(b"x-request-id", str(request.scope["state"].get("request_id", "")).encode())])
