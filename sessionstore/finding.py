"""Finding conversations and messages: lists with their filters, what turns have used, and the search for words."""

from collections.abc import Sequence
from typing import Any

from sessionstore import bulk, feed, queries
from sessionstore.errors import InvalidInput
from sessionstore.model import (
    Conversation,
    ConversationPage,
    Found,
    ListChanges,
    ListOrder,
    ListPlace,
    Page,
    Usage,
    UsageBy,
)
from sessionstore.reading import conversation_of, found_of, usage_of
from sessionstore.reads import Reads
from sessionstore.transaction import Transaction
from sessionstore.transcript import END

MOST_WORDS = 32


class Finding(Reads):
    """The part of a store that looks across conversations."""

    def conversations(
        self,
        *,
        generating: bool | None = None,
        parent_id: str | None = None,
        roots: bool = False,
        containing: str | None = None,
        metadata_key: str | None = None,
        metadata_value: str | None = None,
        changed_since: int | None = None,
        changed_before: int | None = None,
        order: ListOrder = "changed",
        before: int | None = None,
        limit: int | None = None,
    ) -> ConversationPage:
        """A page of conversations, the latest change first. Pass a page's `next` as `before` for the one after it.

        `roots`: those without a parent. `containing`: a part of the title or id, in any case. `metadata_key`: the metadata has
        that key, with that value if one is given: a string as it is, anything else as its JSON text. `changed_since` and
        `changed_before` are milliseconds UTC.

        What changes while you page moves to the front; `list_changes` from the first page's `change` tells it. With the order
        `created`, the newest first, nothing moves.
        """
        self.limits.one_of(order, ("changed", "created"), "$.order")
        asked = self._filters(parent_id, containing, metadata_key, metadata_value, changed_since, changed_before)
        if roots and parent_id is not None:
            raise InvalidInput(reason="A root has no parent", path="$.roots")
        filters = queries.Filters(generating=generating, roots=bool(roots), asked=frozenset(asked), by=order)
        statement, count = queries.list_conversations(filters), self.limits.page_size(limit)
        asked["before"] = END if before is None else self.limits.required_number(before, "$.before")

        def look(transaction: Transaction) -> ConversationPage:
            now = transaction.now()
            timed = asked if generating is None else {**asked, "now": now}
            change, _ = feed.own_changes(transaction, self.owner)
            rows = transaction.rows(statement, owner=self.owner, count=count + 1, **timed)
            shown = [conversation_of(row, now) for row in rows[:count]]
            following = None
            if len(rows) > count:
                following = rows[count - 1][-1] if order == "changed" else shown[-1].incarnation
            return ConversationPage(items=shown, next=following, change=change)

        return self.database.read(look)

    def _filters(
        self,
        parent_id: str | None,
        containing: str | None,
        metadata_key: str | None,
        metadata_value: str | None,
        changed_since: int | None,
        changed_before: int | None,
    ) -> dict[str, Any]:
        """What was asked for, checked, by the names of the statement's parameters."""
        if metadata_value is not None and metadata_key is None:
            raise InvalidInput(reason="A value needs its key", path="$.metadata_value")
        asked = {
            "parent_id": None if parent_id is None else self.limits.id(parent_id, "$.parent_id"),
            "part": None if containing is None else _like((self.limits.title(containing, "$.q") or "").lower()),
            "metadata_key": self.limits.title(metadata_key, "$.metadata_key"),
            "metadata_value": self.limits.title(metadata_value, "$.metadata_value"),
            "changed_since": self.limits.moment(changed_since, "$.changed_since"),
            "changed_before": self.limits.moment(changed_before, "$.changed_before"),
        }
        return {name: value for name, value in asked.items() if value is not None}

    def list_changes(self, since: int | None = None, *, next: ListPlace | None = None, limit: int | None = None) -> ListChanges:
        """What has changed in the list of conversations since a `change` that you know, the oldest change first.

        Without one, or with one that is not this store's, or older than the newest tombstone that was pruned, the whole list
        with `reset`. Pass a page's `next` on for the one after it.
        """
        self.limits.number(since, "$.since")
        count = self.limits.page_size(limit)
        return self.database.read(
            lambda transaction: feed.list_changes(transaction, self.owner, transaction.now(), since, next, count)
        )

    def leases(self) -> list[Conversation]:
        """Every conversation with a lease, live or expired, the oldest turn first."""

        def look(transaction: Transaction) -> list[Conversation]:
            now = transaction.now()
            return [conversation_of(row, now) for row in transaction.rows(queries.LEASES, owner=self.owner)]

        return self.database.read(look)

    def _lives(self, ids: Sequence[str] | None = None) -> list[int]:
        """The incarnations of those conversations, or of all, the oldest first."""
        if ids is None:
            rows = self.database.read(lambda transaction: transaction.rows(bulk.LIVES, owner=self.owner))
            return [pk for (pk,) in rows]
        checked = self.limits.ids(ids) or []
        return self.database.read(lambda transaction: sorted(self._living(transaction, named) for named in checked))

    def usage(
        self,
        *,
        conversation_id: str | None = None,
        descendants: bool = False,
        since: int | None = None,
        until: int | None = None,
        by: UsageBy = "total",
        after: int | None = None,
        limit: int | None = None,
    ) -> Page[Usage]:
        """What turns have used, added up: `input_tokens`, `output_tokens`, `cached_tokens`, `reasoning_tokens` and `cost`.

        Of one conversation, with its sub-conversations if you say `descendants`, or of all; of turns that ended between two
        moments (milliseconds UTC); in one sum, or `by` day (UTC) or conversation. What was deleted has been used all the same,
        until its tombstone is pruned. Pass a page's `next` as `after` for the one after it.
        """
        self.limits.one_of(by, ("total", "day", "conversation"), "$.by")
        if conversation_id is not None:
            self.limits.id(conversation_id, "$.conversation_id")
        elif descendants:
            raise InvalidInput(reason="Whose descendants?", path="$.descendants")
        statement = queries.usage(by, of_one=conversation_id is not None, descendants=bool(descendants))
        count = self.limits.page_size(limit)
        asked: dict[str, Any] = {
            "since": self.limits.moment(since, "$.since") or 0,
            "until": END if until is None else self.limits.moment(until, "$.until"),
            "after": -1 if after is None else self.limits.number(after, "$.after"),
        }

        def look(transaction: Transaction) -> Page[Usage]:
            if conversation_id is not None:
                asked["pk"] = self._living(transaction, conversation_id)
            rows = transaction.rows(statement, owner=self.owner, count=count + 1, **asked)
            shown = [usage_of(row, by) for row in rows[:count]]
            return Page(items=shown, next=shown[-1].key if len(rows) > count else None)

        return self.database.read(look)

    def search(
        self, text: str, *, conversation_id: str | None = None, before: int | None = None, limit: int | None = None
    ) -> Page[Found]:
        """A page of messages that have every word of `text`, in any case and Latin accent, the last stored first.

        Nothing in `text` is syntax: it is cut at white space and each word is looked for as it is, with its signs as gaps.
        Partial and queued messages are not searched, nor what is beyond the first 65,536 characters of a message. Pass a page's
        `next` as `before` for the one after it. Raises `InvalidInput` for a text without a letter or digit.
        """
        words = self._words(text)
        first, room = END if before is None else self.limits.number(before, "$.before") or 0, self.limits.room(limit)
        if conversation_id is not None:
            self.limits.id(conversation_id, "$.conversation_id")

        def look(transaction: Transaction) -> Page[Found]:
            pk = None if conversation_id is None else self._living(transaction, conversation_id)
            hits = self.database.search(transaction, words, self.owner, pk, first, room.rows + 1)
            found = (found_of(hit, transaction.row(queries.FOUND, message_pk=hit.message_pk)) for hit in hits)
            shown, more = room.fill(found, lambda one: one.message.octets)
            return Page(items=shown, next=hits[len(shown) - 1].message_pk if more else None)

        return self.database.read(look)

    def _words(self, text: str) -> list[str]:
        self.limits.searched(text)
        words = [word for word in text.split() if any(character.isalnum() for character in word)]
        if not words:
            raise InvalidInput(reason="There is no word to look for", path="$.q")
        if len(words) > MOST_WORDS:
            raise InvalidInput(reason=f"At most {MOST_WORDS} words are looked for", path="$.q")
        return words


def _like(part: str) -> str:
    """A text that matches itself only inside a LIKE pattern."""
    for special in (queries.LIKE_ESCAPE, "%", "_"):
        part = part.replace(special, queries.LIKE_ESCAPE + special)
    return part
