"""Forks: a copy of a conversation up to a point, made by one INSERT … SELECT."""

import msgspec

from sessionstore import jsontext, statements
from sessionstore.creation import Birth, check_vacant, give_birth
from sessionstore.drafts import new_id
from sessionstore.errors import InvalidInput
from sessionstore.life import Life
from sessionstore.limits import Limits
from sessionstore.model import Conversation

END = 2**62
# SQLite gathers what an INSERT … SELECT from the same table reads before it writes, in memory: so many positions at a time.
COPIED_AT_ONCE = 10_000


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork call asks for, checked. None for both points: everything."""

    id: str
    title: str | None
    through_position: int | None
    before_user_message: int | None
    settled: bool

    def digest(self, source_pk: int) -> str:
        """What makes two fork calls the same: source, point and options."""
        return jsontext.digest("fork", source_pk, self.through_position, self.before_user_message, self.title, self.settled)


def order(
    limits: Limits,
    new: str | None,
    through_position: int | None,
    before_user_message: int | None,
    title: str | None,
    *,
    settled: bool = False,
) -> ForkOrder:
    """What a fork call asks for, checked."""
    if through_position is not None and before_user_message is not None:
        raise InvalidInput(reason="Name one end of the fork, not two", path="$.before_user_message")
    return ForkOrder(
        id=new_id() if new is None else limits.id(new),
        title=limits.title(title),
        through_position=limits.number(through_position, "$.through_position"),
        before_user_message=limits.number(before_user_message, "$.before_user_message"),
        settled=bool(settled),
    )


def fork(life: Life, order: ForkOrder) -> Conversation:
    """Copy messages with their ids, positions, gaps and summaries into a new conversation; the source is only read.

    Raises `ConversationExists`, `ConversationDeleted`, and `InvalidInput` for a point on no message.
    """
    check_vacant(life.transaction, life.owner, order.id, order.digest(life.row.pk))
    through = _point(life, order)
    title, metadata = life.transaction.row(statements.LABELS, pk=life.row.pk)
    last, count = life.transaction.row(statements.FORK_POINT, pk=life.row.pk, through=through)
    birth = Birth(
        id=order.id,
        title=title if order.title is None else order.title,
        metadata_json=metadata,
        create_digest=order.digest(life.row.pk),
        forked_from=(life.row.id, -1 if last is None else last),
        message_count=count,
    )
    child = give_birth(life.transaction, birth, life.owner, life.now, life.limits)
    for after in range(-1, -1 if last is None else last, COPIED_AT_ONCE):
        end = min(after + COPIED_AT_ONCE, last)
        life.transaction.run(statements.COPY_MESSAGES, target=child.row.pk, pk=life.row.pk, after=after, through=end)
    return child.view()


def _point(life: Life, order: ForkOrder) -> int:
    """The last position to copy."""
    end = END
    if order.settled and life.row.generation is not None:
        end = life.stored.turn(life.row.generation).first_position
    if order.before_user_message is not None:
        found = life.transaction.row(statements.USER_MESSAGE, pk=life.row.pk, ordinal=order.before_user_message)
        if found is None or found[0] >= end:
            raise InvalidInput(reason="There is no such user message", path="$.before_user_message")
        return int(found[0]) - 1
    if order.through_position is None:
        return end - 1
    at = life.stored.messages_at(order.through_position, order.through_position + 1)
    if not at or at[0].status == "deleted" or order.through_position >= end:
        raise InvalidInput(reason="There is no message at that position", path="$.through_position")
    return order.through_position
