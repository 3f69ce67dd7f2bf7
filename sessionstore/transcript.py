"""Pages of a transcript, and of the context: the newest summary, and what stands after the position that it covers."""

from collections.abc import Callable, Iterator

import msgspec

from sessionstore import queries
from sessionstore.contexts import MOST_INSTRUCTIONS, instructions
from sessionstore.model import Message, Order, Page
from sessionstore.transaction import Transaction

END = 2**63 - 1
LOOKED_AT_ONCE = 100


class Stretch(msgspec.Struct, frozen=True):
    """Between which two positions, from which end, and how many."""

    after: int
    before: int
    order: Order
    count: int


def transcript_page(transaction: Transaction, pk: int, stretch: Stretch) -> Page[Message]:
    """A page of all messages."""
    return _page(_messages(transaction, pk, stretch), stretch, _position)


def context_page(transaction: Transaction, pk: int, stretch: Stretch) -> Page[Message]:
    """A page of the context. The summary stands where what it covers stood, so it is a matter of that position."""
    summary = newest_summary(transaction, pk)
    covered = -1 if summary is None or summary.summary_through is None else summary.summary_through
    shown = _messages(transaction, pk, msgspec.structs.replace(stretch, after=max(stretch.after, covered)), summaries=False)
    if summary is not None and stretch.after < covered < stretch.before:
        shown = [summary, *shown] if stretch.order == "asc" else [*shown, summary]
    return _page(shown, stretch, place_in_context)


def newest_summary(transaction: Transaction, pk: int) -> Message | None:
    """The summary with which the context begins."""
    row = transaction.row(queries.NEWEST_SUMMARY, pk=pk)
    return None if row is None else Message(*row)


def context_of(transaction: Transaction, pk: int) -> tuple[list[Message], Iterator[Message]]:
    """What stands in front of the context, and the rest of it, the newest first."""
    summary = newest_summary(transaction, pk)
    if summary is not None:
        return [summary], _newest_first(transaction, pk, summary.summary_through or 0)
    beginning = _messages(transaction, pk, Stretch(-1, END, "asc", MOST_INSTRUCTIONS))
    head = list(instructions(beginning))
    return head, _newest_first(transaction, pk, (head[-1].position or 0) if head else -1)


def _newest_first(transaction: Transaction, pk: int, after: int) -> Iterator[Message]:
    before = END
    while True:
        found = _messages(transaction, pk, Stretch(after, before, "desc", LOOKED_AT_ONCE), summaries=False)
        yield from found[:LOOKED_AT_ONCE]
        if len(found) <= LOOKED_AT_ONCE:
            return
        before = found[LOOKED_AT_ONCE - 1].position or 0


def _messages(transaction: Transaction, pk: int, stretch: Stretch, *, summaries: bool = True) -> list[Message]:
    """One more than the page has, so that it is known whether there is another one."""
    statement = queries.list_messages(descending=stretch.order == "desc", summaries=summaries)
    rows = transaction.rows(statement, pk=pk, after=stretch.after, before=stretch.before, count=stretch.count + 1)
    return [Message(*row) for row in rows]


def _page(found: list[Message], stretch: Stretch, place: Callable[[Message], int | None]) -> Page[Message]:
    shown = found[: stretch.count]
    return Page(items=shown, next=place(shown[-1]) if len(found) > len(shown) else None)


def _position(message: Message) -> int | None:
    return message.position


def place_in_context(message: Message) -> int | None:
    """Where the context goes on behind a message of it."""
    return message.position if message.summary_through is None else message.summary_through
