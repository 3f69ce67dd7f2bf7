"""Handlers of what one follows: changes of a conversation, the log of its turns."""

from starlette.responses import Response

from sessionstore.errors import Malformed
from sessionstore.model import Place, Tag, Turn
from sessionstore_api.answers import ChangesAnswer, TurnBody, TurnsPage
from sessionstore_api.calls import Call, answer, decode_cursor, encode_cursor
from sessionstore_api.rendering import conversation_body, message_bodies, moment, raw
from sessionstore_api.requests import ChangesCursor, ChangesQuery, PageQuery, TurnsCursor


async def list_changes(call: Call[None, ChangesQuery]) -> Response:
    """What has changed since a state that you know: rows as they are now, deleted messages as tombstones."""
    query, place, incarnation = call.query, None, call.incarnation
    if query.cursor is not None:
        cursor = decode_cursor(query.cursor, ChangesCursor)
        place, incarnation = Place(cursor.version, cursor.row), call.life_of_cursor(cursor.incarnation)
    found = await call.store.changes(call.id, _since(query.since), next=place, limit=query.limit, incarnation=incarnation)
    ended = found.conversation.incarnation
    following = None if found.next is None else ChangesCursor(ended, found.next.version, found.next.row)
    content = ChangesAnswer(
        conversation=conversation_body(found.conversation),
        messages=message_bodies(found.messages),
        reset=found.reset,
        next_since=str(found.since),
        next_cursor=encode_cursor(following),
    )
    return answer(200, content, tag=found.conversation.tag)


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


def _since(text: str | None) -> Tag | None:
    if text is None:
        return None
    tag = Tag.parse(text)
    if tag is None:
        raise Malformed(reason="Expected a state like 12-7", path="?since")
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
