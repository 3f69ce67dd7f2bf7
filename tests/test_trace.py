"""The listener hears what it is there for."""

from pathlib import Path

import pytest

from sessionstore import Store
from sessionstore.engine import sqlite3
from sessionstore.sqlite import connections
from sessionstore.sqlite.database import SQLiteDatabase
from tests import trace
from tests.conftest import Clock, user
from tests.test_database import INSERT

pytestmark = pytest.mark.any_sql


def test_the_product_itself_breaks_no_rule(url: str, clock: Clock) -> None:
    with trace.listening() as violations, Store.open(url, clock=clock) as store:
        store.create("c", messages=[user("hi")])
        store.append("c", [user("more")])
        store.fork("c", "f")
        store.delete("c")
    assert violations == []


@pytest.mark.one_file
def test_a_deferred_begin_is_heard(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.ImmediateSQLite, "do_begin", lambda _, connection: connection.execute("BEGIN"))
    with trace.listening() as violations, Store.open(url, clock=clock) as store:
        store.create("c")
    assert violations
    assert violations[0].startswith("BEGIN before INSERT INTO conversations")


@pytest.mark.one_file
def test_a_write_before_the_look_is_heard(url: str) -> None:
    with trace.listening() as violations:
        opened = SQLiteDatabase(url)
        opened.write(lambda transaction: transaction.run(INSERT, id="x"))
        opened.close()
    assert len(violations) == 1
    assert "came before the conversation was read" in violations[0]


def test_a_write_outside_of_a_transaction_is_heard(path: Path) -> None:
    violations: list[str] = []
    connection = sqlite3.connect(path, isolation_level=None)
    connection.set_trace_callback(trace.Trace(violations).hear)
    connection.execute("UPDATE conversations SET version = 2")
    connection.close()
    assert violations == ["written outside of a transaction: UPDATE conversations SET version = 2"]
