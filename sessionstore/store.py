"""The store: what programs call. Every method is one transaction, or one snapshot, and is safe to call from any thread.

Calls that come at the same time share a transaction: each is judged and applied by itself, in a savepoint of its own, and
answered after the COMMIT. What one of them raises undoes that one alone.

All mutations take these, none is required:

- `token`: the lease token of the caller's turn. With it the lease is renewed; a token that holds no lease is `LeaseLost`.
  Without it, a guarded mutation is `Generating` while somebody else's turn goes on.
- `incarnation`: the life of the conversation that is meant; another one is `ConversationDeleted`.
- `if_match`: the state that the caller has seen (`conversation.tag`); another one is `PreconditionFailed`.

Every mutation raises `ConversationNotFound`, `ConversationDeleted`, `InvalidInput` and the children of `Unavailable`.
"""

import copy as copies
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from sessionstore import copying, forking, migrate, orders, repeats
from sessionstore.conversation import GuardedConversation
from sessionstore.database import Database
from sessionstore.door import Carry, Door
from sessionstore.drafts import Draft, Save, prepare_all, prepare_summary, size_of
from sessionstore.engines import Synchronous, open_database
from sessionstore.errors import SessionStoreError
from sessionstore.items import Lane
from sessionstore.limits import Limits
from sessionstore.model import (
    Answer,
    Children,
    Compacted,
    Conversation,
    Copied,
    Created,
    IfMatch,
    Message,
    Restored,
    Saved,
    Truncated,
    Undone,
)
from sessionstore.sqlite import backups
from sessionstore.tracing import traced
from sessionstore.transaction import system_clock
from sessionstore.undoing import run, undo
from sessionstore.upkeep import Upkeep

T = TypeVar("T")
DEFAULT_LIMITS = Limits()

UNGUARDED = (
    "acquire", "cancel_input", "create", "delete_by_force", "fork_settled", "interrupt", "label", "queue_inputs"
)  # fmt: skip
"""The closed list: everything that may happen to a conversation while somebody else is generating it."""


def restore(backup: Path | str, url: str, *, keep_keys: bool = False, clock: Callable[[], int] = system_clock) -> Restored:
    """Make a backup the database of a URL, where none is: never over one, live or not. Brings it to the newest schema.

    The backup stays as it is. Conversations begin new lives, and what was being generated when it was made is interrupted:
    nobody who has seen what came after it takes the one for the other. Its keys are revoked, since some of them may have been
    after it was made; `keep_keys` says that none was. `faults` says which invariants are broken in it: then
    `repair` it. Raises `BackupUnusable` and `DatabaseUnusable`.
    """
    return backups.restore(Path(backup), url, clock(), migrate.upgrade, keep_keys=keep_keys)


def copy(source: str, target: str, *, progress: Callable[[Copied], Any] | None = None) -> Copied:
    """Copy the database of one URL into that of another, which is empty: from a file to a server, say, or back.

    Every row is as it was in the moment in which this began: lives, versions, turns, tombstones, leases that are held. Who had
    a tag, a cursor or a token goes on with it. What is written to the source after that moment is not in the copy, so stop what
    writes there first. A copy that was interrupted goes on where it was when it is begun again, and nobody can open the target
    before it is whole. Raises `DatabaseUnusable` for a target that is not empty, or is half of another copy.
    """
    return copying.copy(source, target, progress)


class Store(Upkeep):
    """A session store on one database. Use `Store.open`, and close it: it is a context manager."""

    def __init__(
        self,
        database: Database,
        *,
        owner: str = "",
        limits: Limits = DEFAULT_LIMITS,
        carry: Carry | None = None,
    ) -> None:
        super().__init__(database, Door(carry or traced(database.write), limits.owner(owner), limits), limits)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        owner: str = "",
        migrate_first: bool = False,
        synchronous: Synchronous = "full",
        busy_timeout_ms: int = 5_000,
        max_waiting: int = 1_024,
        clock: Callable[[], int] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """Open the database of a URL like `sqlite:///conversations.db`, or `postgresql://store@db.example/conversations`.

        A file is created and brought to the newest schema only with `migrate_first`. Raises `SchemaBehind`, `SchemaAhead`,
        `NotADatabase`, `UnsupportedUrl`, `Busy`. `synchronous="normal"` may lose the last commits at a power failure.
        A call that cannot begin within `busy_timeout_ms`, or that finds `max_waiting` others waiting, raises `Busy`.
        It is the store of one `owner`, to whom nobody else's conversations exist; see `of`.
        """
        if migrate_first:
            migrate.upgrade(url, busy_timeout_ms=busy_timeout_ms)
        database = open_database(
            url, synchronous=synchronous, busy_timeout_ms=busy_timeout_ms, max_waiting=max_waiting, clock=clock
        )
        try:
            migrate.verify(database)
            database.expect(migrate.HEAD)
        except BaseException:
            database.close()
            raise
        return cls(database, owner=owner, limits=limits)

    def of(self, owner: str) -> Self:
        """The same database for another owner: others' conversations are not there for him, and their ids are free.

        Costs nothing. To close one of these is to close them all. Upkeep of the database (`check`, `backup`, `purge`) sees all
        owners, whoever calls it; `prune`, `export` and `import_` see one. `''` owns what was made without a word about owners.
        """
        view = copies.copy(self)
        view.owner = self.limits.owner(owner)
        view._door = self._door.of(view.owner)  # noqa: SLF001  # our own
        return view

    def close(self) -> None:
        """Give the leases of turns back, finish what runs, and close every connection. Later calls raise `Closed`.

        Inside a change it is closed when that has ended, and leases run out by themselves.
        """
        self.turns.end()
        self.watch.stop()
        self.database.close()
        self.watch.tell_everybody()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def transact(
        self,
        id: str,
        change: Callable[[GuardedConversation], T],
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[T]:
        """Run several mutations of one conversation in one transaction: all of them happen, or none.

        `change` gets the conversation and calls its methods. It is short, waits for nothing, calls no store, and may run more
        than once. A mutation that raised undoes everything, even if the error is caught. Raises `Nested`, `Awaitable`, `Dead`.
        """
        return self._door.guarded(orders.call(self.limits, id, token, incarnation, if_match), change)

    def create(
        self,
        id: str | None = None,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent_id: str | None = None,
        messages: Sequence[Draft] = (),
        recreate: int | None = None,
    ) -> Answer[Created]:
        """Create a conversation with its first messages. The same call with the same id again answers what it made.

        Raises `ConversationExists` for another call's id, and `ConversationDeleted` for a deleted one: only with `recreate`,
        the incarnation that the error tells, does a deleted id begin a new life.
        """
        drafts = prepare_all(messages, self.limits, partial=False)
        birth = orders.birth(self.limits, id, title, metadata, parent_id, recreate, drafts)
        return self._door.create(birth, drafts)

    def label(
        self,
        id: str,
        *,
        title: str | msgspec.UnsetType | None = msgspec.UNSET,
        metadata: dict[str, Any] | None = None,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Conversation]:
        """Set the title, or merge `metadata` (RFC 7396: null removes a key), also while somebody is generating."""
        checked = title if title is msgspec.UNSET else self.limits.title(title)
        if metadata is not None:
            self.limits.json_object(metadata, "$.metadata")
        call = orders.call(self.limits, id, token, incarnation, if_match)
        return self._door.unguarded(call, lambda conversation: conversation.label(checked, metadata))

    def delete(
        self,
        id: str,
        *,
        force: bool = False,
        children: Children = "cascade",
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[None]:
        """Delete a conversation for good, its sub-conversations with it or, with `orphan`, left as roots.

        Raises `Generating` while it or one of them is being generated; `force` revokes those leases instead.
        """
        self.limits.one_of(children, ("cascade", "orphan"), "$.children")
        call = orders.call(self.limits, id, token, incarnation, if_match, lane=Lane.ALONE)
        if force:
            return self._door.unguarded(call, lambda conversation: conversation.delete_by_force(children))
        return self._door.guarded(call, lambda conversation: conversation.delete(children))

    def append(
        self,
        id: str,
        messages: Sequence[Draft],
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[list[Message]]:
        """Store messages at the end, all or none. Messages that are stored already and alike are answered where they are.

        Raises `MessageExists`, `MessageDeleted`, `MessageQueued`, `Generating`.
        """
        drafts = prepare_all(messages, self.limits, least=1, partial=token is not None)
        call = orders.call(self.limits, id, token, incarnation, if_match, size=size_of(drafts))
        return self._door.guarded(call, lambda conversation: conversation.append(drafts), repeats.appended(drafts))

    def put(
        self,
        id: str,
        message: Draft,
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
        only_create: bool = False,
    ) -> Answer[Saved]:
        """Store a message under its id, new or not: a growing reply, or an edit. `if_match` is the message's own tag.

        Raises `PreconditionFailed`, `MessageDeleted`, `MessageQueued`, `MessageComplete`, `Generating`.
        """
        call, change, repeat = orders.put(
            self.limits, id, message, token, incarnation=incarnation, if_match=if_match, only_create=only_create
        )
        return self._door.guarded(call, change, repeat)

    def save_all(self, saves: Sequence[Save]) -> list[Answer[Saved] | SessionStoreError]:
        """Put up to 64 messages of conversations that the caller is generating, in their order, in one transaction.

        Each is judged by itself, as `put` does with its token, and has its own answer or error in the list. What is wrong in
        the call itself (`InvalidInput`) or with the database (`Unavailable`) is raised, and then none of them is stored. On
        PostgreSQL each conversation has a transaction of its own, and its own `Unavailable` in the list.
        """
        return self._door.guarded_each(orders.saves(self.limits, saves))

    def label_message(
        self,
        id: str,
        message_id: str,
        metadata: dict[str, Any],
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Message]:
        """Merge `metadata` (RFC 7396) into a message's, and leave the rest. Raises as `put`, and `MessageNotFound`."""
        self.limits.id(message_id, "$.message_id")
        self.limits.json_object(metadata, "$.metadata")
        call = orders.call(self.limits, id, token, incarnation)
        return self._door.guarded(call, lambda c: c.label_message(message_id, metadata, if_match=if_match))

    def delete_message(
        self,
        id: str,
        message_id: str,
        *,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[None]:
        """Delete a message for good. Raises `MessageNotFound`, `MessageDeleted`, `PreconditionFailed`, `Generating`."""
        self.limits.id(message_id, "$.message_id")
        call = orders.call(self.limits, id, token, incarnation)
        return self._door.guarded(call, lambda conversation: conversation.delete_message(message_id, if_match=if_match))

    def truncate(
        self,
        id: str,
        *,
        after_position: int,
        through_position: int,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Truncated]:
        """Delete the messages after one position, through another: a closed range, so a late copy harms nothing newer."""
        self.limits.required_number(after_position, "$.after_position", least=-1)
        self.limits.required_number(through_position, "$.through_position", least=after_position)
        return self._door.guarded(
            orders.call(self.limits, id, token, incarnation, if_match, lane=Lane.ALONE),
            lambda conversation: conversation.truncate(after_position, through_position),
            repeats.truncated(after_position, through_position),
        )

    def compact(
        self,
        id: str,
        summary: Draft,
        *,
        through_position: int,
        seen_version: int,
        token: str | None = None,
        incarnation: int | None = None,
        if_match: IfMatch | None = None,
    ) -> Answer[Compacted]:
        """Let a summary stand for everything through a position, in what `context` answers. The transcript stays whole.

        `seen_version` is the conversation's version that was summarised. What comes after the position is kept as it is, also
        what came meanwhile. Raises `Stale` when a message up to there has changed since, or a newer summary covers it.
        """
        self.limits.required_number(through_position, "$.through_position")
        self.limits.required_number(seen_version, "$.seen_version", least=1)
        draft = prepare_summary(summary, self.limits)
        return self._door.guarded(
            orders.call(self.limits, id, token, incarnation, if_match, lane=Lane.ALONE, size=size_of([draft])),
            lambda conversation: conversation.compact(draft, through_position=through_position, seen_version=seen_version),
            repeats.compacted(draft, through_position),
        )

    def fork(
        self,
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
    ) -> Answer[Conversation]:
        """Copy a conversation, or its beginning with its summaries, into a new one of id `new`.

        The end is a position, or the n-th user message (from 0), which is left out with all after it, or a message's id, which
        is copied (`through_message`) or left out (`before_message`). Without a `title` it is the source's with the next free
        number. `settled` copies what stood before the turn that is going on, where else that is `Generating`. Raises
        `ConversationExists`, with `same` when it was this call that made it.
        """
        point = forking.point(self.limits, through_position, before_user_message, through_message, before_message)
        order = forking.order(self.limits, new, point, title, settled=settled)
        call = orders.call(self.limits, id, token, incarnation, if_match, lane=Lane.ALONE)
        repeat = repeats.forked(order, self._door.owner)
        if order.settled:
            return self._door.unguarded(call, lambda conversation: conversation.fork_settled(order), repeat)
        points = point._asdict()
        return self._door.guarded(call, lambda conversation: conversation.fork(order.id, title=title, **points), repeat)

    def undo(
        self,
        id: str,
        backup: str | None = None,
        *,
        after_position: int | None = None,
        before_message: str | None = None,
        token: str | None = None,
        incarnation: int | None = None,
    ) -> Answer[Undone]:
        """Take back the last thing that a person said, and all after it; a fork of id `backup` keeps everything first.

        Or take back what stands after a position, or from a message on. What comes in meanwhile is not touched. Name the
        `backup`, and a call that is repeated after a lost answer takes back nothing more. Raises `Generating`, `InvalidInput`
        when there is nothing to take back, `PreconditionFailed` when it was edited while it was copied, and
        `ConversationExists` for a backup that is no untouched copy of this conversation.
        """
        calls = undo(
            id, backup, after_position=after_position, before_message=before_message, token=token, incarnation=incarnation
        )
        return run(self, calls)
