"""Reads: each answer comes from one snapshot, and none writes anything.

None grows with the living rows that it does not show; deleted messages within a page's range are stepped over.
"""

from collections.abc import Callable
from typing import Any

from sessionstore import feed, migrate, statements
from sessionstore.creation import missing
from sessionstore.database import Database
from sessionstore.errors import (
    ConversationDeleted,
    InvalidInput,
    MessageDeleted,
    MessageNotFound,
)
from sessionstore.limits import Limits
from sessionstore.model import (
    Changes,
    Conversation,
    ConversationPage,
    Engine,
    Input,
    ListChanges,
    Message,
    Order,
    Page,
    Place,
    Tag,
    Turn,
)
from sessionstore.reading import conversation_of
from sessionstore.transaction import Transaction

END = 2**63 - 1


class Reads:
    """The reading half of a store, for the conversations of one owner."""

    def __init__(self, database: Database, owner: str, clock: Callable[[], int], limits: Limits) -> None:
        self.database, self.limits = database, limits
        self.owner, self.clock = owner, clock

    def get(self, id: str, *, incarnation: int | None = None) -> Conversation:
        """The conversation. Raises `ConversationNotFound`, `ConversationDeleted`."""
        self.limits.id(id)

        def look(transaction: Transaction) -> Conversation:
            row = transaction.row(statements.VIEW_OF_ID, owner=self.owner, id=id)
            if row is None:
                raise missing(transaction, self.owner, id)
            view = conversation_of(row, self.clock())
            _check_life(id, view.incarnation, incarnation)
            return view

        return self.database.read(look)

    def conversations(
        self,
        *,
        generating: bool | None = None,
        parent_id: str | None = None,
        containing: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> ConversationPage:
        """A page of conversations, the latest change first. Pass a page's `next` as `before` for the one after it.

        `containing` is a part of the title or id, in any case. What changes meanwhile moves to the front.
        """
        statement = statements.list_conversations(
            generating=generating, of_parent=parent_id is not None, containing=containing is not None
        )
        count = self.limits.page_size(limit)
        asked: dict[str, Any] = {"owner": self.owner, "count": count + 1}
        asked["before"] = END if before is None else self.limits.number(before, "$.before")
        if parent_id is not None:
            asked["parent_id"] = self.limits.id(parent_id, "$.parent_id")
        if containing is not None:
            self.limits.title(containing, "$.q")
            asked["part"] = _like(containing.lower())

        def look(transaction: Transaction) -> ConversationPage:
            now = self.clock()
            timed = asked if generating is None else {**asked, "now": now}
            change = transaction.row(statements.NEWEST_CHANGE)[0]
            rows = transaction.rows(statement, **timed)
            shown = rows[:count]
            following = shown[-1][-1] if len(rows) > count else None
            return ConversationPage(items=[conversation_of(row, now) for row in shown], next=following, change=change)

        return self.database.read(look)

    def list_changes(self, since: int | None = None, *, limit: int | None = None) -> ListChanges:
        """What has changed in the list of conversations since a `change` that you know, the oldest change first.

        Without one, or with one that is not this store's, the whole list with `reset`. Read on while there is `more`.
        """
        self.limits.number(since, "$.since")
        count = self.limits.page_size(limit)
        return self.database.read(lambda transaction: feed.list_changes(transaction, self.owner, self.clock(), since, count))

    def messages(
        self,
        id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        order: Order = "asc",
        limit: int | None = None,
        incarnation: int | None = None,
    ) -> Page[Message]:
        """A page of the transcript between two positions.

        Pass a page's `next` as `after` for the one that follows, or as `before` in descending order.
        """
        self.limits.id(id)
        if order not in ("asc", "desc"):
            raise InvalidInput(reason="Expected asc or desc", path="$.order")
        statement = statements.list_messages(descending=order == "desc")
        first = -1 if after is None else self.limits.number(after, "$.after", least=-1)
        end = END if before is None else self.limits.number(before, "$.before")
        count = self.limits.page_size(limit)

        def look(transaction: Transaction) -> Page[Message]:
            pk = self._living(transaction, id, incarnation)
            rows = transaction.rows(statement, pk=pk, after=first, before=end, count=count + 1)
            shown = [Message(*row) for row in rows[:count]]
            return Page(items=shown, next=shown[-1].position if len(rows) > count else None)

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
        first, count = self.limits.number(after, "$.after") or 0, self.limits.page_size(limit)

        def look(transaction: Transaction) -> Page[Input]:
            pk = self._living(transaction, id, incarnation)
            rows = transaction.rows(statements.INPUTS, pk=pk, after=first, count=count + 1)
            shown = [Input(message=Message(*columns), mode=mode) for *columns, mode, _ in rows[:count]]
            return Page(items=shown, next=rows[count - 1][-1] if len(rows) > count else None)

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

        Without one, or with one of another life, the whole state with `reset`. A page has 50 rows unless `limit` says; pass a
        page's `next` on, with the same `since`, for the one that follows.
        """
        self.limits.id(id)
        count = self.limits.page_size(limit)

        def look(transaction: Transaction) -> Changes:
            row = transaction.row(statements.VIEW_OF_ID, owner=self.owner, id=id)
            if row is None:
                raise missing(transaction, self.owner, id)
            view = conversation_of(row, self.clock())
            _check_life(id, view.incarnation, incarnation)
            return feed.changes(transaction, view, since, next, count)

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
            rows = transaction.rows(statements.TURNS, pk=pk, before=end, count=count + 1)
            shown = [_turn(row) for row in rows[:count]]
            return Page(items=shown, next=shown[-1].number if len(rows) > count else None)

        return self.database.read(look)

    def leases(self) -> list[Conversation]:
        """Every conversation with a lease, live or expired, the oldest turn first."""
        rows = self.database.read(lambda transaction: transaction.rows(statements.LEASES, owner=self.owner))
        now = self.clock()
        return [conversation_of(row, now) for row in rows]

    def check_ready(self) -> Engine:
        """What the store runs on. Raises what keeps it from working: a child of `Unavailable` or `DatabaseUnusable`."""
        migrate.verify(self.database)
        self.database.check_writable()
        return self.database.engine()

    def _living(self, transaction: Transaction, id: str, incarnation: int | None) -> int:
        row = transaction.row(statements.INCARNATION, owner=self.owner, id=id)
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


def _like(part: str) -> str:
    """A text that matches itself only inside a LIKE pattern."""
    for special in (statements.LIKE_ESCAPE, "%", "_"):
        part = part.replace(special, statements.LIKE_ESCAPE + special)
    return part
