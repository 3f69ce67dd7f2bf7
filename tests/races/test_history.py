"""The checker tells what can have happened from what cannot."""

import math

import pytest

from tests.races.history import Entry, explained, shortest_unexplained
from tests.rules import Call, Said

HI = (("m", '"hi"', "complete"),)
STORED = (("m", 0, '"hi"', "complete"),)
CREATE = Entry(0, 1, Call("create"), Said("done", 1))


def entry(sent: float, answered: float, call: Call, said: Said | None) -> Entry:
    return Entry(sent, answered, call, said)


LEGAL = {
    "one after the other": [
        CREATE,
        entry(2, 3, Call("append", messages=HI), Said("done", None, STORED)),
        entry(4, 5, Call("messages"), Said("done", None, STORED)),
    ],
    "a read that overlaps may see either": [
        CREATE,
        entry(2, 5, Call("append", messages=HI), Said("done", None, STORED)),
        entry(3, 4, Call("messages"), Said("done")),
    ],
    "a lost answer that happened": [
        CREATE,
        entry(2, math.inf, Call("append", messages=HI), None),
        entry(4, 5, Call("append", messages=HI), Said("replayed", None, STORED)),
    ],
    "a lost answer that never happened": [
        CREATE,
        entry(2, math.inf, Call("append", messages=HI), None),
        entry(4, 5, Call("messages"), Said("done")),
    ],
    "two that acquire": [
        CREATE,
        entry(2, 5, Call("acquire", "token-a"), Said("done", 2)),
        entry(2, 5, Call("acquire", "token-b"), Said("generating")),
    ],
}
ILLEGAL = {
    "an acknowledged message that is not there": [
        CREATE,
        entry(2, 3, Call("append", messages=HI), Said("done", None, STORED)),
        entry(4, 5, Call("messages"), Said("done")),
    ],
    "a deleted conversation that is back": [
        CREATE,
        entry(2, 3, Call("delete"), Said("done")),
        entry(4, 5, Call("get"), Said("done", 1)),
    ],
    "two generators": [
        CREATE,
        entry(2, 5, Call("acquire", "token-a"), Said("done", 2)),
        entry(2, 5, Call("acquire", "token-b"), Said("done", 3)),
    ],
    "a message that was stored twice": [
        CREATE,
        entry(2, 3, Call("append", messages=HI), Said("done", None, STORED)),
        entry(4, 5, Call("append", messages=HI), Said("done", None, (("m", 1, '"hi"', "complete"),))),
    ],
    "a stale writer that got through": [
        CREATE,
        entry(2, 3, Call("acquire", "token-a"), Said("done", 2)),
        entry(4, 5, Call("interrupt", force=True), Said("done", 3)),
        entry(6, 7, Call("append", "token-a", messages=HI), Said("done", None, STORED)),
    ],
    "a version that stood still": [
        CREATE,
        entry(2, 3, Call("label", title="t"), Said("done", 1)),
    ],
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_some_order_explains_is_accepted(name: str) -> None:
    assert explained(LEGAL[name])


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_no_order_explains_is_found(name: str) -> None:
    assert not explained(ILLEGAL[name])
    assert shortest_unexplained(ILLEGAL[name])[: len(ILLEGAL[name]) - 1] == ILLEGAL[name][:-1]
