"""Deletion: a conversation becomes a tombstone, its messages are gone, its living descendants go with it or become roots."""

from collections.abc import Iterator

from sessionstore import statements
from sessionstore.creation import note_deleted
from sessionstore.errors import Generating
from sessionstore.life import Life, Row
from sessionstore.model import Children


def bury(life: Life, children: Children, *, force: bool, erase: bool = True) -> None:
    """Delete a conversation. A descendant that is being generated refuses it (`Generating` names it), unless forced.

    Without `erase` the messages are left for later; nobody sees those of a tombstone.
    """
    if children == "cascade":
        for descendant in list(_descendants(life)):
            if descendant.live and not force:
                raise generating(descendant)
            _entomb(descendant, erase=erase)
    else:
        for child in _children(life, life.row.pk):
            _orphan(child)
    _entomb(life, erase=erase)


def generating(life: Life) -> Generating:
    """The polite refusal: who holds the lease, and until when."""
    row = life.row
    expires_at = row.lease_expires_at or life.now
    return Generating(
        conversation_id=row.id,
        holder=life.stored.turn(row.generation or 0).holder,
        generation=row.generation or 0,
        expires_at=expires_at,
        retry_after_ms=max(1, expires_at - life.now),
    )


def _descendants(life: Life) -> Iterator[Life]:
    waiting = [life.row.pk]
    while waiting:
        for child in _children(life, waiting.pop()):
            waiting.append(child.row.pk)
            yield child


def _children(life: Life, pk: int) -> Iterator[Life]:
    for (child,) in life.transaction.rows(statements.CHILDREN, pk=pk):
        row = life.transaction.row(statements.LIFE_BY_PK, pk=child)
        # Who held its lock may have deleted it.
        if row is not None:
            yield Life(life.transaction, Row(*row), life.now, life.limits, life.owner, holds=False)


def _orphan(child: Life) -> None:
    child.transaction.do(statements.ORPHAN, at=child.row.pk)
    child.raise_version()
    child.write_back()


def _entomb(life: Life, *, erase: bool) -> None:
    row = life.row
    if row.generation is not None:
        life.end_generation("deleted")
    life.raise_version()
    row.message_count = row.queued_count = 0
    if erase:
        life.transaction.removed = True
        life.transaction.do(statements.FORGET_MESSAGES, pk=row.pk)
    life.transaction.do(statements.FORGET_TURNS, pk=row.pk)
    life.write_back()
    life.transaction.do(statements.BURY, at=row.pk, now=life.now)
    life.buried = True
    note_deleted(life)
