"""Which calls of tools a message makes, and which it answers, in the words of the common model APIs.

OpenAI's chat and responses, Anthropic's messages, Bedrock's converse and Gemini's contents. Calls that nobody answers harm
nothing, so everything with an id may be one; what a result says inside is no call and no answer.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from sessionstore.model import Message

CALLS = ("id", "call_id", "toolUseId")
ANSWERS = ("tool_call_id", "tool_use_id", "approval_request_id")


class ToolIds(NamedTuple):
    """The calls that are made, and those that are answered from outside of the message."""

    calls: frozenset[str]
    answers: frozenset[str]


def tool_ids(message: Message) -> ToolIds:
    """What a message, or its metadata, says of calls. A function without an id goes by its name."""
    calls: set[str] = set()
    answers: set[str] = set()
    waiting: list[Any] = [message.content, message.metadata]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            answered = list(_answered(value))
            answers.update(answered)
            if not answered:
                calls.update(_called(value))
                waiting.extend(value.values())
    return ToolIds(frozenset(calls), frozenset(answers - calls))


def speaks(message: Message) -> bool:
    """Whether a person says it. Some programs hand the results of tools over as the user's words."""
    return message.role == "user" and not tool_ids(message).answers


def _answered(value: dict[str, Any]) -> Iterator[str]:
    kind = value.get("type")
    for name in ANSWERS:
        yield from _text(value.get(name))
    if isinstance(kind, str) and kind.endswith("_output"):
        yield from _text(value.get("call_id"))
    yield from _of(value.get("toolResult"), "toolUseId")
    yield from _of(value.get("functionResponse"), "id", "name")


def _called(value: dict[str, Any]) -> Iterator[str]:
    for name in CALLS:
        yield from _text(value.get(name))
    yield from _of(value.get("functionCall"), "id", "name")


def _of(inside: Any, *names: str) -> Iterator[str]:
    """The first of these that is there."""
    if isinstance(inside, dict):
        yield from next((list(_text(inside[name])) for name in names if inside.get(name)), [])


def _text(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
