"""A database copied into another one, of the same engine or the other: every row as it is, with nothing in between.

The copy is of one moment of its source. A target that is not whole yet says so where its schema is noted, so nobody can open
it; the same copy begun again goes on: what is there and equal is left, and everything else is copied anew.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Table, bindparam, delete, func, insert, select, text, update

from sessionstore import migrate
from sessionstore.database import Database
from sessionstore.engines import name_of, open_database
from sessionstore.errors import DatabaseUnusable
from sessionstore.items import Lane
from sessionstore.model import Copied
from sessionstore.schema import conversations, generations, keys, messages, pruned
from sessionstore.transaction import Transaction

b = bindparam
PAGE_ROWS = 500
BATCH_ROWS = 1_000
BATCH_CHARACTERS = 4 * 1024 * 1024
UNFINISHED = -1
"""The `change` of a conversation that is not whole yet."""

_c = conversations.c
_COPIED = (generations, messages)
_of = {table: select(table).where(table.c.conversation_pk == b("of")) for table in _COPIED}
_keys = {table: next(iter(table.primary_key)) for table in (conversations, *_COPIED)}
# With how many rows each has: those of what is deleted are erased without a word in its own.
_counts = [
    select(func.count()).select_from(table).where(table.c.conversation_pk == _c.pk).scalar_subquery() for table in _COPIED
]
CONVERSATIONS = select(conversations, *_counts).where(_c.pk > b("after")).order_by(_c.pk).limit(PAGE_ROWS)
BETWEEN = select(conversations, *_counts).where(_c.pk > b("after"), _c.pk <= b("last")).order_by(_c.pk)
ROWS = {table: found.where(_keys[table] > b("after")).order_by(_keys[table]).limit(PAGE_ROWS) for table, found in _of.items()}
_WHOLE = (pruned, keys)
"""Small, and copied at once in the end."""
INSERT = {table: insert(table).values({column.name: b(column.name) for column in table.c}) for table in (*_keys, *_WHOLE)}
FORGET = {table: delete(table).where(table.c.conversation_pk == b("of")) for table in _COPIED}
FORGET_CONVERSATION = delete(conversations).where(_c.pk == b("of"))
FORGET_PARENTS = update(conversations).where(_c.parent_pk == b("of")).values(parent_pk=None)
FINISH = update(conversations).where(_c.pk == b("of")).values(change=b("whole"))
SET_PARENT = update(conversations).where(_c.pk == b("of")).values(parent_pk=b("parent"))
PARENTS = select(_c.pk, _c.parent_pk).where(_c.parent_pk.is_not(None), _c.pk > b("after")).order_by(_c.pk).limit(PAGE_ROWS)
COUNT = {table: select(func.count()).select_from(table) for table in _keys}
READ, EMPTY = {table: select(table) for table in _WHOLE}, {table: delete(table) for table in _WHOLE}
REVISION, MARK = text("SELECT version_num FROM alembic_version"), text("UPDATE alembic_version SET version_num = :mark")


def copy(source: str, target: str, progress: Callable[[Copied], Any] | None = None) -> Copied:
    """See `sessionstore.copy`."""
    if name_of(source) == name_of(target):
        raise DatabaseUnusable(reason=f"{name_of(source)} would be copied onto itself")
    origin = open_database(source)
    try:
        migrate.verify(origin)
        mark = migrate.COPYING + hashlib.sha256(name_of(source).encode()).hexdigest()[:16]
        destination = _prepared(target, mark)
        try:
            return Copying(origin, destination, progress).run()
        finally:
            destination.close()
    finally:
        origin.close()


def _prepared(url: str, mark: str) -> Database:
    """The target, empty or begun by the same copy, and marked as not whole."""
    migrate.prepare(url)
    database = open_database(url)
    try:
        (found,) = database.read(lambda transaction: transaction.row(REVISION))
        if found.startswith(migrate.COPYING):
            if found != mark:
                raise DatabaseUnusable(reason=f"{database.name} is half of a copy of another database")
            return database
        database.write(lambda transaction: _claim(transaction, database.name, mark))
    except BaseException:
        database.close()
        raise
    return database


def _claim(transaction: Transaction, name: str, mark: str) -> None:
    rows = any(transaction.row(count)[0] for count in COUNT.values())
    if rows or any(transaction.row(read) is not None for read in READ.values()):
        raise DatabaseUnusable(reason=f"{name} is not empty, and a copy replaces nothing")
    transaction.run(MARK, mark=mark)


class Copying:
    """One run."""

    def __init__(self, source: Database, target: Database, progress: Callable[[Copied], Any] | None) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._done = Copied()
        self._waiting = list[tuple[Any, list[dict[str, Any]]]]()
        self._rows = self._characters = 0

    def run(self) -> Copied:
        """Copy everything as of this moment."""
        self._source.read(self._copy)
        self._target.catch_search_up()
        return self._done

    def _copy(self, snapshot: Transaction) -> None:
        self._done = Copied(total=snapshot.row(COUNT[conversations])[0])
        self._waiting.clear()
        # First all that is another one now: the keys of its rows may be others' since.
        for there, here in self._pages(snapshot):
            wanted = {row[0]: _comparable(row) for row in there}
            for row in here:
                if _comparable(row) != wanted.get(row[0]):
                    self._forget(row[0])
        self._flush()
        for there, here in self._pages(snapshot):
            kept = {row[0] for row in here}
            for row in there:
                if row[0] not in kept:
                    self._copy_conversation(snapshot, row)
                self._done += Copied(conversations=1)
        self._flush()
        self._finish(snapshot)

    def _pages(self, snapshot: Transaction) -> Iterator[tuple[list[Any], list[Any]]]:
        """Conversations of the source, and those that the target has between the same keys."""
        after, full = -1, True
        while full:
            there = snapshot.rows(CONVERSATIONS, after=after)
            full = len(there) == PAGE_ROWS
            between: dict[str, Any] = {"after": after, "last": there[-1][0] if full else 2**62}
            yield there, self._target.read(partial(Transaction.rows, statement=BETWEEN, **between))
            after = between["last"]

    def _forget(self, pk: int) -> None:
        """What is there of a conversation goes."""
        for statement in (FORGET_PARENTS, *FORGET.values(), FORGET_CONVERSATION):
            self._put(statement, [{"of": pk}])

    def _copy_conversation(self, snapshot: Transaction, row: Sequence[Any]) -> None:
        # Its parent may come later; and until it is whole it is equal to none.
        values = {**_named(conversations, row), "parent_pk": None}
        self._put(INSERT[conversations], [{**values, "change": UNFINISHED}])
        for table in _COPIED:
            after, page = -1, None
            while page is None or len(page) == PAGE_ROWS:
                page = snapshot.rows(ROWS[table], of=row[0], after=after)
                if page:
                    self._put(INSERT[table], [_named(table, one) for one in page])
                    after = page[-1][0]
                self._done += Copied(messages=len(page) if table is messages else 0)
        self._put(FINISH, [{"of": row[0], "whole": values["change"]}])

    def _put(self, statement: Any, rows: list[dict[str, Any]]) -> None:
        """Have it done with what else waits, in its order."""
        self._waiting.append((statement, rows))
        self._rows += len(rows)
        self._characters += sum(len(row.get("content") or "") + len(row.get("metadata") or "") for row in rows)
        if self._rows >= BATCH_ROWS or self._characters >= BATCH_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        batch, self._waiting, self._rows, self._characters = self._waiting, [], 0, 0

        def change(transaction: Transaction) -> None:
            for statement, rows in batch:
                transaction.many(statement, rows)

        try:
            if batch:
                self._target.write(change, Lane.ALONE)
        except self._target.contradictions as error:
            raise _changed(self._target) from error
        if self._progress is not None:
            self._progress(self._done)

    def _finish(self, snapshot: Transaction) -> None:
        """What refers to other rows, where the numbers go on, and the mark; all of it, or it is not whole yet."""
        # Looked up before: a server ends whoever is silent inside of a transaction.
        counters = self._source.counters(snapshot)
        whole = {table: [_named(table, row) for row in snapshot.rows(READ[table])] for table in _WHOLE}
        counts = [(count, int(snapshot.row(count)[0])) for count in COUNT.values()]

        def change(transaction: Transaction) -> None:
            self._target.go_on_from(transaction, counters)
            for count, wanted in counts:
                if transaction.row(count)[0] != wanted:
                    raise _changed(self._target)
            for page in _parents(snapshot):
                transaction.many(SET_PARENT, page)
            for table, rows in whole.items():
                transaction.run(EMPTY[table])
                transaction.many(INSERT[table], rows)
            transaction.run(MARK, mark=migrate.HEAD)

        self._target.write(change, Lane.ALONE)


def _changed(target: Database) -> DatabaseUnusable:
    return DatabaseUnusable(reason=f"{target.name} was changed by somebody else: begin the copy again")


def _parents(snapshot: Transaction) -> Iterator[list[dict[str, Any]]]:
    after, rows = -1, None
    while rows is None or len(rows) == PAGE_ROWS:
        rows = snapshot.rows(PARENTS, after=after)
        if rows:
            yield [{"of": pk, "parent": parent} for pk, parent in rows]
            after = rows[-1][0]


def _named(table: Table, row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(table.c.keys(), row[: len(table.c)], strict=True))


def _comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A conversation without its parent, which gets its place in the end."""
    return (*row[:PARENT], *row[PARENT + 1 :])


PARENT = list(conversations.c.keys()).index("parent_pk")
