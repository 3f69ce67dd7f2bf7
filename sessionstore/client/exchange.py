"""One request and what came back, whoever carries it."""

from collections.abc import Generator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from sessionstore.client.decoding import decode
from sessionstore.client.problems import lease_of
from sessionstore.errors import UnexpectedAnswer
from sessionstore.model import Answer, IfMatch

T = TypeVar("T")
K = TypeVar("K")
CONVERSATIONS = "/v1/conversations"
NO_CONTENT = 204
DONE_BEFORE: Answer[None] = Answer(value=None, replayed=True)
"""What a call is told whose work a first try had done already, its answer lost."""


class Reply(msgspec.Struct, frozen=True):
    """What a server answered to a call that it did."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, kind: type[K]) -> K:
        """The body."""
        return decode(self.body, kind)

    def done(self) -> Answer[None]:
        """What is answered where there is nothing to say. Raises `UnexpectedAnswer` for anything else."""
        if self.status != NO_CONTENT:
            raise UnexpectedAnswer(reason=f"its status is {self.status}", status=self.status)
        return self.answer(None)

    def answer(self, value: T) -> Answer[T]:
        """What the library's mutations answer."""
        return Answer(value=value, replayed="idempotent-replayed" in self.headers, lease=lease_of(self.headers))


class Exchange:
    """A request. `again` is set once it may have been done before its answer was lost; `once` says that it is not repeated."""

    def __init__(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        once: bool = False,
    ) -> None:
        self.method, self.path, self.headers, self.once = method, path, headers or {}, once
        self.query = {name: _said(value) for name, value in (query or {}).items() if value is not None}
        self.content = None
        if body is not None:
            self.content = msgspec.json.encode(body)
            self.headers["Content-Type"] = "application/json"
        self.again = False

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"


Steps = Generator[Exchange, Reply, T]
"""A call as the requests that it takes: each is yielded, its reply or its error comes back, and the value is returned."""


def address(id: str, *below: str) -> str:
    """Where a conversation is, or something below it."""
    return "/".join((CONVERSATIONS, *(quote(part, safe="") for part in (id, *below))))


def claims(
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
    *,
    only_create: bool = False,
) -> dict[str, str]:
    """The headers of what a call believes."""
    said = {
        "Lease-Token": token,
        "Incarnation": None if incarnation is None else str(incarnation),
        "If-Match": if_match if if_match in (None, "*") else f'"{if_match}"',
        "If-None-Match": "*" if only_create else None,
    }
    return {name: str(value) for name, value in said.items() if value is not None}


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
