"""Failpoints: make the bad moment certain. They are put into a process from outside; the product has no line for them.

In a test: `with failpoint("before_commit", action): …`. For another process:

    python -m tests.races.failpoints WHERE ACTION MODULE ARGUMENTS…

    WHERE   after_begin · before_commit · after_commit_before_answer · statement:N (before the N-th of a transaction, from 1)
    ACTION  kill · raise:SQLITE_FULL (any of sqlite3's names) · pause:FOLDER (makes FOLDER/reached, waits for FOLDER/go)
"""

import os
import runpy
import signal
import sqlite3 as codes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from sessionstore.engine import sqlite3
from sessionstore.postgresql.transaction import PostgreSQLTransaction
from sessionstore.postgresql.wire import Wire
from sessionstore.postgresql.writing import Writing
from sessionstore.sqlite.connections import ImmediateSQLite
from sessionstore.sqlite.writer import Writer
from sessionstore.transaction import Transaction

ENGINE = os.environ.get("SESSIONSTORE_TEST_ENGINE", "sqlite")

Action = Callable[[], None]
PATIENCE = 60


@contextmanager
def failpoint(where: str, action: Action) -> Iterator[None]:
    """Run `action` whenever a write transaction of this process comes to that point."""
    place, _, number = where.partition(":")
    undo = PLACES[place](action, int(number or 0))
    try:
        yield
    finally:
        undo()


def pause(folder: Path) -> Action:
    """Say that the point was reached, and wait to be let go. Later comers pass."""

    def act() -> None:
        if (folder / "reached").exists():
            return
        (folder / "reached").touch()
        wait_for(folder / "go")

    return act


def fail(name: str) -> Action:
    """Raise the driver's error of that name."""

    def act() -> None:
        if ENGINE == "postgresql":
            raise POSTGRESQL[name](f"injected {name}")
        error = sqlite3.OperationalError(f"injected {name}")
        error.sqlite_errorcode = getattr(codes, name)
        error.sqlite_errorname = name
        raise error

    return act


POSTGRESQL = {"SQLITE_FULL": psycopg.errors.DiskFull, "SQLITE_IOERR": psycopg.errors.IoError}
"""What PostgreSQL calls the same."""


def kill() -> None:
    """What `kill -9` does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(file: Path) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + PATIENCE
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(file)
        time.sleep(0.002)


def _after_begin(action: Action, _: int) -> Action:
    return _around(action, "after", (Writer, "begin"))


def _before_commit(action: Action, _: int) -> Action:
    return _around(action, "before", (ImmediateSQLite, "do_commit"), (Writing, "_end"))


def _after_commit(action: Action, _: int) -> Action:
    return _around(action, "after", (Writer, "_commit"), (Writing, "_commit"))


def _around(action: Action, when: str, *places: tuple[type, str]) -> Action:
    """Act before or after these, of which each is an engine's own."""

    def patched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if when == "before":
                action()
            done = original(*arguments)
            if when == "after":
                action()
            return done

        return call

    undos = [_patch(owner, name, patched(getattr(owner, name))) for owner, name in places]
    return partial(_all, undos)


def _all(actions: list[Action]) -> None:
    for action in actions:
        action()


def _statement(action: Action, number: int) -> Action:
    undos = [_statement_of(kind, action, number) for kind in (Transaction, PostgreSQLTransaction)]
    return partial(_all, undos)


def _statement_of(kind: type[Transaction], action: Action, number: int) -> Action:
    init, run, counts = kind.__init__, kind._run, dict[int, int]()

    def begun(self: Transaction, *arguments: Any, **named: Any) -> None:
        # A new one may lie where one lay that is gone.
        counts[id(self)] = 0
        init(self, *arguments, **named)

    def patched(self: Transaction, statement: Any, parameters: Any) -> Any:
        counts[id(self)] = counts.get(id(self), 0) + 1
        if counts[id(self)] == number and _writes(self._connection):
            self.failed = None
            try:
                action()
            except (sqlite3.Error, psycopg.Error) as error:
                self.failed = error
                raise
        return run(self, statement, parameters)

    undos = [_patch(kind, "__init__", begun), _patch(kind, "_run", patched)]
    return partial(_all, undos)


def _writes(cursor: Any) -> bool:
    """Whether this is a transaction that may write."""
    if isinstance(cursor, Wire):
        asked = cursor.send("SHOW transaction_read_only")
        cursor.settle()
        return bool(asked.fetchone() == ("off",))
    return bool(getattr(cursor, "connection", cursor).in_transaction)


def _patch(owner: type, name: str, replacement: Any) -> Action:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)


PLACES: dict[str, Callable[[Action, int], Action]] = {
    "after_begin": _after_begin,
    "before_commit": _before_commit,
    "after_commit_before_answer": _after_commit,
    "statement": _statement,
}


def action_of(text: str) -> Action:
    """The action that a command line names."""
    name, _, argument = text.partition(":")
    if name == "kill":
        return kill
    return pause(Path(argument)) if name == "pause" else fail(argument)


def main() -> None:
    """Put a failpoint in, and run a module as the command line would."""
    where, action, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    with failpoint(where, action_of(action)):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
