"""What a model is shown when not everything fits: the newest turns, whole, and what stands in front of them all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from sessionstore.errors import BudgetTooSmall, InvalidInput
from sessionstore.model import Context, Message

Count = Callable[[Message], int]
INSTRUCTIONS = ("system", "developer")
# A result whose call has not been met within so many messages has none.
CALLED_WITHIN = 100


class Fitted(NamedTuple):
    """What fits, oldest first; how many tokens that is, where they were counted; whether something was left out."""

    messages: list[Message]
    tokens: int | None
    cut: bool


class Budget(msgspec.Struct, frozen=True):
    """At most so many messages, and tokens where they count."""

    messages: int
    tokens: int | None
    count: Count | None

    def size(self, messages: Iterable[Message]) -> int:
        """How many tokens these are; nothing where nobody counts."""
        count = self.count or (None if self.tokens is None else stored_tokens)
        return 0 if count is None else sum(count(message) for message in messages)

    def admits(self, number: int, size: int) -> bool:
        """Whether so much fits."""
        return number <= self.messages and (self.tokens is None or size <= self.tokens)

    @property
    def counts(self) -> bool:
        """Whether tokens are counted."""
        return self.tokens is not None or self.count is not None


def stored_tokens(message: Message) -> int:
    """What the message's own metadata says. Raises `InvalidInput` where it says nothing: a guess might overflow a model."""
    tokens = message.metadata.get("tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise InvalidInput(reason=f"Message {message.id} has no number of tokens in its metadata", path="$.max_tokens")
    return tokens


def fit(head: Sequence[Message], newest_first: Iterable[Message], budget: Budget) -> Fitted:
    """The head, always, and as many of the newest turns as the budget has room for. Nothing is cut but between turns.

    Raises `BudgetTooSmall` when head and newest turn are too much already.
    """
    kept: list[Message] = []
    size, fitting = budget.size(head), (0, 0)
    cutter = Cutter()
    for message in newest_first:
        if cutter.may_cut_after(message):
            fitting = len(kept), size
        kept.append(message)
        size += budget.size([message])
        if not budget.admits(len(head) + len(kept), size):
            return _cut(head, kept, fitting, budget, size)
    if not budget.admits(len(head), size):
        raise BudgetTooSmall(messages=len(head), tokens=size if budget.counts else None)
    return Fitted([*head, *reversed(kept)], size if budget.counts else None, cut=False)


def fit_again(context: Context, budget: Budget) -> Context:
    """What of a context fits into another budget."""
    after_summary = 1 if context.messages and context.messages[0].summary_through is not None else 0
    head = context.messages[:after_summary] or list(instructions(context.messages))
    fitted = fit(head, reversed(context.messages[len(head) :]), budget)
    return Context(messages=fitted.messages, tokens=fitted.tokens, cut=fitted.cut or context.cut, tag=context.tag)


def _cut(head: Sequence[Message], kept: list[Message], fitting: tuple[int, int], budget: Budget, size: int) -> Fitted:
    number, fitting_size = fitting
    if not number:
        raise BudgetTooSmall(messages=len(head) + len(kept), tokens=size if budget.counts else None)
    return Fitted([*head, *reversed(kept[:number])], fitting_size if budget.counts else None, cut=True)


class Cutter:
    """Walks from the newest message to older ones, and knows between which two of them a turn begins."""

    def __init__(self) -> None:
        self._younger: Message | None = None
        self._unmet: dict[str, int] = {}
        self._met = 0

    def may_cut_after(self, message: Message) -> bool:
        """Whether the context may begin behind this message, with those that were met before it."""
        younger, self._younger = self._younger, message
        allowed = younger is not None and begins_turn(message, younger) and not self._open()
        calls, answers = tool_ids(message)
        self._met += 1
        for answer in answers:
            self._unmet.setdefault(answer, self._met)
        for called in calls:
            self._unmet.pop(called, None)
        return allowed

    def _open(self) -> bool:
        self._unmet = {called: met for called, met in self._unmet.items() if self._met - met < CALLED_WITHIN}
        return bool(self._unmet)


def begins_turn(older: Message, younger: Message) -> bool:
    """Whether a turn begins between two neighbours: somebody speaks who has not just spoken, and not into a turn."""
    in_a_turn = younger.generation is not None and younger.generation == older.generation
    return speaks(younger) and not speaks(older) and not in_a_turn


def speaks(message: Message) -> bool:
    """Whether a person says it. Some programs hand the results of tools over as the user's words."""
    return message.role == "user" and not tool_ids(message)[1]


def instructions(messages: Iterable[Message]) -> Iterator[Message]:
    """Those at the beginning that tell the model what it is."""
    for message in messages:
        if message.role not in INSTRUCTIONS:
            return
        yield message


def tool_ids(message: Message) -> tuple[set[str], set[str]]:
    """The calls of tools that a message makes, and those that it answers, in the words of the common model APIs."""
    calls: set[str] = set()
    answers: set[str] = set()
    waiting: list[Any] = [message.content, message.metadata]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            _note(value, calls, answers)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return calls, answers


def _note(value: dict[str, Any], calls: set[str], answers: set[str]) -> None:
    kind = value.get("type")
    output = isinstance(kind, str) and kind.endswith("_output")
    found = (
        (answers, value.get("tool_call_id")),
        (answers, value.get("tool_use_id")),
        (answers if output else calls, value.get("call_id")),
        (calls, value.get("id") if kind in ("tool_use", "function", "tool_call") else None),
    )
    for ids, named in found:
        if isinstance(named, str):
            ids.add(named)
