"""The commands that change something: what they say, what they leave alone, how they exit."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sessionstore import Store, queries
from sessionstore.cli import EX_TEMPFAIL, main
from sessionstore.cli.group import EX_IOERR
from tests.conftest import TOKEN, Clock, reply, texts, user

DAY = 86_400_000


@pytest.fixture
def run(url: str) -> Any:
    def call(*arguments: str, database: str = url) -> Result:
        return CliRunner().invoke(main, [*arguments, "--database", database], catch_exceptions=False)

    return call


@pytest.fixture(autouse=True)
def conversations(plain: Store, clock: Clock) -> None:
    clock.now = 1_700_000_000_000
    plain.create("old", title="Old", messages=[user("Any basil?"), reply("Four packets of basil.\x1b[2J")])
    plain.acquire("old", "w", token=TOKEN)
    plain.finish("old", token=TOKEN, usage={"input_tokens": 12, "cost": 0.5})


def test_prune_says_what_it_would_do_and_does_it(run: Any, plain: Store) -> None:
    dry = json.loads(run("prune", "--older-than", "90d", "--dry-run", "--json").stdout)
    assert (dry["conversations"], dry["messages"], dry["dry_run"]) == (1, 2, True)
    assert plain.get("old").message_count == 2
    assert run("prune", "--older-than", "90d").stdout == ("1 conversations, 2 messages, 0 tombstones forgotten, 0 left alone\n")
    assert plain.conversations().items == []
    assert "would be forgotten" in run("prune", "--keep", "0", "--dry-run").stdout


@pytest.mark.parametrize("age", ["90", "x", "-1d", "1y"])
def test_an_age_that_is_none_is_wrong_usage(run: Any, age: str) -> None:
    refused = run("prune", f"--older-than={age}")
    assert refused.exit_code == 2
    assert "is no age" in refused.stderr


@pytest.mark.one_file
def test_purge_says_whether_it_is_done(run: Any, plain: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.delete("old")
    assert run("purge").stdout == "nothing that was deleted is left\n"
    reading, go = threading.Event(), threading.Event()

    def look(transaction: Any) -> None:
        transaction.row(queries.NEWEST_CHANGE)
        reading.set()
        go.wait(10)

    reader = threading.Thread(target=lambda: plain.database.read(look))
    reader.start()
    reading.wait(10)
    plain.create("new")
    monkeypatch.setenv("SESSIONSTORE_BUSY_TIMEOUT_MS", "50")
    busy = run("purge", "--json")
    go.set()
    reader.join()
    assert (busy.exit_code, json.loads(busy.stdout)) == (EX_TEMPFAIL, {"purged": False})


def test_export_and_import_go_round(run: Any, plain: Store, tmp_path: Path) -> None:
    file, other = tmp_path / "out.jsonl", f"sqlite:///{tmp_path}/other.db"
    assert run("export", "-o", str(file)).stdout == f"1 conversations, 2 messages written to {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = run("export", "-o", str(file))
    assert (again.exit_code, "is there already" in again.stderr) == (1, True)
    assert run("export").stdout_bytes == file.read_bytes()
    run("migrate", database=other)
    assert run("import", str(file), database=other).stdout == "1 conversations, 2 messages imported, 0 left out\n"
    assert run("export", database=other).stdout_bytes == file.read_bytes()
    taken = run("import", str(file), database=other)
    assert taken.exit_code == 1
    assert taken.stderr == "0 conversations were imported before this:\nError: Conversation old exists already.\n"
    skipped = json.loads(run("import", str(file), "--skip-existing", "--json", database=other).stdout)
    assert (skipped["conversations"], skipped["skipped"]) == (0, 1)
    file.write_bytes(file.read_bytes().replace(b'"role":"user"', b'"role":"No"'))
    run("migrate", database=other.replace("other", "third"))
    wrong = run("import", str(file), database=other.replace("other", "third"))
    assert (wrong.exit_code, "Line" in wrong.stderr) == (1, True)


def test_an_export_that_fails_leaves_no_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    assert run("export", "nowhere", "-o", str(file)).exit_code == 1
    assert run("export", "-o", str(tmp_path / "no folder" / "out.jsonl")).exit_code == EX_IOERR
    assert not [entry for entry in tmp_path.iterdir() if "out" in entry.name or "export" in entry.name]


def test_export_for_people(run: Any) -> None:
    assert run("export", "--format", "markdown", "old").stdout.startswith("# Old\n\n## user\n\nAny basil?\n\n")
    missing = run("export", "nowhere")
    assert (missing.exit_code, missing.stderr) == (1, "Error: There is no conversation nowhere.\n")


def test_undo_takes_the_last_turn_back(run: Any, plain: Store) -> None:
    assert run("undo", "old", "--backup", "kept").stdout == "2 messages taken back; kept has them all\n"
    assert (texts(plain, "old"), len(texts(plain, "kept"))) == ([], 2)
    done = json.loads(run("undo", "kept", "--after", "0", "--json").stdout)
    assert (done["removed"], plain.get(done["backup"]).message_count) == (1, 2)


def test_search_shows_where(run: Any) -> None:
    lines = run("search", "BASIL").stdout.splitlines()
    assert lines == ["old\t1\tassistant\tFour packets of basil.\\x1b[2J", "old\t0\tuser\tAny basil?"]
    found = json.loads(run("search", "packets", "--conversation", "old", "--json").stdout)
    assert (found["conversation_id"], found["message"]["position"]) == ("old", 1)
    assert run("search", "basil", "--limit", "1").stdout.count("\n") == 1
    assert run("search", "?").exit_code == 1


def test_search_shows_as_many_as_are_wanted_however_few_fit_into_a_page(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("search", "basil").stdout
    monkeypatch.setenv("SESSIONSTORE_PAGE_BYTES", "1")
    assert run("search", "basil", "--limit", str(whole.count("\n"))).stdout == whole
    assert whole.count("\n") > 1


def test_usage_is_added_up(run: Any) -> None:
    assert "turns 1\tinput tokens 12\t" in run("usage").stdout
    assert run("usage", "--by", "day").stdout.startswith("20")
    assert json.loads(run("usage", "--by", "conversation", "--conversation", "old", "--json").stdout)["of"] == "old"
    assert run("usage", "--since", "1d").stdout == ""
