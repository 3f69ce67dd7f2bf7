"""Inputs: messages that wait in a queue while somebody generates, until a holder puts them into the transcript."""

from collections.abc import Sequence

from sessionstore import statements
from sessionstore.drafts import Prepared
from sessionstore.errors import InputClaimed, InputsFull, MessageDeleted, MessageNotFound, OwnerFull
from sessionstore.life import Life
from sessionstore.model import Message, Mode


def queue(life: Life, drafts: Sequence[Prepared], mode: Mode) -> list[Message]:
    """Let messages wait, all or none. Those that are known already are answered as they are, claimed or not.

    Raises `InputsFull`, `MessageExists` for other content, and `MessageDeleted` for what was cancelled.
    """
    known = [life.stored.known(draft) for draft in drafts]
    new = known.count(None)
    if new and life.row.queued_count + new > life.limits.queued_inputs:
        raise InputsFull(conversation_id=life.row.id, queued_inputs=life.row.queued_count, sent=new)
    if new:
        check_room(life, new)
    else:
        life.repeated()
    return [there or life.queue_message(draft, mode) for there, draft in zip(known, drafts, strict=True)]


def check_room(life: Life, new: int) -> None:
    """Raise `OwnerFull` when so many more would be too many of the owner's."""
    most = life.limits.inputs_per_owner
    if life.transaction.row(statements.COUNT_QUEUED, owner=life.owner)[0] + new > most:
        raise OwnerFull(what="queued inputs", limit=most)


def cancel(life: Life, message_id: str) -> None:
    """Take a message out of the queue for good. Raises `InputClaimed`, `MessageDeleted` and `MessageNotFound`."""
    if _waiting(life, message_id).status != "queued":
        raise InputClaimed(conversation_id=life.row.id, message_id=message_id)
    version = life.raise_version()
    life.transaction.do(statements.DELETE_MESSAGE, pk=life.row.pk, message_id=message_id, version=version, now=life.now)
    life.row.queued_count -= 1


def claim(life: Life, ids: Sequence[str] | None) -> list[Message]:
    """Put inputs at the tail of the transcript: those named, all or none, or all that wait, in their order.

    What the caller's own turn has claimed already is told again. Raises `InputClaimed` for another's.
    """
    if ids is None:
        ids = [message_id for (message_id,) in life.transaction.rows(statements.QUEUED, pk=life.row.pk)]
    found = [_claimable(life, message_id) for message_id in ids]
    if not any(message.status == "queued" for message in found):
        life.repeated()
    return [_place(life, message) if message.status == "queued" else message for message in found]


def unclaim(life: Life, generation: int, first_position: int) -> None:
    """Let what a generation has claimed wait again."""
    returned = life.transaction.run(
        statements.UNCLAIM,
        pk=life.row.pk, claimed_by=generation, first=first_position, version=life.raise_version(), now=life.now,
    )  # fmt: skip
    life.row.queued_count += returned
    life.row.message_count -= returned


def _place(life: Life, message: Message) -> Message:
    row = life.row
    life.transaction.do(
        statements.CLAIM,
        at=row.pk, message_id=message.id, position=row.next_position, generation=_turn(life),
        version=life.raise_version(), now=life.now,
    )  # fmt: skip
    row.next_position += 1
    row.message_count += 1
    row.queued_count -= 1
    return life.stored.message(message.id) or message


def _claimable(life: Life, message_id: str) -> Message:
    message = _waiting(life, message_id)
    if message.status != "queued" and message.generation != _turn(life):
        raise InputClaimed(conversation_id=life.row.id, message_id=message_id)
    return message


def _turn(life: Life) -> int | None:
    return life.row.generation if life.holds else None


def _waiting(life: Life, message_id: str) -> Message:
    """An input, waiting or claimed."""
    message = life.stored.message(message_id)
    if message is not None and message.status == "deleted":
        raise MessageDeleted(conversation_id=life.row.id, message_id=message_id)
    if message is None or not life.stored.is_input(message_id):
        raise MessageNotFound(conversation_id=life.row.id, message_id=message_id)
    return message
