"""Repeats after a lost answer: what a call is told whose work is done already.

The door asks here only when it would refuse the call, so a repeat is recognised before the lease is judged; on the ordinary
way the mutations themselves see that nothing is left to do.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sessionstore import jsontext, statements
from sessionstore.creation import living, made_by
from sessionstore.drafts import Prepared, identity
from sessionstore.errors import ConversationExists, MessageNotFound
from sessionstore.forking import ForkOrder
from sessionstore.model import Compacted, Conversation, Finished, FinishOutcome, IfMatch, Message, Saved, Truncated
from sessionstore.stored import Stored, alike

T = TypeVar("T")
Repeat = Callable[[Stored], T | None]
"""Answers what the call did, or None if it has not been done."""

RELEASED = jsontext.digest("release")


def finish_digest(drafts: Sequence[Prepared], outcome: FinishOutcome, usage: dict[str, Any] | None, *, complete: bool) -> str:
    """What makes two finish calls the same."""
    return jsontext.digest("finish", identity(drafts), outcome, usage, complete)


def appended(drafts: Sequence[Prepared]) -> Repeat[list[Message]]:
    """An append whose messages all have ids and are all stored alike."""
    return lambda stored: stored.all_appended(drafts)


def put(draft: Prepared, if_match: IfMatch | None, *, only_create: bool) -> Repeat[Saved]:
    """A put whose message stands as it was sent, with no precondition that speaks against it."""

    def look(stored: Stored) -> Saved | None:
        there = stored.message(draft.id)
        if there is None or only_create or not alike(there, draft) or if_match not in (None, "*", there.tag):
            return None
        return Saved(message=there, created=False)

    return look


def truncated(after_position: int, through_position: int) -> Repeat[Truncated]:
    """A truncate whose range is empty."""

    def look(stored: Stored) -> Truncated | None:
        left = stored.transaction.row(statements.LIVES_IN_RANGE, pk=stored.pk, after=after_position, through=through_position)
        return Truncated(conversation=stored.view(), removed=0) if left is None else None

    return look


def compacted(summary: Prepared, through_position: int) -> Repeat[Compacted]:
    """A compaction whose summary has an id and stands as it was sent."""

    def look(stored: Stored) -> Compacted | None:
        found = stored.all_known([summary])
        if not found or found[0].summary_through != through_position:
            return None
        return Compacted(conversation=stored.view(), summary=found[0])

    return look


def released(token_hash: str) -> Repeat[Conversation]:
    """A release that has ended this token's turn."""

    def look(stored: Stored) -> Conversation | None:
        turn = stored.turn_of(token_hash)
        return stored.view() if turn is not None and turn.end_digest == RELEASED else None

    return look


def queued(drafts: Sequence[Prepared]) -> Repeat[list[Message]]:
    """A queue call whose messages all have ids and are all known, waiting or claimed."""
    return lambda stored: stored.all_known(drafts)


def finished(token_hash: str, end_digest: str, drafts: Sequence[Prepared]) -> Repeat[Finished]:
    """A finish that has ended this token's turn with this very content.

    Its messages are found by their ids; those without are the newest unnamed ones of that turn.
    """
    named = {draft.id for draft in drafts if draft.named}
    unnamed = len(drafts) - len(named)

    def look(stored: Stored) -> Finished | None:
        turn = stored.turn_of(token_hash)
        if turn is None or turn.end_digest != end_digest:
            return None
        newest = stored.newest_of(turn, len(drafts)) if unnamed else []
        others = iter([message for message in newest if message.id not in named][-unnamed:] if unnamed else [])
        found = (stored.message(draft.id) if draft.named else next(others, None) for draft in drafts)
        return Finished(conversation=stored.view(), messages=[message for message in found if message is not None])

    return look


def forked(order: ForkOrder, owner: str) -> Repeat[None]:
    """A fork that was done: told as `ConversationExists` with `same`, also while the source is being generated."""

    def look(stored: Stored) -> None:
        fork = living(stored.transaction, owner, order.id)
        if fork is None:
            return
        try:
            digest = order.digest(stored)
        except MessageNotFound:
            # It is judged in its turn, behind the lease and the precondition.
            return
        if made_by(stored.transaction, fork, digest):
            raise ConversationExists(conversation_id=order.id, incarnation=fork.pk, same=True)

    return look
