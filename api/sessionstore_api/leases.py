"""Handlers of turns: acquire, show, renew, release, finish, interrupt."""

from starlette.responses import Response

from sessionstore_api.answers import (
    AcquiredAnswer,
    ConversationMessages,
    InterruptAnswer,
    LeaseAnswer,
    LeasesAnswer,
    RenewedAnswer,
)
from sessionstore_api.calls import Call, answer
from sessionstore_api.rendering import conversation_body, generation_body, message_bodies, moment
from sessionstore_api.requests import AcquireLease, FinishTurn, Interrupt, NoQuery, RenewLease


async def acquire_lease(call: Call[AcquireLease, NoQuery]) -> Response:
    """Begin a turn: store its first messages, then take the lease. Only one caller has it at a time.

    Send the token as Lease-Token with every call of the turn; each of them renews the lease.
    """
    body = call.body
    done = await call.store.acquire(
        call.id,
        body.holder,
        token=body.token,
        ttl_ms=body.ttl_ms,
        if_busy=body.if_busy,
        messages=[message.draft() for message in body.messages],
        incarnation=call.incarnation,
        if_match=call.if_match,
    )
    turn = done.value
    content = AcquiredAnswer(
        token=turn.token,
        generation=turn.generation,
        expires_at=moment(turn.expires_at),
        conversation=conversation_body(turn.conversation),
        messages=message_bodies(turn.messages),
    )
    return answer(201, content, done, tag=turn.conversation.tag)


async def show_lease(call: Call[None, NoQuery]) -> Response:
    """Show who is generating, if anybody is. The token is never shown."""
    conversation = await call.store.get(call.id, incarnation=call.incarnation)
    return answer(200, LeaseAnswer(generation=generation_body(conversation)), tag=conversation.tag)


async def list_leases(call: Call[None, NoQuery]) -> Response:
    """List every conversation with a lease, live or expired, the oldest turn first."""
    found = await call.store.leases()
    return answer(200, LeasesAnswer(data=[conversation_body(conversation) for conversation in found]))


async def renew_lease(call: Call[RenewLease, NoQuery]) -> Response:
    """Keep the lease for another time to live, and say what the turn is doing."""
    done = await call.store.renew(
        call.id, phase=call.body.phase, ttl_ms=call.body.ttl_ms, if_match=call.if_match, **call.claims
    )
    turn = done.value
    content = RenewedAnswer(
        generation=turn.generation,
        expires_at=moment(turn.expires_at),
        ttl_ms=turn.ttl_ms,
        conversation=conversation_body(turn.conversation),
    )
    return answer(200, content, done, tag=turn.conversation.tag)


async def release_lease(call: Call[None, NoQuery]) -> Response:
    """End the turn without a word about how it went. What is still partial becomes interrupted."""
    done = await call.store.release(call.id, if_match=call.if_match, **call.claims)
    return answer(204, None, done)


async def finish_turn(call: Call[FinishTurn, NoQuery]) -> Response:
    """Store the last messages as PUT does and end the turn, both or neither. The same call again gets the answer again."""
    body = call.body
    done = await call.store.finish(
        call.id,
        [message.draft() for message in body.messages],
        outcome=body.outcome,
        usage=body.usage,
        unless_inputs=body.unless_inputs,
        complete=body.complete,
        if_match=call.if_match,
        **call.claims,
    )
    ended = done.value.conversation
    content = ConversationMessages(conversation=conversation_body(ended), messages=message_bodies(done.value.messages))
    return answer(200, content, done, tag=ended.tag)


async def interrupt_turn(call: Call[Interrupt, NoQuery]) -> Response:
    """Ask whoever is generating to stop (202); with `force`, or when the lease has expired, end the turn (200)."""
    done = await call.store.interrupt(
        call.id, generation=call.body.generation, force=call.body.force, if_match=call.if_match, **call.claims
    )
    conversation = done.value.conversation
    content = InterruptAnswer(conversation=conversation_body(conversation), state=done.value.state)
    status = 202 if done.value.state == "requested" else 200
    return answer(status, content, done, tag=conversation.tag)
