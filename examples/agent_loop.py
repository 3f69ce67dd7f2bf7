"""A small agent: it begins a turn, streams a reply in pieces, calls a tool, and finishes. The model is scripted; no network.

    python examples/agent_loop.py --database sqlite:///garden.db "How many basil packets are left?"

Run it twice at once on one conversation: one of the two generates, the other is told politely who does. With a server running
(make serve), `--server http://127.0.0.1:8080` does the same through it; kill the server in the middle and start it again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from sessionstore import Draft, LiveTurn, Store, errors
from sessionstore.client import Client

STOCK = {"basil": 4, "mint": 0}
Event = dict[str, Any]
Model = Callable[[list[Any]], Iterator[Event]]
AnyStore = Store | Client


def scripted_model(transcript: list[Any]) -> Iterator[Event]:
    """What a model would stream: a tool call first, and words once the tool has answered."""
    last = transcript[-1]
    if isinstance(last, dict) and last.get("type") == "tool_result":
        for word in f"There are {last['output']} packets of basil left.".split():
            yield {"type": "text", "text": word + " "}
    else:
        yield {"type": "tool_call", "id": "call-1", "name": "stock", "arguments": {"seed": "basil"}}


def run_turn(store: AnyStore, conversation_id: str, question: str, model: Model, say: Callable[[str], None]) -> bool:
    """Answer one question. False when somebody else is answering in this conversation."""
    asked = [Draft(role="user", content=question)]
    try:
        with store.generate(conversation_id, "agent-loop", messages=asked) as turn:
            while (call := stream_reply(store, turn, model, say)) is not None:
                result = {"type": "tool_result", "call": call["id"], "output": STOCK[call["arguments"]["seed"]]}
                turn.append([Draft(role="tool", content=result)])
            if not turn.interrupted:
                turn.finish(usage={"input_tokens": 12, "output_tokens": 9})
    except errors.Generating as busy:
        say(f"[{busy.holder} is answering already, at the latest until {busy.expires_at}; ask again later]")
        return False
    except errors.LeaseLost:
        say("[somebody else took over; what was saved is kept]")
        return False
    return True


def stream_reply(store: AnyStore, turn: LiveTurn, model: Model, say: Callable[[str], None]) -> Event | None:
    """Save the reply again and again while it grows. Answers the tool call that it ends with, if it does."""
    context = store.context(turn.id)
    reply_id, text = f"reply-{context.tag.version}", ""
    for event in model([message.content for message in context.messages]):
        if event["type"] == "tool_call":
            turn.append([Draft(role="assistant", content=event)])
            return event
        text += event["text"]
        say(event["text"])
        turn.save(reply_id, text)
        if turn.interrupted:
            break
    return None


def main() -> int:
    """Ask one question in one conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="How many basil packets are left?")
    parser.add_argument("--database", default="sqlite:///garden.db")
    parser.add_argument("--server", help="the address of a server, instead of a database")
    parser.add_argument("--conversation", default="garden")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two words")
    asked = parser.parse_args()

    def say(text: str) -> None:
        print(text, end="", flush=True)
        time.sleep(asked.pause)

    with Client(asked.server) if asked.server else Store.open(asked.database, migrate_first=True) as store:
        store.create(asked.conversation, title="Garden shop")
        answered = run_turn(store, asked.conversation, asked.question, scripted_model, say)
        print()
        print(json.dumps({"answered": answered, "messages": store.get(asked.conversation).message_count}), file=sys.stderr)
    return 0 if answered else 75


if __name__ == "__main__":
    sys.exit(main())
