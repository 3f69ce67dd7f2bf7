"""The closed list of what may happen to a conversation while somebody else is generating it.

A test compares these methods, with `create`, to PROTOCOL.md. Adding one is a decision, not a convenience.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from sessionstore import burial, forking, inputs, jsontext, statements
from sessionstore.burial import generating
from sessionstore.drafts import Prepared
from sessionstore.errors import PreconditionFailed, TokenUsed
from sessionstore.forking import ForkOrder
from sessionstore.life import Life, mutation
from sessionstore.model import Acquired, Children, Conversation, IfBusy, IfMatch, Interruption, Message, Mode
from sessionstore.stored import Turn


class AcquireOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an acquire call asks for, checked."""

    holder: str
    token: str
    token_hash: str
    ttl_ms: int
    if_busy: IfBusy
    messages: Sequence[Prepared]
    begin_digest: str
    if_match: IfMatch | None


class UnguardedConversation(Life):
    """A conversation whose lease, if it has one, is somebody else's business."""

    @mutation
    def label(self, title: str | msgspec.UnsetType | None, patch: dict[str, Any] | None) -> Conversation:
        """Set the title, merge a patch (RFC 7396) into the metadata, or both."""
        old_title, old_metadata = self.transaction.row(statements.LABELS, pk=self.row.pk)
        new_title = old_title if title is msgspec.UNSET else title
        metadata = old_metadata
        if patch is not None:
            merged = jsontext.merge_patch(jsontext.load(old_metadata), patch)
            metadata = self.limits.json_object(merged, "$.metadata")
        if (new_title, metadata) == (old_title, old_metadata):
            self.repeated()
        else:
            self.raise_version()
            self.transaction.do(statements.SET_LABELS, at=self.row.pk, title=new_title, metadata=metadata)
        return self.view()

    @mutation
    def acquire(self, order: AcquireOrder) -> Acquired:
        """Begin a turn, its first messages before it. The same token while its turn lives is the same acquisition.

        Raises `Generating` while somebody else's lease is live, `LeaseLost` for a token whose turn has ended, `TokenUsed` for
        one that began its turn with other messages, and `PreconditionFailed`.
        """
        if self.row.lease_token == order.token_hash and self.row.generation is not None:
            return self._acquired_before(order, self.stored.turn(self.row.generation))
        if self.stored.turn_of(order.token_hash) is not None:
            raise self.stored.lost(order.token_hash)
        self._make_way(order)
        messages = self.append_all(order.messages)
        row = self.transaction.row(
            statements.BEGIN_GENERATION,
            pk=self.row.pk, token_hash=order.token_hash, holder=order.holder, first_position=self.row.next_position,
            now=self.now, begin_digest=order.begin_digest,
        )  # fmt: skip
        self.begin_generation(row[0], order.token_hash, order.ttl_ms)
        self.repeats = 0
        return self._acquired(order, messages)

    def _acquired_before(self, order: AcquireOrder, turn: Turn) -> Acquired:
        if turn.begin_digest != order.begin_digest:
            raise TokenUsed(conversation_id=self.row.id, generation=turn.number)
        self.holds = True
        self.extend_lease()
        self.repeated()
        return self._acquired(order, self.stored.sent(order.messages, turn.first_position))

    def _acquired(self, order: AcquireOrder, messages: list[Message]) -> Acquired:
        row = self.row
        return Acquired(
            token=order.token,
            generation=row.generation or 0,
            expires_at=row.lease_expires_at or 0,
            conversation=self.view(),
            messages=messages,
        )

    def _make_way(self, order: AcquireOrder) -> None:
        if self.live and order.if_busy == "reject":
            raise generating(self)
        if order.if_match is not None and order.if_match not in ("*", self.tag):
            raise PreconditionFailed(version=self.row.version)
        if self.row.generation is not None:
            rolled_back = self.stored.turn(self.row.generation) if self.live and order.if_busy == "rollback" else None
            self.end_generation("expired" if self.expired else "interrupted")
            if rolled_back is not None:
                self._roll_back(rolled_back)

    def _roll_back(self, turn: Turn) -> None:
        """Undo what stands from a turn's beginning on: inputs wait again, messages are deleted. Older edits stay."""
        self.transaction.removed = True
        inputs.unclaim(self, turn.number, turn.first_position)
        self.row.message_count -= self.transaction.run(
            statements.TRUNCATE,
            pk=self.row.pk, after=turn.first_position - 1, through=self.row.next_position, version=self.raise_version(),
            now=self.now,
        )  # fmt: skip

    @mutation
    def interrupt(self, generation: int | None, *, force: bool) -> Interruption:
        """Ask the holder to stop; with `force`, or on an expired lease, end the turn.

        A turn other than the `generation` that is named is left alone.
        """
        if self.row.generation is None or generation not in (None, self.row.generation):
            return Interruption(conversation=self.view(), state="idle")
        if force or self.expired:
            self.end_generation("interrupted")
            return Interruption(conversation=self.view(), state="ended")
        if self.row.interrupt_requested_at is None:
            self.request_interrupt()
        return Interruption(conversation=self.view(), state="requested")

    @mutation
    def queue_inputs(self, drafts: Sequence[Prepared], mode: Mode) -> list[Message]:
        """Let messages wait until a holder claims them. See `inputs.queue`."""
        return inputs.queue(self, drafts, mode)

    @mutation
    def cancel_input(self, message_id: str) -> None:
        """Take a message out of the queue. See `inputs.cancel`."""
        inputs.cancel(self, message_id)

    @mutation
    def fork_settled(self, order: ForkOrder) -> Conversation:
        """Copy what stood before the turn that is going on."""
        return forking.fork(self, order)

    @mutation
    def delete_by_force(self, children: Children) -> None:
        """Delete the conversation and revoke every lease in the way."""
        burial.bury(self, children, force=True)
