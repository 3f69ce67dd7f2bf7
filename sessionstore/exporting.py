"""Export: conversations as JSON Lines, to be imported again exactly, or as Markdown, to be read.

Each conversation is read in one snapshot and written while it is read, so memory does not grow with it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, Literal

from sessionstore import bulk, jsontext, queries
from sessionstore.database import Database
from sessionstore.jsonlines import FORMAT, ConversationLine, End, Head, MessageLine, TurnLine, line, stored
from sessionstore.model import Message
from sessionstore.transaction import Transaction

Format = Literal["jsonl", "markdown"]
Write = Callable[[bytes], Any]


def export(database: Database, pks: Sequence[int], file: BinaryIO, format: Format) -> Iterator[int | None]:
    """Write those lives, the oldest first. Answers after each how many messages it had, and None for one that is over."""
    write_one = _write_lines if format == "jsonl" else _write_markdown
    if format == "jsonl":
        file.write(line(sessionstore=Head(format=FORMAT)))
    count = 0
    for pk in pks:
        messages = database.read(partial(write_one, pk=pk, write=file.write))
        count += messages is not None
        yield messages
    if format == "jsonl":
        file.write(line(end=End(conversations=count)))


def _write_lines(transaction: Transaction, pk: int, write: Write) -> int | None:
    row = transaction.row(bulk.EXPORTED_CONVERSATION, pk=pk)
    if row is None:
        return None
    *columns, metadata, ended = row
    (messages,) = transaction.row(bulk.COUNT_MESSAGES, pk=pk)
    named = dict(zip(CONVERSATION, columns, strict=True))
    write(line(conversation=ConversationLine(**named, metadata=stored(metadata), messages=messages)))
    turns: dict[int, int] = {}
    for number, *turn in transaction.rows(bulk.EXPORTED_TURNS, pk=pk):
        turns[number] = len(turns) + 1
        write(line(turn=_turn(turns[number], turn, ended)))
    for message in _rows(transaction, pk):
        write(line(message=_message(message, turns)))
    return int(messages)


CONVERSATION = (
    "id", "created_at", "updated_at", "version", "next_position", "title", "parent_id", "forked_from_id",
    "forked_from_position", "create_digest",
)  # fmt: skip


def _turn(place: int, row: Sequence[Any], ended: int) -> TurnLine:
    holder, phase, first_position, acquired_at, ended_at, outcome, usage = row
    return TurnLine(
        turn=place,
        holder=holder,
        phase=phase,
        first_position=first_position,
        acquired_at=acquired_at,
        ended_at=ended if ended_at is None else ended_at,
        outcome=outcome or "interrupted",
        usage=None if usage is None else stored(usage),
    )


def _rows(transaction: Transaction, pk: int) -> Iterator[Any]:
    yield from transaction.each(bulk.EXPORTED_MESSAGES, pk=pk)
    yield from transaction.each(bulk.EXPORTED_INPUTS, pk=pk)


def _message(row: Any, turns: dict[int, int]) -> MessageLine:
    (position, message_id, role, status, mode, summary_through, generation, created_version, version, created_at, updated_at,
     digest, metadata, content) = row  # fmt: skip
    return MessageLine(
        id=message_id, role=role, status="interrupted" if status == "partial" else status, created_version=created_version,
        version=version, created_at=created_at, updated_at=updated_at, position=position, content=stored(content),
        metadata=stored(metadata), digest=digest, mode=mode, summary_through=summary_through,
        turn=None if generation is None else turns.get(generation),
    )  # fmt: skip


def _write_markdown(transaction: Transaction, pk: int, write: Write) -> int | None:
    row = transaction.row(bulk.EXPORTED_CONVERSATION, pk=pk)
    if row is None:
        return None
    named = dict(zip(CONVERSATION, row, strict=False))
    write(f"# {_one_line(named['title'] or named['id'])}\n\n".encode())
    count = 0
    for message in _transcript(transaction, pk):
        write(_said(message).encode(errors="replace"))
        count += 1
    return count


def _transcript(transaction: Transaction, pk: int) -> Iterator[Message]:
    statement = queries.list_messages(descending=False)
    yield from (Message(*row) for row in transaction.each(statement, pk=pk, after=-1, before=2**62, count=2**62))


def _said(message: Message) -> str:
    status = "" if message.status == "complete" else f" ({message.status})"
    kind = "" if message.summary_through is None else ", a summary"
    return f"## {message.role}{status}{kind}\n\n{_CONTROL.sub(REPLACED, _text(message.content))}\n\n"


def _text(content: Any) -> str:
    """What is said; what has no plain text in it as JSON, in a fence that nothing inside can end."""
    if isinstance(content, str):
        return content
    parts = [_plain(part) for part in content] if isinstance(content, list) else []
    plain = [part for part in parts if part is not None]
    if plain and len(plain) == len(parts):
        return "\n\n".join(plain)
    text = jsontext.encode(content)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}json\n{text}\n{fence}"


def _plain(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _one_line(text: str) -> str:
    return " ".join(_CONTROL.sub(REPLACED, text).split())


# What would speak to a terminal, or to nobody.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
REPLACED = "\ufffd"
