"""The one door for changes to a conversation: it judges the call, and only then hands out the object with the mutations.

Order of judgement (PROTOCOL.md): is there such a conversation, is it this life, is the call a repeat, who holds the lease, does
the precondition hold. An error at any step leaves the database as it was.
"""

import hmac
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from sessionstore.burial import generating
from sessionstore.conversation import GuardedConversation
from sessionstore.creation import Birth, give_birth, living, missing
from sessionstore.drafts import Prepared, size_of
from sessionstore.errors import (
    Awaitable,
    ConversationDeleted,
    ConversationExists,
    LeaseLost,
    PreconditionFailed,
    SessionStoreError,
)
from sessionstore.items import Fold, Keys, Lane
from sessionstore.life import Life, Row, lease_of
from sessionstore.limits import Limits
from sessionstore.model import Answer, Created, IfMatch
from sessionstore.repeats import Repeat
from sessionstore.stored import Stored
from sessionstore.transaction import Each, Transaction
from sessionstore.unguarded import UnguardedConversation

T = TypeVar("T")
L = TypeVar("L", GuardedConversation, UnguardedConversation)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a call names besides its change: the conversation, and what it believes about it.

    `must_hold`: the call has a meaning only for the holder of the lease. `lane`, `size` and `fold`: how it waits for the
    writer, about how many bytes it brings, and what makes it needless.
    """

    id: str
    token_hash: str | None = None
    incarnation: int | None = None
    if_match: IfMatch | None = None
    must_hold: bool = False
    lane: Lane = Lane.GROUPED
    size: int = 0
    fold: Fold | None = None


Passage = tuple[Call, Callable[[GuardedConversation], T], Repeat[T] | None]
"""A call with its change, and what knows its repeats."""

Carry = Callable[[Callable[[Transaction], Any], Lane, Keys, int, Fold | None], Any]
"""How a call comes to the writer: `Database.write`, which waits for it, or what answers something to be awaited."""


class Door:
    """Changes to the conversations of one owner. The clock is read when the conversation is locked."""

    def __init__(self, carry: Carry, owner: str, limits: Limits) -> None:
        self._carry, self.owner, self._limits = carry, owner, limits

    def of(self, owner: str) -> "Door":
        """The same door, to another owner's conversations."""
        return Door(self._carry, owner, self._limits)

    def guarded(self, call: Call, change: Callable[[GuardedConversation], T], repeat: Repeat[T] | None = None) -> Answer[T]:
        """Run a change for which nobody else may be generating."""
        return self._pass(call, self._item(call, GuardedConversation, change, repeat))

    def unguarded(self, call: Call, change: Callable[[UnguardedConversation], T], repeat: Repeat[T] | None = None) -> Answer[T]:
        """Run a change of the closed list."""
        return self._pass(call, self._item(call, UnguardedConversation, change, repeat))

    def guarded_each(self, passages: Sequence[Passage[T]]) -> list[Answer[T] | SessionStoreError]:
        """Run many guarded changes, each judged and kept or refused by itself, in their order."""
        parts = Each(
            [
                ((self.owner, call.id), self._item(call, GuardedConversation, change, repeat))
                for call, change, repeat in passages
            ]
        )
        size = sum(call.size for call, _, _ in passages)
        return self._carry(parts, Lane.GROUPED, parts.keys, size, None)  # type: ignore[no-any-return]

    def create(self, birth: Birth, messages: Sequence[Prepared]) -> Answer[Created]:
        """Create a conversation with its first messages; the same call again is answered with what it made."""
        item = partial(self._create, birth=birth, messages=messages)
        return self._carry(item, Lane.GROUPED, ((self.owner, birth.id),), size_of(messages), None)  # type: ignore[no-any-return]

    def _pass(self, call: Call, item: Callable[[Transaction], Answer[T]]) -> Answer[T]:
        return self._carry(item, call.lane, ((self.owner, call.id),), call.size, call.fold)  # type: ignore[no-any-return]

    def _item(
        self, call: Call, kind: type[L], change: Callable[[L], T], repeat: Repeat[T] | None
    ) -> Callable[[Transaction], Answer[T]]:
        """What is run in the transaction: judge the call, and only then make the change."""

        def item(transaction: Transaction) -> Answer[T]:
            row, now = self._enter(transaction, call), transaction.now()
            holds = _same(row.lease_token, call.token_hash)
            before = lease_of(row) if holds else None
            try:
                return judge(kind(transaction, row, now, self._limits, self.owner, holds=holds))
            except SessionStoreError as error:
                error.with_lease(before)
                raise

        def judge(conversation: L) -> Answer[T]:
            refusal, takeover = _refusal(conversation, call), _takes_over(conversation)
            done = repeat(conversation.stored) if repeat and (refusal or takeover) else None
            if done is not None:
                return _answer(conversation, done, replayed=True)
            if refusal is not None:
                conversation.transaction.measures.lost_leases += isinstance(refusal, LeaseLost)
                raise refusal
            if takeover:
                conversation.end_generation("expired")
            return _answer(conversation, _settled(change(conversation)))

        return item

    def _enter(self, transaction: Transaction, call: Call) -> Row:
        """The living row, judged by life."""
        # Who held the lock may have deleted it, and somebody made it anew: only another look sees the new life.
        row = living(transaction, self.owner, call.id) or living(transaction, self.owner, call.id)
        if row is None:
            raise missing(transaction, self.owner, call.id)
        if call.incarnation not in (None, row.pk):
            raise ConversationDeleted(conversation_id=call.id, incarnation=row.pk)
        return row

    def _create(self, transaction: Transaction, birth: Birth, messages: Sequence[Prepared]) -> Answer[Created]:
        try:
            life = give_birth(transaction, birth, self.owner, self._limits)
        except ConversationExists as exists:
            if not exists.same:
                raise
            stored = Stored(transaction, birth.id, exists.incarnation, transaction.now())
            sent = stored.messages_at(0, len(messages))
            return Answer(value=Created(conversation=stored.view(), messages=sent), replayed=True)
        written = life.append_all(messages)
        return Answer(value=Created(conversation=life.view(), messages=written))


def _refusal(life: Life, call: Call) -> SessionStoreError | None:
    if not life.holds and (call.must_hold or call.token_hash is not None):
        return life.stored.lost(call.token_hash)
    if isinstance(life, GuardedConversation) and life.live and not life.holds:
        return generating(life)
    if call.if_match is not None and call.if_match not in ("*", life.tag):
        return PreconditionFailed(version=life.row.version)
    return None


def _takes_over(life: Life) -> bool:
    """Whether a guarded call without a token ends an expired lease on its way in."""
    return isinstance(life, GuardedConversation) and life.expired and not life.holds


def _same(stored: str | None, given: str | None) -> bool:
    return stored is not None and given is not None and hmac.compare_digest(stored, given)


def _settled(result: T) -> T:
    if hasattr(result, "__await__"):
        if inspect.iscoroutine(result):
            result.close()
        raise Awaitable
    return result


def _answer(life: Life, value: Any, *, replayed: bool = False) -> Answer[Any]:
    life.close()
    return Answer(value=value, replayed=replayed or (life.repeats > 0 and not life.changed), lease=life.lease())
