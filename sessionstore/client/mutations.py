"""The calls that change something, as requests.

Each can be repeated after a lost answer and happens once: ids and tokens are made here where the caller gives none, a call that
means a life or a turn names it, and what a repeat finds done already is the answer.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from sessionstore import forking, jsontext, orders
from sessionstore.client import reads
from sessionstore.client.exchange import CONVERSATIONS, Exchange, Steps, address, claims
from sessionstore.client.wire import (
    AcquiredSent,
    ConversationSent,
    InterruptedSent,
    MessageSent,
    MessagesSent,
    RenewedSent,
    SaveSent,
    SavesSent,
    TruncatedSent,
    ViewSent,
    WrittenSent,
    error_in,
    moment,
)
from sessionstore.drafts import Draft, Prepared, Save, prepare, prepare_all
from sessionstore.errors import (
    ConversationDeleted,
    ConversationExists,
    InputClaimed,
    InvalidInput,
    MessageDeleted,
    MessageNotFound,
    OutcomeUnknown,
    PreconditionFailed,
    SessionStoreError,
    Unavailable,
    UnexpectedAnswer,
)
from sessionstore.limits import Limits
from sessionstore.model import (
    Acquired,
    Answer,
    Children,
    Conversation,
    Created,
    Finished,
    FinishOutcome,
    IfBusy,
    IfMatch,
    Interruption,
    Message,
    Mode,
    Renewed,
    Saved,
    Tag,
    Truncated,
)


def create(
    limits: Limits,
    id: str | None = None,
    *,
    title: str | None = None,
    metadata: dict[str, Any] | None = None,
    parent_id: str | None = None,
    messages: Sequence[Draft] = (),
    recreate: int | None = None,
) -> Steps[Answer[Created]]:
    """See `Store.create`."""
    drafts = prepare_all(messages, limits, partial=False)
    birth = orders.birth(limits, id, title, metadata, parent_id, recreate, drafts)
    body = {"id": birth.id, "title": title, "metadata": Raw(birth.metadata_json.encode()), "parent_id": parent_id,
            "messages": sent_all(drafts, as_named=True), "recreate": recreate}  # fmt: skip
    reply = yield Exchange("POST", CONVERSATIONS, body=given(body))
    sent = reply.read(WrittenSent)
    return reply.answer(Created(conversation=sent.view, messages=sent.values))


def label(
    limits: Limits,
    id: str,
    *,
    title: str | msgspec.UnsetType | None = UNSET,
    metadata: dict[str, Any] | None = None,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Conversation]]:
    """See `Store.label`. Without `if_match` the state that is meant is looked up, so that a repeat undoes nothing newer."""
    body: dict[str, Any] = {} if title is UNSET else {"title": limits.title(title)}
    if metadata is not None:
        body["metadata"] = Raw(limits.json_object(metadata, "$.metadata").encode())
    orders.call(limits, id, token, incarnation, if_match)
    while True:
        seen = if_match or (yield from reads.get(limits, id, incarnation=incarnation)).tag
        exchange = Exchange("PATCH", address(id), headers=claims(token, incarnation, seen), body=body)
        try:
            reply = yield exchange
            return reply.answer(reply.read(ConversationSent).value())
        except OutcomeUnknown:
            there = yield from reads.get(limits, id, incarnation=incarnation)
            if title not in (UNSET, there.title) or not _merged(there.metadata, metadata):
                raise
            return Answer(value=there, replayed=True)
        except PreconditionFailed:
            if if_match is not None:
                raise


def delete(
    limits: Limits,
    id: str,
    *,
    force: bool = False,
    children: Children = "cascade",
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[None]]:
    """See `Store.delete`. A late copy must not hit a new life, so the life that is meant is looked up and named."""
    limits.one_of(children, ("cascade", "orphan"), "$.children")
    orders.call(limits, id, token, incarnation, if_match)
    if incarnation is None:
        incarnation = (yield from reads.get(limits, id)).incarnation
    query = {"force": force or None, "children": children}
    exchange = Exchange("DELETE", address(id), headers=claims(token, incarnation, if_match), query=query)
    try:
        reply = yield exchange
    except ConversationDeleted:
        if not exchange.again:
            raise
        return DONE
    return reply.done()


def append(
    limits: Limits,
    id: str,
    messages: Sequence[Draft],
    *,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[list[Message]]]:
    """See `Store.append`."""
    drafts = prepare_all(messages, limits, least=1, partial=token is not None)
    orders.call(limits, id, token, incarnation, if_match)
    reply = yield Exchange(
        "POST", address(id, "messages"), headers=claims(token, incarnation, if_match), body={"messages": sent_all(drafts)}
    )
    return reply.answer(reply.read(MessagesSent).values)


def put(
    limits: Limits,
    id: str,
    message: Draft,
    *,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
    only_create: bool = False,
) -> Steps[Answer[Saved]]:
    """See `Store.put`. Without token and precondition the state that is meant is looked up: a repeat undoes nothing newer."""
    orders.put(limits, id, message, token, incarnation=incarnation, if_match=if_match, only_create=only_create)
    draft = prepare(message, limits)
    free = token is None and if_match is None and not only_create
    while True:
        seen = (yield from _tag_of(limits, id, draft.id, incarnation)) if free else if_match
        headers = claims(token, incarnation, seen, only_create=only_create or (free and seen is None))
        exchange = Exchange("PUT", address(id, "messages", draft.id), headers=headers, body=_without_id(draft))
        try:
            reply = yield exchange
            return reply.answer(Saved(message=reply.read(MessageSent).value(), created=reply.status == CREATED))
        except PreconditionFailed as refused:
            if refused.same and (exchange.again or free):
                stored = yield from reads.message(limits, id, draft.id, incarnation=incarnation)
                if stored.version == refused.version:
                    return Answer(value=Saved(message=stored, created=False), replayed=True, lease=refused.lease)
            if not free:
                raise


def save_all(limits: Limits, saves: Sequence[Save]) -> Steps[list[Answer[Saved] | SessionStoreError]]:
    """See `Store.save_all`."""
    orders.saves(limits, saves)
    reply = yield Exchange("POST", "/v1/saves", body={"saves": [_save(save, limits) for save in saves]})
    return [_saved(result) for result in reply.read(SavesSent).results]


def label_message(
    limits: Limits,
    id: str,
    message_id: str,
    metadata: dict[str, Any],
    *,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Message]]:
    """See `Store.label_message`. Without a token or `if_match` the state that is meant is looked up."""
    limits.id(message_id, "$.message_id")
    body = {"metadata": Raw(limits.json_object(metadata, "$.metadata").encode())}
    orders.call(limits, id, token, incarnation, if_match)
    path = address(id, "messages", message_id)
    while True:
        seen = if_match or ((yield from _tag_of(limits, id, message_id, incarnation)) if token is None else None)
        exchange = Exchange("PATCH", path, headers=claims(token, incarnation, seen), body=body)
        try:
            reply = yield exchange
            return reply.answer(reply.read(MessageSent).value())
        except OutcomeUnknown:
            there = yield from reads.message(limits, id, message_id, incarnation=incarnation)
            if not _merged(there.metadata, metadata):
                raise
            return Answer(value=there, replayed=True)
        except PreconditionFailed:
            if if_match is not None or seen is None:
                raise


def delete_message(
    limits: Limits,
    id: str,
    message_id: str,
    *,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[None]]:
    """See `Store.delete_message`. The id is not used again, so a late copy finds nothing to harm."""
    limits.id(message_id, "$.message_id")
    orders.call(limits, id, token, incarnation, if_match)
    exchange = Exchange("DELETE", address(id, "messages", message_id), headers=claims(token, incarnation, if_match))
    try:
        reply = yield exchange
    except MessageDeleted:
        if not exchange.again:
            raise
        return DONE
    return reply.done()


def truncate(
    limits: Limits,
    id: str,
    *,
    after_position: int,
    through_position: int,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Truncated]]:
    """See `Store.truncate`."""
    limits.required_number(after_position, "$.after_position", least=-1)
    limits.required_number(through_position, "$.through_position", least=after_position)
    orders.call(limits, id, token, incarnation, if_match)
    body = {"after_position": after_position, "through_position": through_position}
    reply = yield Exchange("POST", address(id, "truncate"), headers=claims(token, incarnation, if_match), body=body)
    sent = reply.read(TruncatedSent)
    return reply.answer(Truncated(conversation=sent.view, removed=sent.removed))


def fork(
    limits: Limits,
    id: str,
    new: str | None = None,
    *,
    through_position: int | None = None,
    before_user_message: int | None = None,
    title: str | None = None,
    settled: bool = False,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Conversation]]:
    """See `Store.fork`."""
    order = forking.order(limits, new, through_position, before_user_message, title, settled=settled)
    orders.call(limits, id, token, incarnation, if_match)
    exchange = Exchange(
        "POST", address(id, "fork"), headers=claims(token, incarnation, if_match), body=given(msgspec.structs.asdict(order))
    )
    try:
        reply = yield exchange
    except ConversationExists as exists:
        if not (exchange.again and exists.same):
            raise
        return Answer(value=(yield from reads.get(limits, order.id)), replayed=True, lease=exists.lease)
    except ConversationDeleted as deleted:
        # The source may have gone after the copy was made.
        if not exchange.again or deleted.conversation_id != id:
            raise
        return Answer(value=(yield from reads.get(limits, order.id)), replayed=True)
    return reply.answer(reply.read(ViewSent).view)


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
        return DONE
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
    """See `Store.claim_inputs`. Only a claim that names its inputs is answered again, so those that wait are looked up."""
    named = limits.ids(ids)
    orders.call(limits, id, token, incarnation, if_match)
    headers = claims(token, incarnation, if_match)
    while True:
        if ids is None:
            waiting = yield from reads.inputs(limits, id, limit=limits.page, incarnation=incarnation)
            named = [item.message.id for item in waiting.items] or None
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


def sent_all(drafts: Sequence[Prepared], *, as_named: bool = False) -> list[dict[str, Any]]:
    """Messages as they are sent: each with an id, or, where the call itself is known again, with the caller's ids only."""
    return [sent_one(draft) if draft.named or not as_named else _without_id(draft) for draft in drafts]


def sent_one(draft: Prepared) -> dict[str, Any]:
    """A message as it is sent."""
    sent = {"id": draft.id, "role": draft.role, "content": Raw(draft.content_json.encode()), "status": draft.status}
    return sent if draft.metadata_json is None else {**sent, "metadata": Raw(draft.metadata_json.encode())}


def _without_id(draft: Prepared) -> dict[str, Any]:
    sent = sent_one(draft)
    del sent["id"]
    return sent


def _tag_of(limits: Limits, id: str, message_id: str, incarnation: int | None) -> Steps[Tag | None]:
    """The state of a message; None if there is none, and then the server knows better why."""
    try:
        return (yield from reads.message(limits, id, message_id, incarnation=incarnation)).tag
    except (MessageNotFound, MessageDeleted):
        return None


def _merged(there: dict[str, Any], patch: dict[str, Any] | None) -> bool:
    """Whether a patch has nothing left to do."""
    return patch is None or jsontext.merge_patch(there, patch) == there


def given(body: dict[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in body.items() if value is not None}


def _save(save: Save, limits: Limits) -> dict[str, Any]:
    draft = prepare(save.message, limits)
    if draft.metadata_json is not None:
        raise InvalidInput(reason="Saves carry no metadata; put does", path="$.saves")
    if_match = None if save.if_match is None else str(save.if_match)
    return given({"conversation_id": save.conversation_id, "message_id": draft.id, "token": save.token, "role": draft.role,
                  "content": Raw(draft.content_json.encode()), "status": draft.status, "if_match": if_match})  # fmt: skip


def _saved(result: SaveSent) -> Answer[Saved] | SessionStoreError:
    if result.problem is not None:
        error = error_in(result.problem) or UnexpectedAnswer(
            reason="a save has a problem that nobody knows", status=result.status
        )
        error.with_lease(result.lease)
        return error
    if result.message is None:
        raise UnexpectedAnswer(reason="a save has neither a message nor a problem")
    saved = Saved(message=result.message.value(), created=result.status == CREATED)
    return Answer(value=saved, replayed=result.replayed, lease=result.lease)


CREATED = 201
DONE = Answer(value=None, replayed=True)
