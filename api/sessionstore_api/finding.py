"""Handlers that look across conversations: the search for words, and what turns have used."""

from starlette.responses import Response

from sessionstore.cursors import FoundCursor, UsageCursor, decode_cursor, encode_cursor
from sessionstore.errors import InvalidInput
from sessionstore.model import Found, Usage
from sessionstore_api.answers import FoundBody, FoundPage, UsageBody, UsagePage
from sessionstore_api.calls import Call, answer, moment_of
from sessionstore_api.rendering import message_body
from sessionstore_api.requests import SearchQuery, UsageQuery


async def search_messages(call: Call[None, SearchQuery]) -> Response:
    """Find messages that have all the words, in any case and Latin accent, the last stored first.

    Nothing in `q` is syntax. Partial and queued messages are not searched.
    """
    query = call.query
    before = None if query.cursor is None else decode_cursor(query.cursor, FoundCursor).before
    page = await call.store.search(query.q, conversation_id=query.conversation_id, before=before, limit=query.limit)
    following = None if page.next is None else FoundCursor(page.next)
    return answer(200, FoundPage(data=[_found_body(found) for found in page.items], next_cursor=encode_cursor(following)))


async def add_usage_up(call: Call[None, UsageQuery]) -> Response:
    """What turns have used, as `finish` told it, added up: tokens and cost, of one conversation or of all."""
    query, after = call.query, None
    if query.cursor is not None:
        cursor = decode_cursor(query.cursor, UsageCursor)
        if cursor.by != query.by:
            raise InvalidInput(reason="The cursor belongs to other sums", path="?cursor")
        after = cursor.after
    page = await call.store.usage(
        conversation_id=query.conversation_id,
        descendants=query.descendants,
        since=moment_of(query.since, "?since"),
        until=moment_of(query.until, "?until"),
        by=query.by,
        after=after,
        limit=query.limit,
    )
    following = None if page.next is None else UsageCursor(query.by, page.next)
    return answer(200, UsagePage(data=[_usage_body(usage) for usage in page.items], next_cursor=encode_cursor(following)))


def _found_body(found: Found) -> FoundBody:
    return FoundBody(
        conversation_id=found.conversation_id,
        message=message_body(found.message),
        snippet=found.snippet,
        marks=[list(mark) for mark in found.marks],
    )


def _usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        key=usage.key,
        of=usage.of,
        turns=usage.turns,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost=usage.cost,
    )
