"""What is sent: the bodies and the query parameters. Decoding, OpenAPI and the docs page are made from these classes."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessionstore.drafts import Draft, Save
from sessionstore.model import Children, FinishOutcome, IfBusy, IfMatch, ListOrder, Mode, Order, Tag, UsageBy, View
from sessionstore_api.fields import Content, Id, MergePatch, Metadata, Moment, Position, Role, Title, Token, TtlMs, Usage, doc

NO_STATE = Tag(0, 0)


def precondition(tag: str) -> IfMatch:
    """The state that a tag names. A tag that is none of ours is that of no state: the precondition fails."""
    return "*" if tag == "*" else Tag.parse(tag) or NO_STATE


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is sent: a field that nobody knows is an error and not ignored."""

    def __repr__(self) -> str:
        # Tokens and contents are in it, and reprs end up in logs.
        return f"{type(self).__name__}(…)"


class NewMessage(Request, frozen=True, kw_only=True):
    """A message to store. With an id of yours, a repeated call stores it once."""

    role: Role
    content: Content
    id: Id | None = None
    metadata: Metadata | None = None
    status: Literal["complete", "partial"] = "complete"

    def draft(self) -> Draft:
        """The library's word for it."""
        return Draft(id=self.id, role=self.role, content=self.content, metadata=self.metadata, status=self.status)


class CreateConversation(Request, frozen=True, kw_only=True):
    """A new conversation. With an id of yours, a repeated call creates it once."""

    id: Id | None = None
    title: Title | None = None
    metadata: Metadata | None = None
    parent_id: Id | None = None
    messages: list[NewMessage] = []
    recreate: Annotated[int, doc("The incarnation of the deleted conversation whose id is used again", minimum=1)] | None = None


class LabelConversation(Request, frozen=True, kw_only=True):
    """What is given is changed, the rest stays."""

    title: Title | UnsetType | None = UNSET
    metadata: MergePatch | None = None


class AppendMessages(Request, frozen=True, kw_only=True):
    """Messages for the end of the transcript, all or nothing."""

    messages: Annotated[list[NewMessage], doc("1 to 1,000 messages", minItems=1, maxItems=1000)]


class PutMessage(Request, frozen=True, kw_only=True):
    """A message as it is now. Without metadata, that of the stored message stays."""

    role: Role
    content: Content
    metadata: Metadata | None = None
    status: Literal["complete", "partial"] = "complete"


class OneSave(Request, frozen=True, kw_only=True):
    """A message as it is now, put by the holder of its conversation's lease."""

    conversation_id: Id
    message_id: Id
    token: Token
    role: Role
    content: Content
    status: Literal["complete", "partial"] = "complete"
    if_match: Annotated[str, doc("The message's tag, as `etag` told it, or *")] | None = None

    def save(self) -> Save:
        """The library's word for it."""
        draft = Draft(id=self.message_id, role=self.role, content=self.content, status=self.status)
        if_match = None if self.if_match is None else precondition(self.if_match)
        return Save(conversation_id=self.conversation_id, token=self.token, message=draft, if_match=if_match)


class SaveMessages(Request, frozen=True, kw_only=True):
    """Messages of many conversations."""

    saves: Annotated[list[OneSave], doc("1 to 64 saves, in order", minItems=1, maxItems=64)]


class QueueInputs(Request, frozen=True, kw_only=True):
    """Messages that wait, all or nothing."""

    messages: Annotated[list[NewMessage], doc("1 to 1,000 messages", minItems=1, maxItems=1000)]
    mode: Annotated[Mode, doc("For the turn that is going on, or for the one after it")] = "follow_up"


class ClaimInputs(Request, frozen=True, kw_only=True):
    """Which inputs."""

    ids: Annotated[list[Id], doc("These, all or none; without it all that wait, in their order", minItems=1)] | None = None


class LabelMessage(Request, frozen=True, kw_only=True):
    """A change of a message's metadata."""

    metadata: MergePatch


class TruncateConversation(Request, frozen=True, kw_only=True):
    """A closed range of positions."""

    after_position: Annotated[int, doc("Messages after this position go; -1: from the first on", minimum=-1)]
    through_position: Annotated[int, doc("… and up to this one, with it", minimum=-1)]


class Summary(Request, frozen=True, kw_only=True):
    """What is said of the messages that it stands for."""

    role: Role
    content: Content
    metadata: Metadata | None = None


class CompactConversation(Request, frozen=True, kw_only=True):
    """A summary that stands for everything through a position."""

    through_position: Position
    seen_version: Annotated[int, doc("The version of the conversation that was summarised", minimum=1)]
    summary: Summary
    id: Id | None = None


class ForkConversation(Request, frozen=True, kw_only=True):
    """A copy of everything, or of what stands before one end."""

    id: Id | None = None
    through_position: Position | None = None
    before_user_message: Annotated[int, doc("Counted from 0", minimum=0)] | None = None
    through_message: Annotated[Id, doc("The last message that is copied")] | None = None
    before_message: Annotated[Id, doc("The first message that is not")] | None = None
    title: Title | None = None
    settled: Annotated[bool, doc("Of a conversation that is being generated: what stood before that turn")] = False


class AcquireLease(Request, frozen=True, kw_only=True):
    """The beginning of a turn. With a token of yours, a repeated call is the same turn."""

    holder: Annotated[str, doc("Who generates, for people to read", minLength=1, maxLength=200)]
    token: Token | None = None
    ttl_ms: TtlMs | None = None
    if_busy: IfBusy = "reject"
    messages: list[NewMessage] = []


class RenewLease(Request, frozen=True, kw_only=True):
    """A sign of life."""

    phase: Annotated[str, doc("What the turn is doing, in a word of yours", maxLength=100)] | None = None
    ttl_ms: TtlMs | None = None


class FinishTurn(Request, frozen=True, kw_only=True):
    """The last messages of a turn, stored as by PUT, and its end: both or neither."""

    messages: list[NewMessage] = []
    usage: Usage | None = None
    outcome: FinishOutcome = "completed"
    unless_inputs: Annotated[bool, doc("Keep the lease, and refuse, while inputs wait in the queue")] = False
    complete: Annotated[bool, doc("What is still partial is complete, and not interrupted")] = False


class Interrupt(Request, frozen=True, kw_only=True):
    """Whom to interrupt, and how."""

    generation: Annotated[int, doc("The turn that is meant; another one is left alone", minimum=1)] | None = None
    force: Annotated[bool, doc("End the turn instead of asking its holder")] = False


class PageQuery(Request, frozen=True, kw_only=True):
    """Which page."""

    cursor: Annotated[str, doc("A page's next_cursor")] | None = None
    limit: (
        Annotated[int, doc("Rows a page; 50 unless you say, fewer where messages are large", minimum=1, maximum=1000)] | None
    ) = None


class ConversationsQuery(PageQuery, frozen=True, kw_only=True):
    """Which conversations."""

    generating: Annotated[bool, doc("Only those with a live lease, or only those without")] | None = None
    parent_id: Id | None = None
    roots: Annotated[bool, doc("Only those without a parent")] = False
    q: Annotated[str, doc("A part of the title or id, in any case", maxLength=1000)] | None = None
    metadata_key: Annotated[str, doc("Only those whose metadata have this key", maxLength=1000)] | None = None
    metadata_value: Annotated[str, doc("… with this value: a string as it is, else its JSON", maxLength=1000)] | None = None
    changed_since: Moment | None = None
    changed_before: Moment | None = None
    order: Annotated[ListOrder, doc("The latest change first, or the newest conversation first")] = "changed"
    since_change: Annotated[int, doc("What has moved since that `change`; takes no filter", minimum=0)] | None = None


class ChangeQuery(Request, frozen=True, kw_only=True):
    """From where on."""

    since_change: Annotated[int, doc("The `change` of a list, or of an event, that you know", minimum=0)] | None = None


class StateQuery(Request, frozen=True, kw_only=True):
    """From where on."""

    since: Annotated[str, doc("The state that you know: an ETag without quotes, or next_since")] | None = None
    view: Annotated[Literal["full", "turn"], doc("turn: without messages, when something concerns the holder")] = "full"


class MessagesQuery(PageQuery, frozen=True, kw_only=True):
    """Which messages."""

    after: Annotated[int, doc("Only behind this position", minimum=-1)] | None = None
    before: Annotated[int, doc("Only in front of this position", minimum=0)] | None = None
    order: Order = "asc"
    view: Annotated[View, doc("context: the newest summary, and what stands after the messages that it covers")] = "full"
    max_messages: Annotated[int, doc("With view=context: the newest turns that fit", minimum=1, maximum=1000)] | None = None
    max_tokens: Annotated[int, doc("… counted by metadata.tokens of each message", minimum=1)] | None = None


class UsageQuery(PageQuery, frozen=True, kw_only=True):
    """Of what, of when, and how it is added up."""

    conversation_id: Id | None = None
    descendants: Annotated[bool, doc("With its sub-conversations, and theirs")] = False
    since: Moment | None = None
    until: Moment | None = None
    by: Annotated[UsageBy, doc("In one sum, or by day (UTC), or by conversation")] = "total"


class SearchQuery(PageQuery, frozen=True, kw_only=True):
    """What to look for."""

    q: Annotated[str, doc("Words, all of which a message has; nothing in it is syntax", minLength=1, maxLength=1000)]
    conversation_id: Id | None = None


class ChangesQuery(PageQuery, frozen=True, kw_only=True):
    """Which changes."""

    since: Annotated[str, doc("The state that you know: an ETag without quotes, or next_since")] | None = None


class DeleteQuery(Request, frozen=True, kw_only=True):
    """How to delete."""

    force: Annotated[bool, doc("Also while it is being generated: the lease is revoked")] = False
    children: Annotated[Children, doc("What becomes of sub-conversations")] = "cascade"


class NoQuery(Request, frozen=True, kw_only=True):
    """No query parameters."""
