"""What is printed: a line of words for people, or JSON for programs."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from sessionstore.checking import can_repair
from sessionstore.model import Checked, Conversation, Fault, Found, Message, Usage


def show_one(data: dict[str, Any], words: str, *, as_json: bool) -> None:
    """Print one thing, in one of the two ways."""
    click.echo(json.dumps(data) if as_json else words)


def plain(value: msgspec.Struct) -> dict[str, Any]:
    """A value as JSON has it, with what was stored as JSON in its place."""
    found: dict[str, Any] = {}
    for name in value.__struct_fields__:
        inside = getattr(value, name)
        if name.endswith("_json"):
            name = name.removesuffix("_json")
            inside = getattr(value, name)
        found[name] = plain(inside) if isinstance(inside, msgspec.Struct) else inside
    return found


def time_of(milliseconds: int) -> str:
    """A time for people."""
    return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def _state(conversation: Conversation) -> str:
    turn = conversation.generation
    if turn is None:
        return "idle"
    return f"{'expired' if turn.expired else 'generating'} ({turn.holder})"


def conversation_line(conversation: Conversation) -> str:
    """A conversation, in a line."""
    count, title = f"{conversation.message_count} messages", visible(conversation.title or "")
    return "\t".join([conversation.id, time_of(conversation.updated_at), count, _state(conversation), title])


def message_line(message: Message) -> str:
    """A message, in a line."""
    content = message.content
    text = content if isinstance(content, str) else message.content_json or ""
    status = "" if message.status == "complete" else f" ({message.status})"
    return f"{message.position}\t{message.role}{status}\t{visible(text)}"


def visible(text: str) -> str:
    """One line that does nothing to a terminal: control characters and lone surrogates as their escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def lease_line(conversation: Conversation) -> str:
    """A lease, in a line."""
    turn = conversation.generation
    if turn is None:
        return ""
    asked = "interrupt requested" if turn.interrupt_requested else ""
    return "\t".join([conversation.id, _state(conversation), f"until {time_of(turn.expires_at)}", turn.phase, asked])


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What was found, a line for each name."""
    for name, value in found.items():
        inside = ", ".join(f"{key}={inner}" for key, inner in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(inside) if isinstance(inside, list) else inside
        yield f"{name.replace('_', ' '):15} {'none' if shown in (None, '') else shown}"


def found_line(found: Found) -> str:
    """A message that was found, in a line."""
    return "\t".join([found.conversation_id, str(found.message.position), found.message.role, visible(found.snippet)])


def usage_line(usage: Usage) -> str:
    """Sums, in a line."""
    named = [] if usage.of is None else [usage.of]
    counted = ("turns", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost")
    return "\t".join([*named, *(f"{name.replace('_', ' ')} {getattr(usage, name)}" for name in counted)])


def _fault_line(fault: Fault) -> str:
    return "\t".join([fault.invariant, visible(fault.conversation_id or "-"), visible(fault.found)])


def check_lines(left: Checked, repaired: Sequence[Fault]) -> Iterator[str]:
    """What a check has found, a line for each fault, and what is to be done."""
    yield from (f"engine\t{visible(fault)}" for fault in left.engine)
    for fault in left.faults:
        yield f"{_fault_line(fault)}\t{'check --repair' if can_repair(fault) else 'restore a backup'}"
    yield from (f"{_fault_line(fault)}\trepaired" for fault in repaired)
    if left.leftovers:
        yield f"Of {left.leftovers} deleted conversations messages are left: `sessionstore purge` erases them."
    yield "All that is always true is true." if left.sound else "This database is NOT sound."
