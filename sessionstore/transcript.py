"""Pages of a transcript, and of the context: the newest summary, and what stands after the position that it covers."""

from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec

from sessionstore import queries
from sessionstore.contexts import MOST_INSTRUCTIONS, instructions
from sessionstore.model import Message, Order, Page
from sessionstore.room import Room
from sessionstore.transaction import Transaction

END = 2**63 - 1
Some = tuple[list[Message], bool]
"""Messages, and whether there are more."""
LOOKED_AT_ONCE = 100


class Stretch(msgspec.Struct, frozen=True):
    """Between which two positions, from which end, and how much."""

    after: int
    before: int
    order: Order
    room: Room


def transcript_page(transaction: Transaction, pk: int, stretch: Stretch) -> Page[Message]:
    """A page of all messages."""
    return _page(_messages(transaction, pk, stretch), _position)


def context_page(transaction: Transaction, pk: int, stretch: Stretch) -> Page[Message]:
    """A page of the context. The summary stands where what it covers stood, so it is a matter of that position."""
    summary = newest_summary(transaction, pk)
    covered = -1 if summary is None or summary.summary_through is None else summary.summary_through
    rest = msgspec.structs.replace(stretch, after=max(stretch.after, covered))
    some = _messages(transaction, pk, rest, summaries=False)
    if summary is not None and stretch.after < covered < stretch.before:
        some = _with_summary(summary, some, stretch)
    return _page(some, place_in_context)


def _with_summary(summary: Message, some: Some, stretch: Stretch) -> Some:
    """What a page shows of both."""
    shown, more = some
    if stretch.order == "desc" and more:
        return some
    both = [summary, *shown] if stretch.order == "asc" else [*shown, summary]
    shown, cut = stretch.room.fill(both, attrgetter("octets"))
    return shown, more or cut


def newest_summary(transaction: Transaction, pk: int) -> Message | None:
    """The summary with which the context begins."""
    row = transaction.row(queries.NEWEST_SUMMARY, pk=pk)
    return None if row is None else Message(*row)


def context_of(transaction: Transaction, pk: int, octets: int) -> tuple[list[Message], Iterator[Message]]:
    """What stands in front of the context, and the rest of it, the newest first; so many bytes at once."""
    room = Room(LOOKED_AT_ONCE, octets)
    summary = newest_summary(transaction, pk)
    if summary is not None:
        return [summary], _each(transaction, pk, Stretch(summary.summary_through or 0, END, "desc", room))
    beginning = _each(transaction, pk, Stretch(-1, END, "asc", Room(MOST_INSTRUCTIONS, octets)))
    head = list(instructions(beginning))
    return head, _each(transaction, pk, Stretch((head[-1].position or 0) if head else -1, END, "desc", room))


def _each(transaction: Transaction, pk: int, stretch: Stretch) -> Iterator[Message]:
    """All of a stretch but its summaries, read piece by piece."""
    more = True
    while more:
        found, more = _messages(transaction, pk, stretch, summaries=False)
        yield from found
        if more:
            last = found[-1].position or 0
            rest = {"after": last} if stretch.order == "asc" else {"before": last}
            stretch = msgspec.structs.replace(stretch, **rest)


def _messages(transaction: Transaction, pk: int, stretch: Stretch, *, summaries: bool = True) -> Some:
    """Those that there is room for, and whether there are more."""
    statement = queries.list_messages(descending=stretch.order == "desc", summaries=summaries)
    rows, more = transaction.page(statement, stretch.room, pk=pk, after=stretch.after, before=stretch.before)
    return [Message(*row) for row in rows], more


def _page(some: Some, place: Callable[[Message], int | None]) -> Page[Message]:
    shown, more = some
    return Page(items=shown, next=place(shown[-1]) if more else None)


def _position(message: Message) -> int | None:
    return message.position


def place_in_context(message: Message) -> int | None:
    """Where the context goes on behind a message of it."""
    return message.position if message.summary_through is None else message.summary_through
