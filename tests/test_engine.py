"""One SQLite for all that is ours, chosen from the environment."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_file
PROGRAM = """
import sys
from sessionstore import Draft, Store

with Store.open(sys.argv[1], migrate_first=True) as store:
    store.create("c", messages=[Draft(role="user", content="basil")])
    print(store.check_ready().name, store.check_ready().fault, len(store.search("basil").items))
print("sqlite3" in sys.modules, "pysqlite3" in sys.modules)
"""


def run(name: str, path: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "SESSIONSTORE_SQLITE": name}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{path}"], capture_output=True, text=True, env=environment, timeout=60
    )


def test_an_unknown_engine_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = run("another", tmp_path / "store.db")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "ImportError: SESSIONSTORE_SQLITE is 'another'; expected sqlite3 or pysqlite3"


@pytest.mark.skipif(find_spec("pysqlite3") is None, reason="make test-newer-engine installs it")
def test_the_newer_engine_is_used_for_everything(tmp_path: Path) -> None:
    used = run("pysqlite3", tmp_path / "store.db")
    name, _, modules = used.stdout.partition("\n")
    assert name.split()[0] == "SQLite"
    assert name.endswith("None 1")
    assert modules == "False True\n"
