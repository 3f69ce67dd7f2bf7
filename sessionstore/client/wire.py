"""From what a server sends to the values of the library."""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from sessionstore import model
from sessionstore.client.decoding import moment, text_in, text_of
from sessionstore.cursors import ChangesCursor, MovedCursor, decode_cursor
from sessionstore.model import Lease, ListPlace, Mode, Outcome, Place, Status, Tag

T = TypeVar("T")


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


class CompactedSent(ViewSent):
    """A conversation, and the summary with which its context begins."""

    summary: MessageSent


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
        cursor = None if self.next_cursor is None else decode_cursor(self.next_cursor, MovedCursor)
        return model.ListChanges(
            conversations=conversations,
            deleted=self.deleted,
            change=self.change,
            reset=self.reset,
            next=None if cursor is None else ListPlace(cursor.change, cursor.horizon),
        )


class LeasesSent(msgspec.Struct):
    """Conversations with a lease."""

    data: list[ConversationSent]


class PageSent(msgspec.Struct):
    """A page of messages."""

    data: list[MessageSent]
    next_cursor: str | None


class ContextSent(PageSent):
    """What a model is to be shown."""

    cut: bool
    state: str
    tokens: int | None = None

    def value(self) -> model.Context:
        """The library's word for it."""
        messages, tag = [message.value() for message in self.data], Tag.parse(self.state) or Tag(0, 0)
        return model.Context(messages=messages, tokens=self.tokens, cut=self.cut, tag=tag)


class FoundSent(msgspec.Struct):
    """A message that was found."""

    conversation_id: str
    message: MessageSent
    snippet: str
    marks: list[tuple[int, int]]

    def value(self) -> model.Found:
        """The library's word for it."""
        message = self.message.value()
        return model.Found(conversation_id=self.conversation_id, message=message, snippet=self.snippet, marks=self.marks)


class FoundPageSent(msgspec.Struct):
    """A page of messages that were found."""

    data: list[FoundSent]
    next_cursor: str | None


class UsagePageSent(msgspec.Struct):
    """A page of what was used."""

    data: list[model.Usage]
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
    log_bytes: int = 0
