"""The command line: what it prints, as words and as JSON, and how it exits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from sessionstore import Limits, Store, cli, errors, settings
from sessionstore.cli import main
from sessionstore.engine import sqlite3
from tests.conftest import TOKEN, Clock, reply, user

COMMANDS = sorted(main.list_commands(click.Context(main)))


@pytest.fixture
def run(url: str) -> Any:
    def call(*arguments: str, database: str = url) -> Result:
        return CliRunner().invoke(main, [*arguments, "--database", database], catch_exceptions=False)

    return call


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_command_has_help_with_an_example() -> None:
    assert COMMANDS == [
        "backup", "check", "conversations", "copy", "doctor", "export", "import", "keys", "leases", "migrate", "prune", "purge",
        "restore", "search", "serve", "show", "undo", "usage",
    ]  # fmt: skip
    alone = [name for name in COMMANDS if name != "keys"]
    for name in [*([name] for name in alone), *(["keys", name] for name in ("create", "list", "revoke"))]:
        shown = CliRunner().invoke(main, [*name, "--help"])
        assert shown.exit_code == 0
        assert "Example: sessionstore" in shown.output
        assert "--database" in shown.output or ("--from" in shown.output and "--to" in shown.output)
    assert CliRunner().invoke(main, ["--version"]).output.startswith("sessionstore, version")


def test_migrate_creates_and_says_what_it_did(run: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/store.db"
    dry = lines(run("migrate", "--dry-run", "--json", database=url))[0]
    assert (dry["from"], dry["dry_run"], Path(dry["database"]).exists()) == (None, True, False)
    assert lines(run("migrate", "--json", database=url))[0]["from"] is None
    assert "went from 0003 to 0003" in run("migrate", database=url).stdout


@pytest.mark.one_file
def test_doctor_finds_a_healthy_database_healthy(run: Any) -> None:
    found = lines(run("doctor", "--json"))[0]
    assert (found["integrity"], found["problems"], found["schema"]) == ("ok", [], found["schema_newest"])
    assert found["engine"].startswith("SQLite")
    assert {"wal_bytes", "file_bytes", "settings", "leases", "engine_fault"} <= set(found)
    assert (found["settings"]["journal_mode"], found["settings"]["synchronous"]) == ("wal", "full")
    assert "This database is healthy." in run("doctor").stdout


def test_doctor_finds_a_damaged_database_unhealthy(run: Any, path: Path, plain: Store) -> None:
    plain.create("c", messages=[user("x" * 100_000)])
    plain.close()
    connection = sqlite3.connect(path)
    page, size = connection.execute(
        "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema WHERE name = 'ix_generations_used'"
    ).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    damaged = CliRunner().invoke(main, ["doctor", "--json", "--database", f"sqlite:///{path}"])
    assert damaged.exit_code == 1
    assert "the file is damaged" in json.loads(damaged.stdout)["problems"][0]


def test_doctor_reports_what_is_wrong_and_mends_nothing(run: Any, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    before = path.read_bytes()
    found = json.loads(run("doctor", "--json").stdout)
    assert found["problems"] == ["the journal mode is delete, not wal"]
    assert path.read_bytes() == before
    normal = CliRunner(env={"SESSIONSTORE_SYNCHRONOUS": "normal"}).invoke(main, ["doctor", "--database", f"sqlite:///{path}"])
    assert (normal.exit_code, "synchronous is normal" in normal.stdout) == (1, True)


@pytest.mark.parametrize("revision", ["from the future", None])
def test_doctor_reports_a_wrong_schema_as_a_problem(run: Any, path: Path, revision: str | None) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "UPDATE alembic_version SET version_num = ?" if revision else "DELETE FROM alembic_version",
        (revision,) * bool(revision),
    )
    connection.commit()
    connection.close()
    refused = run("doctor", "--json")
    assert (refused.exit_code, len(json.loads(refused.stdout)["problems"])) == (1, 1)
    assert run("migrate", "--dry-run").exit_code == (cli.EX_UNAVAILABLE if revision else 0)


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE messages (mine)")
    connection.commit()
    connection.close()
    before = other.read_bytes()
    for command in ("migrate", "serve", "conversations"):
        refused = CliRunner().invoke(main, [command, "--database", f"sqlite:///{other}"])
        assert (refused.exit_code, "another program's database" in refused.stderr) == (cli.EX_UNAVAILABLE, True)
    assert other.read_bytes() == before


def test_two_schema_versions_are_one_clear_line(run: Any, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO alembic_version VALUES ('another')")
    connection.commit()
    connection.close()
    refused = run("conversations")
    assert (refused.exit_code, refused.stderr.count("\n")) == (cli.EX_UNAVAILABLE, 1)


def test_a_transcript_does_nothing_to_the_terminal(run: Any, plain: Store) -> None:
    plain.create("c", messages=[user("\x1b]0;pwned\x07 two\nlines \ud800 grüße")])
    assert run("show", "c").stdout.splitlines()[1] == "0\tuser\t\\x1b]0;pwned\\x07 two\\nlines \\ud800 grüße"


def test_long_lists_and_transcripts_are_shown_whole(run: Any, plain: Store) -> None:
    plain.create("long", messages=[user(n) for n in range(1000)])
    plain.append("long", [user(n) for n in range(5)])
    assert len(lines(run("show", "long", "--json"))) == 1006
    for n in range(60):
        plain.create(f"c{n}")
    assert len(lines(run("conversations", "--json", "--limit", "60"))) == 60


def test_conversations_show_leases(run: Any, plain: Store, clock: Clock) -> None:
    plain.create("a", title="Alpha", messages=[user("hi"), reply({"x": [1]}), user("lone \ud800")])
    plain.create("b", title="Beta")
    plain.acquire("b", "worker-1", token=TOKEN)
    assert [found["id"] for found in lines(run("conversations", "--json"))] == ["b", "a"]
    assert [found["id"] for found in lines(run("conversations", "--json", "--containing", "ALPHA"))] == ["a"]
    assert len(lines(run("conversations", "--json", "--limit", "1"))) == 1
    assert "Alpha" in run("conversations").stdout

    conversation, *messages = lines(run("show", "a", "--json"))
    assert (conversation["title"], conversation["metadata"]) == ("Alpha", {})
    assert [message["content"] for message in messages] == ["hi", {"x": [1]}, "lone \ud800"]
    assert "0\tuser\thi" in run("show", "a").stdout

    lease = lines(run("leases", "--json"))[0]
    assert (lease["id"], lease["generation"]["holder"]) == ("b", "worker-1")
    assert "worker-1" in run("leases").stdout
    assert TOKEN not in run("leases", "--json").output


def test_errors_are_one_line_on_stderr_and_an_exit_code(run: Any, tmp_path: Path, path: Path) -> None:
    unknown = run("show", "nobody")
    assert (unknown.exit_code, unknown.stdout, unknown.stderr.count("\n")) == (1, "", 1)
    for database in (f"sqlite:///{tmp_path}/missing.db", "mysql://localhost/x"):
        missing = run("conversations", database=database)
        assert (missing.exit_code, missing.stdout) == (cli.EX_UNAVAILABLE, "")
    assert CliRunner().invoke(main, ["conversations", "--limit", "x"]).exit_code == 2
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("PRAGMA locking_mode=EXCLUSIVE")
    rival.execute("BEGIN EXCLUSIVE")
    busy = CliRunner(env={"SESSIONSTORE_BUSY_TIMEOUT_MS": "50"}).invoke(
        main, ["conversations", "--database", f"sqlite:///{path}"]
    )
    rival.close()
    assert busy.exit_code == cli.EX_TEMPFAIL


def test_the_environment_chooses_the_database_and_the_command_line_wins(url: str, plain: Store, tmp_path: Path) -> None:
    plain.create("c")
    runner = CliRunner(env={"SESSIONSTORE_DATABASE_URL": url})
    assert '"id": "c"' in runner.invoke(main, ["conversations", "--json"]).stdout
    assert runner.invoke(main, ["conversations", "--database", f"sqlite:///{tmp_path}/no.db"]).exit_code == cli.EX_UNAVAILABLE
    bad = CliRunner(env={"SESSIONSTORE_PORT": "eighty"}).invoke(main, ["conversations"])
    assert bad.exit_code == 2
    assert "SESSIONSTORE_PORT" in bad.stderr


def test_the_default_database_is_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert settings.default_database_url() == f"sqlite:///{tmp_path}/sessionstore/sessionstore.db"


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(Exception, match="SESSIONSTORE_SYNCHRONOUS"):
        settings.Settings.from_environment({"SESSIONSTORE_SYNCHRONOUS": "off"})
    for name, value in (
        ("PORT", "70000"),
        ("BUSY_TIMEOUT_MS", "9" * 15),
        ("TTL_MAX_MS", "9" * 40),
        ("PAGE", "0"),
        ("TTL_MIN_MS", "9999999"),
    ):
        with pytest.raises(errors.InvalidInput) as refused:
            settings.Settings.from_environment({f"SESSIONSTORE_{name}": value})
        assert refused.value.path == f"SESSIONSTORE_{name}"
    found = settings.Settings.from_environment({"SESSIONSTORE_BODY_BYTES": "1000", "SESSIONSTORE_SYNCHRONOUS": "normal"})
    assert (found.limits.body_bytes, found.synchronous) == (1000, "normal")


def test_small_limits_still_leave_a_usable_store(url: str, clock: Clock) -> None:
    with Store.open(url, clock=clock, limits=Limits(page=20, ttl_max_ms=5000)) as store:
        for n in range(21):
            store.create(f"c{n}")
        assert len(store.conversations().items) == 20
        assert store.acquire("c0", "w").value.expires_at == clock.now + 5000


def test_serve_says_what_it_needs_when_the_extra_is_missing(tmp_path: Path) -> None:
    """The library alone has no HTTP server, and says so in one line."""
    (tmp_path / "starlette.py").write_text("raise ImportError('gone', name='starlette')")
    (tmp_path / "uvicorn.py").write_text("raise ImportError('gone', name='uvicorn')")
    run = [sys.executable, "-m", "sessionstore.cli", "serve"]
    done = subprocess.run(run, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'sessionstore[api]'" in done.stderr
