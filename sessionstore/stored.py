"""What is already there: the part of a conversation's life that can only be looked at, before the lease is judged."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sessionstore import jsontext, queries, statements
from sessionstore.drafts import Prepared
from sessionstore.errors import LeaseLost, MessageDeleted, MessageExists, MessageQueued
from sessionstore.model import Conversation, Message, Outcome
from sessionstore.reading import conversation_of
from sessionstore.transaction import Transaction


class Turn(NamedTuple):
    """A row of the generation log."""

    number: int
    holder: str
    phase: str
    first_position: int
    acquired_at: int
    ended_at: int | None
    outcome: Outcome | None
    begin_digest: str | None
    end_digest: str | None


class Stored:
    """Reads one life of a conversation inside a write transaction."""

    def __init__(self, transaction: Transaction, id: str, pk: int, now: int) -> None:
        self.transaction, self.id, self.pk, self.now = transaction, id, pk, now

    def view(self) -> Conversation:
        """The conversation as it is in the tables now."""
        return conversation_of(self.transaction.row(queries.VIEW, pk=self.pk), self.now)

    def message(self, message_id: str) -> Message | None:
        """The message of that id, also when it is deleted or queued."""
        row = self.transaction.row(statements.MESSAGE, pk=self.pk, id=message_id)
        return None if row is None else Message(*row)

    def messages_at(self, first: int, end: int) -> list[Message]:
        """The messages from position `first` up to, not including, `end`; tombstones too."""
        return [Message(*row) for row in self.transaction.rows(statements.MESSAGES_AT, pk=self.pk, first=first, end=end)]

    def turn(self, number: int) -> Turn:
        """The turn of that number."""
        return Turn(*self.transaction.row(statements.GENERATION, number=number))

    def turn_of(self, token_hash: str) -> Turn | None:
        """The turn that this token began in this life, whether it lives or not."""
        row = self.transaction.row(statements.GENERATION_OF_TOKEN, pk=self.pk, token_hash=token_hash)
        return None if row is None else Turn(*row)

    def newest_of(self, turn: Turn, count: int) -> list[Message]:
        """The last `count` messages that were created under that turn's lease, in order."""
        rows = self.transaction.rows(
            statements.NEWEST_OF_GENERATION, pk=self.pk, generation=turn.number, first=turn.first_position, count=count
        )
        return [Message(*row) for row in reversed(rows)]

    def appended(self, draft: Prepared) -> Message | None:
        """The message that this draft has already become, if it has. Raises as `known`, and `MessageQueued` while it waits."""
        message = self.known(draft)
        if message is not None and message.status == "queued":
            raise MessageQueued(conversation_id=self.id, message_id=draft.id)
        return message

    def known(self, draft: Prepared) -> Message | None:
        """The message of this draft's id, queued or not, if it was stored with this content.

        It is recognised by its first digest, so an edit since then does not hide it. Raises `MessageExists` for other
        content, and `MessageDeleted`.
        """
        message = self.message(draft.id) if draft.named else None
        if message is None:
            return None
        if message.status == "deleted":
            raise MessageDeleted(conversation_id=self.id, message_id=draft.id)
        digest, _ = self.transaction.row(statements.MESSAGE_DIGEST, pk=self.pk, id=draft.id)
        if digest != draft.digest:
            raise MessageExists(conversation_id=self.id, message_id=draft.id)
        return message

    def is_input(self, message_id: str) -> bool:
        """Whether the message of that id came by way of the queue."""
        _, mode = self.transaction.row(statements.MESSAGE_DIGEST, pk=self.pk, id=message_id)
        return mode is not None

    def all_appended(self, drafts: Sequence[Prepared]) -> list[Message] | None:
        """The messages of a whole call, if every one of them has an id and stands in the transcript alike; else None."""
        return self._all(drafts, self.appended)

    def all_known(self, drafts: Sequence[Prepared]) -> list[Message] | None:
        """The same, if every one of them is known alike, in the transcript or in the queue."""
        return self._all(drafts, self.known)

    def _all(self, drafts: Sequence[Prepared], look: Callable[[Prepared], Message | None]) -> list[Message] | None:
        found = []
        for draft in drafts:
            try:
                message = look(draft)
            except (MessageDeleted, MessageExists, MessageQueued):
                return None
            if message is None:
                return None
            found.append(message)
        return found

    def sent(self, drafts: Sequence[Prepared], end: int) -> list[Message]:
        """The messages of a call that was made before, whose last one stands before position `end`: by id, else by place."""
        if all(draft.named for draft in drafts):
            found = (self.message(draft.id) for draft in drafts)
            return [message for message in found if message is not None]
        return self.messages_at(end - len(drafts), end)

    def lost(self, token_hash: str | None) -> LeaseLost:
        """The error for a token that holds nothing, or for none, with the end of its turn where it had one."""
        turn = None if token_hash is None else self.turn_of(token_hash)
        if turn is None:
            return LeaseLost(conversation_id=self.id)
        return LeaseLost(conversation_id=self.id, generation=turn.number, outcome=turn.outcome, ended_at=turn.ended_at)


def alike(message: Message, draft: Prepared) -> bool:
    """Whether a put would change nothing: same role, content and status, and the same metadata if any is given."""
    return (
        message.role == draft.role
        and message.status == draft.status
        and jsontext.same(message.content_json, draft.content_json)
        and (draft.metadata_json is None or jsontext.same(message.metadata_json, draft.metadata_json))
    )
