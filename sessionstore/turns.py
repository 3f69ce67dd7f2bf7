"""Turns: what whoever generates calls, and whoever wants him to stop, or has something for him."""

from collections.abc import Sequence
from typing import Any

from sessionstore import orders, repeats
from sessionstore.database import Database
from sessionstore.door import Door
from sessionstore.drafts import Draft, prepare_all, size_of
from sessionstore.finding import Finding
from sessionstore.items import Lane
from sessionstore.limits import Limits
from sessionstore.model import (
    Acquired,
    Answer,
    Conversation,
    Finished,
    FinishOutcome,
    IfBusy,
    IfMatch,
    Interruption,
    Message,
    Mode,
    Renewed,
)


class Turns(Finding):
    """The part of a store that is about leases and inputs. What all calls share is said in `sessionstore.store`."""

    def __init__(self, database: Database, door: Door, limits: Limits) -> None:
        super().__init__(database, door.owner, limits)
        self._door = door

    def acquire(
        self,
        id: str,
        holder: str,
        *,
        token: str | None = None,
        ttl_ms: int | None = None,
        if_busy: IfBusy = "reject",
        messages: Sequence[Draft] = (),
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Acquired]:
        """Begin a turn: store its first messages, then take the lease for `ttl_ms` (30 s). Every call with its token renews it.

        Bring a `token` of your own and a call that is repeated after a lost answer is the same turn. Raises `Generating` while
        another turn is going on, which `if_busy="interrupt"` ends instead, and `"rollback"` ends and undoes: its messages are
        deleted, the inputs that it claimed wait again, its edits of older messages stay. Raises `LeaseLost` for a token whose
        turn is over, and `TokenUsed` for one whose turn began with other messages.
        """
        order = orders.acquire(self.limits, holder, token, ttl_ms, if_busy, messages, if_match)
        call = orders.call(self.limits, id, None, incarnation, size=size_of(order.messages))
        return self._door.unguarded(call, lambda conversation: conversation.acquire(order))

    def renew(
        self,
        id: str,
        *,
        token: str | None,
        phase: str | None = None,
        ttl_ms: int | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Renewed]:
        """Keep the lease for another time to live, which `ttl_ms` changes, and say in `phase` what the turn is doing.

        Raises `LeaseLost`. A lease that expired is revived as long as nobody else has come.
        """
        if phase is not None:
            self.limits.phase(phase)
        self.limits.ttl(ttl_ms)
        call = orders.call(self.limits, id, token, incarnation, if_match, must_hold=True, lane=Lane.FIRST)
        return self._door.guarded(call, lambda conversation: conversation.renew(phase=phase, ttl_ms=ttl_ms))

    def release(
        self, id: str, *, token: str | None, incarnation: int | None = None, if_match: IfMatch | None = None
    ) -> Answer[Conversation]:
        """End the turn without a word about how it went. Raises `LeaseLost`, but not for a repeat."""
        call = orders.call(self.limits, id, token, incarnation, if_match, must_hold=True, lane=Lane.FIRST)
        repeat = call.token_hash and repeats.released(call.token_hash)
        return self._door.guarded(call, lambda conversation: conversation.release(), repeat or None)

    def finish(
        self,
        id: str,
        messages: Sequence[Draft] = (),
        *,
        token: str | None,
        outcome: FinishOutcome = "completed",
        usage: dict[str, Any] | None = None,
        unless_inputs: bool = False,
        complete: bool = False,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Finished]:
        """Put the last messages and end the turn, both or neither. The same call again gets the answer again.

        What is still partial is `interrupted` from then on, or, with `complete`, complete. Raises `LeaseLost`, with `outcome`
        and `ended_at` where the turn ended otherwise, and, with `unless_inputs`, `InputsPending` while inputs wait, the lease
        kept.
        """
        self.limits.one_of(outcome, ("completed", "failed", "waiting", "interrupted"), "$.outcome")
        if usage is not None:
            self.limits.usage(usage)
        drafts = prepare_all(messages, self.limits)
        call = orders.call(self.limits, id, token, incarnation, if_match, must_hold=True, size=size_of(drafts))
        digest = repeats.finish_digest(drafts, outcome, usage, complete=complete)
        repeat = call.token_hash and repeats.finished(call.token_hash, digest, drafts)
        options: dict[str, Any] = {"outcome": outcome, "usage": usage, "unless_inputs": unless_inputs, "complete": complete}
        return self._door.guarded(call, lambda conversation: conversation.finish(drafts, **options), repeat or None)

    def interrupt(
        self,
        id: str,
        *,
        generation: int | None = None,
        force: bool = False,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Interruption]:
        """Ask whoever is generating to stop; with `force`, or when the lease has expired, end the turn.

        Name the `generation` that is meant, and a late copy of the call harms no later turn.
        """
        self.limits.number(generation, "$.generation", least=1)
        call = orders.call(self.limits, id, token, incarnation, if_match, lane=Lane.FIRST)
        return self._door.unguarded(call, lambda conversation: conversation.interrupt(generation, force=force))

    def queue_inputs(
        self,
        id: str,
        messages: Sequence[Draft],
        *,
        mode: Mode = "follow_up",
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[list[Message]]:
        """Let messages wait, all or none, also while somebody is generating, until a holder claims them.

        `mode` is a word to the holder: `steer` the turn that is going on, or `follow_up` after it. Messages with ids that were
        queued before are answered as they are now. Raises `InputsFull`, `MessageExists`, and `MessageDeleted` once cancelled.
        """
        self.limits.one_of(mode, ("steer", "follow_up"), "$.mode")
        drafts = prepare_all(messages, self.limits, least=1, partial=False)
        call = orders.call(self.limits, id, token, incarnation, if_match, size=size_of(drafts))
        return self._door.unguarded(call, lambda conversation: conversation.queue_inputs(drafts, mode), repeats.queued(drafts))

    def cancel_input(
        self, id: str, message_id: str, *, token: str | None = None, incarnation: int | None = None
    ) -> Answer[None]:
        """Take a message out of the queue for good. Raises `InputClaimed`, `MessageNotFound`, `MessageDeleted`."""
        self.limits.id(message_id, "$.message_id")
        call = orders.call(self.limits, id, token, incarnation)
        return self._door.unguarded(call, lambda conversation: conversation.cancel_input(message_id))

    def claim_inputs(
        self,
        id: str,
        ids: Sequence[str] | None = None,
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[list[Message]]:
        """Put queued messages at the end of the transcript: all that wait, in their order, or those named, all or none.

        Name them, and a call that is repeated after a lost answer is answered again. Raises `InputClaimed` for what another
        turn has claimed, `MessageDeleted` for what was cancelled, `MessageNotFound`, `Generating`, `LeaseLost`.
        """
        named = self.limits.ids(ids)
        call = orders.call(self.limits, id, token, incarnation, if_match)
        return self._door.guarded(call, lambda conversation: conversation.claim(named))
