"""What calls ask for, checked and put in order before any transaction begins."""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from sessionstore import jsontext, repeats
from sessionstore.creation import Birth
from sessionstore.door import Call, Passage
from sessionstore.drafts import Draft, Prepared, Save, identity, new_id, prepare, prepare_all, size_of
from sessionstore.errors import InvalidInput
from sessionstore.items import Fold, Lane
from sessionstore.limits import Limits
from sessionstore.model import Answer, IfBusy, IfMatch, Saved
from sessionstore.unguarded import AcquireOrder

SAVES_PER_CALL = 64


def hash_token(token: str) -> str:
    """What is stored of a token: SHA-256, enough for a secret of 128 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()


def call(
    limits: Limits,
    id: str,
    token: str | None,
    incarnation: int | None,
    if_match: IfMatch | None = None,
    *,
    must_hold: bool = False,
    lane: Lane = Lane.GROUPED,
    size: int = 0,
    path: str = "$.id",
    fold: Fold | None = None,
) -> Call:
    """What the door judges."""
    return Call(
        id=limits.id(id, path),
        token_hash=None if token is None else hash_token(limits.token(token)),
        incarnation=limits.number(incarnation, "$.incarnation", least=1),
        if_match=if_match,
        must_hold=must_hold,
        lane=lane,
        size=size,
        fold=fold,
    )


def _superseded(answer: Answer[Saved]) -> Answer[Saved]:
    """What a partial message is told that a newer one has overtaken in the queue: the newer one, which it has not created."""
    return msgspec.structs.replace(answer, value=msgspec.structs.replace(answer.value, created=False), replayed=False)


def birth(
    limits: Limits,
    id: str | None,
    title: str | None,
    metadata: dict[str, Any] | None,
    parent_id: str | None,
    recreate: int | None,
    drafts: Sequence[Prepared],
) -> Birth:
    """A create."""
    labels = {} if metadata is None else metadata
    checked_title, metadata_json = limits.title(title), limits.json_object(labels, "$.metadata")
    parent = None if parent_id is None else limits.id(parent_id, "$.parent_id")
    return Birth(
        id=new_id() if id is None else limits.id(id),
        title=checked_title,
        metadata_json=metadata_json,
        parent_id=parent,
        create_digest=jsontext.digest("create", checked_title, labels, parent, identity(drafts)),
        recreate=limits.number(recreate, "$.recreate", least=1),
    )


def acquire(
    limits: Limits,
    holder: str,
    token: str | None,
    ttl_ms: int | None,
    if_busy: IfBusy,
    messages: Sequence[Draft],
    if_match: IfMatch | None,
) -> AcquireOrder:
    """An acquire; without a token of the caller's, one is made."""
    limits.one_of(if_busy, ("reject", "interrupt", "rollback"), "$.if_busy")
    drafts = prepare_all(messages, limits, partial=False)
    token = secrets.token_urlsafe(32) if token is None else limits.token(token)
    return AcquireOrder(
        holder=limits.holder(holder),
        token=token,
        token_hash=hash_token(token),
        ttl_ms=limits.ttl_or_default(ttl_ms),
        if_busy=if_busy,
        messages=drafts,
        begin_digest=jsontext.digest("acquire", identity(drafts)),
        if_match=if_match,
    )


def put(
    limits: Limits,
    id: str,
    message: Draft,
    token: str | None,
    *,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
    only_create: bool = False,
    path: str = "$.id",
) -> Passage[Saved]:
    """A put: what the door judges, the change, and what knows its repeats."""
    if getattr(message, "id", None) is None:
        raise InvalidInput(reason="A message is put under an id", path="$.id")
    if message.status == "partial" and token is None:
        raise InvalidInput(reason="Only the holder of a lease stores partial messages", path="$.status")
    draft, fold = prepare(message, limits), None
    if token is not None and draft.status == "partial" and if_match is None and not only_create:
        fold = Fold((id, draft.id, token, incarnation, draft.metadata_json), _superseded)
    return (
        call(limits, id, token, incarnation, size=size_of([draft]), path=path, fold=fold),
        lambda conversation: conversation.put(draft, if_match=if_match, only_create=only_create),
        repeats.put(draft, if_match, only_create=only_create),
    )


def saves(limits: Limits, saves: Sequence[Save]) -> list[Passage[Saved]]:
    """The puts of one call."""
    if not isinstance(saves, list | tuple) or not 1 <= len(saves) <= SAVES_PER_CALL:
        raise InvalidInput(reason=f"A call carries 1 to {SAVES_PER_CALL} saves", path="$.saves")
    passages = []
    for index, save in enumerate(saves):
        try:
            passages.append(_save(limits, save))
        except InvalidInput as error:
            named = "$.message_id" if error.path == "$.id" else error.path
            raise type(error)(reason=error.reason, path=named).under(f"$.saves[{index}]") from None
    return passages


def _save(limits: Limits, save: Save) -> Passage[Saved]:
    if not isinstance(save, Save):
        raise InvalidInput(reason="Expected a Save")
    if save.token is None:
        raise InvalidInput(reason="A save is made with a token", path="$.token")
    return put(limits, save.conversation_id, save.message, save.token, if_match=save.if_match, path="$.conversation_id")
