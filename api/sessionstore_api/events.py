"""Handlers of events: one conversation, or the list of them, for as long as the client likes (server-sent events).

Each event has the state as it is then, so a reader who is slow, or was away, misses nothing that a fresh reader sees.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from sessionstore.errors import ConversationDeleted, Malformed, SessionStoreError
from sessionstore.following import FollowedConversation, FollowedList, FollowedTurn
from sessionstore.model import Changes, ListChanges
from sessionstore_api.access import Visitor
from sessionstore_api.calls import Call
from sessionstore_api.feed import changes_answer, moved_page, state_of
from sessionstore_api.problems import SlowReader, problem_of
from sessionstore_api.requests import ChangeQuery, StateQuery

# It logs what it sends, and that is nobody's business, whatever level somebody sets.
logging.getLogger("sse_starlette.sse").addFilter(lambda record: record.msg != "chunk: %s")
PING_SECONDS = 15
SLOW_SECONDS = 10
STOPPING_SECONDS = 2
RETRY_MS = 1_000
LONGEST_CHANGE = 18


async def follow_conversation(call: Call[None, StateQuery]) -> Response:
    """Follow a conversation: `changes` with its state as it is now, then whenever it changes; `deleted` at the end.

    Reconnect with Last-Event-ID, or `since`, and the first event has only what changed meanwhile. `closed` says why the server
    ends the stream while the conversation lives. With `view=turn` there are no messages in it, and only what a holder has to
    know makes an event: whose turn it is, whether it is to stop, how much waits for it.
    """
    since = state_of(call.last_event_id, "Last-Event-ID") or state_of(call.query.since, "?since")
    owner, limits = call.store.store.owner, call.store.limits
    if call.query.view == "turn":
        return await _stream(call, call.store.follow(FollowedTurn(owner, limits, call.id, call.incarnation), _changes_event))
    followed = FollowedConversation(owner, limits, call.id, since, call.incarnation)
    return await _stream(call, call.store.follow(followed, _changes_event))


async def follow_list(call: Call[None, ChangeQuery]) -> Response:
    """Follow the list of conversations: `conversations` with those that changed, and the ids of those that were deleted.

    Reconnect with Last-Event-ID, or with the `change` of a list as `since_change`; without, the whole list comes first.
    """
    told = call.last_event_id
    if told is not None and not (told.isascii() and told.isdigit() and len(told) <= LONGEST_CHANGE):
        raise Malformed(reason="Expected a change like 17", path="Last-Event-ID")
    since = call.query.since_change if told is None else int(told)
    followed = FollowedList(call.store.store.owner, call.store.limits, since)
    return await _stream(call, call.store.follow(followed, _list_event))


async def _stream(call: Call[None, StateQuery] | Call[None, ChangeQuery], events: AsyncGenerator[bytes]) -> Response:
    # What is wrong with the call shows now, while it can still be answered with a status.
    first = await anext(events)
    if call.head:
        await events.aclose()
    return EventSourceResponse(
        _body(first, events, call.visitor),
        ping=PING_SECONDS,
        sep="\n",
        headers={"X-Content-Type-Options": "nosniff"},
        shutdown_grace_period=STOPPING_SECONDS,
    )


async def _body(first: bytes, events: AsyncGenerator[bytes], visitor: Visitor) -> AsyncGenerator[bytes]:
    clock = asyncio.get_running_loop().time
    try:
        visitor.check_valid()
        yield first
        async for event in events if visitor.key is None else _while_known(visitor, events):
            visitor.check_valid()
            began = clock()
            yield event
            if clock() - began > SLOW_SECONDS:
                yield _last_event("closed", SlowReader())
                return
    except ConversationDeleted as error:
        yield _last_event("deleted", error)
    except SessionStoreError as error:
        yield _last_event("closed", error)
    finally:
        await events.aclose()


async def _while_known(visitor: Visitor, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The events, until the key of who follows them is over. Raises `Unauthorized` then."""
    with visitor.following() as over:
        while True:
            following = asyncio.ensure_future(anext(events))
            try:
                await asyncio.wait((following, over), return_when=asyncio.FIRST_COMPLETED)
                visitor.check_valid()
                yield await following
            except StopAsyncIteration:
                return
            finally:
                await _ended(following)


async def _ended(following: asyncio.Future[bytes]) -> None:
    """A generator that still runs cannot be closed."""
    if not following.done():
        following.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, SessionStoreError):
            await following


def _changes_event(changes: Changes) -> bytes:
    return _event("changes", changes_answer(changes), str(changes.since))


def _list_event(changes: ListChanges) -> bytes:
    return _event("conversations", moved_page(changes), str(changes.change))


def _event(kind: str, body: msgspec.Struct, id: str) -> bytes:
    data = msgspec.json.encode(body).decode()
    return ServerSentEvent(data, event=kind, id=id, retry=RETRY_MS, sep="\n").encode()


def _last_event(kind: str, error: SessionStoreError) -> bytes:
    data = msgspec.json.encode(problem_of(error)).decode()
    return ServerSentEvent(data, event=kind, sep="\n").encode()
