"""What the product says to the database, listened to in the whole suite.

Every transaction that writes begins with BEGIN IMMEDIATE and reads the conversation's row first, and nothing is ever written
outside of one (DESIGN.md, rules 1 and 2). Also a create looks first, and who erases looks for the tombstone. The search index
is no conversation's: it says what the messages say. Nor are keys.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sessionstore.engine import sqlite3
from sessionstore.postgresql.wire import Wire
from sessionstore.postgresql.writing import Writing
from sessionstore.sqlite.connections import SQLite

WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
INDEX = re.compile(r"\s*(INSERT INTO|DELETE FROM|REPLACE INTO|UPDATE) ('main'\.)?'?(search|change_epoch|keys)", re.IGNORECASE)
FIRST = re.compile(
    r"(WITH locked AS MATERIALIZED \()?"
    r"SELECT conversations\.pk, conversations\.(id, conversations\.version|owner, conversations\.change)\b"
    r".*\sFROM conversations\b",
    re.DOTALL,
)


class Trace:
    """Listens to one writing connection. An item is what is said in a savepoint, or in a transaction without any."""

    def __init__(self, violations: list[str]) -> None:
        self.violations, self.begun = violations, ""
        self.items: list[list[str]] = []

    def hear(self, statement: str) -> None:
        """One statement, as the database got it."""
        said = statement.strip()
        word = said.split(None, 1)[0].upper()
        if word == "BEGIN":
            self.begun, self.items = said.upper(), [[]]
        elif word in ("COMMIT", "ROLLBACK") and not said.upper().startswith("ROLLBACK TO"):
            self._judge(committed=word == "COMMIT")
            self.begun = ""
        elif word in ("SAVEPOINT", "RELEASE"):
            self.items.append([])
        elif word == "ROLLBACK":
            self.items[-1] = []
        elif self.begun:
            self.items[-1].append(statement)
        elif WRITES.match(statement):
            self.violations.append(f"written outside of a transaction: {_short(statement)}")

    def _judge(self, *, committed: bool) -> None:
        for said in self.items if committed else []:
            written = [statement for statement in said if WRITES.match(statement) and not INDEX.match(statement)]
            if not written:
                continue
            if self.begun != "BEGIN IMMEDIATE":
                self.violations.append(f"{self.begun} before {_short(written[0])}")
            if not any(FIRST.match(statement) for statement in said[: said.index(written[0])]):
                self.violations.append(f"{_short(written[0])} came before the conversation was read")


def _short(statement: str) -> str:
    return " ".join(statement.split())[:160]


class Heard(Wire):
    """A wire to PostgreSQL, listened to."""

    __slots__ = ("_hear",)

    def __init__(self, wire: Wire, hear: Callable[[str], None]) -> None:
        super().__init__(wire.session, piped=wire._pipeline is not None)
        self._hear = hear

    def send(self, sql: str, parameters: Any = None) -> Any:
        self._hear(sql)
        return super().send(sql, parameters)

    def send_many(self, sql: str, rows: Any) -> None:
        self._hear(sql)
        super().send_many(sql, rows)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Listen to every writing connection that is opened meanwhile; the list fills with what broke the rule."""
    with _listening_to_a_file() as violations, _listening_to_servers(violations):
        yield violations


@contextmanager
def _listening_to_servers(violations: list[str]) -> Iterator[None]:
    """A row lock stands for the one on the file: the first look at a conversation takes it."""
    transaction = Writing._transaction

    @contextmanager
    def heard(self: Writing, *, piped: bool = False) -> Iterator[Any]:
        trace = Trace(violations)
        trace.hear("BEGIN IMMEDIATE")
        with transaction(self, piped=piped) as wire:
            yield Heard(wire, trace.hear)

    Writing._transaction = heard  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writing._transaction = transaction  # type: ignore[method-assign]


@contextmanager
def _listening_to_a_file() -> Iterator[list[str]]:
    violations: list[str] = []
    connect = SQLite.connect_writer

    def patched(self: SQLite) -> sqlite3.Connection:
        connection: Any = connect(self)
        connection.set_trace_callback(Trace(violations).hear)
        return connection  # type: ignore[no-any-return]

    SQLite.connect_writer = patched  # type: ignore[method-assign]
    try:
        yield violations
    finally:
        SQLite.connect_writer = connect  # type: ignore[method-assign]
