"""One life of a conversation inside a write transaction: its row, its version, its lease, and how they are written back."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from sessionstore import statements
from sessionstore.drafts import Prepared
from sessionstore.errors import ConversationDeleted
from sessionstore.limits import Limits
from sessionstore.model import Conversation, Lease, Message, Mode, Outcome, Tag, lease_expired
from sessionstore.stored import Stored
from sessionstore.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound="Life")


class Row(msgspec.Struct):
    """The columns that mutations read and change, in the order of `statements.LIFE_COLUMNS`."""

    pk: int
    id: str
    version: int
    next_position: int
    message_count: int
    queued_count: int
    parent_pk: int | None
    generation: int | None
    lease_token: str | None
    lease_ttl_ms: int | None
    lease_expires_at: int | None
    interrupt_requested_at: int | None


def mutation(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Make a method a mutation: once it raised, nothing of the change is kept, even if the error was caught."""

    @functools.wraps(method)
    def guarded(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            self.check_buried()
            return method(self, *args, **kwargs)
        except BaseException as error:
            self.doom = self.doom or error
            raise

    guarded.__mutation__ = True  # type: ignore[attr-defined]
    return guarded


class Life:
    """The state of one life while its transaction is open. Only the door makes one, after it has judged the call.

    `holds` says that the call carries the current token.
    """

    def __init__(self, transaction: Transaction, row: Row, now: int, limits: Limits, owner: str, *, holds: bool) -> None:
        self.transaction, self.row, self.now, self.holds = transaction, row, now, holds
        self.limits, self.owner = limits, owner
        self._stored: Stored | None = None
        self.changed = False
        self.repeats = 0
        self.buried = False
        self.doom: BaseException | None = None
        self._pending = self._lease_changed = self._renewed = self.raised = False
        self._revived = False
        self.quiet = False
        if holds:
            self.extend_lease()

    @property
    def stored(self) -> Stored:
        """What is there already."""
        if self._stored is None:
            self._stored = Stored(self.transaction, self.row.id, self.row.pk, self.now)
        return self._stored

    def check_buried(self) -> None:
        """Raise `ConversationDeleted` when the change has deleted the conversation."""
        if self.buried:
            raise ConversationDeleted(conversation_id=self.row.id, incarnation=self.row.pk)

    @property
    def live(self) -> bool:
        """Whether somebody's lease is in force now."""
        return self.row.generation is not None and not self.expired

    @property
    def expired(self) -> bool:
        """Whether there is a lease that others may end."""
        row = self.row
        if row.lease_expires_at is None or row.lease_ttl_ms is None:
            return False
        return lease_expired(self.now, row.lease_expires_at, row.lease_ttl_ms)

    @property
    def tag(self) -> Tag:
        """The state as it was when the call came."""
        return Tag(self.row.pk, self.row.version)

    @property
    def next_version(self) -> int:
        """What `raise_version` will answer."""
        return self.row.version if self.raised else self.row.version + 1

    def raise_version(self) -> int:
        """The version of this transaction's changes: one more than before, however many changes there are."""
        self.changed = True
        return self._advance()

    def _advance(self) -> int:
        self.row.version = self.next_version
        self.raised = self._pending = True
        return self.row.version

    def repeated(self) -> None:
        """Note that a mutation found its work already done."""
        self.repeats += 1

    def append_all(self, drafts: Sequence[Prepared]) -> list[Message]:
        """The messages of these drafts: stored already and alike where they are, the rest at the tail."""
        return [self._append(draft) if draft.named else self.write_message(draft) for draft in drafts]

    def _append(self, draft: Prepared) -> Message:
        there = self.stored.appended(draft)
        if there is not None:
            self.repeated()
            return there
        return self.write_message(draft)

    def write_message(self, draft: Prepared, existing: Message | None = None, *, summary_through: int | None = None) -> Message:
        """The one upsert: a new message takes the next position, a stored one keeps its place and its first digest."""
        written = self._written(draft, self.raise_version(), existing, summary_through)
        if existing is not None:
            self.transaction.removed = True
        self.transaction.do(
            statements.PUT_MESSAGE,
            conversation_pk=written.incarnation, id=written.id, position=written.position, role=written.role,
            content=written.content_json, metadata=written.metadata_json, status=written.status, mode=None,
            summary_through=written.summary_through, generation=written.generation, created_version=written.version,
            version=written.version, created_at=written.created_at, updated_at=written.updated_at, digest=draft.digest,
        )  # fmt: skip
        return written

    def queue_message(self, draft: Prepared, mode: Mode) -> Message:
        """Store a message without a place."""
        row, version, metadata = self.row, self.raise_version(), draft.metadata_json or "{}"
        self.transaction.do(
            statements.PUT_MESSAGE,
            conversation_pk=row.pk, id=draft.id, position=None, role=draft.role, content=draft.content_json,
            metadata=metadata, status="queued", mode=mode, summary_through=None, generation=None,
            created_version=version, version=version, created_at=self.now, updated_at=self.now, digest=draft.digest,
        )  # fmt: skip
        row.queued_count += 1
        return Message(
            row.pk, draft.id, None, draft.role, draft.content_json, metadata, "queued", None, None, version, self.now, self.now
        )

    def _written(self, draft: Prepared, version: int, existing: Message | None, summary_through: int | None) -> Message:
        # What is bound is what will be read: RETURNING it would make a third of the statement's cost.
        row, now = self.row, self.now
        if existing is not None:
            return Message(
                row.pk, existing.id, existing.position, draft.role, draft.content_json,
                draft.metadata_json or existing.metadata_json, draft.status, existing.summary_through, existing.generation,
                version, existing.created_at, now,
            )  # fmt: skip
        position, generation = row.next_position, row.generation if self.holds else None
        row.next_position += 1
        row.message_count += 1
        return Message(
            row.pk, draft.id, position, draft.role, draft.content_json, draft.metadata_json or "{}", draft.status,
            summary_through, generation, version, now, now,
        )  # fmt: skip

    def extend_lease(self, ttl_ms: int | None = None) -> None:
        """Let the lease end a whole time to live from now."""
        row = self.row
        # Everybody was shown an expired lease: that it lives again is news.
        self._revived = self._revived or self.expired
        if ttl_ms is not None and ttl_ms != row.lease_ttl_ms:
            row.lease_ttl_ms = ttl_ms
            self._lease_changed = True
        row.lease_expires_at = self.now + (row.lease_ttl_ms or 0)
        self._renewed = True

    def begin_generation(self, number: int, token_hash: str, ttl_ms: int) -> None:
        """Give the lease to a new holder."""
        self.raise_version()
        self.row.generation, self.row.lease_token, self.row.interrupt_requested_at = number, token_hash, None
        self.holds = True
        self._lease_changed = True
        self.extend_lease(ttl_ms)

    def request_interrupt(self) -> None:
        """Leave word for the holder."""
        self.raise_version()
        self.row.interrupt_requested_at = self.now
        self._lease_changed = True

    def end_generation(
        self, outcome: Outcome, *, end_digest: str | None = None, usage: str | None = None, complete: bool = False
    ) -> None:
        """End the turn: whatever is still partial is interrupted from now on, or, where its holder says so, complete."""
        self.transaction.measures.takeovers += outcome == "expired"
        self.transaction.do(
            statements.END_GENERATION,
            at=self.row.generation,
            now=self.now,
            outcome=outcome,
            end_digest=end_digest,
            usage=usage,
        )
        self.drop_lease("complete" if complete else "interrupted")

    def drop_lease(self, status: Literal["complete", "interrupted"]) -> None:
        """Nobody holds it any more. `status` is what becomes of messages that were still growing."""
        row, version = self.row, self.raise_version()
        self.transaction.do(statements.SETTLE_PARTIAL, pk=row.pk, version=version, now=self.now, status=status)
        row.generation = row.lease_token = row.lease_ttl_ms = row.lease_expires_at = row.interrupt_requested_at = None
        self.holds = False
        self._lease_changed = True

    def view(self) -> Conversation:
        """The conversation as it will be after the commit."""
        self.write_back()
        return self.stored.view()

    def lease(self) -> Lease | None:
        """The caller's own lease after this call."""
        return lease_of(self.row) if self.holds else None

    def write_back(self) -> None:
        """Write what changed in the row. May be called more than once."""
        row = self.row
        if self._revived:
            self._advance()
        if self._lease_changed:
            self.transaction.do(statements.SET_LEASE, at=row.pk, **_lease_columns(row))
        if self._pending:
            told = {
                "version": row.version, "next_position": row.next_position, "message_count": row.message_count,
                "queued_count": row.queued_count, "lease_expires_at": row.lease_expires_at,
            }  # fmt: skip
            if self.quiet:
                self.transaction.do(statements.ADVANCE_QUIETLY, at=row.pk, **told)
            else:
                self.transaction.do(statements.ADVANCE, at=row.pk, now=self.now, **told)
        elif self._renewed:
            self.transaction.do(statements.RENEW, at=row.pk, lease_expires_at=row.lease_expires_at)
        self._pending = self._lease_changed = self._renewed = self._revived = False

    def close(self) -> None:
        """What was doomed raises, the rest is written."""
        if self.doom is not None:
            raise self.doom
        self.write_back()


def lease_of(row: Row) -> Lease | None:
    """The lease in a row, if there is one."""
    if row.generation is None or row.lease_expires_at is None:
        return None
    return Lease(
        generation=row.generation,
        expires_at=row.lease_expires_at,
        interrupt_requested=row.interrupt_requested_at is not None,
        queued_inputs=row.queued_count,
    )


def _lease_columns(row: Row) -> dict[str, Any]:
    return {
        "generation": row.generation,
        "lease_token": row.lease_token,
        "lease_ttl_ms": row.lease_ttl_ms,
        "lease_expires_at": row.lease_expires_at,
        "interrupt_requested_at": row.interrupt_requested_at,
    }
