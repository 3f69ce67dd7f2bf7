"""What an operator does with a store: forget, make sure that it is forgotten, take conversations out and bring them in."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from sessionstore import bulk, queries
from sessionstore.checking import Checking
from sessionstore.exporting import Format, export
from sessionstore.forgetting import TOMBSTONES_MS, Forgetting, Retention
from sessionstore.importing import Importing
from sessionstore.keys import Keys
from sessionstore.live import Live
from sessionstore.measures import Measured
from sessionstore.model import BackedUp, Checked, Exported, Fault, Imported, Pruned


class Upkeep(Live):
    """The part of a store for its operator. Each call is many short transactions, between which others come."""

    def prune(
        self,
        *,
        older_than_ms: int | None = None,
        keep: int | None = None,
        messages_older_than_ms: int | None = None,
        keep_messages: int | None = None,
        tombstones_older_than_ms: int | None = TOMBSTONES_MS,
        dry_run: bool = False,
        progress: Callable[[Pruned], Any] | None = None,
    ) -> Pruned:
        """Forget what is older, or more, than is wanted. Whatever is being generated is left alone, and told as `skipped`.

        Conversations that have not changed for `older_than_ms`, and all but the `keep` that changed last; a conversation and
        its sub-conversations go together, when the youngest of them may. In those that stay, messages older than
        `messages_older_than_ms`, and all but the newest `keep_messages`: whole turns, so that what is left begins with one;
        summaries stay. What is left of deleted conversations goes after `tombstones_older_than_ms` (30 days; None: never), and
        what they have used with it; their ids can be used again then.

        `progress` is called with the sum so far. Nothing else waits for it for longer than some milliseconds. `purge` after it
        makes sure that nothing can be read in the file.
        """
        retention = Retention(older_than_ms, keep, messages_older_than_ms, keep_messages, tombstones_older_than_ms)
        retention.check(self.limits)
        forgetting = self._forgetting()
        if dry_run:
            return forgetting.would_prune(retention)
        done = Pruned()
        for piece in forgetting.prune(retention):
            done += piece
            if progress is not None:
                progress(done)
        return done

    def purge(self) -> bool:
        """Make sure that what was deleted is in neither file, log nor index any more. Answers whether it is so.

        Not so while somebody reads, who may still need it: try again then. What was copied before, to a backup, say, or by the
        file system, is not reached.
        """
        forgetting = self._forgetting()
        forgetting.erase_abandoned()
        return self.database.erase_traces() and not forgetting.is_needed

    def backup(self, folder: Path | str, *, keep: int | None = None) -> BackedUp:
        """Write a backup of this moment into a folder, for its owner only, and keep the newest `keep` there.

        Everybody goes on working meanwhile, though the log is not cut until it is done. It has all that was acknowledged before
        this was called, and gets its name when it is whole, durable and found to be undamaged. Nothing that was deleted before
        is in it. `faults` says which invariants are broken in it (see `check`); it can be repaired when it is restored, by
        `sessionstore.restore`. Raises `BackupUnusable`, `DiskFull` and `DatabaseUnusable`, and then leaves
        nothing.
        """
        self.limits.number(keep, "$.keep", least=1)
        return self.database.back_up(Path(folder), keep)

    def check(self) -> Checked:
        """Look for whatever is not as it always is: by the engine's own check, and then by every invariant, in one snapshot.

        Reads the whole file, and nobody waits for it. The queries are in `sessionstore.invariants`. Sees all owners.
        """
        return self._checking().check()

    def repair(self, checked: Checked | None = None) -> list[Fault]:
        """Put right what `check` has found, where that can be told from the rest, and answer what was.

        Counts are counted anew, leases without a turn end, what grows without a lease is interrupted, and a search index that
        does not fit is made anew. Each conversation gets a new version, in a transaction of its own. A damaged file, and rows
        that are nobody's, are left as they are: restore a backup.
        """
        return list(self._checking().repair(self.check() if checked is None else checked))

    def export(
        self,
        file: BinaryIO,
        ids: Sequence[str] | None = None,
        *,
        format: Format = "jsonl",
        progress: Callable[[Exported], Any] | None = None,
    ) -> Exported:
        """Write conversations to a file, those named or all, the oldest first: as JSON Lines for `import_`, or as Markdown.

        Each is written as of one moment. Raises `ConversationNotFound` and `ConversationDeleted` before anything is written.
        """
        self.limits.one_of(format, ("jsonl", "markdown"), "$.format")
        pks = self._lives(ids)
        done = Exported(total=len(pks))
        for messages in export(self.database, pks, file, format):
            done += Exported(conversations=int(messages is not None), messages=messages or 0)
            if progress is not None:
                progress(done)
        return done

    def import_(
        self, file: BinaryIO, *, skip_existing: bool = False, progress: Callable[[Imported], Any] | None = None
    ) -> Imported:
        """Read an export back: ids, positions, versions, times, summaries and the log of turns are what they were.

        Each conversation comes whole or not at all. Raises `ConversationExists` and `ConversationDeleted` for an id that is
        taken, or, with `skip_existing`, leaves that one out; `InvalidInput` with the line that is wrong. Leases are not
        exported: what was being generated is interrupted. A parent that is not there leaves its children as roots.
        """
        importing = Importing(self.database, self.owner, self.limits, skip_existing=skip_existing)
        done = Imported()
        for piece in importing.run(file):
            done += piece
            if progress is not None:
                progress(done)
        return done

    @property
    def keys(self) -> Keys:
        """The keys with which one may speak to a server of this database, of all owners."""
        return Keys(self.database, self.limits)

    def measured(self) -> Measured:
        """How the database is doing, in this process: of all owners."""
        began = time.monotonic()
        live, leased = self.database.read(lambda transaction: transaction.row(queries.COUNT_LEASES, now=transaction.now()))
        oldest = self.database.measures.oldest_read
        return Measured(
            engine=self.database.engine(), measures=self.database.measures, waiting=self.database.waiting,
            oldest_read=max(0.0, began - (began if oldest is None else oldest)), live=live, expired=leased - live,
        )  # fmt: skip

    def owners(self) -> list[str]:
        """Everybody who has, or had, a conversation."""
        return self.database.read(lambda transaction: [owner for (owner,) in transaction.rows(bulk.OWNERS)])

    def _checking(self) -> Checking:
        return Checking(self.database, self.owner, self.limits)

    def _forgetting(self) -> Forgetting:
        return Forgetting(self.database, self._door, self.database.now(), self.limits)
