"""Handlers of conversations: create, list, get, label, delete, truncate, compact, fork."""

from urllib.parse import quote

from starlette.responses import Response

from sessionstore import Draft
from sessionstore.cursors import ConversationsCursor, MovedCursor, decode_cursor, encode_cursor
from sessionstore.errors import InvalidInput
from sessionstore.model import Conversation, ListPlace
from sessionstore_api.answers import (
    CompactedAnswer,
    ConversationAnswer,
    ConversationMessages,
    ConversationsPage,
    TruncatedAnswer,
)
from sessionstore_api.calls import Call, answer, moment_of
from sessionstore_api.feed import moved_page
from sessionstore_api.rendering import conversation_body, message_bodies, message_body
from sessionstore_api.requests import (
    CompactConversation,
    ConversationsQuery,
    CreateConversation,
    DeleteQuery,
    ForkConversation,
    LabelConversation,
    NoQuery,
    TruncateConversation,
)


async def create_conversation(call: Call[CreateConversation, NoQuery]) -> Response:
    """Create a conversation with its first messages.

    The same call with the same id again answers what it made. An id that was deleted begins a new life only with `recreate`.
    """
    body = call.body
    done = await call.store.create(
        body.id,
        title=body.title,
        metadata=body.metadata,
        parent_id=body.parent_id,
        messages=[message.draft() for message in body.messages],
        recreate=body.recreate,
    )
    created = done.value.conversation
    content = ConversationMessages(conversation=conversation_body(created), messages=message_bodies(done.value.messages))
    return answer(201, content, done, tag=created.tag, location=location_of(created))


async def list_conversations(call: Call[None, ConversationsQuery]) -> Response:
    """List conversations, the latest change first.

    A conversation that changes while you page moves to the front: `change` is the newest change as of the first page, and
    `since_change` lists what has moved since then. With `order=created`, the newest first, nothing moves.
    """
    query = call.query
    if query.since_change is not None:
        return await _list_moved(call, query.since_change)
    cursor = None if query.cursor is None else decode_cursor(query.cursor, ConversationsCursor)
    if cursor is not None and cursor.order != query.order:
        raise InvalidInput(reason="The cursor belongs to a list in another order", path="?cursor")
    before = None if cursor is None else cursor.before
    page = await call.store.conversations(
        generating=query.generating,
        parent_id=query.parent_id,
        roots=query.roots,
        containing=query.q,
        metadata_key=query.metadata_key,
        metadata_value=query.metadata_value,
        changed_since=moment_of(query.changed_since, "?changed_since"),
        changed_before=moment_of(query.changed_before, "?changed_before"),
        order=query.order,
        before=before,
        limit=query.limit,
    )
    data = [conversation_body(conversation) for conversation in page.items]
    # As of the first page: whoever follows the changes from there misses nothing that moved meanwhile.
    change = page.change if cursor is None or cursor.change is None else cursor.change
    following = None if page.next is None else ConversationsCursor(page.next, query.order, change)
    return answer(200, ConversationsPage(data=data, next_cursor=encode_cursor(following), change=change))


async def _list_moved(call: Call[None, ConversationsQuery], since: int) -> Response:
    query = call.query
    unfiltered = ConversationsQuery(cursor=query.cursor, limit=query.limit, since_change=since)
    if query != unfiltered:
        raise InvalidInput(reason="What moved is told of all conversations, or of none", path="?since_change")
    cursor = None if query.cursor is None else decode_cursor(query.cursor, MovedCursor)
    place = None if cursor is None else ListPlace(cursor.change, cursor.horizon)
    return answer(200, moved_page(await call.store.list_changes(since, next=place, limit=query.limit)))


async def get_conversation(call: Call[None, NoQuery]) -> Response:
    """Get a conversation. An expired lease is shown as expired; nothing is changed by looking."""
    conversation = await call.store.get(call.id, incarnation=call.incarnation)
    return answer(200, conversation_body(conversation), tag=conversation.tag)


async def label_conversation(call: Call[LabelConversation, NoQuery]) -> Response:
    """Change the title, merge into the metadata; also while somebody is generating."""
    done = await call.store.label(
        call.id, title=call.body.title, metadata=call.body.metadata, if_match=call.if_match, **call.claims
    )
    return answer(200, conversation_body(done.value), done, tag=done.value.tag)


async def delete_conversation(call: Call[None, DeleteQuery]) -> Response:
    """Delete a conversation for good. It never comes back: late writes get 410."""
    done = await call.store.delete(
        call.id, force=call.query.force, children=call.query.children, if_match=call.if_match, **call.claims
    )
    return answer(204, None, done)


async def truncate_conversation(call: Call[TruncateConversation, NoQuery]) -> Response:
    """Delete the messages of a closed range of positions. The same call again harms nothing newer."""
    done = await call.store.truncate(
        call.id,
        after_position=call.body.after_position,
        through_position=call.body.through_position,
        if_match=call.if_match,
        **call.claims,
    )
    shorter = done.value.conversation
    content = TruncatedAnswer(conversation=conversation_body(shorter), removed=done.value.removed)
    return answer(200, content, done, tag=shorter.tag)


async def compact_conversation(call: Call[CompactConversation, NoQuery]) -> Response:
    """Let a summary stand for everything through a position, in `view=context`. The transcript stays whole.

    409 `stale` when a message up to there has changed since `seen_version`, or a newer summary covers it.
    """
    body = call.body
    summary = Draft(id=body.id, role=body.summary.role, content=body.summary.content, metadata=body.summary.metadata)
    if body.id is not None:
        call.store.limits.id(body.id)
    done = await call.store.compact(
        call.id,
        summary,
        through_position=body.through_position,
        seen_version=body.seen_version,
        if_match=call.if_match,
        **call.claims,
    )
    shorter = done.value.conversation
    content = CompactedAnswer(conversation=conversation_body(shorter), summary=message_body(done.value.summary))
    return answer(201, content, done, tag=shorter.tag)


async def fork_conversation(call: Call[ForkConversation, NoQuery]) -> Response:
    """Copy a conversation, or its beginning with its summaries, into a new one. The source stays as it is.

    Without a title the copy has the source's with the next free number.
    """
    body = call.body
    done = await call.store.fork(
        call.id,
        body.id,
        through_position=body.through_position,
        before_user_message=body.before_user_message,
        through_message=body.through_message,
        before_message=body.before_message,
        title=body.title,
        settled=body.settled,
        if_match=call.if_match,
        **call.claims,
    )
    content = ConversationAnswer(conversation=conversation_body(done.value))
    return answer(201, content, done, tag=done.value.tag, location=location_of(done.value))


def location_of(conversation: Conversation) -> str:
    """Where a conversation is."""
    return f"/v1/conversations/{quote(conversation.id, safe='')}"
