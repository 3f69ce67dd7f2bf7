"""Import of an export: each conversation as it was, with its ids, positions, versions and times, in a new life.

What does not fit into one piece is written under a tombstone of another name, where nobody sees it, and gets its own name with
the last one. Who dies in between leaves messages that nobody sees, and that `prune` erases.
"""

import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from sessionstore import bulk, forgetting, jsontext
from sessionstore.creation import check_buried, check_free, check_vacant, living
from sessionstore.database import Database
from sessionstore.drafts import new_id
from sessionstore.errors import ConversationDeleted, ConversationExists, InvalidInput
from sessionstore.items import Lane
from sessionstore.jsonlines import FORMAT, AnyLine, ConversationLine, MessageLine, TurnLine
from sessionstore.limits import Limits
from sessionstore.model import Imported
from sessionstore.transaction import Transaction

PIECE_ROWS = 500
PIECE_CHARACTERS = 1024 * 1024


class Importing:
    """One run over a file: every line is taken in its turn, and what is imported is told after each piece."""

    def __init__(self, database: Database, owner: str, limits: Limits, *, skip_existing: bool) -> None:
        self._database, self._owner, self._limits = database, owner, limits
        self._skip_existing = skip_existing
        self._arrival: Arrival | None = None
        self._begun = self._ended = self._leaving_out = False
        self._met = 0

    def run(self, file: BinaryIO) -> Iterator[Imported]:
        """Raises `InvalidInput` with the line that is wrong; the conversations before it are imported, its own is not."""
        try:
            for number, raw in enumerate(file, 1):
                try:
                    yield self._take(raw)
                except InvalidInput as error:
                    raise type(error)(reason=f"Line {number}: {error.reason}", path=error.path) from None
            if not self._ended:
                raise InvalidInput(reason="The file ends before the export does")
        finally:
            self._drop()

    def _take(self, raw: bytes) -> Imported:
        line, done = _decode(raw), Imported(bytes=len(raw))
        if not self._begun:
            return done + self._begin(line)
        if self._ended:
            raise InvalidInput(reason="There is more behind the end")
        if line.conversation is not None:
            return done + self._land() + self._meet(line.conversation)
        if line.end is not None:
            return done + self._land() + self._end(line.end.conversations)
        if self._arrival is not None:
            self._add(self._arrival, line)
        elif not self._leaving_out:
            raise InvalidInput(reason="This belongs to no conversation")
        return done

    def _add(self, arrival: "Arrival", line: AnyLine) -> None:
        if line.turn is not None:
            arrival.add_turn(line.turn, self._limits)
        elif line.message is not None:
            arrival.add_message(line.message, self._limits)
        else:
            raise InvalidInput(reason="An export begins once")
        if arrival.is_full:
            self._write(last=False)

    def _begin(self, line: AnyLine) -> Imported:
        if line.sessionstore is None or line.sessionstore.format != FORMAT:
            raise InvalidInput(reason=f"This is no export of format {FORMAT}")
        self._begun = True
        return Imported()

    def _meet(self, line: ConversationLine) -> Imported:
        """The next conversation, unless its id is taken."""
        arrival = Arrival(line, self._limits)
        self._met += 1
        self._leaving_out = False
        try:
            self._database.read(lambda transaction: check_free(transaction, self._owner, line.id))
        except (ConversationExists, ConversationDeleted):
            if not self._skip_existing:
                raise
            self._leaving_out = True
            return Imported(skipped=1)
        self._arrival = arrival
        return Imported()

    def _end(self, conversations: int) -> Imported:
        if conversations != self._met:
            raise InvalidInput(reason=f"There were {self._met} conversations, and not {conversations}")
        self._ended = True
        return Imported()

    def _land(self) -> Imported:
        """The conversation that has come is complete."""
        arrival = self._arrival
        if arrival is None:
            return Imported()
        arrival.check()
        try:
            self._write(last=True)
        except (ConversationExists, ConversationDeleted):
            # Somebody else was quicker than we.
            if not self._skip_existing:
                raise
            self._drop()
            return Imported(skipped=1)
        self._arrival = None
        return Imported(conversations=1, messages=arrival.messages)

    def _drop(self) -> None:
        """Leave nothing of a conversation that has come in part."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None and arrival.pk is not None:
            for _ in forgetting.erase(self._database, arrival.pk):
                pass

    def _write(self, *, last: bool) -> None:
        arrival = self._arrival
        if arrival is None:
            return

        def change(transaction: Transaction) -> tuple[int, dict[int, int]]:
            pk = self._hide(transaction, arrival)
            turns = arrival.write(transaction, pk)
            if last:
                self._show(transaction, arrival, pk)
            return pk, turns

        try:
            pk, turns = self._database.write(change, Lane.ALONE, (arrival.line.id,))
        except self._database.contradictions as error:
            raise InvalidInput(reason=f"Conversation {arrival.line.id} contradicts itself: {error}") from None
        arrival.written(pk, turns)

    def _hide(self, transaction: Transaction, arrival: "Arrival") -> int:
        """The row under which the conversation arrives, and word to `prune` that it still does."""
        living(transaction, self._owner, arrival.line.id)
        if arrival.pk is None:
            return int(transaction.row(bulk.INSERT_HIDDEN, owner=self._owner, id=new_id(), now=transaction.now())[0])
        if not transaction.run(bulk.TOUCH_HIDDEN, at=arrival.pk, now=transaction.now()):
            raise InvalidInput(reason="The import stood still for so long that it was taken for dead: begin it again")
        return arrival.pk

    def _show(self, transaction: Transaction, arrival: "Arrival", pk: int) -> None:
        line = arrival.line
        check_vacant(transaction, self._owner, line.id, line.create_digest or "")
        parent = None if line.parent_id is None else living(transaction, self._owner, line.parent_id)
        transaction.run(
            bulk.SHOW_HIDDEN,
            at=pk, id=line.id, title=line.title, metadata=arrival.metadata_json, created_at=line.created_at,
            updated_at=line.updated_at, version=line.version, next_position=line.next_position,
            message_count=arrival.shown, queued_count=arrival.queued, create_digest=line.create_digest,
            parent_pk=None if parent is None else parent.pk, forked_from_id=line.forked_from_id,
            forked_from_position=line.forked_from_position,
        )  # fmt: skip
        # Only now nobody else can take the id.
        check_buried(transaction, self._owner, line.id, None)


class Arrival:
    """A conversation that is being imported: what of it is still to be written, and what was counted."""

    def __init__(self, line: ConversationLine, limits: Limits) -> None:
        limits.id(line.id, "$.conversation.id")
        limits.title(line.title, "$.conversation.title")
        for name in ("forked_from_id", "parent_id"):
            if getattr(line, name) is not None:
                limits.id(getattr(line, name), f"$.conversation.{name}")
        self.metadata_json = limits.json_object(line.metadata, "$.conversation.metadata")
        self.line, self.pk = line, None
        self.messages = self.shown = self.queued = 0
        self._size, self._rows = 0, list[dict[str, Any]]()
        self._turns, self._numbers = list[dict[str, Any]](), dict[int, int]()

    pk: int | None

    @property
    def is_full(self) -> bool:
        """Whether it is time to write a piece."""
        return len(self._rows) + len(self._turns) >= PIECE_ROWS or self._size >= PIECE_CHARACTERS

    def add_turn(self, line: TurnLine, limits: Limits) -> None:
        """The next turn of it."""
        if line.turn != len(self._numbers) + len(self._turns) + 1 or self.messages:
            raise InvalidInput(reason="Turns are counted from 1, before the messages", path="$.turn.turn")
        usage = None if line.usage is None else limits.json_object(line.usage, "$.turn.usage")
        row = {name: getattr(line, name) for name in ("first_position", "acquired_at", "ended_at", "outcome")}
        holder, phase = limits.holder(line.holder, "$.turn.holder"), limits.phase(line.phase, "$.turn.phase")
        self._turns.append({**row, "holder": holder, "phase": phase, "usage": usage})
        self._size += len(usage or "")

    def add_message(self, line: MessageLine, limits: Limits) -> None:
        """The next message of it."""
        gone, there = line.status == "deleted", line.content is not msgspec.UNSET
        if gone is there or gone is (line.digest is not None):
            raise InvalidInput(reason="A message has content and digest, or it is deleted", path="$.message.status")
        if line.turn is not None and line.turn > len(self._numbers) + len(self._turns):
            raise InvalidInput(reason="There is no such turn", path="$.message.turn")
        row = {name: getattr(line, name) for name in COPIED}
        row["id"], row["role"] = limits.id(line.id, "$.message.id"), limits.role(line.role, "$.message.role")
        row["content"] = None if gone else limits.json(line.content, "$.message.content")
        metadata = {} if line.metadata is msgspec.UNSET else line.metadata
        row["metadata"] = None if gone else limits.json_object(metadata, "$.message.metadata")
        self._rows.append({**row, "turn": line.turn})
        self._size += len(row["content"] or "") + len(row["metadata"] or "")
        self.messages += 1
        self.queued += line.status == "queued"
        self.shown += line.status in ("complete", "interrupted")
        self._check_place(line)

    def _check_place(self, line: MessageLine) -> None:
        if line.status == "queued" if line.position is not None else line.status not in ("queued", "deleted"):
            raise InvalidInput(reason="What is queued has no position, and nothing else", path="$.message.position")
        if line.status == "queued" and line.mode is None:
            raise InvalidInput(reason="What is queued has a mode", path="$.message.mode")
        if line.summary_through is not None and line.summary_through >= (line.position or 0):
            raise InvalidInput(reason="A summary stands behind what it covers", path="$.message.summary_through")
        if (line.position or 0) >= max(1, self.line.next_position) or line.version > self.line.version:
            raise InvalidInput(reason="The message is ahead of its conversation", path="$.message.version")

    def check(self) -> None:
        """Raise `InvalidInput` for what cannot be, and where lines are missing."""
        if self.messages != self.line.messages:
            raise InvalidInput(reason=f"Conversation {self.line.id} has {self.messages} messages, and not {self.line.messages}")
        if (self.line.forked_from_id is None) is not (self.line.forked_from_position is None):
            raise InvalidInput(reason="A fork has a source and a position", path="$.conversation.forked_from_id")

    def write(self, transaction: Transaction, pk: int) -> dict[int, int]:
        """Write the piece. Answers the numbers that its turns have here."""
        numbers = dict(self._numbers)
        for turn in self._turns:
            token_hash = secrets.token_hex(32)
            row = transaction.row(bulk.INSERT_TURN, pk=pk, token_hash=token_hash, **turn)
            numbers[len(numbers) + 1] = int(row[0])
        for message in self._rows:
            values = {**message, "conversation_pk": pk, "generation": numbers.get(message["turn"])}
            del values["turn"]
            transaction.run(bulk.INSERT_MESSAGE, **values)
        return numbers

    def written(self, pk: int, numbers: dict[int, int]) -> None:
        """The piece is stored."""
        self.pk, self._numbers = pk, numbers
        self._rows, self._turns, self._size = [], [], 0


COPIED = (
    "id", "role", "status", "created_version", "version", "created_at", "updated_at", "position", "digest", "mode",
    "summary_through",
)  # fmt: skip


def _decode(raw: bytes) -> AnyLine:
    try:
        line = msgspec.convert(jsontext.decode(raw), AnyLine)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise InvalidInput(reason=reason.replace("`", "'"), path=path.strip("`")) from None
    except UnicodeEncodeError:
        raise InvalidInput(reason="Lone surrogates are refused") from None
    if sum(getattr(line, name) is not None for name in AnyLine.__struct_fields__) != 1:
        raise InvalidInput(reason="A line is one thing: sessionstore, conversation, turn, message or end")
    return line
