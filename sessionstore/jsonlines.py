"""The lines of an export: what is in each, and what is accepted back. One JSON object a line, named by its only key.

A conversation's line comes before those of its turns, and these before its messages. Numbers that belong to one store stay
behind: a turn is named by its place among the conversation's own. So do tokens, which are secrets, and leases: a turn that was
going on is exported as interrupted, and so is what it had written by then.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from sessionstore.limits import LAST_MOMENT
from sessionstore.model import Mode, Outcome

FORMAT = 1
# What a conversation can come to that goes on after it was imported.
MOST = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST)]
Version = Annotated[int, Meta(ge=1, le=MOST)]
Moment = Annotated[int, Meta(ge=0, le=LAST_MOMENT)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what stands in a line. Times are milliseconds UTC."""


class Head(Line, frozen=True, kw_only=True):
    """The first line: which format the others have."""

    format: int


class ConversationLine(Line, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    created_at: Moment
    updated_at: Moment
    version: Version
    next_position: Count
    messages: Count
    title: str | None = None
    metadata: Any = {}
    parent_id: str | None = None
    forked_from_id: str | None = None
    forked_from_position: Annotated[int, Meta(ge=-1, le=MOST)] | None = None
    create_digest: Digest | None = None


class TurnLine(Line, frozen=True, kw_only=True):
    """A turn, counted from 1."""

    turn: Version
    holder: str
    phase: str
    first_position: Count
    acquired_at: Moment
    ended_at: Moment
    outcome: Outcome
    usage: Any = None


class MessageLine(Line, frozen=True, kw_only=True):
    """A message; a deleted one has neither content nor digest, a queued one no position."""

    id: str
    role: str
    status: Literal["complete", "interrupted", "queued", "deleted"]
    created_version: Version
    version: Version
    created_at: Moment
    updated_at: Moment
    position: Count | None = None
    content: Any = msgspec.UNSET
    metadata: Any = msgspec.UNSET
    digest: Digest | None = None
    mode: Mode | None = None
    summary_through: Count | None = None
    turn: Version | None = None


class End(Line, frozen=True, kw_only=True):
    """The last line: how many conversations came before it."""

    conversations: Count


class AnyLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line: exactly one of these."""

    sessionstore: Head | None = None
    conversation: ConversationLine | None = None
    turn: TurnLine | None = None
    message: MessageLine | None = None
    end: End | None = None


def line(**named: Line) -> bytes:
    """A line of its own."""
    return msgspec.json.encode(named) + b"\n"


def stored(text: str | None) -> Any:
    """Stored JSON, passed on as the text that it is."""
    return msgspec.UNSET if text is None else Raw(text.encode())
