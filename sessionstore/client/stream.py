"""A stream of events that goes on where it broke off, whoever reads it."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import httpx2

from sessionstore.client.decoding import decode
from sessionstore.client.exchange import Exchange, address, claims
from sessionstore.client.wire import ChangesSent, ListSent
from sessionstore.limits import Limits
from sessionstore.model import Changes, ListChanges, Tag

V = TypeVar("V")
# The server says something every 15 seconds.
SILENCE_SECONDS = 45.0
BROKEN_OFF = httpx2.ReadError("the stream broke off")


class Stream(Generic[V]):
    """What is followed, and how far. `over` is set by the last event; `broken` by one that says: come again."""

    def __init__(self, path: str, read: Callable[[str], V], query: dict[str, Any], incarnation: int | None = None) -> None:
        self._path, self._read, self._query, self._incarnation = path, read, query, incarnation
        self._last_id = ""
        self._before: V | None = None
        self.begun = self.over = self.broken = False

    def exchange(self) -> Exchange:
        """The request that connects, or connects again."""
        self.broken = False
        headers = claims(incarnation=self._incarnation)
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        return Exchange("GET", self._path, headers=headers, query=self._query)

    def take(self, event: httpx2.ServerSentEvent) -> V | None:
        """What the event says; None if it says nothing new."""
        if event.event == "deleted":
            self.over = True
        if event.event == "closed":
            self.broken = True
        if event.event not in ("changes", "conversations"):
            return None
        value, before = self._read(event.data), self._before
        self._last_id, self._before, again = event.id, value, not self.begun
        self.begun = True
        if isinstance(value, Changes):
            # From now on this life is meant, and no later one of the same id.
            self._incarnation = value.conversation.incarnation
        return value if again or _differs(value, before) else None


def _differs(value: Any, before: Any) -> bool:
    """Whether the first event after a break says more than the last one before it."""
    if isinstance(value, Changes):
        rows = value.messages or value.reset or value.next != before.next
        return bool(rows) or value.conversation != before.conversation
    return bool(value.conversations or value.deleted or value.reset)


def conversation_stream(limits: Limits, id: str, since: Tag | None, incarnation: int | None) -> Stream[Changes]:
    """The events of a conversation."""
    limits.number(incarnation, "$.incarnation", least=1)
    return Stream(address(limits.id(id), "events"), _changes, {"since": since}, incarnation)


def turn_stream(limits: Limits, id: str) -> Stream[Changes]:
    """What the holder of a conversation's lease has to know."""
    return Stream(address(limits.id(id), "events"), _changes, {"view": "turn"})


def list_stream(limits: Limits, since: int | None) -> Stream[ListChanges]:
    """The events of the list."""
    return Stream("/v1/events", _list_changes, {"since_change": limits.number(since, "$.since")})


def _changes(data: str) -> Changes:
    return decode(data.encode(), ChangesSent).value()


def _list_changes(data: str) -> ListChanges:
    return decode(data.encode(), ListSent).changes()
