"""The feed of a conversation, and of the list: state and not events, so that who missed everything is right after one read."""

from typing import Any

from sessionstore import statements
from sessionstore.model import Changes, Conversation, ListChanges, Message, Place, Tag, Tombstone
from sessionstore.reading import conversation_of
from sessionstore.transaction import Transaction


def changes(
    transaction: Transaction, conversation: Conversation, since: Tag | None, place: Place | None, count: int
) -> Changes:
    """A page of what has changed since that state, or all there is if it is none of this life's."""
    whole = since is None or since.incarnation != conversation.incarnation or since.version > conversation.version
    known = Tag(conversation.incarnation, 0) if since is None or whole else since
    # What stands at the version that is known is no news: a place behind all rows of it.
    begin = place or Place(known.version, LAST_ROW)
    rows = _rows(transaction, conversation.incarnation, begin, count + 1, deleted=not whole)
    shown = rows[:count]
    following = Place(shown[-1][VERSION], shown[-1][ROW]) if len(rows) > count else None
    return Changes(
        conversation=conversation,
        messages=[Message(*row[:ROW]) for row in shown],
        reset=whole and place is None,
        since=known if following else conversation.tag,
        next=following,
    )


def list_changes(
    transaction: Transaction, owner: str, now: int, since: int | None, expired_after: int, count: int
) -> ListChanges:
    """What has changed in the list since that change, or the whole list; and whose lease has run out since that moment."""
    newest = transaction.row(statements.NEWEST_CHANGE)[0]
    reset = since is None or since > newest
    after = 0 if since is None or reset else since
    rows = transaction.rows(statements.LIST_CHANGED, owner=owner, after=after, deleted=int(not reset), count=count + 1)
    shown, more = rows[:count], len(rows) > count
    change = shown[-1][CHANGE] if more else newest
    expired = transaction.rows(statements.LIST_EXPIRED, owner=owner, now=now, expired_after=expired_after, through=after)
    living = [row[:DELETED_AT] for row in (*expired, *shown) if row[DELETED_AT] is None]
    gone = [Tombstone(id=row[0], incarnation=row[1]) for row in shown if row[DELETED_AT] is not None]
    conversations = [conversation_of(row, now) for row in living]
    return ListChanges(conversations=conversations, deleted=gone, change=change, reset=reset, more=more)


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
CHANGE, DELETED_AT = 23, 24
