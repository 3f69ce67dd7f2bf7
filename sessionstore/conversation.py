"""What the door hands out once the lease was judged: every guarded mutation is a method here, and nowhere else.

To add one: write the method and mark it `@mutation`, give `Store` its line and the API its route (CONTRIBUTING.md).
"""

from collections.abc import Sequence
from typing import Any

from sessionstore import burial, compaction, forking, inputs, jsontext, statements
from sessionstore.drafts import Draft, Prepared, prepare, prepare_all, prepare_summary
from sessionstore.errors import (
    InputsPending,
    InvalidInput,
    LeaseLost,
    MessageComplete,
    MessageDeleted,
    MessageNotFound,
    MessageQueued,
    PreconditionFailed,
)
from sessionstore.life import Life, mutation
from sessionstore.model import (
    Children,
    Compacted,
    Conversation,
    Finished,
    FinishOutcome,
    IfMatch,
    Message,
    Renewed,
    Saved,
    Truncated,
)
from sessionstore.repeats import RELEASED, finish_digest
from sessionstore.stored import alike


class GuardedConversation(Life):
    """A conversation that nobody else is generating now. Usable until the change returns."""

    @mutation
    def append(self, drafts: Sequence[Draft | Prepared]) -> list[Message]:
        """Store messages at the tail, in order. One that is stored already and alike keeps its place.

        Raises `MessageExists`, `MessageDeleted`, `MessageQueued`, or `InvalidInput` for a partial message without a lease.
        """
        return self.append_all(prepare_all(drafts, self.limits, least=1, partial=self.holds))

    @mutation
    def put(self, draft: Draft | Prepared, *, if_match: IfMatch | None = None, only_create: bool = False) -> Saved:
        """Store a message under its id: a new one at the tail, a stored one where it stands. Equal content changes nothing.

        Raises `PreconditionFailed`, `MessageDeleted`, `MessageQueued`, and `MessageComplete` where a complete message would
        become partial again.
        """
        draft = prepare(draft, self.limits)
        if draft.status == "partial" and not self.holds:
            raise InvalidInput(reason="Only the holder of a lease stores partial messages", path="$.status")
        there = self.stored.message(draft.id)
        if there is not None:
            self._check_editable(there)
        if if_match is not None or only_create:
            _check_message_tag(there, draft, if_match, only_create=only_create)
        return self._put(draft, there)

    def _put(self, draft: Prepared, there: Message | None) -> Saved:
        if there is None:
            return Saved(message=self.write_message(draft), created=True)
        if alike(there, draft):
            self.repeated()
            return Saved(message=there, created=False)
        if there.status == "complete" and draft.status == "partial":
            raise MessageComplete(conversation_id=self.row.id, message_id=there.id)
        return Saved(message=self.write_message(draft, there), created=False)

    @mutation
    def label_message(self, message_id: str, patch: dict[str, Any], *, if_match: IfMatch | None = None) -> Message:
        """Merge a patch (RFC 7396) into a message's metadata, and leave the rest. Raises as `put`, and `MessageNotFound`."""
        self.limits.json_object(patch, "$.metadata")
        there = self._existing(message_id, if_match)
        merged = self.limits.json_object(jsontext.merge_patch(there.metadata, patch), "$.metadata")
        if merged == there.metadata_json:
            self.repeated()
            return there
        draft = Prepared(
            id=there.id, named=True, role=there.role, content_json=there.content_json or "null", metadata_json=merged,
            status=there.status, digest="",
        )  # fmt: skip
        return self.write_message(draft, there)

    @mutation
    def delete_message(self, message_id: str, *, if_match: IfMatch | None = None) -> None:
        """Delete a message for good; its id and position are not used again. Raises as `label_message`."""
        self._existing(message_id, if_match)
        version = self.raise_version()
        self.transaction.removed = True
        self.transaction.do(statements.DELETE_MESSAGE, pk=self.row.pk, message_id=message_id, version=version, now=self.now)
        self.row.message_count -= 1

    @mutation
    def truncate(self, after_position: int, through_position: int) -> Truncated:
        """Delete the messages after one position, through another. The range is closed, so a repeat harms nothing newer.

        A summary goes with what it covers.
        """
        self.limits.required_number(after_position, "$.after_position", least=-1)
        self.limits.required_number(through_position, "$.through_position", least=after_position)
        asked = {"pk": self.row.pk, "after": after_position, "through": through_position}
        first, removed = self.transaction.row(statements.LIVES_IN_RANGE, **asked), 0
        if first is None:
            self.repeated()
        else:
            removed = self.transaction.run(statements.TRUNCATE, **asked, version=self.raise_version(), now=self.now)
            removed += compaction.forget_summaries(self, first[0])
            self.transaction.removed = True
            self.row.message_count -= removed
        return Truncated(conversation=self.view(), removed=removed)

    @mutation
    def forget(self, after_position: int, through_position: int) -> int:
        """Delete the messages of a range, but no summary: it says what was there. Answers how many.

        It is upkeep, and no change of the conversation's own: the time of that stays.
        """
        forgotten = self.transaction.run(
            statements.FORGET_RANGE,
            pk=self.row.pk, after=after_position, through=through_position, version=self.next_version, now=self.now,
        )  # fmt: skip
        if forgotten:
            self.quiet = not self.raised
            self.transaction.removed = True
            self.raise_version()
            self.row.message_count -= forgotten
        return forgotten

    @mutation
    def compact(self, summary: Draft | Prepared, *, through_position: int, seen_version: int) -> Compacted:
        """Put a summary of everything through a position at the end. See `Store.compact`."""
        self.limits.required_number(through_position, "$.through_position")
        self.limits.required_number(seen_version, "$.seen_version", least=1)
        return compaction.compact(self, prepare_summary(summary, self.limits), through_position, seen_version)

    @mutation
    def claim(self, ids: Sequence[str] | None = None) -> list[Message]:
        """Put queued inputs at the tail of the transcript: those named, all or none, or all, in their order.

        Raises `InputClaimed` for what another turn has claimed, `MessageDeleted` for what was cancelled, `MessageNotFound`.
        """
        return inputs.claim(self, self.limits.ids(ids))

    @mutation
    def fork(
        self,
        new: str | None = None,
        *,
        through_position: int | None = None,
        before_user_message: int | None = None,
        through_message: str | None = None,
        before_message: str | None = None,
        title: str | None = None,
    ) -> Conversation:
        """Copy this conversation, or its beginning, into a new one of id `new`. See `Store.fork`."""
        point = forking.point(self.limits, through_position, before_user_message, through_message, before_message)
        return forking.fork(self, forking.order(self.limits, new, point, title))

    @mutation
    def delete(self, children: Children = "cascade") -> None:
        """Delete the conversation for good, with its descendants or without. Raises `Generating` for a held descendant."""
        self.limits.one_of(children, ("cascade", "orphan"), "$.children")
        burial.bury(self, children, force=False)

    @mutation
    def renew(self, *, phase: str | None = None, ttl_ms: int | None = None) -> Renewed:
        """Keep the lease, from now for its time to live; say what the turn is doing."""
        number = self._held()
        self.extend_lease(self.limits.ttl(ttl_ms))
        if phase is not None and self.limits.phase(phase) != self.stored.turn(number).phase:
            self.raise_version()
            self.transaction.do(statements.SET_PHASE, at=number, phase=phase)
        row = self.row
        return Renewed(
            generation=number,
            expires_at=row.lease_expires_at or 0,
            ttl_ms=row.lease_ttl_ms or 0,
            conversation=self.view(),
        )

    @mutation
    def release(self) -> Conversation:
        """End the turn without a word about how it went."""
        self._held()
        self.end_generation("released", end_digest=RELEASED)
        return self.view()

    @mutation
    def finish(
        self,
        drafts: Sequence[Draft | Prepared] = (),
        *,
        outcome: FinishOutcome = "completed",
        usage: dict[str, Any] | None = None,
        unless_inputs: bool = False,
        complete: bool = False,
    ) -> Finished:
        """Put the last messages and end the turn, both or neither. Raises as `put`, and `InputsPending` with the lease kept."""
        self._held()
        if unless_inputs and self.row.queued_count:
            raise InputsPending(conversation_id=self.row.id, queued_inputs=self.row.queued_count)
        self.limits.one_of(outcome, ("completed", "failed", "waiting", "interrupted"), "$.outcome")
        usage_json = None if usage is None else self.limits.usage(usage)
        prepared = prepare_all(drafts, self.limits)
        saved = [self.put(draft).message for draft in prepared]
        digest = finish_digest(prepared, outcome, usage, complete=complete)
        self.end_generation(outcome, end_digest=digest, usage=usage_json, complete=complete)
        # Read again: what was saved as partial is settled by the end.
        messages = [self.stored.message(message.id) or message for message in saved]
        return Finished(conversation=self.view(), messages=messages)

    def _held(self) -> int:
        if not self.holds or self.row.generation is None:
            raise LeaseLost(conversation_id=self.row.id)
        return self.row.generation

    def _existing(self, message_id: str, if_match: IfMatch | None) -> Message:
        there = self.stored.message(self.limits.id(message_id, "$.message_id"))
        if there is None:
            raise MessageNotFound(conversation_id=self.row.id, message_id=message_id)
        self._check_editable(there)
        if if_match not in (None, "*", there.tag):
            raise PreconditionFailed(version=there.version)
        return there

    def _check_editable(self, message: Message) -> None:
        if message.status == "deleted":
            raise MessageDeleted(conversation_id=self.row.id, message_id=message.id)
        if message.status == "queued":
            raise MessageQueued(conversation_id=self.row.id, message_id=message.id)


def _check_message_tag(there: Message | None, draft: Prepared, if_match: IfMatch | None, *, only_create: bool) -> None:
    if there is None:
        if if_match is not None:
            raise PreconditionFailed()
    elif only_create or if_match not in ("*", there.tag):
        raise PreconditionFailed(version=there.version, same=alike(there, draft))
