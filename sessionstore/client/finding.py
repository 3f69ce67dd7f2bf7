"""The calls that look across conversations, as requests."""

from sessionstore.client.decoding import time_of
from sessionstore.client.exchange import CONVERSATIONS, Exchange, Steps
from sessionstore.client.wire import FoundPageSent, LeasesSent, ListSent, UsagePageSent
from sessionstore.cursors import ConversationsCursor, FoundCursor, MovedCursor, UsageCursor, decode_cursor, encode_cursor
from sessionstore.limits import Limits
from sessionstore.model import (
    Conversation,
    ConversationPage,
    Found,
    ListChanges,
    ListOrder,
    ListPlace,
    Page,
    Usage,
    UsageBy,
)


def conversations(
    limits: Limits,
    *,
    generating: bool | None = None,
    parent_id: str | None = None,
    roots: bool = False,
    containing: str | None = None,
    metadata_key: str | None = None,
    metadata_value: str | None = None,
    changed_since: int | None = None,
    changed_before: int | None = None,
    order: ListOrder = "changed",
    before: int | None = None,
    limit: int | None = None,
) -> Steps[ConversationPage]:
    """See `Store.conversations`."""
    limits.one_of(order, ("changed", "created"), "$.order")
    limits.number(before, "$.before")
    limits.page_size(limit)
    cursor = None if before is None else encode_cursor(ConversationsCursor(before, order, None))
    query = {
        "generating": generating,
        "parent_id": None if parent_id is None else limits.id(parent_id, "$.parent_id"),
        "roots": roots or None,
        "q": limits.title(containing, "$.q"),
        "metadata_key": limits.title(metadata_key, "$.metadata_key"),
        "metadata_value": limits.title(metadata_value, "$.metadata_value"),
        "changed_since": time_of(limits.moment(changed_since, "$.changed_since")),
        "changed_before": time_of(limits.moment(changed_before, "$.changed_before")),
        "order": order,
        "cursor": cursor,
        "limit": limit,
    }
    page = (yield Exchange("GET", CONVERSATIONS, query=query)).read(ListSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, ConversationsCursor).before
    items = [conversation.value() for conversation in page.data]
    return ConversationPage(items=items, next=following, change=page.change)


def list_changes(
    limits: Limits, since: int | None = None, *, next: ListPlace | None = None, limit: int | None = None
) -> Steps[ListChanges]:
    """See `Store.list_changes`."""
    limits.number(since, "$.since")
    limits.page_size(limit)
    cursor = None if next is None else encode_cursor(MovedCursor(*next))
    query = {"since_change": AHEAD if since is None else since, "cursor": cursor, "limit": limit}
    return (yield Exchange("GET", CONVERSATIONS, query=query)).read(ListSent).changes()


def leases(_: Limits) -> Steps[list[Conversation]]:
    """See `Store.leases`."""
    return [conversation.value() for conversation in (yield Exchange("GET", "/v1/leases")).read(LeasesSent).data]


def usage(
    limits: Limits,
    *,
    conversation_id: str | None = None,
    descendants: bool = False,
    since: int | None = None,
    until: int | None = None,
    by: UsageBy = "total",
    after: int | None = None,
    limit: int | None = None,
) -> Steps[Page[Usage]]:
    """See `Store.usage`."""
    limits.one_of(by, ("total", "day", "conversation"), "$.by")
    limits.number(after, "$.after")
    query = {
        "conversation_id": None if conversation_id is None else limits.id(conversation_id, "$.conversation_id"),
        "descendants": descendants or None,
        "since": time_of(limits.moment(since, "$.since")),
        "until": time_of(limits.moment(until, "$.until")),
        "by": by,
        "cursor": None if after is None else encode_cursor(UsageCursor(by, after)),
        "limit": limits.page_size(limit),
    }
    page = (yield Exchange("GET", "/v1/usage", query=query)).read(UsagePageSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, UsageCursor).after
    return Page(items=page.data, next=following)


def search(
    limits: Limits,
    text: str,
    *,
    conversation_id: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Steps[Page[Found]]:
    """See `Store.search`."""
    limits.number(before, "$.before")
    query = {
        "q": limits.searched(text),
        "conversation_id": None if conversation_id is None else limits.id(conversation_id, "$.conversation_id"),
        "cursor": None if before is None else encode_cursor(FoundCursor(before)),
        "limit": limits.page_size(limit),
    }
    page = (yield Exchange("GET", "/v1/search", query=query)).read(FoundPageSent)
    following = None if page.next_cursor is None else decode_cursor(page.next_cursor, FoundCursor).before
    return Page(items=[found.value() for found in page.data], next=following)


# A change that no store has reached: the whole list is the answer.
AHEAD = 2**62
