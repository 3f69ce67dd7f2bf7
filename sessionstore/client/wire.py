"""From what a server sends to the values and errors of the library."""

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
            content_json=None if gone else bytes(self.content).decode(),
            metadata_json=None if gone else bytes(self.metadata).decode(),
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


class Sent(msgspec.Struct, omit_defaults=True):
    """Any of the answers that have several parts."""

    conversation: ConversationSent | None = None
    messages: list[MessageSent] = []
    removed: int = 0
    token: str = ""
    generation: int = 0
    expires_at: str = ""
    ttl_ms: int = 0
    state: Literal["requested", "ended", "idle"] = "idle"

    @property
    def view(self) -> model.Conversation:
        """The conversation of an answer that has one."""
        if self.conversation is None:
            raise UnexpectedAnswer(reason="there is no conversation in it")
        return self.conversation.value()

    @property
    def values(self) -> list[model.Message]:
        """The messages."""
        return [message.value() for message in self.messages]


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
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise UnexpectedAnswer(reason=f"its answer has another shape ({type(error).__name__})") from None


def moment(text: str) -> int:
    """Milliseconds UTC."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def text_of(raw: Raw) -> str | None:
    """A JSON text as it came; None for null."""
    text = bytes(raw).decode()
    return None if text == "null" else text


def lease_of(headers: Mapping[str, str]) -> Lease | None:
    """How the caller's lease stands, if he has one."""
    if "lease-generation" not in headers:
        return None
    return Lease(
        generation=int(headers["lease-generation"]),
        expires_at=moment(headers["lease-expires-at"]),
        interrupt_requested=headers["interrupt-requested"] == "true",
        queued_inputs=int(headers["queued-inputs"]),
    )


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> SessionStoreError:
    """The library's error for a refusal; `UnexpectedAnswer` for what is none of ours."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
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
    fields: dict[str, Any] = {name: problem[name] for name in kind.__annotations__ if name in problem}
    for name in MOMENTS:
        if isinstance(fields.get(name), str):
            fields[name] = moment(fields[name])
    if kind is errors.Generating:
        fields["retry_after_ms"] = int(retry_after or "0") * 1000
    try:
        return kind(**fields)
    except TypeError:
        return None


def _kinds(root: type[SessionStoreError]) -> dict[str, type[SessionStoreError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _kinds(child)
    return found


KINDS = _kinds(SessionStoreError)
