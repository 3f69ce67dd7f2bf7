"""The example agent: a whole turn, and two agents at once on one conversation."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from examples import agent_loop, viewer
from sessionstore import Mirror, Store
from sessionstore.client import Client
from tests.conftest import Tables, texts
from tests.test_serve import Server

pytestmark = pytest.mark.one_file

SCRIPT = Path(agent_loop.__file__)


def test_the_example_runs_as_its_docstring_says(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/garden.db"
    for expected in (4, 8):
        run = [sys.executable, str(SCRIPT), "--database", database, "--pause", "0"]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "There are 4 packets of basil left."
        assert f'"messages": {expected}' in done.stderr
    with Store.open(database) as store:
        roles = [(message.role, message.status) for message in store.messages("garden").items]
        assert roles == [(role, "complete") for role in ("user", "assistant", "tool", "assistant")] * 2
        last = store.get("garden").last_generation
        assert last is not None
        assert (last.outcome, last.usage) == ("completed", {"input_tokens": 12, "output_tokens": 9})


def test_two_agents_at_once_are_one_winner_and_one_polite_refusal(plain: Store, tables: Tables) -> None:
    plain.create("garden")
    streaming, refused = threading.Event(), threading.Event()
    said: dict[str, str] = {"first": "", "second": ""}

    def slow_model(transcript: list[Any]) -> Iterator[dict[str, Any]]:
        for event in agent_loop.scripted_model(transcript):
            yield event
            streaming.set()
            refused.wait(30)

    def say(name: str, text: str) -> None:
        said[name] += text

    answered: list[bool] = []
    first = threading.Thread(
        target=lambda: answered.append(
            agent_loop.run_turn(plain, "garden", "How much?", slow_model, lambda text: say("first", text))
        )
    )
    first.start()
    streaming.wait(30)
    won = agent_loop.run_turn(plain, "garden", "Me too!", agent_loop.scripted_model, lambda text: say("second", text))
    refused.set()
    first.join(30)
    assert (answered, won) == ([True], False)
    assert said["first"].strip() == "There are 4 packets of basil left."
    assert said["second"].startswith("[agent-loop is answering already")
    assert "Me too!" not in texts(plain, "garden")
    assert tables.one("SELECT count(*) FROM generations") == 1


def test_an_interrupted_agent_stops_and_keeps_what_it_said(plain: Store) -> None:
    plain.create("garden")

    def model(transcript: list[Any]) -> Iterator[dict[str, Any]]:
        yield {"type": "text", "text": "One "}
        plain.interrupt("garden")
        yield {"type": "text", "text": "two "}
        yield {"type": "text", "text": "never said"}

    assert agent_loop.run_turn(plain, "garden", "Count!", model, lambda _: None)
    assert texts(plain, "garden") == ["Count!", "One two "]


def test_a_turn_through_a_server_that_is_killed_and_started_again_in_mid_reply(tmp_path: Path) -> None:
    """The agent finishes its reply, and the viewer's screen shows what is stored."""
    url = f"sqlite:///{tmp_path}/served.db"
    server = Server(url)
    port, said = server.address.rpartition(":")[2], list[str]()
    shown: list[str] = []

    def say(text: str) -> None:
        nonlocal server
        said.append(text)
        if len(said) == 3:
            server.process.kill()
            server.process.communicate()
            server = Server(url, "--port", port)

    def show(mirror: Mirror) -> bool:
        shown.append(viewer.screen(mirror))
        return mirror.conversation is not None and mirror.conversation.last_generation is not None

    with Client(server.address) as client, ThreadPoolExecutor() as pool:
        client.create("garden")
        watching = pool.submit(viewer.watch, client, "garden", show)
        assert agent_loop.run_turn(client, "garden", "How much basil?", agent_loop.scripted_model, say)
        mirror = watching.result(60)
        stored = client.messages("garden").items
        assert mirror.messages == stored
        assert [(message.role, message.status) for message in stored] == [
            (role, "complete") for role in ("user", "assistant", "tool", "assistant")
        ]
        assert (stored[-1].content, "".join(said)) == ("There are 4 packets of basil left. ",) * 2
        assert client.get("garden").last_generation == mirror.conversation.last_generation  # type: ignore[union-attr]
    assert any("generating" in screen for screen in shown)
    assert "generating" not in shown[-1]
    assert server.stop() == 0


def test_the_example_runs_against_a_server(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/served.db")
    run = [sys.executable, str(SCRIPT), "--server", server.address, "--pause", "0"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "There are 4 packets of basil left."
    assert server.stop() == 0
