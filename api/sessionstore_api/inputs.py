"""Handlers of inputs: queue, list, cancel, claim."""

import msgspec
from starlette.responses import Response

from sessionstore.cursors import InputsCursor, decode_cursor, encode_cursor
from sessionstore.model import Input
from sessionstore_api.answers import InputBody, InputsPage, MessagesAnswer
from sessionstore_api.calls import Call, answer
from sessionstore_api.rendering import message_bodies, message_body
from sessionstore_api.requests import ClaimInputs, NoQuery, PageQuery, QueueInputs


async def queue_inputs(call: Call[QueueInputs, NoQuery]) -> Response:
    """Let messages wait, also while somebody is generating, until a holder claims them. All or none; with ids, once."""
    drafts = [message.draft() for message in call.body.messages]
    done = await call.store.queue_inputs(call.id, drafts, mode=call.body.mode, if_match=call.if_match, **call.claims)
    return answer(202, MessagesAnswer(messages=message_bodies(done.value)), done)


async def list_inputs(call: Call[None, PageQuery]) -> Response:
    """List the messages that wait, in their order."""
    after, incarnation = None, call.incarnation
    if call.query.cursor is not None:
        cursor = decode_cursor(call.query.cursor, InputsCursor)
        after, incarnation = cursor.after, call.life_of_cursor(cursor.incarnation)
    page = await call.store.inputs(call.id, after=after, limit=call.query.limit, incarnation=incarnation)
    following = None if page.next is None else InputsCursor(page.items[0].message.incarnation, page.next)
    return answer(200, InputsPage(data=[_input_body(item) for item in page.items], next_cursor=encode_cursor(following)))


async def cancel_input(call: Call[None, NoQuery]) -> Response:
    """Take a message out of the queue for good."""
    done = await call.store.cancel_input(call.id, call.message_id, **call.claims)
    return answer(204, None, done)


async def claim_inputs(call: Call[ClaimInputs, NoQuery]) -> Response:
    """Put messages that wait at the end of the transcript. Name them, and a repeated call is answered again."""
    done = await call.store.claim_inputs(call.id, call.body.ids, if_match=call.if_match, **call.claims)
    return answer(200, MessagesAnswer(messages=message_bodies(done.value)), done)


def _input_body(item: Input) -> InputBody:
    return InputBody(mode=item.mode, **msgspec.structs.asdict(message_body(item.message)))
