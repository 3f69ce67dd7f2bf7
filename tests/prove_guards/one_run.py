"""One run of pytest over a copy of the product, in a process that has what is not ours imported already."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# What most of the time of so short a run would go into.
IMPORTED = (
    "alembic.command",
    "httptools",
    "httpx2",
    "hypothesis.strategies",
    "msgspec",
    "psycopg",
    "pytest",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "starlette.testclient",
    "structlog",
    "uvicorn",
)
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(list(IMPORTED))
SECONDS = 600
OPTIONS = (
    *("-q", "--no-header", "--maxfail=1", "-p", "no:cacheprovider"),
    # What was imported before pytest could look is no news.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    # A test that hangs fails.
    *("-o", "faulthandler_timeout=15"),
)


def run(copy: Path, output: Path, *arguments: str, **environment: str) -> int | None:
    """Its exit code; what it says goes to `output`."""
    process = FORKING.Process(target=_run, args=(copy, output, arguments, environment))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    return process.exitcode


def _run(copy: Path, output: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
    with output.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(copy)
    paths = [str(copy), str(copy / "api")]
    os.environ.update(environment, PYTHONPATH=":".join(paths))
    sys.path[:0] = paths
    sys.dont_write_bytecode = False
    # This module came from elsewhere.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.exit(pytest.main([*OPTIONS, *arguments]))
