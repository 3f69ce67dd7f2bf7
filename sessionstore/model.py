"""The values that callers get, and the pure rules about them. All are frozen; times are milliseconds UTC since 1970.

JSON is kept as the text that is stored and decoded when it is read, so a value that somebody changes in place is a copy, and
nothing is decoded that nobody looks at.
"""

from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec

from sessionstore import jsontext
from sessionstore.room import octets

T = TypeVar("T")

Status = Literal["complete", "partial", "interrupted", "queued", "deleted"]
Outcome = Literal["completed", "failed", "waiting", "released", "expired", "interrupted", "deleted"]
FinishOutcome = Literal["completed", "failed", "waiting", "interrupted"]
IfBusy = Literal["reject", "interrupt", "rollback"]
Mode = Literal["steer", "follow_up"]
Children = Literal["cascade", "orphan"]
Order = Literal["asc", "desc"]
View = Literal["full", "context"]
ListOrder = Literal["changed", "created"]
UsageBy = Literal["total", "day", "conversation"]

CLOCK_TOLERANCE_MS = 1_000


class Tag(NamedTuple):
    """Which state of what: the life of the conversation, and the version in it. The text is HTTP's ETag without quotes."""

    incarnation: int
    version: int

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The tag of a text like `12-7`, or None."""
        incarnation, dash, version = text.partition("-")
        decimal = dash and all(part.isascii() and part.isdigit() and len(part) < 19 for part in (incarnation, version))
        tag = cls(int(incarnation), int(version)) if decimal else None
        return tag if str(tag) == text else None


IfMatch = Tag | Literal["*"]
"""A precondition: the state that the caller has seen, or "*" for any that exists."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is answered: frozen, compared by value."""


class Generation(Value, frozen=True, kw_only=True):
    """A turn that is going on: the lease and who holds it. `number` is the fence: it rises for ever."""

    number: int
    holder: str
    phase: str
    acquired_at: int
    expires_at: int
    expired: bool
    interrupt_requested: bool


class LastGeneration(Value, frozen=True, kw_only=True):
    """The newest turn that ended."""

    number: int
    outcome: Outcome
    ended_at: int
    usage_json: str | None

    @property
    def usage(self) -> Any:
        """What the turn used, as its holder said it, or None."""
        return None if self.usage_json is None else jsontext.load(self.usage_json)


class ForkedFrom(Value, frozen=True, kw_only=True):
    """Where a fork was taken: the source and its last position in the fork (-1: before the first message)."""

    id: str
    position: int


class Conversation(Value, frozen=True, kw_only=True):
    """A conversation as of one moment. `incarnation` is this life of the id; `version` rises with every change."""

    id: str
    incarnation: int
    title: str | None
    metadata_json: str
    created_at: int
    updated_at: int
    version: int
    message_count: int
    queued_inputs: int
    parent_id: str | None
    forked_from: ForkedFrom | None
    generation: Generation | None
    last_generation: LastGeneration | None

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's own labels, a fresh copy."""
        return jsontext.load(self.metadata_json)  # type: ignore[no-any-return]

    @property
    def tag(self) -> Tag:
        """This very state, for `if_match`."""
        return Tag(self.incarnation, self.version)


class Message(msgspec.Struct, frozen=True):
    """A message as of one moment. `version` is the conversation's at the message's last change."""

    incarnation: int
    id: str
    position: int | None
    role: str
    content_json: str | None
    metadata_json: str | None
    status: Status
    summary_through: int | None
    generation: int | None
    version: int
    created_at: int
    updated_at: int

    @property
    def content(self) -> Any:
        """What was said: any JSON value, a fresh copy. None also for a deleted message."""
        return None if self.content_json is None else jsontext.load(self.content_json)

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's own labels, a fresh copy."""
        return {} if self.metadata_json is None else jsontext.load(self.metadata_json)

    @property
    def octets(self) -> int:
        """How many bytes it fills: its content and metadata, as they are stored."""
        return octets(self.content_json) + octets(self.metadata_json)

    @property
    def tag(self) -> Tag:
        """This very state, for `if_match`."""
        return Tag(self.incarnation, self.version)


class Input(Value, frozen=True, kw_only=True):
    """A message that waits: to `steer` the turn that is going on, or to `follow_up` once it is over."""

    message: Message
    mode: Mode


class Lease(Value, frozen=True, kw_only=True):
    """How the caller's own lease stands after a call with its token. Renew before `expires_at`; stop when asked to."""

    generation: int
    expires_at: int
    interrupt_requested: bool
    queued_inputs: int


class Answer(Value, Generic[T], frozen=True, kw_only=True):
    """What a mutation answers: the `value` that was asked for, whether it had been done before, and the caller's lease."""

    value: T
    replayed: bool = False
    lease: Lease | None = None


class Page(Value, Generic[T], frozen=True, kw_only=True):
    """Some rows in order, and where the next page begins: pass `next` on, or stop when it is None."""

    items: list[T]
    next: int | None


class ConversationPage(Page[Conversation], frozen=True, kw_only=True):
    """A page of conversations; `change` is the store's newest change as of this page."""

    change: int


class Place(NamedTuple):
    """Where a page of changes ended: at this row of this version.

    `after`: the last position of the rows that were new. `began`: the version of the conversation when paging began.
    """

    version: int
    row: int
    after: int
    began: int


class Changes(Value, frozen=True, kw_only=True):
    """What has become different since a state that a reader knew: rows as they are now, deleted ones as tombstones.

    `reset`: forget what you know, this is the first page of the whole state. Read on from `next`, in the same way, until it is
    None; then `since` is the state that you know.
    """

    conversation: Conversation
    messages: list[Message]
    reset: bool
    since: Tag
    next: Place | None


class Tombstone(Value, frozen=True, kw_only=True):
    """What is left of a conversation that was deleted: its id, and the life of it that is over."""

    id: str
    incarnation: int


class ListPlace(NamedTuple):
    """Where a page of what moved ended: at this change.

    `horizon`: it is the whole list, begun when everything up to that change was pruned. None: what is newer than something.
    """

    change: int
    horizon: int | None


class ListChanges(Value, frozen=True, kw_only=True):
    """What has become different in the list of conversations since a change that a reader knew, the oldest change first.

    `reset`: forget what you know, this is the beginning of the whole list. Read on from `next` until it is None; then `change`
    is the one that you know.
    """

    conversations: list[Conversation]
    deleted: list[Tombstone]
    change: int
    reset: bool
    next: ListPlace | None

    @property
    def more(self) -> bool:
        """Whether there is another page."""
        return self.next is not None


class Turn(Value, frozen=True, kw_only=True):
    """A generation, in the log of them. `ended_at`, `outcome` and usage are None while it goes on."""

    number: int
    holder: str
    phase: str
    acquired_at: int
    ended_at: int | None
    outcome: Outcome | None
    usage_json: str | None

    @property
    def usage(self) -> Any:
        """What the turn used, as its holder said it, or None."""
        return None if self.usage_json is None else jsontext.load(self.usage_json)


class Created(Value, frozen=True, kw_only=True):
    """A new conversation with its first messages."""

    conversation: Conversation
    messages: list[Message]


class Saved(Value, frozen=True, kw_only=True):
    """A message that was put; `created` says that it was new."""

    message: Message
    created: bool


class Acquired(Value, frozen=True, kw_only=True):
    """A lease: keep `token` secret and send it with every call of the turn."""

    token: str
    generation: int
    expires_at: int
    conversation: Conversation
    messages: list[Message]

    def __repr__(self) -> str:
        # The token is a secret, and reprs end up in logs.
        return f"Acquired(generation={self.generation}, expires_at={self.expires_at}, conversation={self.conversation!r})"


class Renewed(Value, frozen=True, kw_only=True):
    """A lease that lives on."""

    generation: int
    expires_at: int
    ttl_ms: int
    conversation: Conversation


class Finished(Value, frozen=True, kw_only=True):
    """A turn that ended, with what was saved last."""

    conversation: Conversation
    messages: list[Message]


class Truncated(Value, frozen=True, kw_only=True):
    """A conversation without `removed` of its messages."""

    conversation: Conversation
    removed: int


class Compacted(Value, frozen=True, kw_only=True):
    """A conversation whose context begins with `summary` from now on. The messages that it covers stay."""

    conversation: Conversation
    summary: Message


class Context(Value, frozen=True, kw_only=True):
    """What a model is to be shown, oldest first. `cut`: older turns were left out for the budget's sake.

    `tokens` is how many these are, where they were counted. `tag` is the state that they are of: its version is what `compact`
    wants as `seen_version`.
    """

    messages: list[Message]
    tokens: int | None
    cut: bool
    tag: Tag


class Undone(Value, frozen=True, kw_only=True):
    """A conversation without `removed` of its messages, and the fork that was made before, which has them all."""

    conversation: Conversation
    backup: Conversation
    removed: int


class Usage(Value, frozen=True, kw_only=True):
    """What turns have used, added up. `of` is the day (UTC) or the conversation's id, where it is told by those.

    `key` orders them: the day as a number since 1970, or the conversation's incarnation.
    """

    key: int
    of: str | None
    turns: int
    input_tokens: int | float
    output_tokens: int | float
    cached_tokens: int | float
    reasoning_tokens: int | float
    cost: int | float


class Pruned(Value, frozen=True, kw_only=True):
    """What was forgotten: conversations, messages, tombstones; and how many were left alone, being generated or changed."""

    conversations: int = 0
    messages: int = 0
    tombstones: int = 0
    skipped: int = 0

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(
            conversations=self.conversations + other.conversations,
            messages=self.messages + other.messages,
            tombstones=self.tombstones + other.tombstones,
            skipped=self.skipped + other.skipped,
        )


class BackedUp(Value, frozen=True, kw_only=True):
    """A backup: its file, its size, how many older ones were removed, and which invariants are broken in it."""

    file: str
    bytes: int
    removed: int
    faults: list[str]


class Restored(Value, frozen=True, kw_only=True):
    """What a backup has become: a database, its size, which invariants are broken in it, and how many keys were revoked."""

    file: str
    bytes: int
    faults: list[str]
    revoked_keys: int = 0


class Fault(Value, frozen=True, kw_only=True):
    """Something that is not as it always is: in which conversation, if it is one's, and what was found."""

    invariant: str
    incarnation: int | None
    conversation_id: str | None
    found: str


class Checked(Value, frozen=True, kw_only=True):
    """What is wrong: with the file, as the engine sees it, and with what is in it.

    `leftovers` are deleted conversations of which messages are left, which is no fault: `purge` erases them.
    """

    engine: list[str]
    faults: list[Fault]
    leftovers: int

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.engine and not self.faults


class Exported(Value, frozen=True, kw_only=True):
    """What was written, and of how many conversations in all."""

    conversations: int = 0
    messages: int = 0
    total: int = 0

    def __add__(self, other: "Exported") -> "Exported":
        return Exported(
            conversations=self.conversations + other.conversations,
            messages=self.messages + other.messages,
            total=self.total + other.total,
        )


class Imported(Value, frozen=True, kw_only=True):
    """What was brought in, how many conversations were left out, and how many bytes of the file have been read."""

    conversations: int = 0
    messages: int = 0
    skipped: int = 0
    bytes: int = 0

    def __add__(self, other: "Imported") -> "Imported":
        return Imported(
            conversations=self.conversations + other.conversations,
            messages=self.messages + other.messages,
            skipped=self.skipped + other.skipped,
            bytes=self.bytes + other.bytes,
        )


class Copied(Value, frozen=True, kw_only=True):
    """What was copied to another database: how many of so many conversations are there, and how many messages were written."""

    conversations: int = 0
    messages: int = 0
    total: int = 0

    def __add__(self, other: "Copied") -> "Copied":
        return Copied(
            conversations=self.conversations + other.conversations,
            messages=self.messages + other.messages,
            total=max(self.total, other.total),
        )


class Found(Value, frozen=True, kw_only=True):
    """A message in which all words were found, and the part of its text where; `marks` are where in that the words are.

    Each mark is the beginning and the end of a word, in characters of `snippet`.
    """

    conversation_id: str
    message: Message
    snippet: str
    marks: list[tuple[int, int]]


class Interruption(Value, frozen=True, kw_only=True):
    """`requested`: the holder is told with its next call. `ended`: the turn is over. `idle`: nothing to interrupt."""

    conversation: Conversation
    state: Literal["requested", "ended", "idle"]


class Engine(Value, frozen=True, kw_only=True):
    """What the store runs on, the fault of that version, if it is known to have one, and how long its log is, if we cut it."""

    name: str
    fault: str | None
    log_bytes: int | None


def lease_expired(now: int, expires_at: int, ttl_ms: int) -> bool:
    """Whether others may take over. An expiry further ahead than its own time to live means that the clock stepped back."""
    return expires_at <= now or expires_at > now + ttl_ms + CLOCK_TOLERANCE_MS
