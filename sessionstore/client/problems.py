"""From the problems and headers that a server answers with to the errors and leases of the library."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sessionstore import errors
from sessionstore.client.decoding import decode, moment, seconds
from sessionstore.errors import SessionStoreError, UnexpectedAnswer
from sessionstore.model import Lease

MOMENTS = ("expires_at", "ended_at")


def lease_of(headers: Mapping[str, str]) -> Lease | None:
    """How the caller's lease stands, if he has one."""
    if "lease-generation" not in headers:
        return None
    try:
        return Lease(
            generation=int(headers["lease-generation"]),
            expires_at=moment(headers["lease-expires-at"]),
            interrupt_requested=headers["interrupt-requested"] == "true",
            queued_inputs=int(headers["queued-inputs"]),
        )
    except (ValueError, KeyError):
        raise UnexpectedAnswer(reason="its headers about the lease are none") from None


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> SessionStoreError:
    """The library's error for a refusal; `UnexpectedAnswer` for what is none of ours."""
    try:
        problem = decode(body, dict[str, Any])
    except UnexpectedAnswer:
        problem = {}
    error = error_in(problem, retry_after=headers.get("retry-after"))
    if error is None:
        return UnexpectedAnswer(reason=f"its status is {status}", status=status)
    error.with_lease(lease_of(headers))
    return error


def error_in(problem: dict[str, Any], retry_after: str | None = None) -> SessionStoreError | None:
    """The error of a problem document; None for one that nobody here knows."""
    kind = KINDS.get(str(problem.get("code")))
    if kind is None:
        return None
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    fields: dict[str, Any] = {name: problem[name] for name in known if name in problem}
    try:
        for name in MOMENTS:
            if fields.get(name) is not None:
                fields[name] = moment(fields[name])
        if kind is errors.Generating:
            fields["retry_after_ms"] = seconds(retry_after) * 1000
        return kind(**fields)
    except (TypeError, UnexpectedAnswer):
        return None


def _kinds(root: type[SessionStoreError]) -> dict[str, type[SessionStoreError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _kinds(child)
    return found


KINDS = _kinds(SessionStoreError)
