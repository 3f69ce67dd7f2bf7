"""The calls that only read, as requests."""

from sessionstore.client.exchange import CONVERSATIONS, Exchange, Steps, address, claims
from sessionstore.client.wire import (
    ChangesSent,
    ConversationSent,
    InputsSent,
    LeasesSent,
    ListSent,
    MessageSent,
    PageSent,
    ReadySent,
    TurnsSent,
)
from sessionstore.cursors import ChangesCursor, ConversationsCursor, InputsCursor, TurnsCursor, decode_cursor, encode_cursor
from sessionstore.errors import InvalidInput
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


def get(limits: Limits, id: str, *, incarnation: int | None = None) -> Steps[Conversation]:
    """See `Store.get`."""
    reply = yield Exchange("GET", address(limits.id(id)), headers=claims(incarnation=incarnation))
    return reply.read(ConversationSent).value()


def conversations(
    limits: Limits,
    *,
    generating: bool | None = None,
    parent_id: str | None = None,
    containing: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Steps[ConversationPage]:
    """See `Store.conversations`."""
    limits.number(before, "$.before")
    limits.page_size(limit)
    if parent_id is not None:
        limits.id(parent_id, "$.parent_id")
    limits.title(containing, "$.q")
    cursor = None if before is None else encode_cursor(ConversationsCursor(before, before))
    query = {"generating": generating, "parent_id": parent_id, "q": containing, "cursor": cursor, "limit": limit}
    page = (yield Exchange("GET", CONVERSATIONS, query=query)).read(ListSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, ConversationsCursor).before
    items = [conversation.value() for conversation in page.data]
    return ConversationPage(items=items, next=following, change=page.change)


def list_changes(limits: Limits, since: int | None = None, *, limit: int | None = None) -> Steps[ListChanges]:
    """See `Store.list_changes`."""
    limits.number(since, "$.since")
    limits.page_size(limit)
    known = AHEAD if since is None else since
    return (yield Exchange("GET", CONVERSATIONS, query={"since_change": known, "limit": limit})).read(ListSent).changes()


def messages(
    limits: Limits,
    id: str,
    *,
    after: int | None = None,
    before: int | None = None,
    order: Order = "asc",
    limit: int | None = None,
    incarnation: int | None = None,
) -> Steps[Page[Message]]:
    """See `Store.messages`."""
    path = address(limits.id(id), "messages")
    if order not in ("asc", "desc"):
        raise InvalidInput(reason="Expected asc or desc", path="$.order")
    limits.number(after, "$.after", least=-1)
    limits.number(before, "$.before")
    limits.page_size(limit)
    query = {"after": after, "before": before, "order": order, "limit": limit}
    page = (yield Exchange("GET", path, headers=claims(incarnation=incarnation), query=query)).read(PageSent)
    items = [message.value() for message in page.data]
    return Page(items=items, next=None if page.next_cursor is None else items[-1].position)


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


def leases(_: Limits) -> Steps[list[Conversation]]:
    """See `Store.leases`."""
    return [conversation.value() for conversation in (yield Exchange("GET", "/v1/leases")).read(LeasesSent).data]


def check_ready(_: Limits) -> Steps[Engine]:
    """See `Store.check_ready`."""
    ready = (yield Exchange("GET", "/readyz")).read(ReadySent)
    return Engine(name=ready.engine, fault=ready.engine_fault)


# A change that no store has reached: the whole list is the answer.
AHEAD = 2**62
