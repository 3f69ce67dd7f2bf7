"""Reads: each answer comes from one snapshot, and none writes anything.

None grows with the living rows that it does not show; deleted messages within a page's range are stepped over.
"""

from typing import Any

from sessionstore import feed, migrate, queries, statements
from sessionstore.contexts import Budget, Count, fit
from sessionstore.creation import missing
from sessionstore.database import Database
from sessionstore.errors import ConversationDeleted, MessageDeleted, MessageNotFound
from sessionstore.limits import Limits
from sessionstore.model import (
    Changes,
    Context,
    Conversation,
    Engine,
    Input,
    Message,
    Order,
    Page,
    Place,
    Tag,
    Turn,
    View,
)
from sessionstore.reading import conversation_of
from sessionstore.transaction import Transaction
from sessionstore.transcript import END, Stretch, context_of, context_page, transcript_page


class Reads:
    """The reading half of a store, for the conversations of one owner."""

    def __init__(self, database: Database, owner: str, limits: Limits) -> None:
        self.database, self.owner, self.limits = database, owner, limits

    def get(self, id: str, *, incarnation: int | None = None) -> Conversation:
        """The conversation. Raises `ConversationNotFound`, `ConversationDeleted`."""
        self.limits.id(id)
        return self.database.read(lambda transaction: self._view(transaction, id, incarnation))

    def messages(
        self,
        id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        order: Order = "asc",
        view: View = "full",
        limit: int | None = None,
        incarnation: int | None = None,
    ) -> Page[Message]:
        """A page of the transcript between two positions, or, with `view="context"`, of what a model is shown of it.

        That is the newest summary and what stands after the position that it covers. Pass a page's `next` as `after` for the
        one that follows, or as `before` in descending order. A page has 32 MiB at most, and so fewer rows where they are large.
        """
        self.limits.id(id)
        self.limits.one_of(order, ("asc", "desc"), "$.order")
        self.limits.one_of(view, ("full", "context"), "$.view")
        first = -1 if after is None else self.limits.required_number(after, "$.after", least=-1)
        end = END if before is None else self.limits.required_number(before, "$.before")
        stretch = Stretch(first, end, order, self.limits.room(limit))

        def look(transaction: Transaction) -> Page[Message]:
            pk = self._living(transaction, id, incarnation)
            page = context_page if view == "context" else transcript_page
            return page(transaction, pk, stretch)

        return self.database.read(look)

    def context(
        self,
        id: str,
        *,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        count: Count | None = None,
        incarnation: int | None = None,
    ) -> Context:
        """What a model is to be shown: the newest summary, or the instructions at the beginning, and the newest turns that fit.

        At most `max_messages` (1,000, which is also the most), 32 MiB, and `max_tokens`: counted by `count`, or as each message
        says in its metadata (`tokens`). It is cut only where a turn begins, never between a tool's call and its result. Raises
        `BudgetTooSmall` when the newest turn alone does not fit, and `InvalidInput` for a message that says no number.
        """
        self.limits.id(id)
        most = self.limits.page if max_messages is None else self.limits.page_size(max_messages, "$.max_messages")
        budget = Budget(most, self.limits.number(max_tokens, "$.max_tokens", least=1), count, self.limits.page_bytes)

        def look(transaction: Transaction) -> Context:
            view = self._view(transaction, id, incarnation)
            head, newest_first = context_of(transaction, view.incarnation, self.limits.page_bytes)
            return Context(**fit(head, newest_first, budget)._asdict(), tag=view.tag)

        return self.database.read(look)

    def message(self, id: str, message_id: str, *, incarnation: int | None = None) -> Message:
        """One message. Raises `MessageNotFound`, `MessageDeleted`."""
        self.limits.id(id)
        self.limits.id(message_id, "$.message_id")

        def look(transaction: Transaction) -> Message:
            pk = self._living(transaction, id, incarnation)
            row = transaction.row(statements.MESSAGE, pk=pk, id=message_id)
            if row is None:
                raise MessageNotFound(conversation_id=id, message_id=message_id)
            message = Message(*row)
            if message.status == "deleted":
                raise MessageDeleted(conversation_id=id, message_id=message_id)
            return message

        return self.database.read(look)

    def inputs(
        self, id: str, *, after: int | None = None, limit: int | None = None, incarnation: int | None = None
    ) -> Page[Input]:
        """A page of the messages that wait, in their order. Pass a page's `next` as `after` for the one that follows."""
        self.limits.id(id)
        first, room = self.limits.number(after, "$.after") or 0, self.limits.room(limit)

        def look(transaction: Transaction) -> Page[Input]:
            pk = self._living(transaction, id, incarnation)
            rows, more = transaction.page(statements.INPUTS, room, pk=pk, after=first)
            shown = [Input(message=Message(*columns), mode=mode) for *columns, mode, _ in rows]
            return Page(items=shown, next=rows[-1][-1] if more else None)

        return self.database.read(look)

    def changes(
        self,
        id: str,
        since: Tag | None = None,
        *,
        next: Place | None = None,
        limit: int | None = None,
        incarnation: int | None = None,
    ) -> Changes:
        """What has changed since a state that you know (`conversation.tag`, or the `since` of an earlier answer).

        Without one, or with one of another life, the whole state with `reset`. A page has 50 rows unless `limit` says, and 32
        MiB at most; pass a page's `next` on, with the same `since`, for the one that follows.
        """
        self.limits.id(id)
        room = self.limits.room(limit)

        def look(transaction: Transaction) -> Changes:
            view = self._view(transaction, id, incarnation)
            return feed.changes(transaction, view, since, next, room)

        return self.database.read(look)

    def generations(
        self, id: str, *, before: int | None = None, limit: int | None = None, incarnation: int | None = None
    ) -> Page[Turn]:
        """A page of the conversation's turns, the latest first. Pass a page's `next` as `before` for the one after it."""
        self.limits.id(id)
        end = END if before is None else self.limits.number(before, "$.before")
        count = self.limits.page_size(limit)

        def look(transaction: Transaction) -> Page[Turn]:
            pk = self._living(transaction, id, incarnation)
            rows = transaction.rows(queries.TURNS, pk=pk, before=end, count=count + 1)
            shown = [_turn(row) for row in rows[:count]]
            return Page(items=shown, next=shown[-1].number if len(rows) > count else None)

        return self.database.read(look)

    def check_ready(self) -> Engine:
        """What the store runs on. Raises what keeps it from working: a child of `Unavailable` or `DatabaseUnusable`."""
        migrate.verify(self.database)
        self.database.check_usable()
        return self.database.engine()

    def _view(self, transaction: Transaction, id: str, incarnation: int | None) -> Conversation:
        row = transaction.row(queries.VIEW_OF_ID, owner=self.owner, id=id)
        if row is None:
            raise missing(transaction, self.owner, id)
        view = conversation_of(row, transaction.now())
        _check_life(id, view.incarnation, incarnation)
        return view

    def _living(self, transaction: Transaction, id: str, incarnation: int | None = None) -> int:
        row = transaction.row(queries.INCARNATION, owner=self.owner, id=id)
        if row is None:
            raise missing(transaction, self.owner, id)
        _check_life(id, row[0], incarnation)
        return int(row[0])


def _check_life(id: str, living: int, meant: int | None) -> None:
    if meant not in (None, living):
        raise ConversationDeleted(conversation_id=id, incarnation=living)


def _turn(row: Any) -> Turn:
    number, holder, phase, acquired_at, ended_at, outcome, usage = row
    return Turn(
        number=number,
        holder=holder,
        phase=phase,
        acquired_at=acquired_at,
        ended_at=ended_at,
        outcome=outcome,
        usage_json=usage,
    )
