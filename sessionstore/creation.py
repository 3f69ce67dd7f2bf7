"""New lives: the one place that inserts a conversation, and what an id that was used before has to say to it."""

import time
from functools import partial
from typing import Any

import msgspec

from sessionstore import queries, statements
from sessionstore.errors import ConversationDeleted, ConversationExists, ConversationNotFound, OwnerFull
from sessionstore.life import Life, Row
from sessionstore.limits import Limits
from sessionstore.transaction import Counted, Transaction

MOST_COUNTED = 10_000
# So many times as long as a count took, nothing is counted for who had too many.
PACE = 20


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """What a new conversation begins with."""

    id: str
    title: str | None
    metadata_json: str
    create_digest: str
    parent_id: str | None = None
    forked_from: tuple[str, int] | None = None
    message_count: int = 0
    recreate: int | None = None


def living(transaction: Transaction, owner: str, id: str) -> Row | None:
    """The row of the living conversation of that id."""
    found = transaction.row(statements.LIFE, owner=owner, id=id)
    return None if found is None else Row(*found)


def newest_tombstone(transaction: Transaction, owner: str, id: str) -> int | None:
    """The incarnation of the newest deleted conversation of that id."""
    return transaction.row(statements.TOMBSTONE, owner=owner, id=id)[0]  # type: ignore[no-any-return]


def missing(transaction: Transaction, owner: str, id: str) -> ConversationNotFound | ConversationDeleted:
    """The error for an id that does not live: it never was, or it was deleted."""
    tombstone = newest_tombstone(transaction, owner, id)
    if tombstone is None:
        return ConversationNotFound(conversation_id=id)
    return ConversationDeleted(conversation_id=id, incarnation=tombstone)


def made_by(transaction: Transaction, row: Row, create_digest: str) -> bool:
    """Whether a living conversation was made by a call with this digest."""
    return bool(transaction.row(statements.CREATE_DIGEST, pk=row.pk)[0] == create_digest)


def give_birth(transaction: Transaction, birth: Birth, owner: str, limits: Limits) -> Life:
    """Insert a conversation of version 1, and answer its life.

    An id that lives is `ConversationExists`; one that was deleted is `ConversationDeleted` unless `recreate` names its newest
    tombstone; `recreate` of an id that never was is `ConversationNotFound`. So are a parent that never was, and a deleted one.
    """
    vacant = partial(check_vacant, transaction, owner, birth.id, birth.create_digest, birth.recreate)
    # First by what is there: its answer is the same whatever becomes of the parent.
    vacant()
    parent_pk = _parent_pk(transaction, owner, birth.parent_id)
    # Behind the first look, which keeps migrations away, and the wait for the parent.
    now = transaction.now()
    while _insert(transaction, birth, owner, now, parent_pk) is None:
        # Somebody was quicker.
        vacant()
    # Only now nobody else can take the id, and so only now its tombstones are all that there will be.
    check_buried(transaction, owner, birth.id, birth.recreate)
    life = Life(transaction, Row(*transaction.row(statements.LIFE, owner=owner, id=birth.id)), now, limits, owner, holds=False)
    life.changed = life.raised = True
    check_room(life)
    return life


def check_room(life: Life) -> None:
    """Raise `OwnerFull` when its owner has too many conversations with this one.

    They are counted when they may be too many: with no more lives given since the last count than there was room for, they are
    not. To count very many takes long, and everybody waits: who has too many is not counted again at once. On a server, what
    others were just making while it was counted is missed, and so the limit may be passed by that.
    """
    most, counted = life.limits.conversations_per_owner, life.transaction.counted
    known = counted.get(life.owner)
    if known is not None and known.living + life.row.pk - known.life <= most:
        return
    began = time.monotonic()
    if known is None or known.full_until <= began:
        living = life.transaction.row(statements.COUNT_LIVING, owner=life.owner, most=most + 1)[0]
        now = time.monotonic()
        if len(counted) >= MOST_COUNTED:
            counted.clear()
        counted[life.owner] = Counted(living, life.row.pk, now + PACE * (now - began) if living > most else 0.0)
        if living <= most:
            return
    raise OwnerFull(what="conversations", limit=most)


def note_deleted(life: Life) -> None:
    """One less: if that is undone, he has the room of one more until he is counted again."""
    known = life.transaction.counted.get(life.owner)
    if known is not None:
        life.transaction.counted[life.owner] = Counted(known.living - 1, known.life)


def _insert(transaction: Transaction, birth: Birth, owner: str, now: int, parent_pk: int | None) -> Any:
    """The row of its key, or None where another conversation of that id lives: who is making one just now is waited for."""
    forked_from_id, forked_from_position = birth.forked_from or (None, None)
    return transaction.row(
        statements.INSERT_CONVERSATION,
        owner=owner, id=birth.id, title=birth.title, metadata=birth.metadata_json, now=now,
        next_position=0 if forked_from_position is None else forked_from_position + 1,
        message_count=birth.message_count, create_digest=birth.create_digest, parent_pk=parent_pk,
        forked_from_id=forked_from_id, forked_from_position=forked_from_position,
    )  # fmt: skip


def _parent_pk(transaction: Transaction, owner: str, parent_id: str | None) -> int | None:
    if parent_id is None:
        return None
    parent = living(transaction, owner, parent_id)
    if parent is None:
        raise missing(transaction, owner, parent_id)
    return parent.pk


def check_vacant(transaction: Transaction, owner: str, id: str, create_digest: str, recreate: int | None = None) -> None:
    """Raise what an id that was used before has to say to a new conversation: see `give_birth`."""
    there = living(transaction, owner, id)
    if there is not None:
        same = made_by(transaction, there, create_digest)
        raise ConversationExists(conversation_id=id, incarnation=there.pk, same=same)
    check_buried(transaction, owner, id, recreate)


def check_free(transaction: Transaction, owner: str, id: str) -> None:
    """Raise what an id that lives or was deleted has to say; looked up without a lock, so only the first of two looks."""
    there = transaction.row(queries.INCARNATION, owner=owner, id=id)
    if there is not None:
        raise ConversationExists(conversation_id=id, incarnation=there[0])
    check_buried(transaction, owner, id, None)


def check_buried(transaction: Transaction, owner: str, id: str, recreate: int | None) -> None:
    """Raise what the tombstones of an id have to say to a new conversation: see `give_birth`."""
    tombstone = newest_tombstone(transaction, owner, id)
    if tombstone is None and recreate is not None:
        raise ConversationNotFound(conversation_id=id)
    if tombstone != recreate and tombstone is not None:
        raise ConversationDeleted(conversation_id=id, incarnation=tombstone)
