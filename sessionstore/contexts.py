"""What a model is shown when not everything fits: the newest turns, whole, and what stands in front of them all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from sessionstore.errors import BudgetTooSmall, InvalidInput
from sessionstore.model import Context, Message
from sessionstore.toolcalls import speaks, tool_ids

Count = Callable[[Message], int]
INSTRUCTIONS = ("system", "developer")
# More instructions than that at the beginning are no instructions.
MOST_INSTRUCTIONS = 16
# So far behind the budget it is looked for calls; a result without one must not hold up for ever.
CALLED_WITHIN = 1_000


class Fitted(NamedTuple):
    """What fits, oldest first; how many tokens that is, where they were counted; whether something was left out."""

    messages: list[Message]
    tokens: int | None
    cut: bool


class Budget(msgspec.Struct, frozen=True):
    """At most so many messages and bytes, and tokens where they count."""

    messages: int
    tokens: int | None
    count: Count | None
    octets: int = 2**62

    def size(self, messages: Iterable[Message]) -> int:
        """How many tokens these are; nothing where nobody counts."""
        count = self.count or (None if self.tokens is None else stored_tokens)
        return 0 if count is None else sum(count(message) for message in messages)

    def admits(self, number: int, size: int, octets: int) -> bool:
        """Whether so much fits."""
        return number <= self.messages and octets <= self.octets and (self.tokens is None or size <= self.tokens)

    @property
    def counts(self) -> bool:
        """Whether tokens are counted."""
        return self.tokens is not None or self.count is not None

    def too_small(self, messages: Sequence[Message], size: int) -> BudgetTooSmall:
        """What is said when these do not fit."""
        filled = sum(message.octets for message in messages)
        return BudgetTooSmall(
            messages=len(messages), tokens=size if self.counts else None, bytes=filled if filled > self.octets else None
        )


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
    walk, sizes, older = Walk(), [budget.size(head)], iter(newest_first)
    beginning = sum(message.octets for message in head)
    for message in older:
        walk.meet(message)
        sizes.append(sizes[-1] + budget.size([message]))
        if not budget.admits(len(head) + len(walk.messages), sizes[-1], beginning + walk.octets):
            return _cut(head, walk, sizes, budget, older)
    if not budget.admits(len(head), sizes[0], beginning):
        raise budget.too_small(head, sizes[0])
    return Fitted([*head, *reversed(walk.messages)], sizes[-1] if budget.counts else None, cut=False)


def _cut(head: Sequence[Message], walk: "Walk", sizes: list[int], budget: Budget, older: Iterator[Message]) -> Fitted:
    over, shown = len(walk.messages), [*head, *walk.messages]
    while not walk.is_settled and len(walk.messages) < over + CALLED_WITHIN and (message := next(older, None)) is not None:
        walk.pass_by(message)
    kept = max((number for number in walk.borders() if number < over), default=0)
    if not kept:
        raise budget.too_small(shown, sizes[-1])
    return Fitted([*head, *reversed(walk.messages[:kept])], sizes[kept] if budget.counts else None, cut=True)


def fit_again(context: Context, budget: Budget) -> Context:
    """What of a context fits into another budget."""
    after_summary = 1 if context.messages and context.messages[0].summary_through is not None else 0
    head = context.messages[:after_summary] or list(instructions(context.messages))
    fitted = fit(head, reversed(context.messages[len(head) :]), budget)
    return Context(messages=fitted.messages, tokens=fitted.tokens, cut=fitted.cut or context.cut, tag=context.tag)


class Walk:
    """From the newest message to older ones: where turns begin, and where a result would lose its call."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.octets = 0
        self._needs: list[int] = []
        self._open: dict[str, list[int]] = {}

    def meet(self, message: Message) -> None:
        """The next older message."""
        place, ids = len(self.messages), tool_ids(message)
        for called in ids.calls:
            for answered_at in self._open.pop(called, ()):
                self._needs[answered_at] = place
        self.messages.append(message)
        self.octets += message.octets
        self._needs.append(place)
        for answer in ids.answers:
            self._open.setdefault(answer, []).append(place)

    def pass_by(self, message: Message) -> None:
        """One that is not shown, and need not be kept: it may have called for what is."""
        self.meet(message)
        self.messages[-1] = msgspec.structs.replace(message, content_json=None, metadata_json=None)

    @property
    def is_settled(self) -> bool:
        """Whether the call of every result was met."""
        return not self._open

    def borders(self) -> Iterator[int]:
        """How many of the newest messages may be shown alone: whole turns, and all calls that they answer."""
        needed = 0
        for number in range(1, len(self.messages)):
            needed = max(needed, self._needs[number - 1])
            if needed < number and begins_turn(self.messages[number], self.messages[number - 1]):
                yield number


def begins_turn(older: Message, younger: Message) -> bool:
    """Whether a turn begins between two neighbours: somebody speaks who has not just spoken, and not into a turn."""
    in_a_turn = younger.generation is not None and younger.generation == older.generation
    return speaks(younger) and not speaks(older) and not in_a_turn


def instructions(messages: Iterable[Message]) -> Iterator[Message]:
    """Those at the beginning that tell the model what it is."""
    for message in islice(messages, MOST_INSTRUCTIONS):
        if message.role not in INSTRUCTIONS:
            return
        yield message
