"""What is answered. OpenAPI and the docs page are made from these classes; `rendering` fills them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sessionstore.model import Mode, Outcome, Status
from sessionstore_api.fields import Id, Moment, Number, Position, StoredContent, StoredMetadata, StoredUsage, Title, doc


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is answered."""


class GenerationBody(Body, frozen=True, kw_only=True):
    """The turn that is going on."""

    number: Number
    holder: str
    phase: str
    acquired_at: Moment
    expires_at: Moment
    expired: bool
    interrupt_requested: bool


class LastGenerationBody(Body, frozen=True, kw_only=True):
    """The newest turn that ended."""

    number: Number
    outcome: Outcome
    ended_at: Moment
    usage: StoredUsage


class ForkedFromBody(Body, frozen=True, kw_only=True):
    """The source of a fork, and the last position that was copied (-1: none)."""

    id: Id
    position: int


class ConversationBody(Body, frozen=True, kw_only=True):
    """A conversation."""

    id: Id
    incarnation: Number
    title: Title | None
    metadata: StoredMetadata
    created_at: Moment
    updated_at: Moment
    version: Number
    message_count: int
    queued_inputs: int
    parent_id: Id | None
    forked_from: ForkedFromBody | None
    generation: GenerationBody | None
    last_generation: LastGenerationBody | None


class MessageBody(Body, frozen=True, kw_only=True):
    """A message. Its ETag is `"incarnation-version"`."""

    id: Id
    incarnation: Number
    position: Position | None
    role: str
    content: StoredContent
    metadata: StoredMetadata
    status: Status
    summary_through: Position | None
    generation: Number | None
    version: Number
    created_at: Moment
    updated_at: Moment


class TombstoneBody(Body, frozen=True, kw_only=True):
    """A conversation that was deleted."""

    id: Id
    incarnation: Number


class ConversationsPage(Body, frozen=True, kw_only=True):
    """Conversations, the latest change first, and the newest change as of the first page.

    What moved since a change: the oldest change first, with what was deleted. `change` is then the one that you know now.
    """

    data: list[ConversationBody]
    next_cursor: str | None
    change: int
    deleted: Annotated[list[TombstoneBody], doc("With since_change only")] | UnsetType = UNSET
    reset: Annotated[bool, doc("With since_change only. Forget what you know: this begins the whole list")] | UnsetType = UNSET


class MessagesPage(Body, frozen=True, kw_only=True):
    """Messages in the order that was asked for. With a budget all that fits, so there is no other page."""

    data: list[MessageBody]
    next_cursor: str | None
    cut: Annotated[bool, doc("With a budget only. Older turns were left out")] | UnsetType = UNSET
    tokens: Annotated[int, doc("With max_tokens only. How many these are")] | UnsetType = UNSET
    state: Annotated[str, doc("With a budget only. Behind the dash: what compact wants as seen_version")] | UnsetType = UNSET


class UsageBody(Body, frozen=True, kw_only=True):
    """What turns have used, added up."""

    key: int
    of: Annotated[str, doc("The day, or the conversation's id, where it is told by those")] | None
    turns: int
    input_tokens: float | int
    output_tokens: float | int
    cached_tokens: float | int
    reasoning_tokens: float | int
    cost: float | int


class UsagePage(Body, frozen=True, kw_only=True):
    """Sums, by day or by conversation the oldest first."""

    data: list[UsageBody]
    next_cursor: str | None


class FoundBody(Body, frozen=True, kw_only=True):
    """A message that was found."""

    conversation_id: Id
    message: MessageBody
    snippet: Annotated[str, doc("The part of its text where the words are")]
    marks: Annotated[list[list[int]], doc("Beginning and end of each word in the snippet, in characters")]


class FoundPage(Body, frozen=True, kw_only=True):
    """Messages that were found, the last stored first."""

    data: list[FoundBody]
    next_cursor: str | None


class ConversationAnswer(Body, frozen=True, kw_only=True):
    """The conversation after the call."""

    conversation: ConversationBody


class MessagesAnswer(Body, frozen=True, kw_only=True):
    """The messages of the call."""

    messages: list[MessageBody]


class ConversationMessages(Body, frozen=True, kw_only=True):
    """The conversation after the call, and the messages of the call."""

    conversation: ConversationBody
    messages: list[MessageBody]


class TruncatedAnswer(Body, frozen=True, kw_only=True):
    """The conversation, and how many messages went."""

    conversation: ConversationBody
    removed: int


class CompactedAnswer(Body, frozen=True, kw_only=True):
    """The conversation, and the summary with which its context begins now."""

    conversation: ConversationBody
    summary: MessageBody


class InterruptAnswer(Body, frozen=True, kw_only=True):
    """The conversation, and what became of its turn: asked to stop, ended, or there was none that was meant."""

    conversation: ConversationBody
    state: Literal["requested", "ended", "idle"]


class AcquiredAnswer(Body, frozen=True, kw_only=True):
    """A lease. The token is a secret; send it as Lease-Token with every call of the turn."""

    token: str
    generation: Number
    expires_at: Moment
    conversation: ConversationBody
    messages: list[MessageBody]


class LeaseAnswer(Body, frozen=True, kw_only=True):
    """The lease of a conversation, or null."""

    generation: GenerationBody | None


class LeasesAnswer(Body, frozen=True, kw_only=True):
    """Conversations with a lease, the oldest turn first."""

    data: list[ConversationBody]


class RenewedAnswer(Body, frozen=True, kw_only=True):
    """A lease that lives on."""

    generation: Number
    expires_at: Moment
    ttl_ms: int
    conversation: ConversationBody


class InputBody(MessageBody, frozen=True, kw_only=True):
    """A message that waits."""

    mode: Mode


class InputsPage(Body, frozen=True, kw_only=True):
    """Messages that wait, in their order."""

    data: list[InputBody]
    next_cursor: str | None


class ChangesAnswer(Body, frozen=True, kw_only=True):
    """What has changed. Read the pages to the end, with the same `since`; then `next_since` is the state that you know."""

    conversation: ConversationBody
    messages: list[MessageBody]
    reset: Annotated[bool, doc("Forget what you know: this is the whole state")]
    next_since: str
    next_cursor: str | None


class TurnBody(Body, frozen=True, kw_only=True):
    """A turn; the one that goes on has no end."""

    number: Number
    holder: str
    phase: str
    acquired_at: Moment
    ended_at: Moment | None
    outcome: Outcome | None
    usage: StoredUsage


class TurnsPage(Body, frozen=True, kw_only=True):
    """Turns, the latest first."""

    data: list[TurnBody]
    next_cursor: str | None


class SaveResult(Body, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one save: the message as it is now, or the problem; and how the lease stands that it was made under."""

    status: Annotated[int, doc("The status that a PUT of its own would have")]
    message: MessageBody | None = None
    problem: Annotated[dict[str, Any], doc("A problem document", **{"$ref": "#/components/schemas/Problem"})] | None = None
    etag: Annotated[str, doc("The message's tag, for `if_match`")] | None = None
    replayed: Annotated[bool, doc("It was stored already, and nothing was done")] = False
    interrupt_requested: bool | None = None
    queued_inputs: int | None = None
    lease_generation: Number | None = None
    lease_expires_at: Moment | None = None


class SavesAnswer(Body, frozen=True, kw_only=True):
    """A result for each save, in order."""

    results: list[SaveResult]


class You(Body, frozen=True, kw_only=True):
    """Who calls. Without keys everybody is the owner that has no name, and may do everything."""

    owner: str
    key: Annotated[str, doc("What your key is called")] | None
    read_only: bool
    admin: bool


class ServerInfo(Body, frozen=True, kw_only=True):
    """What this server is and can do."""

    name: str
    version: str
    capabilities: list[str]
    limits: dict[str, int]
    you: You


class Health(Body, frozen=True, kw_only=True):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Readiness(Body, frozen=True, kw_only=True):
    """The database answers and has this version's schema."""

    engine: str | None
    engine_fault: str | None
    log_bytes: int | None
    status: Literal["ready"] = "ready"


class Problem(Body, frozen=True, kw_only=True):
    """Why a call was refused (RFC 9457), with the fields that a program can act upon."""

    type: Annotated[str, doc("Where the code is explained")]
    title: str
    status: int
    detail: str
    code: Annotated[str, doc("Stable: what programs compare")]
    retryable: Annotated[bool, doc("Whether the same call can succeed later")]
    path: Annotated[str, doc("Where in the request the fault is")] | UnsetType = UNSET
