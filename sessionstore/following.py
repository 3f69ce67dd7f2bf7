"""What is followed: from one state to the next, whoever asks, however often, and whatever was missed in between.

A follower reads what has become different since the state that he knows. So he needs no event to be kept for him, and one who
was away for long, or is slow, is right again after one read.
"""

from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from sessionstore import feed
from sessionstore.feed import Expired
from sessionstore.limits import Limits
from sessionstore.model import Changes, ListChanges, ListPlace, Place, Tag
from sessionstore.reads import Reads
from sessionstore.transaction import Transaction
from sessionstore.watch import Topic

V = TypeVar("V", covariant=True)
S = TypeVar("S")
CHANGES_PER_EVENT = 100


class Followed(Protocol[S, V]):
    """Something that can be followed."""

    topic: Topic
    start: S

    def look(self, reads: Reads, seen: S) -> tuple[V, S] | None:
        """What is new since that state, and the state after it; None when nothing is."""


class Seen(NamedTuple):
    """What a follower of a conversation knows: its life, a state of it, how far he has read the page, who was told expired."""

    incarnation: int | None
    since: Tag | None
    place: Place | None = None
    expired: int | None = None
    begun: bool = False


class FollowedConversation:
    """One life of a conversation. Looking raises `ConversationDeleted` when it is over."""

    def __init__(self, owner: str, limits: Limits, id: str, since: Tag | None, incarnation: int | None) -> None:
        self.topic, self._id = Topic(owner, limits.id(id)), id
        self.start = Seen(limits.number(incarnation, "$.incarnation", least=1), since)

    def look(self, reads: Reads, seen: Seen) -> tuple[Changes, Seen] | None:
        """See `Followed`. The first look answers the state as it is, whatever has changed."""
        found = reads.changes(self._id, seen.since, next=seen.place, limit=CHANGES_PER_EVENT, incarnation=seen.incarnation)
        turn = found.conversation.generation
        expired = turn.number if turn is not None and turn.expired else None
        if seen.begun and seen.place is None and (seen.since, seen.expired) == (found.conversation.tag, expired):
            return None
        since = seen.since if found.next else found.since
        return found, Seen(found.conversation.incarnation, since, found.next, expired, begun=True)


class TurnSeen(NamedTuple):
    """What a follower of a conversation's turn knows: its life, whose turn it is, and what its holder has to know."""

    incarnation: int | None
    known: tuple[Any, ...] | None = None


class FollowedTurn:
    """What a holder has to know, and nothing that he has said himself: the conversation, without its messages."""

    def __init__(self, owner: str, limits: Limits, id: str, incarnation: int | None) -> None:
        self.topic, self._id = Topic(owner, limits.id(id)), id
        self.start = TurnSeen(limits.number(incarnation, "$.incarnation", least=1))

    def look(self, reads: Reads, seen: TurnSeen) -> tuple[Changes, TurnSeen] | None:
        """See `Followed`."""
        view = reads.get(self._id, incarnation=seen.incarnation)
        turn = view.generation
        holder = None if turn is None else (turn.number, turn.phase, turn.expired, turn.interrupt_requested)
        known = (holder, view.queued_inputs)
        if known == seen.known:
            return None
        return Changes(conversation=view, messages=[], reset=False, since=view.tag, next=None), TurnSeen(
            view.incarnation, known
        )


class ListSeen(NamedTuple):
    """What a follower of the list knows: everything up to a change, and who was told to have let his lease run out."""

    since: int | None
    next: ListPlace | None = None
    expired: Expired | None = None
    begun: bool = False


class FollowedList:
    """The list of conversations."""

    def __init__(self, owner: str, limits: Limits, since: int | None) -> None:
        self.topic = Topic(owner, None)
        self.start = ListSeen(limits.number(since, "$.since"))

    def look(self, reads: Reads, seen: ListSeen) -> tuple[ListChanges, ListSeen] | None:
        """See `Followed`."""

        def look(transaction: Transaction) -> tuple[ListChanges, ListSeen]:
            now = transaction.now()
            found = feed.list_changes(transaction, reads.owner, now, seen.since, seen.next, CHANGES_PER_EVENT)
            expired = feed.expired(transaction, reads.owner, now)
            # Who begins with the whole list sees there who has let his lease run out.
            known = seen.expired if seen.expired is not None else expired if found.reset else NOBODY
            if found.more:
                return found, ListSeen(found.change, found.next, known, begun=True)
            told = frozenset(sorted(expired ^ known)[:CHANGES_PER_EVENT])
            there = {conversation.incarnation for conversation in found.conversations}
            others = feed.living(transaction, sorted({pk for pk, _ in told} - there), now)
            found = msgspec.structs.replace(found, conversations=[*others, *found.conversations])
            return found, ListSeen(found.change, None, known ^ told, begun=True)

        found, after = reads.database.read(look)
        if seen.begun and not (found.conversations or found.deleted or found.reset or found.more):
            return None
        return found, after


NOBODY: Expired = frozenset()
