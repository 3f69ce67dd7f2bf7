"""What goes on: following conversations, and generating in one."""

from collections.abc import Callable, Sequence

from sessionstore.database import Database
from sessionstore.door import Door
from sessionstore.drafts import Draft
from sessionstore.errors import Closed, SchemaChanged, SessionStoreError, StorageFailed
from sessionstore.events import Events
from sessionstore.following import FollowedConversation, FollowedList
from sessionstore.limits import Limits
from sessionstore.liveturn import Alarm, LiveTurn
from sessionstore.model import Changes, IfBusy, IfMatch, ListChanges, Tag
from sessionstore.ongoing import Ongoing
from sessionstore.turns import Turns
from sessionstore.watch import News, Topic, Watch


class Live(Turns):
    """The part of a store that is about what goes on. What all calls share is said in `sessionstore.store`."""

    final: tuple[type[SessionStoreError], ...] = (Closed, StorageFailed, SchemaChanged)
    """What ends every turn of this store: it answers no more."""

    def __init__(self, database: Database, door: Door, limits: Limits) -> None:
        super().__init__(database, door, limits)
        self.watch, self.turns = Watch(database), Ongoing()

    def events(self, id: str, since: Tag | None = None, *, incarnation: int | None = None) -> Events[Changes]:
        """Follow a conversation: its state as it is now, then each change when it comes, until it is deleted.

        Each event is as `changes` answers it: rows as they are now, and not a log. With `since` (the `since` of the last event
        that you had) the first one has only what changed meanwhile; deleted and made anew, it is `reset`. Events of one moment
        may come as one; a large one comes in pages, of which all but the last have a `next`. That a lease has run out is told
        within a quarter of a second. Iterating raises `ConversationNotFound`, `ConversationDeleted`, and `Closed`.
        """
        return Events(self, self.watch, FollowedConversation(self.owner, self.limits, id, since, incarnation))

    def list_events(self, since: int | None = None) -> Events[ListChanges]:
        """Follow the list of conversations: what `list_changes` answers now, then each change when it comes."""
        return Events(self, self.watch, FollowedList(self.owner, self.limits, since))

    def generate(
        self,
        id: str,
        holder: str,
        *,
        messages: Sequence[Draft] = (),
        if_busy: IfBusy = "reject",
        ttl_ms: int | None = None,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> LiveTurn:
        """A turn, from its first message to its last: use it in a `with`, and nobody else writes meanwhile.

            with store.generate("garden", "worker-1", messages=[Draft(role="user", content="Any basil?")]) as turn:
                text = ""
                for word in model(store.context("garden").messages):
                    text += word
                    turn.save("reply-1", text)
                    if turn.interrupted:
                        break

        On entering, `messages` are stored and the lease is taken, both or neither; raises `Generating` while another turn goes
        on, unless `if_busy` says to interrupt it or to roll it back (see `acquire`).

        The lease is kept for you: a thread renews it at a third of `ttl_ms` (30 s), however long your model thinks, however
        long your event loop stands still, and also after the machine has slept. If your process dies, the lease runs out by
        itself and what you had saved is kept, marked `interrupted`.

        In between, `save` stores a reply as it grows, `append` what a tool said, and `inputs` answers what users had queued for
        this turn. `interrupted` is true as soon as somebody wants it to stop; `stopped` is the same as something to wait for.
        When somebody else has ended the turn, `stopped` is set at once, and the next call raises `LeaseLost`, or
        `ConversationDeleted`; nothing that you do then changes anything.

        On leaving, the turn ends: `completed`, and what was still growing is complete; `interrupted` when that was asked for,
        or when you were cancelled; `failed` when an exception leaves, which is raised on. Call `finish` to say more: last
        messages, `usage`, another outcome, or `unless_inputs`, which refuses (`InputsPending`) while something waits for you.
        """
        ttl = self.limits.ttl_or_default(ttl_ms)
        return LiveTurn(
            self, self, id, holder, token=token, ttl_ms=ttl, messages=messages, if_busy=if_busy, incarnation=incarnation,
            if_match=if_match,
        )  # fmt: skip

    def heed(self, id: str, generation: int, alarm: Alarm) -> Callable[[], None]:
        """Have `alarm` called when something may have happened to a turn, in the watcher's thread. Answers what ends that."""
        topic = Topic(self.owner, id)
        known: tuple[int | None, int | None, int] = (generation, None, 0)

        def tell(news: News | None) -> None:
            nonlocal known
            seen = known if news is None else (news.generation, news.interrupt_requested_at, news.queued_inputs)
            if news is None or seen != known:
                known = seen
                alarm()

        self.watch.subscribe(topic, tell)
        return lambda: self.watch.unsubscribe(topic, tell)
