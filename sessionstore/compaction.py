"""Compaction: a summary stands for the beginning of a conversation in what a model is shown. Nothing that it covers is lost.

A summary is a message at the tail that says through which position it speaks. The context is the newest living one, and then
what stands after that position. So one that is deleted gives the one before its place back.
"""

from sessionstore import statements
from sessionstore.drafts import Prepared
from sessionstore.errors import InvalidInput, MessageExists, Stale
from sessionstore.life import Life
from sessionstore.model import Compacted, Message


def compact(life: Life, draft: Prepared, through_position: int, seen_version: int) -> Compacted:
    """Put a summary of everything through a position at the tail.

    Raises `Stale` when a message up to there has changed after the version that was seen, or when a newer summary covers it;
    `InvalidInput` for a position on no message; `MessageExists` and `MessageDeleted`.
    """
    there = life.stored.known(draft)
    if there is None:
        _check_seen(life, through_position, seen_version)
        there = life.write_message(draft, summary_through=through_position)
    elif there.summary_through != through_position:
        raise MessageExists(conversation_id=life.row.id, message_id=draft.id)
    else:
        life.repeated()
    return Compacted(conversation=life.view(), summary=there)


def _check_seen(life: Life, through_position: int, seen_version: int) -> None:
    asked = {"pk": life.row.pk, "through": through_position, "seen": seen_version}
    youngest = life.transaction.row(statements.YOUNGEST_THROUGH, pk=life.row.pk, through=through_position)
    if (
        seen_version >= life.next_version
        or (youngest is not None and youngest[0] > seen_version)
        or life.transaction.row(statements.CHANGED_THROUGH, **asked) is not None
        or life.transaction.row(statements.COVERED_SINCE, **asked) is not None
    ):
        raise Stale(conversation_id=life.row.id, version=life.row.version)
    check_place(life, through_position, "$.through_position")


def check_place(life: Life, position: int, path: str) -> Message:
    """The living message at a position. Raises `InvalidInput` where there is none."""
    at = life.stored.messages_at(position, position + 1)
    if not at or at[0].status == "deleted":
        raise InvalidInput(reason="There is no message at that position", path=path)
    return at[0]


def forget_summaries(life: Life, first: int) -> int:
    """Delete the summaries that cover a position from `first` on: what they say is not there any more."""
    return life.transaction.run(
        statements.FORGET_SUMMARIES, pk=life.row.pk, first=first, version=life.raise_version(), now=life.now
    )
