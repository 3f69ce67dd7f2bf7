"""From what a server sends to the values and errors of the library."""

import dataclasses
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from sessionstore import errors, model
from sessionstore.cursors import ChangesCursor, decode_cursor
from sessionstore.errors import SessionStoreError, UnexpectedAnswer
from sessionstore.model import Lease, Mode, Outcome, Place, Status, Tag

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = ("expires_at", "ended_at")
LONGEST_NUMBER = 10


class GenerationSent(msgspec.Struct):
    """A turn that goes on."""

    number: int
    holder: str
    phase: str
    acquired_at: str
    expires_at: str
    expired: bool
    interrupt_requested: bool

    def value(self) -> model.Generation:
        """The library's word for it."""
        sent = msgspec.structs.asdict(self)
        return model.Generation(**{**sent, "acquired_at": moment(self.acquired_at), "expires_at": moment(self.expires_at)})


class LastGenerationSent(msgspec.Struct):
    """A turn that has ended."""

    number: int
    outcome: Outcome
    ended_at: str
    usage: Raw

    def value(self) -> model.LastGeneration:
        """The library's word for it."""
        return model.LastGeneration(
            number=self.number, outcome=self.outcome, ended_at=moment(self.ended_at), usage_json=text_of(self.usage)
        )


class ConversationSent(msgspec.Struct):
    """A conversation."""

    id: str
    incarnation: int
    title: str | None
    metadata: Raw
    created_at: str
    updated_at: str
    version: int
    message_count: int
    queued_inputs: int
    parent_id: str | None
    forked_from: model.ForkedFrom | None
    generation: GenerationSent | None
    last_generation: LastGenerationSent | None

    def value(self) -> model.Conversation:
        """The library's word for it."""
        sent = msgspec.structs.asdict(self)
        del sent["metadata"]
        return model.Conversation(
            **{
                **sent,
                "metadata_json": text_of(self.metadata),
                "created_at": moment(self.created_at),
                "updated_at": moment(self.updated_at),
                "generation": self.generation and self.generation.value(),
                "last_generation": self.last_generation and self.last_generation.value(),
            }
        )


class MessageSent(msgspec.Struct):
    """A message."""

    id: str
    incarnation: int
    position: int | None
    role: str
    content: Raw
    metadata: Raw
    status: Status
    summary_through: int | None
    generation: int | None
    version: int
    created_at: str
    updated_at: str

    def value(self) -> model.Message:
        """The library's word for it."""
        gone = self.status == "deleted"
        return model.Message(
            incarnation=self.incarnation,
            id=self.id,
            position=self.position,
            role=self.role,
            content_json=None if gone else text_in(self.content),
            metadata_json=None if gone else text_in(self.metadata),
            status=self.status,
            summary_through=self.summary_through,
            generation=self.generation,
            version=self.version,
            created_at=moment(self.created_at),
            updated_at=moment(self.updated_at),
        )


class InputSent(MessageSent):
    """A message that waits."""

    mode: Mode = "follow_up"

    def input(self) -> model.Input:
        """The library's word for it."""
        return model.Input(message=self.value(), mode=self.mode)


class TurnSent(msgspec.Struct):
    """A turn, in the log of them."""

    number: int
    holder: str
    phase: str
    acquired_at: str
    ended_at: str | None
    outcome: Outcome | None
    usage: Raw

    def value(self) -> model.Turn:
        """The library's word for it."""
        return model.Turn(
            number=self.number,
            holder=self.holder,
            phase=self.phase,
            acquired_at=moment(self.acquired_at),
            ended_at=None if self.ended_at is None else moment(self.ended_at),
            outcome=self.outcome,
            usage_json=text_of(self.usage),
        )


class ViewSent(msgspec.Struct):
    """A conversation, named."""

    conversation: ConversationSent

    @property
    def view(self) -> model.Conversation:
        """It."""
        return self.conversation.value()


class MessagesSent(msgspec.Struct):
    """Messages, named."""

    messages: list[MessageSent]

    @property
    def values(self) -> list[model.Message]:
        """Them."""
        return [message.value() for message in self.messages]


class WrittenSent(ViewSent):
    """A conversation and the messages of the call."""

    messages: list[MessageSent]

    @property
    def values(self) -> list[model.Message]:
        """The messages."""
        return [message.value() for message in self.messages]


class AcquiredSent(WrittenSent):
    """A lease."""

    generation: int
    expires_at: str


class RenewedSent(ViewSent):
    """A lease that lives on."""

    generation: int
    expires_at: str
    ttl_ms: int


class TruncatedSent(ViewSent):
    """A conversation, and how many messages went."""

    removed: int


class InterruptedSent(ViewSent):
    """A conversation, and what became of its turn."""

    state: Literal["requested", "ended", "idle"]


class ChangesSent(msgspec.Struct):
    """What has changed in a conversation."""

    conversation: ConversationSent
    messages: list[MessageSent]
    reset: bool
    next_since: str
    next_cursor: str | None

    def value(self) -> model.Changes:
        """The library's word for it."""
        cursor = None if self.next_cursor is None else decode_cursor(self.next_cursor, ChangesCursor)
        return model.Changes(
            conversation=self.conversation.value(),
            messages=[message.value() for message in self.messages],
            reset=self.reset,
            since=Tag.parse(self.next_since) or Tag(0, 0),
            next=None if cursor is None else Place(cursor.version, cursor.row, cursor.after, cursor.began),
        )


class ListSent(msgspec.Struct):
    """A page of conversations, or what has changed in the list of them."""

    data: list[ConversationSent]
    next_cursor: str | None
    change: int
    deleted: list[model.Tombstone] = []
    reset: bool = False

    def changes(self) -> model.ListChanges:
        """The library's word for what has changed."""
        conversations = [conversation.value() for conversation in self.data]
        return model.ListChanges(
            conversations=conversations,
            deleted=self.deleted,
            change=self.change,
            reset=self.reset,
            more=self.next_cursor is not None,
        )


class LeasesSent(msgspec.Struct):
    """Conversations with a lease."""

    data: list[ConversationSent]


class PageSent(msgspec.Struct):
    """A page of messages."""

    data: list[MessageSent]
    next_cursor: str | None


class InputsSent(msgspec.Struct):
    """A page of messages that wait."""

    data: list[InputSent]
    next_cursor: str | None


class TurnsSent(msgspec.Struct):
    """A page of turns."""

    data: list[TurnSent]
    next_cursor: str | None


class SaveSent(msgspec.Struct):
    """What became of one of many saves."""

    status: int
    message: MessageSent | None = None
    problem: dict[str, Any] | None = None
    replayed: bool = False
    interrupt_requested: bool = False
    queued_inputs: int = 0
    lease_generation: int | None = None
    lease_expires_at: str = ""

    @property
    def lease(self) -> Lease | None:
        """How the lease stands that it was made under."""
        if self.lease_generation is None:
            return None
        return Lease(
            generation=self.lease_generation,
            expires_at=moment(self.lease_expires_at),
            interrupt_requested=self.interrupt_requested,
            queued_inputs=self.queued_inputs,
        )


class SavesSent(msgspec.Struct):
    """What became of many saves."""

    results: list[SaveSent]


class ReadySent(msgspec.Struct):
    """What the server runs on."""

    engine: str
    engine_fault: str | None


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a value of that kind. Raises `UnexpectedAnswer`."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.MsgspecError:
            return msgspec.json.decode(_without_lone_surrogates(body), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(reason=f"its answer has another shape ({type(error).__name__})") from None


# JSON may spell half a character, which msgspec refuses even where it only passes it on. Such escapes are put in other words
# on their way through it: U+F8FF belongs to nobody, and nobody here spells it as an escape.
_ESCAPE = re.compile(rb"\\(u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_HALF = re.compile(rb"u([dD][89a-fA-F]..)")
_STAND_IN = re.compile(r"\\uF8FF([0-9a-fA-F]{4})")


def _without_lone_surrogates(body: bytes) -> bytes:
    def stand_in(escape: re.Match[bytes]) -> bytes:
        half = _HALF.fullmatch(escape[1])
        return escape[0] if half is None else b"\\uF8FF" + half[1]

    return _ESCAPE.sub(stand_in, body)


def text_in(raw: Raw) -> str:
    """A JSON text as it came."""
    text = bytes(raw).decode()
    return _STAND_IN.sub(r"\\u\1", text) if "\\uF8FF" in text else text


def text_of(raw: Raw) -> str | None:
    """A JSON text as it came; None for null."""
    text = text_in(raw)
    return None if text == "null" else text


def moment(text: Any) -> int:
    """Milliseconds UTC. Raises `UnexpectedAnswer`."""
    try:
        return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError):
        raise UnexpectedAnswer(reason="a time in it is none") from None


def seconds(text: str | None) -> int:
    """What a Retry-After says, where it says it in seconds."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else 0


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
