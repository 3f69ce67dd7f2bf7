"""Every error that the store raises: one root, one class for each thing that a caller can act upon.

The first paragraph of a docstring is the message, its braces are the fields. `code` is stable and is what programs compare.

    SessionStoreError
    ├── InvalidInput                      the call itself is wrong: nothing was looked up
    │   ├── Malformed                     … it could not even be read
    │   └── TooLarge
    ├── ConversationNotFound · ConversationDeleted · ConversationExists
    ├── Generating · LeaseLost            somebody else holds the lease · this token holds none any more
    ├── TokenUsed                         the token of a turn, with other messages than it was begun with
    ├── MessageNotFound · MessageDeleted · MessageExists · MessageQueued · MessageComplete
    ├── PreconditionFailed · InputsPending
    ├── InputsFull · OwnerFull            no room in the queue · no room for more of this owner's
    ├── InputClaimed                      somebody has put the input into the transcript
    ├── Unavailable                       nothing was stored, try again later
    │   ├── Busy · DiskFull · Closed · StorageFailed · SchemaChanged · Unreachable
    │   ├── TooManyRequests               of this key, at this moment
    │   └── OutcomeUnknown                … or it was stored: the repeat by id tells
    ├── KeyExists · KeyNotFound           of a name
    ├── Unauthorized · Forbidden          a server wants a key · this key may not do that
    ├── UnexpectedAnswer                  what answered is no session store
    ├── DatabaseUnusable                  opening refused: see its children
    │   └── SchemaBehind · SchemaAhead · NotADatabase · UnsupportedUrl · BackupUnusable
    └── Misuse                            a bug in the calling program
        └── Nested · Awaitable · Dead
"""

import dataclasses
import inspect
from typing import Any, ClassVar, Self, dataclass_transform

__all__ = [
    "Awaitable",
    "BackupUnusable",
    "Busy",
    "Closed",
    "ConversationDeleted",
    "ConversationExists",
    "ConversationNotFound",
    "DatabaseUnusable",
    "Dead",
    "DiskFull",
    "Forbidden",
    "Generating",
    "InputClaimed",
    "InputsFull",
    "InputsPending",
    "InvalidInput",
    "KeyExists",
    "KeyNotFound",
    "LeaseLost",
    "Malformed",
    "MessageComplete",
    "MessageDeleted",
    "MessageExists",
    "MessageNotFound",
    "MessageQueued",
    "Misuse",
    "Nested",
    "NotADatabase",
    "OutcomeUnknown",
    "OwnerFull",
    "PreconditionFailed",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaChanged",
    "SessionStoreError",
    "StorageFailed",
    "TokenUsed",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "UnsupportedUrl",
]


@dataclass_transform(kw_only_default=True, eq_default=False)
class SessionStoreError(Exception):
    """The session store could not do what was asked.

    Catch this to catch everything that the store raises on purpose.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    @property
    def lease(self) -> Any:
        """How the lease stands of a holder whose call was refused, a `Lease`: as before, since nothing was renewed."""
        return self.__dict__.get("_lease")

    def with_lease(self, lease: Any) -> None:
        """Tell the holder."""
        self.__dict__["_lease"] = lease

    def __init_subclass__(cls) -> None:
        """Make the annotations of every child its keyword arguments."""
        dataclasses.dataclass(eq=False, kw_only=True, repr=False)(cls)

    @property
    def fields(self) -> dict[str, Any]:
        """What is known about this case, by name; what is unknown is left out."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))  # type: ignore[arg-type]
        return {name: value for name, value in named if value is not None}

    @classmethod
    def summary(cls) -> str:
        """The message with its fields still in braces."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())

    def __str__(self) -> str:
        return self.summary().format(**{name: getattr(self, name) for name in self.__dataclass_fields__})  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{type(self).__name__}({inside})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[SessionStoreError], fields: dict[str, Any]) -> SessionStoreError:
    return kind(**fields)


class InvalidInput(SessionStoreError):
    """{reason} (at {path}).

    `path` leads to the fault in what was given: `$.messages[2].role`.
    """

    code = "invalid"
    reason: str
    path: str = "$"

    def under(self, prefix: str) -> Self:
        """The same fault, seen from where `$` is only a part."""
        return type(self)(reason=self.reason, path=prefix + self.path[1:])


class Malformed(InvalidInput):
    """{reason} (at {path})."""

    code = "malformed"


class TooLarge(InvalidInput):
    """{reason} (at {path})."""

    code = "too-large"


class ConversationNotFound(SessionStoreError):
    """There is no conversation {conversation_id}."""

    code = "conversation-not-found"
    conversation_id: str


class ConversationDeleted(SessionStoreError):
    """Conversation {conversation_id} was deleted, or the life of it that was meant was.

    `incarnation` is the newest life of that id: name it in `recreate` to use a deleted id again.
    """

    code = "conversation-deleted"
    conversation_id: str
    incarnation: int


class ConversationExists(SessionStoreError):
    """Conversation {conversation_id} exists already.

    `same` says whether it was made by the very same call.
    """

    code = "conversation-exists"
    conversation_id: str
    incarnation: int
    same: bool = False


class Generating(SessionStoreError):
    """Conversation {conversation_id} is being generated by {holder}.

    `expires_at` (milliseconds UTC) is when the lease ends unless it is renewed. Nothing was changed.
    """

    code = "generating"
    retryable = True
    conversation_id: str
    holder: str
    generation: int
    expires_at: int
    retry_after_ms: int


class LeaseLost(SessionStoreError):
    """This token does not hold the lease of conversation {conversation_id}.

    Stop generating. Where the token's generation is known, `outcome` and `ended_at` tell how it ended.
    """

    code = "lease-lost"
    conversation_id: str
    generation: int | None = None
    outcome: str | None = None
    ended_at: int | None = None


class TokenUsed(SessionStoreError):
    """This token began its turn with other messages.

    A token serves one turn, for ever: take a new one for what is to be said now.
    """

    code = "token-used"
    conversation_id: str
    generation: int


class MessageNotFound(SessionStoreError):
    """There is no message {message_id} in conversation {conversation_id}."""

    code = "message-not-found"
    conversation_id: str
    message_id: str


class MessageDeleted(SessionStoreError):
    """Message {message_id} was deleted; its id is not used again in this conversation."""

    code = "message-deleted"
    conversation_id: str
    message_id: str


class MessageExists(SessionStoreError):
    """Message {message_id} exists already with other content."""

    code = "message-exists"
    conversation_id: str
    message_id: str


class MessageQueued(SessionStoreError):
    """Message {message_id} is queued input that has no place in the transcript yet."""

    code = "message-queued"
    conversation_id: str
    message_id: str


class MessageComplete(SessionStoreError):
    """Message {message_id} is complete and does not become partial again."""

    code = "message-complete"
    conversation_id: str
    message_id: str


class PreconditionFailed(SessionStoreError):
    """The stored state is not the one that was named.

    `version` is the stored one, if there is one. `same` says that what is stored equals what was sent: nothing is left to do.
    """

    code = "precondition-failed"
    version: int | None = None
    same: bool = False


class Stale(SessionStoreError):
    """Conversation {conversation_id} has changed where it was summarised, or another summary came first."""

    code = "stale"
    conversation_id: str
    version: int


class BudgetTooSmall(SessionStoreError):
    """The newest turn, with what stands in front of it, does not fit: it has {needed} or more."""

    code = "budget-too-small"
    messages: int
    tokens: int | None = None
    bytes: int | None = None

    @property
    def needed(self) -> str:
        """In words."""
        counted = [
            f"{number} {unit}" for number, unit in ((self.tokens, "tokens"), (self.bytes, "bytes")) if number is not None
        ]
        return f"{self.messages} messages{' with ' if counted else ''}{' and '.join(counted)}"

    def __str__(self) -> str:
        return self.summary().format(needed=self.needed)


class InputsPending(SessionStoreError):
    """Conversation {conversation_id} has {queued_inputs} queued inputs; the lease is kept."""

    code = "inputs-pending"
    conversation_id: str
    queued_inputs: int


class InputsFull(SessionStoreError):
    """Conversation {conversation_id} has {queued_inputs} queued inputs, and no room for {sent} more. None was stored."""

    code = "inputs-full"
    retryable = True
    conversation_id: str
    queued_inputs: int
    sent: int


class OwnerFull(SessionStoreError):
    """The owner has {limit} {what}, and no room for more. Nothing was stored."""

    code = "owner-full"
    retryable = True
    what: str
    limit: int


class InputClaimed(SessionStoreError):
    """Input {message_id} was claimed: it stands in the transcript of conversation {conversation_id}."""

    code = "input-claimed"
    conversation_id: str
    message_id: str


class KeyExists(SessionStoreError):
    """There is a key of the name {name} already: revoke it first, or choose another name."""

    code = "key-exists"
    name: str


class KeyNotFound(SessionStoreError):
    """There is no key of the name {name} that is not revoked."""

    code = "key-not-found"
    name: str


class Unauthorized(SessionStoreError):
    """This server wants a key, as `Authorization: Bearer …`, and got {reason}.

    `sessionstore keys create` makes one.
    """

    code = "unauthorized"
    reason: str


class Forbidden(SessionStoreError):
    """{reason}."""

    code = "forbidden"
    reason: str


class Unavailable(SessionStoreError):
    """The database cannot answer now. Nothing of this call was stored."""

    code = "unavailable"
    retryable = True


class Busy(Unavailable):
    """The database is busy. Nothing of this call was stored."""

    code = "busy"


class DiskFull(Unavailable):
    """The disk is full. Nothing of this call was stored."""

    code = "disk-full"


class Closed(Unavailable):
    """The store is closed or stopping. Nothing of this call was stored."""

    code = "stopping"


class StorageFailed(Unavailable):
    """The storage failed ({reason}). The store trusts its connections no longer and has to be opened anew."""

    code = "storage-failed"
    reason: str


class SchemaChanged(Unavailable):
    """The schema of {database} went to {revision} while it was in use. Nothing of this call was stored.

    A newer sessionstore has migrated it. This one has stopped using it; the call is for the newer one.
    """

    code = "schema-changed"
    database: str
    revision: str


class OutcomeUnknown(Unavailable):
    """Whether this was stored is not known: COMMIT failed, or the server stopped. Repeat it with the same ids and tokens."""

    code = "outcome-unknown"


class TooManyRequests(Unavailable):
    """Too much at once: {reason}. Nothing was stored; try again when some of it is done."""

    code = "too-many-requests"
    reason: str


class Unreachable(Unavailable):
    """The server cannot be reached ({reason}). Nothing of this call was stored."""

    code = "unreachable"
    reason: str


class UnexpectedAnswer(SessionStoreError):
    """What answered is no session store, or not the one that this client knows: {reason}."""

    code = "unexpected-answer"
    reason: str
    status: int | None = None


class DatabaseUnusable(SessionStoreError):
    """The database cannot be used: {reason}."""

    code = "database-unusable"
    reason: str


class SchemaBehind(DatabaseUnusable):
    """{reason}. Run `sessionstore migrate`, or open with migrate_first=True."""

    code = "schema-behind"


class SchemaAhead(DatabaseUnusable):
    """{reason}. Use a newer sessionstore: this one would damage it, and has not touched it."""

    code = "schema-ahead"


class NotADatabase(DatabaseUnusable):
    """{reason}. It was left as it is."""

    code = "not-a-database"


class BackupUnusable(DatabaseUnusable):
    """{reason}."""

    code = "backup-unusable"


class UnsupportedUrl(DatabaseUnusable):
    """{reason}."""

    code = "unsupported-url"


class Misuse(SessionStoreError):
    """The store was called in a way that can never work."""

    code = "misuse"


class Nested(Misuse):
    """A store call inside a change is refused: use the conversation that the change was given."""

    code = "nested"


class Awaitable(Misuse):
    """A change must not be a coroutine: it runs inside a database transaction and waits for nothing."""

    code = "awaitable"


class Dead(Misuse):
    """The conversation of a change is usable only until the change returns."""

    code = "dead"
