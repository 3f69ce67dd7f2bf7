"""The documentation is true: its examples run, its tables are the code's, its links lead somewhere."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from sessionstore_api.docs import all_problems
from sessionstore_api.problems import status_of

import sessionstore
from sessionstore.limits import Limits
from sessionstore.settings import Settings, variable
from tests.faults import __main__ as faults
from tests.test_serve import Server

pytestmark = pytest.mark.one_file

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def walk() -> Iterator[tuple[str, str]]:
    """The commands of the console blocks, each with what is printed under it."""
    command, printed = "", ""
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed.strip()
            command, printed = line[2:], ""
        else:
            printed += line + "\n"
    yield command, printed.strip()


def fits(expected: str, output: str) -> bool:
    """Whether it is what the page prints, with anything for each … in it."""
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return bool(re.fullmatch(pattern + (".*" if expected.endswith("…") else ""), output, re.DOTALL))


def test_the_commands_of_the_operating_page_print_what_it_prints(tmp_path: Path) -> None:
    page = (ROOT / "docs/operating.md").read_text()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "SESSIONSTORE_DATABASE_URL": f"sqlite:///{tmp_path}/conversations.db",
    }
    with sessionstore.Store.open(environment["SESSIONSTORE_DATABASE_URL"], migrate_first=True) as store:
        store.create("garden", messages=[sessionstore.Draft(role="user", content="Any basil left?")])
    steps = re.findall(r"```console\n\$ (.*)\n(.*)\n```", page)
    assert [command.split()[1] for command, _ in steps] == ["check", "backup", "restore"]
    for command, expected in steps:
        script = command.replace("…", "*")
        done = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert fits(expected, done.stdout.strip()), (command, done.stdout)
    with sessionstore.Store.open(f"sqlite:///{tmp_path}/restored.db") as store:
        assert store.get("garden").message_count == 1


def test_the_commands_about_keys_print_what_the_page_prints(tmp_path: Path) -> None:
    """And the keys that they print are good for what the page says."""
    url = f"sqlite:///{tmp_path}/conversations.db"
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SESSIONSTORE_DATABASE_URL": url}
    (block,) = re.findall(r"```console\n(.*?)```", (ROOT / "docs/running.md").read_text(), flags=re.DOTALL)
    steps = [step.partition("\n") for step in block.split("$ ")[1:]]
    assert len(steps) == 4
    secrets = []
    for command, _, expected in steps:
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert fits(expected.strip(), done.stdout.strip()), (command, done.stdout)
        secrets += re.findall(r"^ssk_\S+$", done.stdout, flags=re.MULTILINE)
    with sessionstore.Store.open(url) as store:
        laptop, reports = map(store.keys.find, secrets)
    assert laptop is not None
    assert (laptop.owner, laptop.read_only, laptop.expires_at is None, reports) == ("ann", False, False, None)


def test_each_threat_is_stopped_by_something_that_a_test_shows() -> None:
    """The tests of the table are there, and none of them is left out."""
    lines = [line for line in (ROOT / "docs/threats.md").read_text().splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len(rows) >= 29
    written = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for _, threat, _, tests in rows:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, threat
        for name in named:
            assert re.search(rf"def {name}\(", written), name
            assert not re.search(rf"(skip|xfail|pytest\.mark\.(stress|wheel))[^\n]*\n(@.*\n)*def {name}\(", written), name


def test_the_samples_say_what_is_there() -> None:
    unit, image = ((ROOT / "examples" / name).read_text() for name in ("sessionstore.service", "Containerfile"))
    settings = {variable(setting.name) for setting in fields(Settings)}
    assert set(re.findall(r"(SESSIONSTORE_\w+)=", unit + image)) <= settings
    for copied in re.findall(r"^COPY (\S+) ", image, flags=re.MULTILINE):
        assert copied.startswith("dist/") or (ROOT / copied).exists()
    assert "--require-hashes" in image
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run(
            [analyze, "verify", ROOT / "examples/sessionstore.service"], capture_output=True, text=True, check=False
        )
        wrong = [line for line in done.stderr.splitlines() if "sessionstore.service" in line and "not executable" not in line]
        assert wrong == []


def test_the_table_of_faults_is_of_all_faults_and_nothing_was_lost() -> None:
    page = (ROOT / "docs/faults.md").read_text()
    table = page.partition(faults.BEGIN)[2].partition(faults.END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    assert len(rows) >= len(faults.FAULTS)
    assert {(row[3], row[4]) for row in rows} == {("0", "0")}


def test_nothing_was_lost_in_a_failover() -> None:
    page = (ROOT / "docs/postgresql.md").read_text()
    table = page.partition("<!-- failover -->")[2].partition("<!-- /failover -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    assert [row[0].partition(" of ")[0] for row in rows] == ["kill -9", "restart", "crash", "promotion"]
    assert {(row[3], row[4]) for row in rows} == {("0", "0")}


def test_the_curl_walk_prints_what_the_readme_prints(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/store.db")
    try:
        steps = list(walk())
        script = "\n".join(f"{command}\necho; echo '@@'" for command, _ in steps)
        script = script.replace("http://127.0.0.1:8080", server.address)
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
        outputs = [output.strip() for output in done.stdout.split("@@\n")]
        assert len(steps) >= 8
        for (command, expected), output in zip(steps, outputs, strict=False):
            assert fits(expected, output), (command, output)
    finally:
        assert server.stop() == 0


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "worker-1 is generating",
        "0 user Any basil left?",
        "1 assistant Let me see: four packets.",
        "3 messages, the last one: Thanks!",
        "['Asked for basil; there are four packets.', 'Thanks!']",
        "True 3 found",
    ]
    with sessionstore.Store.open("sqlite:///conversations.db") as store:
        assert [message.content for message in store.messages("garden").items][1:3] == ["Four packets.", "Thanks!"]


def test_the_python_of_the_serving_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/serving.md").read_text(), flags=re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out == "False\nFalse\n"


def test_the_python_of_the_turns_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/turns.md").read_text(), flags=re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "complete completed",
        "interrupted failed",
        "['And mint?']",
        "nobody has anything to add",
        "['And mint?', 'Thanks!']",
        "['Bye!']",
        "True 5",
        "False ['deleted']",
    ]


def test_the_python_of_the_history_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/history.md").read_text(), flags=re.DOTALL):
        exec(block, names)
    shown = (
        "['For shade: ferns, hostas, mint.', 'And in full sun?', 'Basil, thyme and lavender.', "
        "'How often do I water basil?', 'Every morning, at the root.']"
    )
    assert capsys.readouterr().out.splitlines() == [
        shown,
        "7 messages in the transcript",
        "stale",
        "30 24 [6, 2, 3, 4, 5] False",
        "20 16 [6, 4, 5] True",
        "The garden (2) 4 3",
        "3 taken back, The garden (3) has 7",
        "[0, 1, 2, 3]",
        "['garden-weather']",
        "['The garden', 'The garden (2)', 'The garden (3)']",
        "2 turns, 2400 tokens, 0.75",
        "garden",
        "garden assistant Basil, thyme and lavender.",
        "1 conversations forgotten; True",
        "['garden-weather', 'garden']",
        "7 messages exported",
        "2 conversations imported",
        "True",
    ]


def test_the_python_of_the_client_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(f"sqlite:///{tmp_path}/store.db")
    try:
        names: dict[str, object] = {}
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/client.md").read_text(), flags=re.DOTALL):
            exec(block.replace("http://127.0.0.1:8080", server.address), names)
    finally:
        assert server.stop() == 0
    assert capsys.readouterr().out.splitlines() == ["user Any basil?", "assistant Four packets.", "Four packets."]


def test_the_figures_of_the_readme_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "docs/speed/figures.json").read_text())
    lines = (ROOT / "docs/speed/figures.md").read_text().splitlines()
    shown = re.findall(r"^\| (.+?) \| ([≥≤] .+?) \| (.+?) \|$", README, flags=re.MULTILINE)
    assert len(shown) >= 8
    for what, limit, reached in shown:
        assert any(line.startswith(f"| {what} | {limit} | {reached} |") for line in lines), what
    assert measured["machine"]["date"] in README


def test_the_sql_of_the_readme_runs(tmp_path: Path) -> None:
    query = re.search(r'sqlite3 -readonly conversations.db "(.*?)"', README)
    assert query is not None
    views = set(re.findall(r"`(v_\w+)`", README))
    with sessionstore.Store.open(f"sqlite:///{tmp_path}/x.db", migrate_first=True) as store:
        store.create("garden", messages=[sessionstore.Draft(role="user", content="hi")])
    import sqlite3

    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute(query[1]).fetchall() == [(0, "user", "complete", '"hi"')]
    found = {
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view' AND name LIKE 'v@_%' ESCAPE '@'")
    }
    connection.close()
    assert views == found


def test_the_commands_of_the_readme_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", blocks("sh")[0], flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_the_settings_page_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = dict(re.findall(r"^\| `(SESSIONSTORE_\w+)` \| (.*?) \|", page, flags=re.MULTILINE))
    own = [setting for setting in fields(Settings) if setting.name != "limits"]
    limits = fields(Limits)
    assert set(rows) == {variable(setting.name) for setting in (*own, *limits)}
    defaults = {variable(setting.name): str(setting.default) for setting in (*own[1:], *limits)}
    assert {name: rows[name] for name in defaults} == defaults
    for setting in own:
        assert setting.metadata["about"] in page


def test_the_errors_page_has_every_problem() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([\w-]+)` \|", page, flags=re.MULTILINE)
    assert rows == [(str(status_of(error)), error.code) for error in all_problems()]


def test_the_changelog_has_this_version() -> None:
    versions = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == sessionstore.__version__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_what_happens_names_tests_that_exist_and_every_case() -> None:
    """Each row of ../shared/cases/RACES.md that is built so far is answered, and its tests are real."""
    page = (ROOT / "docs/what-happens.md").read_text()
    written = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", written))
    rows = re.findall(r"^\| ([RLMFIE]\d+) \| … .* \| (.*) \|$", page, flags=re.MULTILINE)
    for case, tests in rows:
        named = re.findall(r"`(\w+)`", tests)
        assert named, case
        assert set(named) <= defined, (case, set(named) - defined)
    beside = re.findall(r"^\| … .* \| (.*) \|$", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(beside))) <= defined
    numbers = {"R": 17, "L": 23, "M": 18, "F": 7, "I": 7, "E": 5}
    built = {f"{letter}{n}" for letter, last in numbers.items() for n in range(1, last + 1)}
    assert {case for case, _ in rows} == built
