"""The calls that only read, as requests."""

from sessionstore.client.exchange import Exchange, Steps, address, claims
from sessionstore.client.wire import (
    ChangesSent,
    ContextSent,
    ConversationSent,
    InputsSent,
    MessageSent,
    PageSent,
    ReadySent,
    TurnsSent,
)
from sessionstore.contexts import Budget, Count, fit_again
from sessionstore.cursors import ChangesCursor, InputsCursor, MessagesCursor, TurnsCursor, decode_cursor, encode_cursor
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


def get(limits: Limits, id: str, *, incarnation: int | None = None) -> Steps[Conversation]:
    """See `Store.get`."""
    reply = yield Exchange("GET", address(limits.id(id)), headers=claims(incarnation=incarnation))
    return reply.read(ConversationSent).value()


def messages(
    limits: Limits,
    id: str,
    *,
    after: int | None = None,
    before: int | None = None,
    order: Order = "asc",
    view: View = "full",
    limit: int | None = None,
    incarnation: int | None = None,
) -> Steps[Page[Message]]:
    """See `Store.messages`."""
    path = address(limits.id(id), "messages")
    limits.one_of(order, ("asc", "desc"), "$.order")
    limits.one_of(view, ("full", "context"), "$.view")
    limits.number(after, "$.after", least=-1)
    limits.number(before, "$.before")
    limits.page_size(limit)
    query = {"after": after, "before": before, "order": order, "view": view, "limit": limit}
    page = (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(PageSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, MessagesCursor).position
    return Page(items=[message.value() for message in page.data], next=following)


def context(
    limits: Limits,
    id: str,
    *,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    count: Count | None = None,
    incarnation: int | None = None,
) -> Steps[Context]:
    """See `Store.context`. What `count` counts is counted here, of the newest 1,000 messages (and 32 MiB)."""
    path = address(limits.id(id), "messages")
    most = limits.page if max_messages is None else limits.page_size(max_messages, "$.max_messages")
    limits.number(max_tokens, "$.max_tokens", least=1)
    query = {"view": "context", "max_messages": most, "max_tokens": None if count else max_tokens}
    sent = (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(ContextSent).value()
    return sent if count is None else fit_again(sent, Budget(most, max_tokens, count))


def message(limits: Limits, id: str, message_id: str, *, incarnation: int | None = None) -> Steps[Message]:
    """See `Store.message`."""
    path = address(limits.id(id), "messages", limits.id(message_id, "$.message_id"))
    return (yield Exchange("GET", path, headers=claims(incarnation=incarnation))).read(MessageSent).value()


def inputs(
    limits: Limits, id: str, *, after: int | None = None, limit: int | None = None, incarnation: int | None = None
) -> Steps[Page[Input]]:
    """See `Store.inputs`."""
    path = address(limits.id(id), "inputs")
    limits.number(after, "$.after")
    limits.page_size(limit)
    cursor = None
    if after is not None:
        incarnation = incarnation or (yield from get(limits, id)).incarnation
        cursor = encode_cursor(InputsCursor(incarnation, after))
    query = {"cursor": cursor, "limit": limit}
    page = (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(InputsSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, InputsCursor).after
    return Page(items=[item.input() for item in page.data], next=following)


def changes(
    limits: Limits,
    id: str,
    since: Tag | None = None,
    *,
    next: Place | None = None,
    limit: int | None = None,
    incarnation: int | None = None,
) -> Steps[Changes]:
    """See `Store.changes`."""
    path = address(limits.id(id), "changes")
    limits.page_size(limit)
    cursor = None
    if next is not None:
        incarnation = incarnation or (yield from get(limits, id)).incarnation
        cursor = encode_cursor(ChangesCursor(incarnation, *next))
    query = {"since": since, "cursor": cursor, "limit": limit}
    return (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(ChangesSent).value()


def generations(
    limits: Limits, id: str, *, before: int | None = None, limit: int | None = None, incarnation: int | None = None
) -> Steps[Page[Turn]]:
    """See `Store.generations`."""
    path = address(limits.id(id), "generations")
    limits.number(before, "$.before")
    limits.page_size(limit)
    cursor = None
    if before is not None:
        incarnation = incarnation or (yield from get(limits, id)).incarnation
        cursor = encode_cursor(TurnsCursor(incarnation, before))
    query = {"cursor": cursor, "limit": limit}
    page = (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(TurnsSent)
    items = [turn.value() for turn in page.data]
    return Page(items=items, next=None if page.next_cursor is None else items[-1].number)


def check_ready(_: Limits) -> Steps[Engine]:
    """See `Store.check_ready`."""
    ready = (yield Exchange("GET", "/readyz")).read(ReadySent)
    return Engine(name=ready.engine, fault=ready.engine_fault, log_bytes=ready.log_bytes)
