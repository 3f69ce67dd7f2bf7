"""Free-running rounds: several servers on one database, clients that do anything, kill -9 and restarts in between.

    python -m tests.races.stress [--seconds 600] [--seed N] [--engine postgresql]     (make stress)

Every call and answer is recorded, and each conversation's history must be explained by some order of its calls. The seed
decides what the clients ask and when servers die; it is printed, so that a run can be repeated.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests import servers
from tests.conftest import Tables, faults
from tests.races.history import Entry, explained, shortest_unexplained
from tests.races.operations import Op, Outcome, over_http
from tests.rules import Call, Said
from tests.test_serve import Server

CLIENTS, SERVERS, IDS, EPOCH_SECONDS = 6, 2, 4, 4.0
TTL_MS = 3_600_000
TELLS_VERSION = {"create", "get", "label", "truncate", "acquire", "renew", "finish", "interrupt", "compact"}
TELLS_MESSAGES = {"create", "append", "put", "acquire", "finish", "messages", "context", "queue", "claim", "compact"}
NOTHING_STORED = {"busy", "disk-full", "stopping"}


class Fleet:
    """Servers on one file that may be killed at any time, and are there again soon."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._servers, self.kills = url, [self._start(url) for _ in range(count)], 0

    def _start(self, url: str) -> Server:
        return Server(url, SESSIONSTORE_BUSY_TIMEOUT_MS="10000")

    def address(self, choice: random.Random) -> str:
        """Some server, alive or just killed."""
        return choice.choice(self._servers).address

    def kill_one(self, choice: random.Random) -> None:
        """kill -9, and a new one in its place."""
        index = choice.randrange(len(self._servers))
        victim = self._servers[index]
        victim.process.kill()
        victim.process.communicate()
        self._servers[index] = self._start(self._url)
        self.kills += 1

    def stop(self) -> None:
        """End them in good order."""
        for server in self._servers:
            assert server.stop() == 0, server.errors


class Client:
    """Asks anything, and writes down what it was told."""

    def __init__(self, fleet: Fleet, seed: str) -> None:
        self._fleet, self._choice = fleet, random.Random(seed)
        self.histories: dict[str, list[Entry]] = defaultdict(list)
        self._versions: dict[str, int] = defaultdict(int)
        self.calls = 0

    def run(self, ids: list[str], until: float) -> None:
        """One epoch."""
        with httpx2.Client(timeout=20) as client:
            while time.monotonic() < until:
                self._one(client, self._choice.choice(ids))

    def _one(self, client: httpx2.Client, id: str) -> None:
        call = some_call(self._choice, self._versions[id])
        client.base_url = httpx2.URL(self._fleet.address(self._choice))
        sent = time.monotonic()
        try:
            outcome: Outcome | None = over_http(client, as_operation(id, call))
        except httpx2.ConnectError:
            return  # It was never sent.
        except httpx2.HTTPError:
            outcome = None
        answered = math.inf if outcome is None or outcome.code == "outcome-unknown" else time.monotonic()
        self.calls += 1
        if outcome is None or outcome.code not in NOTHING_STORED:
            said = None if outcome is None or answered == math.inf else as_said(call, outcome)
            if said is not None and said.version is not None:
                self._versions[id] = said.version
            self.histories[id].append(Entry(sent, answered, call, said))


def some_call(choice: random.Random, seen: int) -> Call:
    """Any call, those that fill a conversation more often than those that empty it."""
    token = choice.choice([None, "token-of-client-number-1", "token-of-client-number-2", "token-of-client-number-3"])
    status = choice.choice(["complete", "partial"]) if token else "complete"
    message = (f"m{choice.randrange(4)}", str(choice.randrange(3)), status)
    makers = {
        "create": lambda: Call("create", messages=(("m0", "0", "complete"),)),
        "get": lambda: Call("get"),
        "messages": lambda: Call("messages"),
        "append": lambda: Call("append", token, messages=(message,)),
        "put": lambda: Call("put", token, messages=(message,)),
        "delete_message": lambda: Call("delete_message", token, message_id=message[0]),
        "truncate": lambda: Call("truncate", token, first=choice.randrange(-1, 4), last=choice.randrange(4, 9)),
        "label": lambda: Call("label", token, title=choice.choice(["a", "b"])),
        "acquire": lambda: Call("acquire", token or "token-of-client-number-4", ttl=TTL_MS),
        "renew": lambda: Call("renew", token),
        "release": lambda: Call("release", token),
        "finish": lambda: Call("finish", token, messages=(message,)),
        "interrupt": lambda: Call("interrupt", force=choice.random() < 0.5),
        "delete": lambda: Call("delete", token, force=choice.random() < 0.2),
        "queue": lambda: Call("queue", messages=((f"q{choice.randrange(4)}", message[1], "complete"),)),
        "cancel": lambda: Call("cancel", message_id=f"q{choice.randrange(4)}"),
        "context": lambda: Call("context"),
        "compact": lambda: Call(
            "compact",
            token,
            messages=((f"s{choice.randrange(4)}", message[1], "complete"),),
            through=choice.randrange(6),
            seen=max(1, seen),
        ),
        "claim": lambda: Call("claim", token, ids=choice.choice([None, (f"q{choice.randrange(4)}",)])),
    }
    weights = {"create": 4, "messages": 3, "append": 5, "put": 6, "acquire": 5, "finish": 2, "delete": 0.2}
    names = list(makers)
    return makers[choice.choices(names, [weights.get(name, 1.0) for name in names])[0]]()


def as_operation(id: str, call: Call) -> Op:
    """The call as it is sent."""
    messages = [
        {"id": one, "role": "user", "content": json.loads(text), "status": status} for one, text, status in call.messages
    ]
    arguments: dict[str, Any] = {} if call.token is None else {"token": call.token}
    match call.name:
        case "create" | "append" | "finish" | "queue":
            arguments["messages"] = messages
        case "put":
            arguments["message"] = messages[0]
        case "delete_message" | "cancel":
            arguments["message_id"] = call.message_id
        case "claim":
            arguments |= {} if call.ids is None else {"ids": list(call.ids)}
        case "truncate":
            arguments |= {"after_position": call.first, "through_position": call.last}
        case "label":
            arguments["title"] = call.title
        case "acquire":
            arguments |= {"ttl_ms": call.ttl}
        case "interrupt" | "delete":
            arguments |= {"force": call.force}
        case "compact":
            ((summary_id, text, _),) = call.messages
            arguments |= {"summary": {"role": "user", "content": json.loads(text)}, "new": summary_id}
            arguments |= {"through_position": call.through, "seen_version": call.seen}
        case "messages" | "context":
            arguments["limit"] = 1000
    if call.name == "context":
        return Op("messages", id, {**arguments, "view": "context"})
    return Op(call.name, id, arguments)


def as_said(call: Call, outcome: Outcome) -> Said:
    """The answer in the words of the rules."""
    if outcome.code not in ("done", "replayed"):
        return Said(outcome.code)
    value = outcome.value
    messages = value.get("messages", []) if call.name in TELLS_MESSAGES else []
    told = tuple((m["id"], m["position"], _text(m), m["status"]) for m in messages)
    return Said(outcome.code, value.get("version") if call.name in TELLS_VERSION else None, told)


def _text(message: dict[str, Any]) -> str | None:
    return None if message["status"] == "deleted" else json.dumps(message["content"])


def epoch(fleet: Fleet, clients: list[Client], ids: list[str], choice: random.Random) -> None:
    """Let the clients loose on fresh conversations, and kill a server or two meanwhile."""
    until = time.monotonic() + EPOCH_SECONDS
    threads = [threading.Thread(target=client.run, args=(ids, until)) for client in clients]
    for thread in threads:
        thread.start()
    while time.monotonic() < until - 1.5:
        time.sleep(choice.uniform(0.3, 1.2))
        fleet.kill_one(choice)
    for thread in threads:
        thread.join()


def check(clients: list[Client], id: str, tables: Tables) -> str | None:
    """What is wrong with a conversation's history, or None."""
    history = [entry for client in clients for entry in client.histories[id]]
    living = "SELECT pk, message_count FROM conversations WHERE id = ? AND deleted_at IS NULL"
    for pk, count in tables.rows(living, id):
        rows = tables.rows(
            "SELECT position, status FROM messages WHERE conversation_pk = ? AND position >= 0 ORDER BY position", pk
        )
        if [position for position, _ in rows] != list(range(len(rows))):
            return f"positions of {id}: {rows}"
        if count != sum(status != "deleted" for _, status in rows):
            return f"count of {id}: {count} of {rows}"
    if explained(history):
        return None
    lines = "\n".join(str(entry) for entry in shortest_unexplained(history))
    return f"no order explains the last of these answers about {id}:\n{lines}"


def main() -> int:
    """Run for so long. Answers 1 at the first history that nothing explains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    asked = parser.parse_args()
    sys.stdout.write(f"seed {asked.seed}\n")
    with _database(asked.engine) as url:
        return _rounds(url, asked.seconds, asked.seed)


@contextmanager
def _database(engine: str) -> Iterator[str]:
    """A new one: a file, or on a server of our own."""
    if engine == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/stress.db"
        return
    with servers.Server(servers.DURABLE) as server:
        server.execute("CREATE DATABASE stress")
        yield server.url("stress")


def _rounds(url: str, seconds: float, seed: int) -> int:
    choice, end, number, calls = random.Random(seed), time.monotonic() + seconds, 0, 0
    fleet = Fleet(url, SERVERS)
    tables = Tables(url)
    while time.monotonic() < end:
        number += 1
        ids = [f"e{number}-{n}" for n in range(IDS)]
        clients = [Client(fleet, f"{seed}-{number}-{n}") for n in range(CLIENTS)]
        epoch(fleet, clients, ids, choice)
        calls += sum(client.calls for client in clients)
        for wrong in filter(None, (check(clients, id, tables) for id in ids)):
            sys.stdout.write(f"seed {seed}, epoch {number}: {wrong}\n")
            return 1
    fleet.stop()
    broken = [] if tables.sound() else ["the file is damaged"]
    broken += [str(fault) for fault in faults(url)]
    said = "every history explained" + ("" if not broken else f", but {broken}")
    sys.stdout.write(f"{calls} calls in {number} epochs, {fleet.kills} servers killed, {said}\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
