"""Forgetting: what is older, or more, than is wanted goes, piece by piece, and others come between the pieces.

No piece holds the write lock for longer than some milliseconds. A conversation is gone at once, for everybody, and its messages
are erased after that; who dies in between leaves messages of a tombstone, which nobody sees and the next one erases.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from sessionstore import bulk, burial, orders, queries
from sessionstore.contexts import CALLED_WITHIN, Walk
from sessionstore.conversation import GuardedConversation
from sessionstore.database import Database
from sessionstore.door import Door
from sessionstore.errors import ConversationDeleted, ConversationNotFound, Generating, PreconditionFailed
from sessionstore.items import Lane
from sessionstore.limits import Limits
from sessionstore.model import Message, Pruned, Tag
from sessionstore.transaction import Transaction

DAY_MS = 86_400_000
ALL = 2**62
TOMBSTONES_MS = 30 * DAY_MS
# An import that was not heard of for so long is none any more.
ABANDONED_MS = 3_600_000
PIECE_SECONDS = 0.005
MOST_AT_ONCE = 64
POSITIONS_AT_ONCE = 8
TURNS_AT_ONCE = 500
TRIES = 5
LOOKED_AT_ONCE = 100
OTHERWISE_ENGAGED = (Generating, ConversationDeleted, ConversationNotFound, PreconditionFailed)


class Retention(NamedTuple):
    """What is kept; None is everything. Ages are milliseconds."""

    older_than_ms: int | None = None
    keep: int | None = None
    messages_older_than_ms: int | None = None
    keep_messages: int | None = None
    tombstones_older_than_ms: int | None = TOMBSTONES_MS

    def check(self, limits: Limits) -> None:
        """Raise `InvalidInput` for what is no age and no number."""
        for name, value in self._asdict().items():
            limits.number(value, f"$.{name}", least=1 if name == "keep_messages" else 0)


class Forgetting:
    """One run over the conversations of one owner."""

    def __init__(self, database: Database, door: Door, now: int, limits: Limits) -> None:
        self._database, self._door, self._now, self._limits = database, door, now, limits

    def would_prune(self, retention: Retention) -> Pruned:
        """What a run would do now, besides what it finds leased. Changes nothing."""
        families = list(self._families(retention))
        going = {pk for family in families for pk in self._members(family)}
        found = (self._cut_of(*named, retention) for named in self._long_or_old(retention) if named[0] not in going)
        cuts = [cut for cut in found if cut is not None]
        tombstones = len(self._tombstones(retention))
        return Pruned(
            conversations=sum(family.members for family in families),
            messages=sum(family.messages for family in families) + sum(cut.messages for cut in cuts),
            tombstones=tombstones,
        )

    def prune(self, retention: Retention) -> Iterator[Pruned]:
        """Forget, and tell after each piece what it was."""
        yield from self._erase(self._abandoned())
        for family in list(self._families(retention)):
            yield from self._bury(family)
        for named in self._long_or_old(retention):
            yield from self._shorten(*named, retention)
        self._database.catch_search_up()
        yield from self._forget_tombstones(retention)

    @property
    def is_needed(self) -> bool:
        """Whether something that was deleted is still to be erased: somebody else is just doing that."""
        return bool(self._abandoned())

    def erase_abandoned(self) -> None:
        """Erase what those have left behind who died while they erased, or while they imported."""
        for _ in self._erase(self._abandoned()):
            pass

    # Conversations -------------------------------------------------------------------------------------------------------

    def _families(self, retention: Retention) -> Iterator["Family"]:
        """Conversations with all that came from them, of which every one is old, or which are too many, the oldest first."""
        if (retention.older_than_ms, retention.keep) == (None, None):
            return
        old = -1 if retention.older_than_ms is None else self._now - retention.older_than_ms
        keep = ALL if retention.keep is None else retention.keep
        asked = {"owner": self._door.owner, "old": old, "keep": keep}
        rows = self._database.read(lambda transaction: transaction.rows(bulk.FAMILIES, **asked))
        yield from (Family(*row) for row in rows)

    def _bury(self, family: "Family") -> Iterator[Pruned]:
        """Delete a family that nobody holds, if nothing has happened to it since it was looked at."""

        def change(conversation: GuardedConversation) -> list[int]:
            members = conversation.transaction.rows(bulk.FAMILY, pk=family.pk)
            if max(change for _, change in members) != family.newest:
                raise PreconditionFailed(version=conversation.row.version)
            burial.bury(conversation, "cascade", force=False, erase=False)
            return [pk for pk, _ in members]

        call = orders.call(self._limits, family.id, None, family.pk, lane=Lane.ALONE)
        try:
            buried = self._door.guarded(call, change).value
        except OTHERWISE_ENGAGED:
            yield Pruned(skipped=1)
            return
        yield Pruned(conversations=len(buried))
        yield from self._erase(buried)

    def _members(self, family: "Family") -> list[int]:
        return [pk for pk, _ in self._database.read(lambda transaction: transaction.rows(bulk.FAMILY, pk=family.pk))]

    def _abandoned(self) -> list[int]:
        asked = {"owner": self._door.owner, "until": self._now - ABANDONED_MS}
        return [pk for (pk,) in self._database.read(lambda transaction: transaction.rows(bulk.ABANDONED, **asked))]

    def _erase(self, pks: list[int]) -> Iterator[Pruned]:
        for pk in pks:
            for erased in erase(self._database, pk):
                yield Pruned(messages=erased)

    # Messages ------------------------------------------------------------------------------------------------------------

    def _long_or_old(self, retention: Retention) -> list[tuple[int, str]]:
        """Conversations whose beginnings may have to go."""
        if (retention.messages_older_than_ms, retention.keep_messages) == (None, None):
            return []
        asked = {"owner": self._door.owner, **self._bounds(retention)}
        return self._database.read(lambda transaction: transaction.rows(bulk.LONG_OR_OLD, **asked))

    def _bounds(self, retention: Retention) -> dict[str, int]:
        old = -1 if retention.messages_older_than_ms is None else self._now - retention.messages_older_than_ms
        return {"old": old, "keep": ALL if retention.keep_messages is None else retention.keep_messages}

    def _cut_of(self, pk: int, id: str, retention: Retention) -> "Cut | None":
        bounds = self._bounds(retention)
        return self._database.read(lambda transaction: _cut(transaction, pk, id, bounds["old"], bounds["keep"]))

    def _shorten(self, pk: int, id: str, retention: Retention) -> Iterator[Pruned]:
        """Delete a beginning piece by piece; what has changed in between is looked at again. Summaries stay."""
        for _ in range(TRIES):
            cut = self._cut_of(pk, id, retention)
            if cut is None:
                return
            try:
                for forgotten in self._forget(cut):
                    yield Pruned(messages=forgotten)
            except PreconditionFailed:
                continue
            except OTHERWISE_ENGAGED:
                break
            return
        yield Pruned(skipped=1)

    def _forget(self, cut: "Cut") -> Iterator[int]:
        after, tag = cut.first - 1, cut.tag
        while after < cut.last:
            call = orders.call(self._limits, cut.id, None, cut.pk, tag, lane=Lane.ALONE)
            forgotten, after, version = self._door.guarded(call, partial(_forget_piece, after=after, last=cut.last)).value
            tag = Tag(cut.pk, version)
            yield forgotten

    # Tombstones ----------------------------------------------------------------------------------------------------------

    def _tombstones(self, retention: Retention) -> list[int]:
        if retention.tombstones_older_than_ms is None:
            return []
        asked = {"owner": self._door.owner, "until": self._now - retention.tombstones_older_than_ms}
        return [pk for (pk,) in self._database.read(lambda transaction: transaction.rows(bulk.OLD_TOMBSTONES, **asked))]

    def _forget_tombstones(self, retention: Retention) -> Iterator[Pruned]:
        waiting = self._tombstones(retention)
        while waiting:
            forgotten, waiting = self._database.write(partial(_forget_some, waiting=waiting), Lane.ALONE)
            yield Pruned(tombstones=forgotten)


class Family(NamedTuple):
    """A root with all that came from it: its newest change, how many there are, and how many messages they have."""

    pk: int
    id: str
    newest: int
    members: int
    messages: int


class Cut(NamedTuple):
    """The beginning of a conversation that is to go: its first and last position, how many messages that is, and as of when."""

    pk: int
    id: str
    first: int
    last: int
    messages: int
    tag: Tag


def erase(database: Database, pk: int) -> Iterator[int]:
    """Erase the messages of a tombstone, and tell after each piece how many they were."""
    while erased := database.write(lambda transaction: _erase_piece(transaction, pk), Lane.ALONE):
        yield erased


def _erase_piece(transaction: Transaction, pk: int) -> int:
    end, erased, count = time.monotonic() + PIECE_SECONDS, 0, 1
    if transaction.row(bulk.IS_TOMBSTONE, pk=pk) is None:
        return 0
    transaction.removed = True
    # An import that is taken for abandoned must not go on.
    transaction.run(bulk.GIVE_UP_ARRIVAL, at=pk)
    while piece := transaction.run(bulk.ERASE_MESSAGES, pk=pk, count=count):
        erased += piece
        if time.monotonic() > end:
            break
        # The first one says whether they are large.
        count = MOST_AT_ONCE if time.monotonic() < end - PIECE_SECONDS / 2 else 1
    return erased


def _forget_piece(conversation: GuardedConversation, after: int, last: int) -> tuple[int, int, int]:
    """Forget from a position on, as long as a piece takes. Answers how many, up to where, and the version then."""
    end, forgotten = time.monotonic() + PIECE_SECONDS, 0
    while after < last and (not forgotten or time.monotonic() < end):
        through = min(after + POSITIONS_AT_ONCE, last)
        forgotten += conversation.forget(after, through)
        after = through
    return forgotten, after, conversation.row.version


def _forget_some(transaction: Transaction, waiting: list[int]) -> tuple[int, list[int]]:
    """Forget tombstones as long as a piece takes. Answers how many, and which still wait."""
    end, forgotten = time.monotonic() + PIECE_SECONDS, 0
    for index, pk in enumerate(waiting):
        if index and time.monotonic() > end:
            return forgotten, waiting[index:]
        done = _forget_tombstone(transaction, pk)
        if done is None:
            return forgotten, waiting[index:]
        forgotten += done
    return forgotten, []


def _forget_tombstone(transaction: Transaction, pk: int) -> int | None:
    """Delete a tombstone with its turns; what the feed of the list cannot tell any more is noted. None: it is not done yet."""
    row = transaction.row(bulk.IS_TOMBSTONE, pk=pk)
    if row is None or transaction.row(bulk.HAS_TRACES, pk=pk) is not None:
        return 0
    owner, change = row[1], row[2]
    if transaction.run(bulk.FORGET_LOG, pk=pk, count=TURNS_AT_ONCE) == TURNS_AT_ONCE:
        return None
    transaction.run(bulk.NOTE_PRUNED, owner=owner, change=change)
    transaction.run(bulk.FORGET_PARENT, pk=pk)
    return transaction.run(bulk.FORGET_CONVERSATION, pk=pk)


def _cut(transaction: Transaction, pk: int, conversation_id: str, old: int, keep: int) -> Cut | None:
    """The beginning that is to go: whole turns, so that what is left begins with one."""
    life = transaction.row(bulk.VERSION, pk=pk)
    first = transaction.row(bulk.FIRST_POSITION, pk=pk)
    if first is None or life is None:
        return None
    kept = transaction.row(bulk.NTH_NEWEST, pk=pk, skipped=keep - 1)
    young = transaction.row(bulk.FIRST_YOUNG, pk=pk, old=old)
    end = transaction.row(bulk.LAST_POSITION, pk=pk)
    wanted = max(-1 if kept is None else kept[0], young[0] if young is not None else end[0] + 1)
    last = _border(transaction, pk, wanted) - 1
    count = transaction.row(bulk.COUNT_THROUGH, pk=pk, through=last)[0]
    return Cut(pk, conversation_id, first[0], last, count, Tag(pk, life[0])) if count else None


def _border(transaction: Transaction, pk: int, wanted: int) -> int:
    """The last position up to there at which a turn begins; behind the last message there is one as well."""
    statement = queries.list_messages(descending=True, summaries=False)
    walk, before = Walk(), wanted + LOOKED_AT_ONCE
    if not transaction.rows(statement, pk=pk, after=wanted - 1, before=ALL, count=1):
        return wanted
    while rows := transaction.rows(statement, pk=pk, after=-1, before=before, count=LOOKED_AT_ONCE):
        for row in rows:
            walk.meet(Message(*row))
        found = _first_border(walk, wanted)
        if found and (walk.is_settled or len(walk.messages) > found + CALLED_WITHIN):
            break
        before = walk.messages[-1].position or 0
    found = _first_border(walk, wanted)
    return (walk.messages[found - 1].position or 0) if found else 0


def _first_border(walk: Walk, wanted: int) -> int:
    """Behind how many messages the first turn begins that is old enough; 0 where none does."""
    return next((number for number in walk.borders() if (walk.messages[number - 1].position or 0) <= wanted), 0)
