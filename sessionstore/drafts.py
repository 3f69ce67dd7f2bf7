"""Messages on their way in: checked, encoded and digested before any transaction begins (DESIGN.md, rule 1)."""

import sys
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sessionstore import jsontext
from sessionstore.errors import InvalidInput
from sessionstore.limits import Limits
from sessionstore.model import IfMatch, Status

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils import uuid7  # the native one: str() is all we want of it


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store. Give it an `id` of your own and a call that is repeated after a lost answer stores it once.

    `metadata` None means: none for a new message, unchanged for a stored one.
    """

    role: str
    content: Any
    id: str | None = None
    metadata: dict[str, Any] | None = None
    status: Literal["complete", "partial"] = "complete"


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the holder of a lease puts into its conversation, one of many. `if_match` is the message's tag."""

    conversation_id: str
    token: str
    message: Draft
    if_match: IfMatch | None = None

    def __repr__(self) -> str:
        # The token is a secret, and reprs end up in logs.
        return f"Save(conversation_id={self.conversation_id!r}, message_id={getattr(self.message, 'id', None)!r})"


class Batch(tuple["Prepared", ...]):
    """The drafts of one call, all checked."""

    __slots__ = ()


class Prepared(msgspec.Struct, frozen=True):
    """A draft that was checked and encoded. `named` says that the id is the caller's own."""

    id: str
    named: bool
    role: str
    content_json: str
    metadata_json: str | None
    status: Status
    digest: str


def new_id() -> str:
    """A UUIDv7 (RFC 9562 §5.7): unique without coordination, and later ones sort later."""
    return str(uuid7())


def prepare(draft: Draft | Prepared, limits: Limits) -> Prepared:
    """Check and encode one draft. Raises `InvalidInput` with the path to the fault, `$` being the draft."""
    if isinstance(draft, Prepared):
        return draft
    if not isinstance(draft, Draft):
        raise InvalidInput(reason="Expected a Draft")
    role = limits.role(draft.role, "$.role")
    content = limits.json(draft.content, "$.content")
    metadata = None if draft.metadata is None else limits.json_object(draft.metadata, "$.metadata")
    if draft.status not in ("complete", "partial"):
        raise InvalidInput(reason="A message is stored as complete or partial", path="$.status")
    message_id = new_id() if draft.id is None else limits.id(draft.id, "$.id")
    # A role needs no escape, so in quotes it is canonical.
    digest = jsontext.digest_of(
        f'"{role}"', jsontext.canonical(draft.content, content), jsontext.canonical(draft.metadata or {})
    )
    return Prepared(message_id, draft.id is not None, role, content, metadata, draft.status, digest)


def prepare_summary(draft: Draft | Prepared, limits: Limits) -> Prepared:
    """Check and encode a summary: it is whole. Raises `InvalidInput` with the path to the fault."""
    if getattr(draft, "status", "complete") != "complete":
        raise InvalidInput(reason="A summary is complete", path="$.summary.status")
    try:
        return prepare(draft, limits)
    except InvalidInput as error:
        raise error.under("$.summary") from None


def prepare_all(
    drafts: Sequence[Draft | Prepared],
    limits: Limits,
    *,
    least: int = 0,
    partial: bool = True,
    path: str = "$.messages",
) -> Batch:
    """Check and encode the drafts of one call; without a lease none may be `partial`. A batch is answered as it is."""
    if isinstance(drafts, Batch):
        return drafts
    limits.count(drafts, path, least=least)
    prepared: list[Prepared] = []
    seen: set[str] = set()
    for draft in drafts:
        try:
            prepared.append(prepare(draft, limits))
            _check_in_call(prepared[-1], seen, partial=partial)
        except InvalidInput as error:
            raise error.under(f"{path}[{len(seen)}]") from None
        seen.add(prepared[-1].id)
    return Batch(prepared)


def _check_in_call(draft: Prepared, seen: set[str], *, partial: bool) -> None:
    if draft.id in seen:
        raise InvalidInput(reason="An id stands twice in one call", path="$.id")
    if draft.status == "partial" and not partial:
        raise InvalidInput(reason="Only the holder of a lease stores partial messages", path="$.status")


def identity(drafts: Sequence[Prepared]) -> list[list[str | None]]:
    """What makes the messages of two calls the same: the caller's ids, the digests and the states."""
    return [[draft.id if draft.named else None, draft.digest, draft.status] for draft in drafts]


def size_of(drafts: Sequence[Prepared]) -> int:
    """About how many bytes these messages take."""
    size = 0
    for draft in drafts:
        size += len(draft.content_json) + len(draft.metadata_json or "")
    return size
