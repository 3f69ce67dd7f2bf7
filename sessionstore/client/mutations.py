"""The calls that change conversations and messages, as requests.

Each can be repeated after a lost answer and happens once: ids and tokens are made here where the caller gives none, a call that
means a life or a turn names it, and what a repeat finds done already is the answer.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from sessionstore import forking, jsontext, orders
from sessionstore.client import reads
from sessionstore.client.bodies import given, sent_all, without_id
from sessionstore.client.exchange import CONVERSATIONS, DONE_BEFORE, Exchange, Steps, address, claims
from sessionstore.client.problems import error_in
from sessionstore.client.wire import (
    ConversationSent,
    MessageSent,
    MessagesSent,
    SaveSent,
    SavesSent,
    TruncatedSent,
    ViewSent,
    WrittenSent,
)
from sessionstore.drafts import Draft, Save, prepare, prepare_all
from sessionstore.errors import (
    ConversationDeleted,
    ConversationExists,
    InvalidInput,
    MessageDeleted,
    MessageNotFound,
    OutcomeUnknown,
    PreconditionFailed,
    SessionStoreError,
    UnexpectedAnswer,
)
from sessionstore.limits import Limits
from sessionstore.model import (
    Answer,
    Children,
    Conversation,
    Created,
    IfMatch,
    Message,
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
        return DONE_BEFORE
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
        exchange = Exchange("PUT", address(id, "messages", draft.id), headers=headers, body=without_id(draft))
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
        return DONE_BEFORE
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
    through_message: str | None = None,
    before_message: str | None = None,
    title: str | None = None,
    settled: bool = False,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Conversation]]:
    """See `Store.fork`."""
    point = forking.point(limits, through_position, before_user_message, through_message, before_message)
    order = forking.order(limits, new, point, title, settled=settled)
    orders.call(limits, id, token, incarnation, if_match)
    body = {"id": order.id, "title": order.title, "settled": order.settled, **point._asdict()}
    exchange = Exchange("POST", address(id, "fork"), headers=claims(token, incarnation, if_match), body=given(body))
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


def _tag_of(limits: Limits, id: str, message_id: str, incarnation: int | None) -> Steps[Tag | None]:
    """The state of a message; None if there is none, and then the server knows better why."""
    try:
        return (yield from reads.message(limits, id, message_id, incarnation=incarnation)).tag
    except (MessageNotFound, MessageDeleted):
        return None


def _merged(there: dict[str, Any], patch: dict[str, Any] | None) -> bool:
    """Whether a patch has nothing left to do."""
    return patch is None or jsontext.merge_patch(there, patch) == there


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
