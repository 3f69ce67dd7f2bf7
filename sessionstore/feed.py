"""The feed of a conversation, and of the list: state and not events, so that who missed everything is right after one read."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from sessionstore import queries
from sessionstore.model import Changes, Conversation, ListChanges, ListPlace, Message, Place, Tag, Tombstone
from sessionstore.reading import conversation_of
from sessionstore.room import Room
from sessionstore.transaction import Transaction, size_of_row


def changes(
    transaction: Transaction, conversation: Conversation, since: Tag | None, place: Place | None, room: Room
) -> Changes:
    """A page of what has changed since that state, or all there is if it is none of this life's."""
    whole = since is None or since.incarnation != conversation.incarnation or since.version > conversation.version
    known = Tag(conversation.incarnation, 0) if since is None or whole else since
    begin = place or _beginning(transaction, conversation, known)
    # The whole state has no tombstones, but those of what an earlier page of it showed.
    rows, following = _rows(transaction, conversation.incarnation, begin, room, hidden=begin.began if whole else -1)
    return Changes(
        conversation=conversation,
        messages=[Message(*row[:ROW]) for row in rows],
        reset=whole and place is None,
        since=known if following else conversation.tag,
        next=following,
    )


def _beginning(transaction: Transaction, conversation: Conversation, known: Tag) -> Place:
    # What stands at the version that is known is no news: a place behind all rows of it.
    youngest = transaction.row(queries.YOUNGEST_KNOWN, pk=conversation.incarnation, version=known.version)
    after = -1 if youngest is None else youngest[0]
    return Place(known.version, LAST_ROW, after, conversation.version)


def _rows(
    transaction: Transaction, pk: int, begin: Place, room: Room, *, hidden: int
) -> tuple[list[tuple[Any, ...]], Place | None]:
    """The rows of a page, and where the next one begins."""
    asked = {"pk": pk, "version": begin.version, "row": begin.row, "hidden": hidden}
    # First the rest of the version in which the last page ended: one transaction may have changed very many rows.
    rest = transaction.page(queries.CHANGED_AT, room, **asked) if begin.row != LAST_ROW else NOTHING
    changed = transaction.page(queries.CHANGED, room, **asked) if not rest[1] else NOTHING
    appended = transaction.page(queries.APPENDED, room, **asked, after=begin.after)
    queued = transaction.rows(queries.WAITING, count=room.rows + 1, **asked)
    waiting = room.fill((transaction.row(queries.VERSIONED, row=row) for _, row in queued), size_of_row)
    found = (rest, changed, appended, waiting)
    # Behind the last row of what has more, others may have to stand first.
    known = min((_order(rows[-1]) for rows, more in found if more), default=None)
    rows = sorted((row for some, _ in found for row in some if known is None or _order(row) <= known), key=_order)
    shown, cut = room.fill(rows, size_of_row)
    if known is None and not cut:
        return shown, None
    last = _order(shown[-1])
    after = max((row[POSITION] for row in appended[0] if _order(row) <= last), default=begin.after)
    return shown, Place(*last, after, begin.began)


def _order(row: tuple[Any, ...]) -> tuple[int, int]:
    return row[VERSION], row[ROW]


def list_changes(
    transaction: Transaction, owner: str, now: int, since: int | None, place: ListPlace | None, count: int
) -> ListChanges:
    """What has changed in the list since that change, or the whole list."""
    newest, pruned = own_changes(transaction, owner)
    after, horizon = (since, None) if place is None else place
    # What was pruned is told no more: who may know of it begins anew.
    reset = after is None or after > newest or pruned > (after if horizon is None else horizon)
    asked: dict[str, Any] = {"owner": owner, "after": 0 if reset else after, "newest": newest, "count": count + 1}
    living, gone = transaction.rows(queries.LIST_CHANGED, **asked), []
    if not reset:
        gone = transaction.rows(queries.LIST_GONE, **asked)
    rows = sorted((*living, *gone), key=itemgetter(CHANGE))
    shown, more = rows[:count], len(rows) > count
    change = shown[-1][CHANGE] if more else newest
    return ListChanges(
        conversations=[conversation_of(row, now) for row in shown if len(row) > GONE],
        deleted=[Tombstone(id=row[0], incarnation=row[1]) for row in shown if len(row) == GONE],
        change=change,
        reset=reset,
        next=ListPlace(change, pruned if reset else horizon) if more else None,
    )


def own_changes(transaction: Transaction, owner: str) -> tuple[int, int]:
    """The newest change of an owner's conversations, living or not, that nobody can come in before; and what is pruned.

    Others' changes are none of his business: he could tell from them that they are there.
    """
    *newest, pruned = transaction.row(queries.OWN_CHANGES, owner=owner)
    return max(newest), pruned


Expired = frozenset[tuple[int, int]]
"""Lives and turns whose leases have run out."""


def expired(transaction: Transaction, owner: str, now: int) -> Expired:
    """Whose lease has run out by now."""
    rows = transaction.rows(queries.EXPIRED, now=now)
    return frozenset((pk, generation) for of, _, generation, pk in rows if of == owner)


def living(transaction: Transaction, pks: Iterable[int], now: int) -> list[Conversation]:
    """Those of these lives that are not over."""
    rows = (transaction.row(queries.LIVING_VIEW, pk=pk) for pk in pks)
    return [conversation_of(row, now) for row in rows if row is not None]


LAST_ROW = 2**63 - 1
POSITION, VERSION, ROW = 2, 9, 12
NOTHING: tuple[list[Any], bool] = ([], False)
CHANGE, GONE = -1, 3
