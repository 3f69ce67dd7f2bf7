"""Forks: a copy of a conversation up to a point, made by one INSERT … SELECT."""

import re
from typing import Any, NamedTuple

import msgspec

from sessionstore import jsontext, statements
from sessionstore.compaction import check_place
from sessionstore.creation import Birth, check_vacant, give_birth
from sessionstore.drafts import new_id
from sessionstore.errors import InvalidInput, MessageDeleted, MessageNotFound
from sessionstore.life import Life
from sessionstore.limits import Limits
from sessionstore.model import Conversation
from sessionstore.stored import Stored

END = 2**62
# SQLite gathers what an INSERT … SELECT from the same table reads before it writes, in memory: so many positions at a time.
COPIED_AT_ONCE = 10_000
_NUMBERED = re.compile(r"(.*) \(([1-9][0-9]{0,17})\)", re.DOTALL)


class Point(NamedTuple):
    """Where a fork ends, at most one of these; none of them: everything."""

    through_position: int | None = None
    before_user_message: int | None = None
    through_message: str | None = None
    before_message: str | None = None

    def in_positions(self, stored: Stored) -> "Point":
        """The same with a message's place instead of its id, which never changes: a repeat by either name is a repeat.

        Also when the message was deleted since. Raises `MessageNotFound` for one that has no place.
        """
        if self.through_message is not None:
            return Point(through_position=_place(stored, self.through_message))
        if self.before_message is not None:
            return Point(through_position=_place(stored, self.before_message) - 1)
        return self

    def check(self, stored: Stored) -> None:
        """Raise `MessageDeleted` for a message that is not there any more."""
        for message_id in filter(None, (self.through_message, self.before_message)):
            message = stored.message(message_id)
            if message is not None and message.status == "deleted":
                raise MessageDeleted(conversation_id=stored.id, message_id=message_id)


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork call asks for, checked."""

    id: str
    title: str | None
    point: Point
    settled: bool

    def digest(self, source: Stored) -> str:
        """What makes two fork calls the same: source, point and options."""
        point = self.point.in_positions(source)
        ends = point.through_position, point.before_user_message
        return jsontext.digest("fork", source.pk, *ends, self.title, self.settled)


def point(
    limits: Limits,
    through_position: int | None = None,
    before_user_message: int | None = None,
    through_message: str | None = None,
    before_message: str | None = None,
) -> Point:
    """Where a fork ends, checked."""
    ends = {
        "through_position": limits.number(through_position, "$.through_position"),
        "before_user_message": limits.number(before_user_message, "$.before_user_message"),
        "through_message": None if through_message is None else limits.id(through_message, "$.through_message"),
        "before_message": None if before_message is None else limits.id(before_message, "$.before_message"),
    }
    named: dict[str, Any] = {name: end for name, end in ends.items() if end is not None}
    if len(named) > 1:
        raise InvalidInput(reason="Name one end of the fork, not several", path=f"$.{list(named)[1]}")
    return Point(**named)


def order(limits: Limits, new: str | None, point: Point, title: str | None, *, settled: bool = False) -> ForkOrder:
    """What a fork call asks for, checked."""
    new = new_id() if new is None else limits.id(new)
    return ForkOrder(id=new, title=limits.title(title), point=point, settled=bool(settled))


def fork(life: Life, order: ForkOrder) -> Conversation:
    """Copy messages with their ids, positions, gaps and summaries into a new conversation; the source is only read.

    Raises `ConversationExists`, `ConversationDeleted`, `MessageNotFound`, `MessageDeleted`, and `InvalidInput` for a point on
    no message.
    """
    digest = order.digest(life.stored)
    check_vacant(life.transaction, life.owner, order.id, digest)
    order.point.check(life.stored)
    through = _end(life, order)
    title, metadata = life.transaction.row(statements.LABELS, pk=life.row.pk)
    last, count = life.transaction.row(statements.FORK_POINT, pk=life.row.pk, through=through)
    birth = Birth(
        id=order.id,
        title=_next_title(life, title) if order.title is None else order.title,
        metadata_json=metadata,
        create_digest=digest,
        forked_from=(life.row.id, -1 if last is None else last),
        message_count=count,
    )
    child = give_birth(life.transaction, birth, life.owner, life.limits)
    for after in range(-1, -1 if last is None else last, COPIED_AT_ONCE):
        end = min(after + COPIED_AT_ONCE, last)
        life.transaction.do(statements.COPY_MESSAGES, target=child.row.pk, pk=life.row.pk, after=after, through=end)
    return child.view()


def _place(stored: Stored, message_id: str) -> int:
    message = stored.message(message_id)
    if message is None or message.position is None:
        raise MessageNotFound(conversation_id=stored.id, message_id=message_id)
    return message.position


def _end(life: Life, order: ForkOrder) -> int:
    """The last position to copy."""
    end = END
    if order.settled and life.row.generation is not None:
        end = life.stored.turn(life.row.generation).first_position
    point = order.point.in_positions(life.stored)
    if point.before_user_message is not None:
        found = life.transaction.row(statements.USER_MESSAGE, pk=life.row.pk, ordinal=point.before_user_message)
        if found is None or found[0] >= end:
            raise InvalidInput(reason="There is no such user message", path="$.before_user_message")
        return int(found[0]) - 1
    if point.through_position is None:
        return end - 1
    return _end_at(life, order.point, point.through_position, end)


def _end_at(life: Life, named: Point, position: int, end: int) -> int:
    if position >= end:
        path = next(name for name, value in named._asdict().items() if value is not None)
        raise InvalidInput(reason="There is no message at that position", path=f"$.{path}")
    if named.through_position is not None:
        check_place(life, position, "$.through_position")
    return position


def _next_title(life: Life, title: str | None) -> str | None:
    """The next free number behind the title of a source: "Basil", "Basil (2)", "Basil (3)"."""
    if title is None:
        return None
    numbered = _NUMBERED.fullmatch(title)
    stem = (title if numbered is None else numbered[1])[: life.limits.title_length - len(f" ({2**62})")]
    # A parenthesis is the character after which the next one begins.
    first, end = f"{stem} (", f"{stem} )"
    taken = [row[0] for row in life.transaction.rows(statements.TITLES, owner=life.owner, first=first, end=end)]
    numbers = [int(found[2]) for found in map(_NUMBERED.fullmatch, taken) if found is not None and found[1] == stem]
    return f"{stem} ({max(numbers, default=1) + 1})"
