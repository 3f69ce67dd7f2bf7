"""Undo: composed, not built in. A fork keeps everything first; then a closed range goes, and what comes in between stays.

The calls are told one by one, and made by whichever face of a store it is, waiting or awaiting.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from sessionstore.contexts import speaks
from sessionstore.drafts import new_id
from sessionstore.errors import ConversationExists, InvalidInput
from sessionstore.model import Answer, Conversation, Undone

T = TypeVar("T")


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
    copy, fresh = yield from _keep(id, backup or new_id(), claims)
    end = -1 if copy.forked_from is None else copy.forked_from.position
    try:
        start = after_position if after_position is not None else (yield from _before(copy.id, before_message)) - 1
    except BaseException:
        if fresh:
            yield _made("delete", copy.id, incarnation=copy.incarnation)
        raise
    done = yield _made("truncate", id, after_position=min(start, end), through_position=end, **claims)
    undone = Undone(conversation=done.value.conversation, backup=copy, removed=done.value.removed)
    return Answer(value=undone, replayed=done.replayed and not fresh, lease=done.lease)


def _keep(id: str, backup: str, claims: dict[str, Any]) -> Calls[tuple[Conversation, bool]]:
    """A fork of everything, and whether it was made just now: a repeat finds the one that it made before."""
    try:
        return (yield _made("fork", id, backup, **claims)).value, True
    except ConversationExists:
        there: Conversation = yield _made("get", backup)
        if there.forked_from is None or there.forked_from.id != id:
            raise
        return there, False


def _before(id: str, message_id: str | None) -> Calls[int]:
    """The position of that message, or of the last one that a person has said."""
    if message_id is not None:
        return int((yield _made("message", id, message_id)).position)
    before = None
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
        except Exception as error:  # noqa: BLE001  # it is the calls' own to handle
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
        except Exception as error:  # noqa: BLE001  # see above
            give, given = calls.throw, error
