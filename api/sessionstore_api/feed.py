"""Handlers of what one follows: changes of a conversation, the log of its turns."""

from starlette.responses import Response

from sessionstore.cursors import ChangesCursor, MovedCursor, TurnsCursor, decode_cursor, encode_cursor
from sessionstore.errors import Malformed
from sessionstore.model import Changes, ListChanges, Place, Tag, Turn
from sessionstore_api.answers import ChangesAnswer, ConversationsPage, TombstoneBody, TurnBody, TurnsPage
from sessionstore_api.calls import Call, answer
from sessionstore_api.rendering import conversation_body, message_bodies, moment, raw
from sessionstore_api.requests import ChangesQuery, PageQuery


async def list_changes(call: Call[None, ChangesQuery]) -> Response:
    """What has changed since a state that you know: rows as they are now, deleted messages as tombstones."""
    query, place, incarnation = call.query, None, call.incarnation
    if query.cursor is not None:
        cursor = decode_cursor(query.cursor, ChangesCursor)
        place, incarnation = (
            Place(cursor.version, cursor.row, cursor.after, cursor.began),
            call.life_of_cursor(cursor.incarnation),
        )
    since = state_of(query.since, "?since")
    found = await call.store.changes(call.id, since, next=place, limit=query.limit, incarnation=incarnation)
    return answer(200, changes_answer(found), tag=found.conversation.tag)


def changes_answer(found: Changes) -> ChangesAnswer:
    """Changes as they are sent."""
    life = found.conversation.incarnation
    following = None if found.next is None else ChangesCursor(life, *found.next)
    return ChangesAnswer(
        conversation=conversation_body(found.conversation),
        messages=message_bodies(found.messages),
        reset=found.reset,
        next_since=str(found.since),
        next_cursor=encode_cursor(following),
    )


def moved_page(found: ListChanges) -> ConversationsPage:
    """Changes of the list as they are sent."""
    return ConversationsPage(
        data=[conversation_body(conversation) for conversation in found.conversations],
        deleted=[TombstoneBody(id=gone.id, incarnation=gone.incarnation) for gone in found.deleted],
        next_cursor=None if found.next is None else encode_cursor(MovedCursor(*found.next)),
        change=found.change,
        reset=found.reset,
    )


async def list_generations(call: Call[None, PageQuery]) -> Response:
    """List the turns of a conversation, the latest first: who, when, how it ended, and what it used."""
    before, incarnation = None, call.incarnation
    if call.query.cursor is not None:
        cursor = decode_cursor(call.query.cursor, TurnsCursor)
        before, incarnation = cursor.before, call.life_of_cursor(cursor.incarnation)
    if incarnation is None:
        incarnation = (await call.store.get(call.id)).incarnation
    page = await call.store.generations(call.id, before=before, limit=call.query.limit, incarnation=incarnation)
    following = None if page.next is None else TurnsCursor(incarnation, page.next)
    return answer(200, TurnsPage(data=[_turn_body(turn) for turn in page.items], next_cursor=encode_cursor(following)))


def state_of(text: str | None, path: str) -> Tag | None:
    """The state that a text names, if there is one. Raises `Malformed`."""
    if text is None:
        return None
    tag = Tag.parse(text)
    if tag is None:
        raise Malformed(reason="Expected a state like 12-7", path=path)
    return tag


def _turn_body(turn: Turn) -> TurnBody:
    return TurnBody(
        number=turn.number,
        holder=turn.holder,
        phase=turn.phase,
        acquired_at=moment(turn.acquired_at),
        ended_at=None if turn.ended_at is None else moment(turn.ended_at),
        outcome=turn.outcome,
        usage=raw(turn.usage_json),
    )
