"""Handlers of messages: append, list, put, label, get, delete."""

from msgspec import UNSET
from starlette.responses import Response

from sessionstore import Draft
from sessionstore.cursors import MessagesCursor, decode_cursor, encode_cursor
from sessionstore.errors import InvalidInput
from sessionstore_api.answers import MessagesAnswer, MessagesPage
from sessionstore_api.calls import Call, answer
from sessionstore_api.rendering import message_bodies, message_body
from sessionstore_api.requests import AppendMessages, LabelMessage, MessagesQuery, NoQuery, PutMessage


async def append_messages(call: Call[AppendMessages, NoQuery]) -> Response:
    """Store messages at the end, all or none. Messages with ids are stored once, however often the call comes."""
    drafts = [message.draft() for message in call.body.messages]
    done = await call.store.append(call.id, drafts, if_match=call.if_match, **call.claims)
    return answer(201, MessagesAnswer(messages=message_bodies(done.value)), done)


async def list_messages(call: Call[None, MessagesQuery]) -> Response:
    """List the transcript, or the part between two positions, in either order.

    `view=context`: the newest summary, and what stands after the messages that it covers; with `max_messages` or `max_tokens`
    as many of the newest turns as fit, whole, in one answer.
    """
    query = call.query
    if (query.max_messages, query.max_tokens) != (None, None):
        return await _show_context(call)
    after, before, incarnation = query.after, query.before, call.incarnation
    if query.cursor is not None:
        cursor = decode_cursor(query.cursor, MessagesCursor)
        if (cursor.order, cursor.view) != (query.order, query.view):
            raise InvalidInput(reason="The cursor belongs to another list", path="?cursor")
        incarnation, position = call.life_of_cursor(cursor.incarnation), cursor.position
        after, before = (position, before) if query.order == "asc" else (after, position)
    page = await call.store.messages(
        call.id, after=after, before=before, order=query.order, view=query.view, limit=query.limit, incarnation=incarnation
    )
    following = None
    if page.next is not None:
        following = MessagesCursor(page.items[0].incarnation, query.order, query.view, page.next)
    return answer(200, MessagesPage(data=message_bodies(page.items), next_cursor=encode_cursor(following)))


async def _show_context(call: Call[None, MessagesQuery]) -> Response:
    query = call.query
    if query != MessagesQuery(view="context", max_messages=query.max_messages, max_tokens=query.max_tokens):
        raise InvalidInput(reason="A budget is for the whole context, with view=context alone", path="?max_messages")
    found = await call.store.context(
        call.id, max_messages=query.max_messages, max_tokens=query.max_tokens, incarnation=call.incarnation
    )
    content = MessagesPage(
        data=message_bodies(found.messages),
        next_cursor=None,
        cut=found.cut,
        tokens=UNSET if found.tokens is None else found.tokens,
        state=str(found.tag),
    )
    return answer(200, content)


async def put_message(call: Call[PutMessage, NoQuery]) -> Response:
    """Store a message under its id: a growing reply again and again, or an edit.

    With If-Match a write that has been overtaken is 412, with `same` when what is stored equals what was sent.
    """
    body = call.body
    draft = Draft(id=call.message_id, role=body.role, content=body.content, metadata=body.metadata, status=body.status)
    done = await call.store.put(call.id, draft, if_match=call.if_match, only_create=call.only_create, **call.claims)
    saved = done.value.message
    return answer(201 if done.value.created else 200, message_body(saved), done, tag=saved.tag)


async def label_message(call: Call[LabelMessage, NoQuery]) -> Response:
    """Merge into a message's metadata; its content stays."""
    done = await call.store.label_message(call.id, call.message_id, call.body.metadata, if_match=call.if_match, **call.claims)
    return answer(200, message_body(done.value), done, tag=done.value.tag)


async def get_message(call: Call[None, NoQuery]) -> Response:
    """Get a message."""
    message = await call.store.message(call.id, call.message_id, incarnation=call.incarnation)
    return answer(200, message_body(message), tag=message.tag)


async def delete_message(call: Call[None, NoQuery]) -> Response:
    """Delete a message for good. Its id and position are not used again."""
    done = await call.store.delete_message(call.id, call.message_id, if_match=call.if_match, **call.claims)
    return answer(204, None, done)
