"""A context by budget: whole turns, calls with their results, and never more than was asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import Draft, Store, errors
from sessionstore.contexts import Budget, fit
from sessionstore.model import Message
from tests.conftest import TOKEN, user

OPENAI_CALL = {"tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
OPENAI_RESULT = {"tool_call_id": "call-1", "content": "4"}
ANTHROPIC_CALL = [{"type": "text", "text": "let me"}, {"type": "tool_use", "id": "call-1", "name": "f", "input": {}}]
ANTHROPIC_RESULT = [{"type": "tool_result", "tool_use_id": "call-1", "content": "4"}]
RESPONSES_CALL = {"type": "function_call", "id": "fc-9", "call_id": "call-1", "name": "f", "arguments": "{}"}
RESPONSES_RESULT = {"type": "function_call_output", "call_id": "call-1", "output": "4"}


def draft(role: str, content: Any, tokens: int = 1) -> Draft:
    return Draft(role=role, content=content, metadata={"tokens": tokens})


def shown(store: Store, **budget: Any) -> list[Any]:
    return [message.content for message in store.context("c", **budget).messages]


@pytest.fixture
def turns(store: Store) -> Store:
    store.create("c")
    for n in range(4):
        store.append("c", [draft("user", f"q{n}"), draft("assistant", f"a{n}", 10)])
    return store


def test_the_newest_turns_that_fit_are_shown_whole(turns: Store) -> None:
    assert shown(turns, max_messages=8) == [f"{x}{n}" for n in range(4) for x in "qa"]
    assert shown(turns, max_messages=7) == shown(turns, max_messages=6) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    found = turns.context("c", max_messages=3)
    assert ([m.content for m in found.messages], found.cut, found.tokens) == (["q3", "a3"], True, None)
    assert found.tag == turns.get("c").tag
    assert not turns.context("c").cut


def test_tokens_are_counted_as_each_message_says(turns: Store) -> None:
    found = turns.context("c", max_tokens=30)
    assert ([m.content for m in found.messages], found.tokens, found.cut) == (["q2", "a2", "q3", "a3"], 22, True)
    assert turns.context("c", max_tokens=44).tokens == 44
    assert turns.context("c", max_tokens=30, max_messages=2).tokens == 11


def test_tokens_are_counted_by_the_callers_own_counter(turns: Store) -> None:
    found = turns.context("c", max_tokens=8, count=lambda message: len(message.content))
    assert ([m.content for m in found.messages], found.tokens) == (["q2", "a2", "q3", "a3"], 8)


def test_a_message_that_does_not_say_its_tokens_is_named(turns: Store) -> None:
    turns.append("c", [user("how many?", "silent")])
    with pytest.raises(errors.InvalidInput, match="silent") as refused:
        turns.context("c", max_tokens=30)
    assert refused.value.path in ("$.max_tokens", "?max_tokens")
    turns.label_message("c", "silent", {"tokens": 3})
    assert turns.context("c", max_tokens=3).tokens == 3


@pytest.mark.parametrize("budget", [{"max_messages": 1}, {"max_tokens": 10}])
def test_a_turn_that_does_not_fit_is_an_error_and_not_half_there(turns: Store, budget: dict[str, int]) -> None:
    with pytest.raises(errors.BudgetTooSmall) as refused:
        turns.context("c", **budget)  # type: ignore[arg-type]
    assert refused.value.messages == 2


@pytest.mark.parametrize("budget", [{"max_messages": 0}, {"max_messages": 1001}, {"max_tokens": 0}, {"max_messages": True}])
def test_impossible_budgets_are_refused(turns: Store, budget: dict[str, int]) -> None:
    with pytest.raises(errors.InvalidInput):
        turns.context("c", **budget)  # type: ignore[arg-type]


def test_the_summary_stands_in_front_and_is_counted(turns: Store) -> None:
    turns.compact("c", draft("system", "in short", 5), through_position=3, seen_version=turns.get("c").version)
    assert shown(turns) == ["in short", "q2", "a2", "q3", "a3"]
    assert shown(turns, max_messages=4) == shown(turns, max_tokens=16) == ["in short", "q3", "a3"]
    with pytest.raises(errors.BudgetTooSmall):
        turns.context("c", max_messages=2)
    with pytest.raises(errors.BudgetTooSmall):
        turns.context("c", max_tokens=15)


def test_the_instructions_at_the_beginning_stay(store: Store) -> None:
    store.create("c", messages=[draft("system", "be kind"), draft("developer", "be brief")])
    assert shown(store) == ["be kind", "be brief"]
    store.append("c", [draft("user", "q0"), draft("assistant", "a0"), draft("user", "q1"), draft("assistant", "a1")])
    assert shown(store, max_messages=4) == ["be kind", "be brief", "q1", "a1"]
    with pytest.raises(errors.BudgetTooSmall):
        store.context("c", max_messages=3)


BEDROCK_CALL = [{"toolUse": {"toolUseId": "call-1", "name": "f", "input": {"id": "x"}}}]
BEDROCK_RESULT = [{"toolResult": {"toolUseId": "call-1", "content": [{"text": "4"}]}}]
GEMINI_CALL = {"parts": [{"functionCall": {"name": "f", "args": {}}}]}
GEMINI_RESULT = {"parts": [{"functionResponse": {"name": "f", "response": {"tool_call_id": "no"}}}]}
CUSTOM_CALL = {"tool_calls": [{"id": "call-1", "custom": {"name": "f"}}]}
APPROVAL_CALL = {"type": "mcp_approval_request", "id": "call-1"}
APPROVAL_RESULT = {"type": "mcp_approval_response", "approval_request_id": "call-1", "approve": True}


def test_what_a_server_calls_and_answers_itself_holds_nothing_up(store: Store) -> None:
    answered = [
        {"type": "server_tool_use", "id": "srv-1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv-1", "content": []},
        {"type": "text", "text": "found"},
    ]
    store.create(
        "c", messages=[draft("user", "q0"), draft("assistant", "a0"), draft("user", "q1"), draft("assistant", answered)]
    )
    assert shown(store, max_messages=2) == ["q1", answered]


@pytest.mark.parametrize(
    ("call", "role", "result"),
    [
        (BEDROCK_CALL, "user", BEDROCK_RESULT),
        (GEMINI_CALL, "user", GEMINI_RESULT),
        (CUSTOM_CALL, "tool", OPENAI_RESULT),
        (APPROVAL_CALL, "user", APPROVAL_RESULT),
        (OPENAI_CALL, "tool", OPENAI_RESULT),
        (ANTHROPIC_CALL, "user", ANTHROPIC_RESULT),
        (RESPONSES_CALL, "tool", RESPONSES_RESULT),
        (RESPONSES_CALL, "user", RESPONSES_RESULT),
    ],
)
def test_a_call_and_its_result_stay_together(store: Store, call: Any, role: str, result: Any) -> None:
    store.create("c", messages=[draft("user", "q0"), draft("assistant", "a0"), draft("user", "q1"), draft("assistant", call)])
    # Somebody speaks between the two, outside of any lease.
    store.append("c", [draft("user", "hurry"), draft(role, result), draft("assistant", "four")])
    assert shown(store, max_messages=6) == ["q1", call, "hurry", result, "four"]
    with pytest.raises(errors.BudgetTooSmall):
        store.context("c", max_messages=4)


def test_a_result_without_a_call_holds_nothing_up(store: Store) -> None:
    store.create("c", messages=[draft("user", "q0"), draft("assistant", "a0")])
    store.append("c", [draft("user", "q1"), draft("tool", {"tool_call_id": "never called"}), draft("assistant", "a1")])
    assert shown(store, max_messages=3) == ["q1", {"tool_call_id": "never called"}, "a1"]


def test_a_call_long_before_its_result_is_not_cut_off(store: Store) -> None:
    store.create("c", messages=[draft("user", "q0"), draft("assistant", OPENAI_CALL)])
    for n in range(150):
        store.append("c", [draft("user", f"and {n}?"), draft("assistant", "wait")])
    store.append("c", [draft("user", "q1"), draft("tool", OPENAI_RESULT), draft("assistant", "a1")])
    with pytest.raises(errors.BudgetTooSmall):
        store.context("c", max_messages=200)
    assert len(shown(store)) == 305
    store.append("c", [draft("user", "q2"), draft("assistant", "a2")])
    assert shown(store, max_messages=200) == ["q2", "a2"]


def test_who_steers_a_turn_begins_none(store: Store) -> None:
    store.create("c", messages=[user("q0"), user("a0", role="assistant")])
    store.acquire("c", "w", token=TOKEN, messages=[user("q1")])
    store.queue_inputs("c", [user("and this", "i")], mode="steer")
    store.append("c", [user("thinking", role="assistant")], token=TOKEN)
    store.claim_inputs("c", ["i"], token=TOKEN)
    store.finish("c", [user("a1", role="assistant")], token=TOKEN)
    assert shown(store, max_messages=5) == ["q1", "thinking", "and this", "a1"]
    with pytest.raises(errors.BudgetTooSmall):
        store.context("c", max_messages=3)


def test_two_messages_that_were_sent_together_stay_together(store: Store) -> None:
    store.create(
        "c", messages=[user("q0"), user("a0", role="assistant"), user("look:"), user("this"), user("a1", role="assistant")]
    )
    assert shown(store, max_messages=3) == ["look:", "this", "a1"]
    with pytest.raises(errors.BudgetTooSmall):
        store.context("c", max_messages=2)


def test_an_empty_conversation_has_an_empty_context(store: Store) -> None:
    store.create("c")
    assert shown(store, max_messages=1) == []


ROLES = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(0, 5)), max_size=30)


@given(spoken=ROLES, most=st.integers(1, 12), tokens=st.one_of(st.none(), st.integers(1, 40)), octets=st.integers(20, 400))
def test_whatever_was_said_the_context_is_an_end_of_it_that_begins_with_a_turn(
    spoken: list[tuple[str, int]], most: int, tokens: int | None, octets: int
) -> None:
    messages = [
        Message(1, str(n), n, role, '"x"', f'{{"tokens": {size}}}', "complete", None, None, 1, 0, 0)
        for n, (role, size) in enumerate(spoken)
    ]
    budget = Budget(most, tokens, None, octets)

    def admitted(some: list[Message]) -> bool:
        return budget.admits(len(some), budget.size(some), sum(message.octets for message in some))

    try:
        fitted = fit([], reversed(messages), budget)
    except errors.BudgetTooSmall:
        # Only where the newest turn is too much.
        start = max((n for n in range(len(messages)) if _begins(messages, n)), default=0)
        assert not admitted(messages[start:])
        return
    kept = len(fitted.messages)
    assert fitted.messages == messages[len(messages) - kept :]
    assert admitted(fitted.messages)
    if fitted.cut:
        cut = len(messages) - kept
        assert _begins(messages, cut)
        longer = max(n for n in range(cut) if n == 0 or _begins(messages, n))
        assert not admitted(messages[longer:])
    else:
        assert kept == len(messages)


def _begins(messages: list[Message], n: int) -> bool:
    return messages[n].role == "user" and (n == 0 or messages[n - 1].role != "user")
