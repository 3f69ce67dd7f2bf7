"""What real agents store goes through the HTTP API and comes back equal, order and all (made-up data of real shapes)."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.conftest import C

# gptme: mixed stamps, flags, file hashes, flat and nested usage, fields of a newer version, other scripts' letters.
GPTME: list[dict[str, Any]] = [
    {
        "role": "system",
        "content": "You are a helper for a small garden shop.",
        "timestamp": "2026-09-01T08:00:00.500000",
        "pinned": True,
        "hide": True,
    },
    {
        "role": "user",
        "content": "List the seed packets in stock.txt — grüße",
        "timestamp": "2026-09-01T08:00:00.100000+00:00",
        "files": ["/srv/demo/workspace/stock.txt", "https://example.org/catalog.html"],
        "file_hashes": {"/srv/demo/workspace/stock.txt": "9f2c41aa03d7be10"},
    },
    {"role": "system", "content": "<budget:token_budget>128000</budget:token_budget>", "hide": True},
    {
        "role": "assistant",
        "content": '@shell(call-1): {"command": "cat stock.txt"}',
        "timestamp": "2026-09-01T08:00:03.250000",
        "metadata": {
            "model": "demo/model-1",
            "cost": 0.0021,
            "usage": {"input_tokens": 900, "output_tokens": 40, "cache_read_tokens": 300},
            "timings": {"tool_ms": 12.5, "tool_ms_by_name": {"shell": 12.5}},
        },
    },
    {"role": "system", "content": "basil 4\nmint 0", "call_id": "call-1", "metadata": {"tool": "shell"}},
    {"role": "user", "content": "Order ten mint packets. ミント十袋 🌱 نعناع"},
    {"role": "system", "content": "saved by a newer version", "ui_only": True, "ephemeral_ttl": 2, "mood": "sunny"},
    {"role": "assistant", "content": "Done: ten mint packets are on order.", "timestamp": "2026-09-01T08:02:00+02:00"},
]

# docker-agent: tool calls, usage and cost, images, reasoning, summaries and errors as items of their own.
DOCKER_AGENT: list[dict[str, Any]] = [
    {"role": "user", "content": "find the bug", "created_at": "2026-07-01T10:00:01Z"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}],
        "usage": {"input_tokens": 30, "output_tokens": 5, "cached_input_tokens": 0, "cached_write_tokens": 0},
        "model": "m1",
        "cost": 0.01,
    },
    {"role": "tool", "tool_call_id": "c1", "content": "line 7", "is_error": False},
    {
        "role": "user",
        "content": "now fix it",
        "multi_content": [
            {"type": "text", "text": "see picture"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
        ],
    },
    {"role": "summary", "summary_text": "Bug is in line 7", "first_kept_entry": 4, "cost": 0.004, "model": "m1"},
    {"role": "assistant", "content": "Fix", "reasoning_content": "half"},
    {"role": "error", "message": "context too long"},
]

# OpenHands: events of several kinds, stamps without zone, parents, thinking blocks.
OPENHANDS: list[dict[str, Any]] = [
    {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "…"}, "tools": []},
    {
        "kind": "MessageEvent",
        "source": "user",
        "id": "0001",
        "parent_id": "0000",
        "timestamp": "2026-07-01T10:00:00.000001",
        "llm_message": {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_prompt": False}],
            "thinking_blocks": [],
        },
        "activated_skills": [],
        "extended_content": [],
    },
    {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "execution_status", "value": "running"},
    {"kind": "ActionEvent", "source": "agent", "tool_name": "bash", "tool_call_id": "t1", "action": {"command": "ls"}},
    {"kind": "ObservationEvent", "source": "environment", "action_id": "a1", "tool_call_id": "t1", "observation": None},
    {"kind": "Condensation", "forgotten_event_ids": ["0001"], "summary": "…", "summary_offset": 1, "llm_response_id": "r1"},
]

# OpenAI's Responses API: items, not messages.
OPENAI: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the weather in Reykjavík?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Reykjavík"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": '{"celsius":-0.0}'},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "-0 °C", "annotations": [], "logprobs": [-1e-07, 2.5e10]}],
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": None}},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA=="},
]

SHAPES = {"gptme": GPTME, "docker-agent": DOCKER_AGENT, "openhands": OPENHANDS, "openai responses": OPENAI}


def as_message(item: dict[str, Any]) -> dict[str, Any]:
    """An item as a whole is the content; its role, where it has one that is a role, is the message's."""
    return {"role": str(item.get("role", "item")), "content": item, "metadata": {"source": item.get("kind", "x")}}


@pytest.mark.parametrize("name", SHAPES)
def test_a_real_conversation_comes_back_equal(client: TestClient, name: str) -> None:
    items = SHAPES[name]
    created = client.post(C, json={"id": "c", "title": "Garden — شجرة", "messages": [as_message(item) for item in items[:3]]})
    assert created.status_code == 201, created.text
    for item in items[3:]:
        assert client.post(f"{C}/c/messages", json={"messages": [as_message(item)]}).status_code == 201
    stored = client.get(f"{C}/c/messages?limit=1000").json()["data"]
    assert [message["content"] for message in stored] == items
    assert [list(message["content"]) for message in stored] == [list(item) for item in items]
    assert [message["position"] for message in stored] == list(range(len(items)))
    forked = client.post(f"{C}/c/fork", json={"id": "f"})
    assert forked.status_code == 201
    assert [message["content"] for message in client.get(f"{C}/f/messages?limit=1000").json()["data"]] == items


@pytest.mark.parametrize(
    "text", [r'"\u0000"', r'"\ud800"', r'"\ud83c\udf31"', '"🌱"', "-0.0", "1.0", "1", "9" * 999, "1e308"], ids=ascii
)
def test_a_json_text_comes_back_exactly(client: TestClient, text: str) -> None:
    client.post(C, json={"id": "c"})
    body = '{"messages":[{"id":"m","role":"user","content":[%s],"metadata":{"k":%s}}]}' % (text, text)
    headers = {"Content-Type": "application/json"}
    assert client.post(f"{C}/c/messages", content=body.encode(), headers=headers).status_code == 201
    shown = client.get(f"{C}/c/messages/m")
    expected = '"🌱"' if text == r'"\ud83c\udf31"' else text.replace("1e308", "1e+308")
    assert f'"content":[{expected}]' in shown.text
    assert f'"metadata":{{"k":{expected}}}' in shown.text
    assert client.post(f"{C}/c/messages", content=body.encode(), headers=headers).status_code == 200
