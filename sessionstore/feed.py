"""The feed of one conversation: state and not events, so that a reader who missed everything is right after one read."""

from typing import Any

from sessionstore import statements
from sessionstore.model import Changes, Conversation, Message, Place, Tag
from sessionstore.transaction import Transaction


def changes(
    transaction: Transaction, conversation: Conversation, since: Tag | None, place: Place | None, count: int
) -> Changes:
    """A page of what has changed since that state, or all there is if it is none of this life's."""
    reset = since is None or since.incarnation != conversation.incarnation or since.version > conversation.version
    known = Tag(conversation.incarnation, 0) if since is None or reset else since
    # What stands at the version that is known is no news: a place behind all rows of it.
    begin = place or Place(known.version, LAST_ROW)
    rows = _rows(transaction, conversation.incarnation, begin, count + 1, deleted=not reset)
    shown = rows[:count]
    following = Place(shown[-1][VERSION], shown[-1][ROW]) if len(rows) > count else None
    return Changes(
        conversation=conversation,
        messages=[Message(*row[:ROW]) for row in shown],
        reset=reset,
        since=known if following else conversation.tag,
        next=following,
    )


def _rows(transaction: Transaction, pk: int, begin: Place, count: int, *, deleted: bool) -> list[tuple[Any, ...]]:
    asked = {"pk": pk, "version": begin.version, "row": begin.row, "count": count}
    changed = transaction.rows(statements.CHANGED, **asked, deleted=int(deleted))
    known = transaction.row(statements.YOUNGEST_KNOWN, pk=pk, version=begin.version)
    after = -1 if known is None else known[0]
    appended = transaction.rows(statements.APPENDED, **asked, deleted=int(deleted), after=after)
    waiting = transaction.rows(statements.WAITING, **asked)
    return sorted((*changed, *appended, *waiting), key=lambda row: (row[VERSION], row[ROW]))[:count]


LAST_ROW = 2**63 - 1
VERSION, ROW = 9, 12
