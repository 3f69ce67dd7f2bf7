"""Shows a conversation while it grows, and goes on by itself when the server is killed and started again.

make serve
python examples/viewer.py garden            # in a second terminal
python examples/agent_loop.py --server http://127.0.0.1:8080   # in a third one
"""

import argparse
import sys
from collections.abc import Callable

from sessionstore import Mirror, errors
from sessionstore.client import Client


def watch(client: Client, conversation_id: str, show: Callable[[Mirror], bool]) -> Mirror:
    """Show each state until `show` has seen enough, or the conversation is deleted."""
    mirror = Mirror()
    with client.events(conversation_id) as events:
        for changes in events:
            mirror.apply(changes)
            if changes.next is None and show(mirror):
                break
    return mirror


def screen(mirror: Mirror) -> str:
    """What a viewer sees."""
    lines = [f"{message.role:>10}  {message.content}{GROWING.get(message.status, '')}" for message in mirror.messages]
    turn = mirror.conversation.generation if mirror.conversation else None
    if turn is not None:
        lines.append(f"({turn.holder} is {'gone' if turn.expired else 'generating'})")
    return "\n".join(lines)


GROWING = {"partial": "▌", "interrupted": " [interrupted]"}


def main() -> None:
    """Show one conversation until it is deleted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("conversation")
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    asked = parser.parse_args()

    def show(mirror: Mirror) -> bool:
        print(f"\x1b[2J\x1b[H{screen(mirror)}", flush=True)
        return False

    with Client(asked.server, patience=60) as client:
        try:
            watch(client, asked.conversation, show)
        except errors.ConversationNotFound as missing:
            sys.exit(str(missing))


if __name__ == "__main__":
    main()
