"""From the library's values to what is answered. Stored JSON is passed on as the text that it is."""

from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Raw

from sessionstore.model import Conversation, LastGeneration, Lease, Message
from sessionstore_api.answers import ConversationBody, ForkedFromBody, GenerationBody, LastGenerationBody, MessageBody
from sessionstore_api.replies import Headers


@lru_cache(maxsize=256)
def moment(milliseconds: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def raw(text: str | None) -> Raw:
    """Stored JSON text, passed on as it is."""
    return Raw(b"null" if text is None else text.encode())


def generation_body(conversation: Conversation) -> GenerationBody | None:
    """The turn that is going on, as it is sent."""
    turn = conversation.generation
    if turn is None:
        return None
    return GenerationBody(
        number=turn.number,
        holder=turn.holder,
        phase=turn.phase,
        acquired_at=moment(turn.acquired_at),
        expires_at=moment(turn.expires_at),
        expired=turn.expired,
        interrupt_requested=turn.interrupt_requested,
    )


def conversation_body(conversation: Conversation) -> ConversationBody:
    """A conversation as it is sent."""
    last, source = conversation.last_generation, conversation.forked_from
    return ConversationBody(
        id=conversation.id,
        incarnation=conversation.incarnation,
        title=conversation.title,
        metadata=raw(conversation.metadata_json),
        created_at=moment(conversation.created_at),
        updated_at=moment(conversation.updated_at),
        version=conversation.version,
        message_count=conversation.message_count,
        queued_inputs=conversation.queued_inputs,
        parent_id=conversation.parent_id,
        forked_from=None if source is None else ForkedFromBody(id=source.id, position=source.position),
        generation=generation_body(conversation),
        last_generation=None if last is None else _last_generation_body(last),
    )


def _last_generation_body(last: LastGeneration) -> LastGenerationBody:
    return LastGenerationBody(
        number=last.number, outcome=last.outcome, ended_at=moment(last.ended_at), usage=raw(last.usage_json)
    )


def message_body(message: Message) -> MessageBody:
    """A message as it is sent."""
    return MessageBody(
        id=message.id,
        incarnation=message.incarnation,
        position=message.position,
        role=message.role,
        content=raw(message.content_json),
        metadata=raw(message.metadata_json or "{}"),
        status=message.status,
        summary_through=message.summary_through,
        generation=message.generation,
        version=message.version,
        created_at=moment(message.created_at),
        updated_at=moment(message.updated_at),
    )


def message_bodies(messages: list[Message]) -> list[MessageBody]:
    """Messages as they are sent."""
    return [message_body(message) for message in messages]


def lease_headers(lease: Lease) -> Headers:
    """What a holder is told with every answer."""
    return [
        (b"interrupt-requested", b"true" if lease.interrupt_requested else b"false"),
        (b"queued-inputs", b"%d" % lease.queued_inputs),
        (b"lease-generation", b"%d" % lease.generation),
        (b"lease-expires-at", moment(lease.expires_at).encode()),
    ]
