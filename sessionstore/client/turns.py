"""The calls of whoever generates, and of those who want something of him, as requests; see `mutations` about repeats."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from sessionstore import orders
from sessionstore.client import reads
from sessionstore.client.bodies import given, sent_all
from sessionstore.client.decoding import moment
from sessionstore.client.exchange import DONE_BEFORE, Exchange, Steps, address, claims
from sessionstore.client.wire import (
    AcquiredSent,
    InterruptedSent,
    MessagesSent,
    RenewedSent,
    WrittenSent,
)
from sessionstore.drafts import Draft, prepare_all
from sessionstore.errors import (
    InputClaimed,
    MessageDeleted,
    MessageNotFound,
    OutcomeUnknown,
    Unavailable,
)
from sessionstore.limits import Limits
from sessionstore.model import (
    Acquired,
    Answer,
    Conversation,
    Finished,
    FinishOutcome,
    IfBusy,
    IfMatch,
    Interruption,
    Message,
    Mode,
    Renewed,
)


def acquire(
    limits: Limits,
    id: str,
    holder: str,
    *,
    token: str | None = None,
    ttl_ms: int | None = None,
    if_busy: IfBusy = "reject",
    messages: Sequence[Draft] = (),
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Acquired]]:
    """See `Store.acquire`."""
    order = orders.acquire(limits, holder, token, ttl_ms, if_busy, messages, if_match)
    orders.call(limits, id, None, incarnation)
    body = {"holder": holder, "token": order.token, "ttl_ms": ttl_ms, "if_busy": if_busy,
            "messages": sent_all(order.messages, as_named=True)}  # fmt: skip
    reply = yield Exchange("POST", address(id, "lease"), headers=claims(None, incarnation, if_match), body=given(body))
    sent = reply.read(AcquiredSent)
    return reply.answer(
        Acquired(
            token=order.token,
            generation=sent.generation,
            expires_at=moment(sent.expires_at),
            conversation=sent.view,
            messages=sent.values,
        )
    )


def renew(
    limits: Limits,
    id: str,
    *,
    token: str | None,
    phase: str | None = None,
    ttl_ms: int | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Renewed]]:
    """See `Store.renew`."""
    if phase is not None:
        limits.phase(phase)
    limits.ttl(ttl_ms)
    orders.call(limits, id, token, incarnation, if_match)
    body = given({"phase": phase, "ttl_ms": ttl_ms})
    reply = yield Exchange("PATCH", address(id, "lease"), headers=claims(token, incarnation, if_match), body=body)
    sent = reply.read(RenewedSent)
    return reply.answer(
        Renewed(generation=sent.generation, expires_at=moment(sent.expires_at), ttl_ms=sent.ttl_ms, conversation=sent.view)
    )


def release(
    limits: Limits, id: str, *, token: str | None, incarnation: int | None = None, if_match: IfMatch | None = None
) -> Steps[Answer[Conversation]]:
    """See `Store.release`. The conversation is read after it."""
    orders.call(limits, id, token, incarnation, if_match)
    reply = yield Exchange("DELETE", address(id, "lease"), headers=claims(token, incarnation, if_match))
    reply.done()
    try:
        return reply.answer((yield from reads.get(limits, id)))
    except Unavailable:
        # It is done, and a repeat will say so.
        raise OutcomeUnknown from None


def finish(
    limits: Limits,
    id: str,
    messages: Sequence[Draft] = (),
    *,
    token: str | None,
    outcome: FinishOutcome = "completed",
    usage: dict[str, Any] | None = None,
    unless_inputs: bool = False,
    complete: bool = False,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Finished]]:
    """See `Store.finish`."""
    limits.one_of(outcome, ("completed", "failed", "waiting", "interrupted"), "$.outcome")
    used = None if usage is None else Raw(limits.json_object(usage, "$.usage").encode())
    drafts = prepare_all(messages, limits)
    orders.call(limits, id, token, incarnation, if_match)
    body = {
        "messages": sent_all(drafts, as_named=True),
        "outcome": outcome,
        "usage": used,
        "unless_inputs": unless_inputs,
        "complete": complete or None,
    }
    reply = yield Exchange(
        "POST", address(id, "lease", "finish"), headers=claims(token, incarnation, if_match), body=given(body)
    )
    sent = reply.read(WrittenSent)
    return reply.answer(Finished(conversation=sent.view, messages=sent.values))


def interrupt(
    limits: Limits,
    id: str,
    *,
    generation: int | None = None,
    force: bool = False,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Interruption]]:
    """See `Store.interrupt`. A late copy must not hit a later turn, so the turn that is meant is looked up and named."""
    limits.number(generation, "$.generation", least=1)
    orders.call(limits, id, token, incarnation, if_match)
    if generation is None:
        there = yield from reads.get(limits, id)
        turn = there.generation or there.last_generation
        generation = None if turn is None else turn.number
    body = given({"generation": generation, "force": force})
    # What has never had a turn has none that a first copy could have meant.
    exchange = Exchange(
        "POST", address(id, "interrupt"), headers=claims(token, incarnation, if_match), body=body, once=generation is None
    )
    reply = yield exchange
    sent = reply.read(InterruptedSent)
    return reply.answer(Interruption(conversation=sent.view, state=sent.state))


def queue_inputs(
    limits: Limits,
    id: str,
    messages: Sequence[Draft],
    *,
    mode: Mode = "follow_up",
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[list[Message]]]:
    """See `Store.queue_inputs`."""
    limits.one_of(mode, ("steer", "follow_up"), "$.mode")
    drafts = prepare_all(messages, limits, least=1, partial=False)
    orders.call(limits, id, token, incarnation, if_match)
    body = {"messages": sent_all(drafts), "mode": mode}
    reply = yield Exchange("POST", address(id, "inputs"), headers=claims(token, incarnation, if_match), body=body)
    return reply.answer(reply.read(MessagesSent).values)


def cancel_input(
    limits: Limits, id: str, message_id: str, *, token: str | None = None, incarnation: int | None = None
) -> Steps[Answer[None]]:
    """See `Store.cancel_input`."""
    limits.id(message_id, "$.message_id")
    orders.call(limits, id, token, incarnation)
    exchange = Exchange("DELETE", address(id, "inputs", message_id), headers=claims(token, incarnation))
    try:
        reply = yield exchange
    except MessageDeleted:
        if not exchange.again:
            raise
        return DONE_BEFORE
    return reply.done()


def claim_inputs(
    limits: Limits,
    id: str,
    ids: Sequence[str] | None = None,
    *,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[list[Message]]]:
    """See `Store.claim_inputs`. Only a claim that names its inputs is answered again, so those that wait are looked up.

    Where more wait than a call may name, none is named, and a claim without an answer is an unknown outcome.
    """
    named = limits.ids(ids)
    orders.call(limits, id, token, incarnation, if_match)
    headers = claims(token, incarnation, if_match)
    while True:
        if ids is None:
            waiting = yield from _waiting(limits, id, incarnation)
            named = waiting if 0 < len(waiting) <= limits.messages_per_call else None
        exchange = Exchange(
            "POST", address(id, "inputs", "claim"), headers=headers, body=given({"ids": named}), once=named is None
        )
        try:
            reply = yield exchange
            return reply.answer(reply.read(MessagesSent).values)
        except (MessageDeleted, InputClaimed, MessageNotFound):
            # Somebody has cancelled one, or claimed it, since it was looked up.
            if ids is not None or exchange.again:
                raise


def _waiting(limits: Limits, id: str, incarnation: int | None) -> Steps[list[str]]:
    """The ids of all inputs that wait, in their order."""
    page = yield from reads.inputs(limits, id, limit=limits.page, incarnation=incarnation)
    found = [item.message for item in page.items]
    while page.next is not None:
        life = found[0].incarnation
        page = yield from reads.inputs(limits, id, after=page.next, limit=limits.page, incarnation=life)
        found += [item.message for item in page.items]
    return [message.id for message in found]
