"""Undo: composed, not built in. A fork keeps everything first; then a closed range goes, and what comes in between stays.

The calls are told one by one, and made by whichever face of a store it is, waiting or awaiting.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from sessionstore.drafts import new_id
from sessionstore.errors import (
    ConversationExists,
    Generating,
    InvalidInput,
    LeaseLost,
    MessageDeleted,
    MessageNotFound,
    PreconditionFailed,
    SessionStoreError,
)
from sessionstore.model import Answer, Conversation, Message, Truncated, Undone
from sessionstore.toolcalls import speaks

T = TypeVar("T")
TRIES = 10
# After these nothing was taken back, so there is nothing to keep.
REFUSED = (InvalidInput, MessageNotFound, MessageDeleted, Generating, LeaseLost, PreconditionFailed)


class Made(NamedTuple):
    """A call that is to be made on a store."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


Calls = Generator[Made, Any, T]
"""Calls, each of which is answered with what it returned, or with what it raised; and what comes of it all."""


def undo(
    id: str,
    backup: str | None = None,
    *,
    after_position: int | None = None,
    before_message: str | None = None,
    token: str | None = None,
    incarnation: int | None = None,
) -> Calls[Answer[Undone]]:
    """See `Store.undo`."""
    if after_position is not None and before_message is not None:
        raise InvalidInput(reason="Name one place, not two", path="$.before_message")
    source: Conversation = yield _made("get", id, incarnation=incarnation)
    claims = {"token": token, "incarnation": source.incarnation}
    copy, fresh = yield from _keep(id, new_id() if backup is None else backup, claims)
    end = -1 if copy.forked_from is None else copy.forked_from.position
    try:
        start = after_position if after_position is not None else (yield from _before(copy.id, before_message, end)) - 1
        if start >= end:
            raise InvalidInput(reason="There is nothing behind that place that could be taken back", path="$.after_position")
        done = yield from _take_back(id, copy.id, start, end, claims)
    except REFUSED as error:
        if fresh:
            yield _made("delete", copy.id, incarnation=copy.incarnation)
        raise _of_source(error, id) from None
    undone = Undone(conversation=done.value.conversation, backup=copy, removed=done.value.removed)
    return Answer(value=undone, replayed=done.replayed and not fresh, lease=done.lease)


def _take_back(id: str, copy: str, start: int, end: int, claims: dict[str, Any]) -> Calls[Answer[Truncated]]:
    """Delete the range as long as it is what the copy has: what was edited in between is nowhere else."""
    for _ in range(TRIES):
        seen: Conversation = yield _made("get", id, incarnation=claims["incarnation"])
        yield from _compare(id, copy, start, end, seen)
        options = {"after_position": start, "through_position": end, "if_match": seen.tag, **claims}
        try:
            return (yield _made("truncate", id, **options))  # type: ignore[no-any-return]
        except PreconditionFailed:
            continue
    raise PreconditionFailed(version=seen.version)


def _compare(id: str, copy: str, start: int, end: int, seen: Conversation) -> Calls[None]:
    kept = {message.id: message for message in (yield from _range(copy, start, end))}
    for message in (yield from _range(id, start, end)):
        there = kept.get(message.id)
        if there is None or (there.role, there.content_json, there.metadata_json) != (
            message.role, message.content_json, message.metadata_json
        ):  # fmt: skip
            raise PreconditionFailed(version=seen.version)


def _range(id: str, start: int, end: int) -> Calls[list[Message]]:
    found: list[Message] = []
    after = start
    while True:
        page = yield _made("messages", id, after=after, before=end + 1)
        found += page.items
        if page.next is None:
            return found
        after = page.next


def _keep(id: str, backup: str, claims: dict[str, Any]) -> Calls[tuple[Conversation, bool]]:
    """A fork of everything, and whether it was made just now: a repeat finds the one that it made before, and no other."""
    try:
        return (yield _made("fork", id, backup, **claims)).value, True
    except ConversationExists as exists:
        if not exists.same:
            raise
        there: Conversation = yield _made("get", backup)
        if there.version > 1:
            # Somebody has gone on there, or taken something away.
            raise
        return there, False


def _of_source(error: SessionStoreError, id: str) -> SessionStoreError:
    """What was looked for in the fork is missing in its source: nobody has heard of the fork."""
    if isinstance(error, MessageNotFound | MessageDeleted):
        return type(error)(conversation_id=id, message_id=error.message_id)
    return error


def _before(id: str, message_id: str | None, end: int) -> Calls[int]:
    """The position of that message, or of the last one that a person has said."""
    if message_id is not None:
        return int((yield _made("message", id, message_id)).position)
    before = end + 1
    while True:
        page = yield _made("messages", id, before=before, order="desc")
        for message in page.items:
            if speaks(message) and message.summary_through is None:
                return int(message.position)
        if page.next is None:
            raise InvalidInput(reason="Nobody has said anything that could be undone")
        before = page.next


def _made(name: str, *arguments: Any, **options: Any) -> Made:
    return Made(name, arguments, options)


def run(store: Any, calls: Calls[T]) -> T:
    """Make the calls on a store that waits."""
    give, given = calls.send, None
    while True:
        try:
            call = give(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            give, given = calls.send, getattr(store, call.name)(*call.arguments, **call.options)
        except SessionStoreError as error:
            give, given = calls.throw, error


async def run_awaited(store: Any, calls: Calls[T]) -> T:
    """Make the calls on a store that is awaited."""
    give, given = calls.send, None
    while True:
        try:
            call = give(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            give, given = calls.send, await getattr(store, call.name)(*call.arguments, **call.options)
        except SessionStoreError as error:
            give, given = calls.throw, error
