"""The two doors to the database, and the only file that knows which database it is.

A write is a function that `Database.write` calls inside one transaction that holds the write lock from its first statement; a
read is a function that `Database.read` calls in one snapshot, on a connection on which the database itself refuses writes.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy
from sqlalchemy import Connection, Engine, Executable, Table, bindparam, pool
from sqlalchemy.dialects import postgresql, registry, sqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from sessionstore.errors import (
    Busy,
    Closed,
    DatabaseUnusable,
    DiskFull,
    Nested,
    NotADatabase,
    OutcomeUnknown,
    SessionStoreError,
    StorageFailed,
    Unavailable,
    UnsupportedUrl,
)
from sessionstore.model import Engine as EngineFacts

T = TypeVar("T")
Synchronous = Literal["full", "normal"]

# On an engine with the fault of `engine_fault` we checkpoint ourselves: look at every 64th commit, act above 4 MiB.
COMMITS_BETWEEN_LOOKS = 64
WAL_LIMIT_BYTES = 4 * 1024 * 1024


class ImmediateSQLite(SQLiteDialect_pysqlite):
    """SQLite whose transactions hold the write lock from their BEGIN on.

    In the dialect and not in SQLAlchemy's `begin` event: when a BEGIN fails there, the Connection is left without
    transactions, and a retry on it runs in autocommit (facts, 2.2).
    """

    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:
        """Take the write lock, or fail with SQLITE_BUSY when it is not to be had in time."""
        dbapi_connection.execute("BEGIN IMMEDIATE")

    def do_commit(self, dbapi_connection: Any) -> None:
        """Commit, and never report a transaction as committed that SQLite has rolled back by itself (facts, 1.11)."""
        if not dbapi_connection.in_transaction:
            raise sqlite3.OperationalError("the transaction was rolled back by SQLite before COMMIT")
        dbapi_connection.execute("COMMIT")


registry.register("sqlite.immediate", __name__, "ImmediateSQLite")


class Upsert:
    """INSERT … ON CONFLICT DO UPDATE … RETURNING, in the words of each database."""

    def __init__(self, table: Table, key: Sequence[str], update: Sequence[str], returning: Sequence[Any]) -> None:
        self._table, self._key = table, list(key)
        self.variants: Mapping[str, Executable] = {
            name: self._variant(insert, update).returning(*returning)
            for name, insert in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert))
        }

    def _variant(self, insert: Any, update: Sequence[str]) -> Any:
        values: dict[str, Any] = {column.name: bindparam(column.name) for column in self._table.c if not column.primary_key}
        statement = insert(self._table).values(values)
        return statement.on_conflict_do_update(
            index_elements=self._key, set_={name: statement.excluded[name] for name in update}
        )


Statement = Executable | Upsert


class Transaction:
    """Runs statements inside the transaction that is open. A statement that failed dooms it, even if the error is caught."""

    __slots__ = ("_compiled", "_connection", "failed")

    def __init__(self, connection: Any, compiled: Callable[[Statement], tuple[str, dict[str, Any]]]) -> None:
        self._connection = connection
        self._compiled = compiled
        self.failed: Exception | None = None

    def row(self, statement: Statement, **parameters: Any) -> Any:
        """The first row, or None."""
        return self._run(statement, parameters).fetchone()

    def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        """All rows."""
        return self._run(statement, parameters).fetchall()  # type: ignore[no-any-return]

    def run(self, statement: Statement, **parameters: Any) -> int:
        """How many rows were changed."""
        return self._run(statement, parameters).rowcount  # type: ignore[no-any-return]

    def _run(self, statement: Statement, parameters: dict[str, Any]) -> Any:
        if self.failed is not None:
            raise self.failed
        sql, constants = self._compiled(statement)
        try:
            return self._connection.execute(sql, {**constants, **parameters} if constants else parameters)
        except sqlite3.Error as error:
            self.failed = error
            raise


class Database:
    """One database file: one writer, several readers, and what is known about the engine.

    Thread-safe. After a fork the child's copy is closed and must not be used (SQLite, "How to corrupt", §2.6).
    """

    def __init__(self, url: str, *, synchronous: Synchronous = "full", busy_timeout_ms: int = 5_000, readers: int = 8) -> None:
        self.path = path_of(url)
        if not self.path.exists():
            raise DatabaseUnusable(reason=f"there is no database at {self.path}")
        self.synchronous, self._timeout = synchronous, busy_timeout_ms / 1000
        self._writes = _engine("sqlite+immediate", self._connect_writer, size=1)
        self._reads = _engine("sqlite", self._connect_reader, size=readers, timeout=self._timeout)
        self._lock, self._inside = threading.Lock(), threading.local()
        self._statements: dict[Statement, tuple[str, dict[str, Any]]] = {}
        self._checked_out: Any = None
        self._writer: Any = None
        self._checkpointer: Any = None
        self._commits = 0
        self._pid = os.getpid()
        self.refusal: Unavailable | None = None

    def write(self, change: Callable[[Transaction], T]) -> T:
        """Run `change` in one transaction under the write lock, commit, and answer what it returned.

        Raises what `change` raises, `Busy`, `DiskFull` or `StorageFailed` with nothing stored, and `OutcomeUnknown`.
        """
        self._take_turn()
        try:
            transaction = Transaction(self._begin(), self._compiled)
            result = change(transaction)
            if transaction.failed is not None:
                raise transaction.failed
            self._commit()
            self._bound_wal()
            return result
        except (sqlite3.Error, DBAPIError) as error:
            raise self._translated(error) from error
        finally:
            self._end_turn()

    def read(self, look: Callable[[Transaction], T]) -> T:
        """Run `look` in one snapshot, on a connection that refuses writes. Raises `Busy` when no connection is free in time."""
        self._check_place()
        try:
            pooled = self._reads.raw_connection()
        except sqlalchemy.exc.TimeoutError:
            raise Busy from None
        except (sqlite3.Error, DBAPIError) as error:
            raise self._translated(error) from error
        try:
            connection: Any = pooled.driver_connection
            connection.execute("BEGIN")
            return look(Transaction(connection, self._compiled))
        except sqlite3.Error as error:
            raise self._translated(error) from error
        finally:
            pooled.close()
            if isinstance(self.refusal, StorageFailed):
                self._reads.dispose()

    @contextmanager
    def sqlalchemy_reads(self) -> Iterator[Connection]:
        """A reading SQLAlchemy connection, for Alembic's questions."""
        self._check_place()
        try:
            with self._reads.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Wait for the running write, then close every connection. Calls after it raise `Closed`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self.refusal = self.refusal or Closed()
            self._close_connections()

    def _take_turn(self) -> None:
        """The only way to the writing connection: one thread at a time, and in the end nothing is left open."""
        self._check_place()
        if not self._lock.acquire(timeout=self._timeout):
            raise Busy
        if self.refusal is not None:
            self._lock.release()
            raise self.refusal
        self._inside.change = True

    def _end_turn(self) -> None:
        self._inside.change = False
        try:
            self._settle()
        finally:
            self._lock.release()

    def _check_place(self) -> None:
        """Refuse a forked child, and a call from inside a change, which would wait for itself."""
        if os.getpid() != self._pid:
            raise Closed
        if getattr(self._inside, "change", False):
            raise Nested
        if self.refusal is not None:
            raise self.refusal

    def _begin(self) -> Any:
        if self._writer is None:
            self._checked_out = self._writes.raw_connection()
            self._writer = self._checked_out.driver_connection
        self._writes.dialect.do_begin(self._writer)
        return self._writer

    def _commit(self) -> None:
        lost = not self._writer.in_transaction
        try:
            self._writes.dialect.do_commit(self._writer)
        except sqlite3.Error as error:
            known = self._translated(error)
            if lost or isinstance(known, Busy):
                raise known from error
            raise OutcomeUnknown from error

    def _settle(self) -> None:
        """Roll back what is still open, and close everything once the storage is not to be trusted."""
        if isinstance(self.refusal, StorageFailed):
            self._close_connections()
        elif self._writer is not None and self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except sqlite3.Error:
                self._checked_out.invalidate()
                self._writer = None

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, DBAPIError) and error.orig is not None:
            error = error.orig
        known = _known(error, self.path)
        if isinstance(known, StorageFailed):
            self.refusal = known
        return known

    def _compiled(self, statement: Statement) -> tuple[str, dict[str, Any]]:
        found = self._statements.get(statement)
        if found is None:
            core: Any = statement.variants["sqlite"] if isinstance(statement, Upsert) else statement
            compiled = core.compile(dialect=self._reads.dialect)
            constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
            found = self._statements[statement] = (str(compiled), constants)
        return found

    def _connect_writer(self) -> sqlite3.Connection:
        connection = _connect(self.path, self._timeout)
        connection.execute(f"PRAGMA synchronous={self.synchronous}")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT_BYTES}")
        if engine_fault():
            connection.execute("PRAGMA wal_autocheckpoint=0")
        _use_wal(connection, self._timeout)
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = _connect(self.path, self._timeout)
        connection.execute("PRAGMA query_only=ON")
        # SQLite's own lower() knows ASCII only; "any case" in a search means everybody's letters.
        connection.create_function("lower", 1, _lower, deterministic=True)
        return connection

    def _bound_wal(self) -> None:
        """On an engine with the fault, copy the log back while no commit can happen (DESIGN.md, rule 9)."""
        self._commits += 1
        if not engine_fault() or self._commits % COMMITS_BETWEEN_LOOKS or self.wal_bytes() < WAL_LIMIT_BYTES:
            return
        try:
            self._begin()
            if self._checkpointer is None:
                self._checkpointer = self._connect_writer()
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            # The commit before it stands, whatever becomes of the checkpoint.
            self._translated(error)

    def _close_connections(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        if self._writer is not None:
            self._checked_out.close()
        self._writer = self._checkpointer = None
        self._writes.dispose()
        self._reads.dispose()

    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def engine(self) -> EngineFacts:
        """Which engine this is. Never touches the disk."""
        return EngineFacts(name=f"SQLite {sqlite3.sqlite_version}", fault=engine_fault())

    def pragmas(self) -> dict[str, Any]:
        """The settings of the writing connection, as they are in force."""
        asked = ("journal_mode", "synchronous", "foreign_keys", "wal_autocheckpoint", "secure_delete", "page_size")
        self._take_turn()
        try:
            connection = self._begin()
            return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked}
        finally:
            self._end_turn()

    def integrity(self) -> str:
        """SQLite's own verdict on the file: "ok", or the first thing that is wrong. Reads the whole file."""
        return self.read(lambda transaction: str(transaction.row(_INTEGRITY)[0]))


def engine_fault(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> str | None:
    """The fault of this SQLite, or None: versions 3.7.0 to 3.51.2 can lose data when checkpoints overlap.

    Mended in 3.51.3 and, by back-port, in 3.50.7 and 3.44.6 (https://www.sqlite.org/wal.html#walresetbug).
    """
    mended = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    if mended or version < (3, 7):
        return None
    name = ".".join(map(str, version))
    return f"SQLite {name} can corrupt a database under overlapping checkpoints; sessionstore checkpoints under the write lock"


def path_of(url: str) -> Path:
    """The file of a URL like sqlite:///conversations.db. Raises `UnsupportedUrl` for anything else."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UnsupportedUrl(reason=f"{url!r} is no database URL; sqlite:///path/to/file.db is") from None
    if parsed.get_backend_name() != "sqlite":
        raise UnsupportedUrl(reason=f"{parsed.get_backend_name()} is not supported; sqlite:///path/to/file.db is")
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise UnsupportedUrl(reason="the database is a file: sqlite:///path/to/file.db, without parameters")
    return Path(parsed.database).absolute()


def create_file(path: Path) -> None:
    """Make an empty file that only its owner can read, if there is none. SQLite gives its log the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusive, so it is never a file that SQLite has open: closing such a descriptor would drop SQLite's locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise DatabaseUnusable(reason=f"{path} cannot be created: {error.strerror}") from error


@contextmanager
def migration(url: str, busy_timeout_ms: int = 60_000) -> Iterator[Connection]:
    """One transaction for all of a migration, under the write lock, its references checked before it commits.

    Foreign keys are off meanwhile: rebuilding a table drops it, and with them on that deletes the children (facts, 2.7).
    """
    path = path_of(url)
    create_file(path)

    def connect() -> sqlite3.Connection:
        connection = _connect(path, busy_timeout_ms / 1000, foreign_keys=False)
        # A rebuilt table is dropped before its copy takes the name; without this the views over it would refuse that.
        connection.execute("PRAGMA legacy_alter_table=ON")
        _use_wal(connection, busy_timeout_ms / 1000)
        return connection

    engine = _engine("sqlite+immediate", connect)
    try:
        with engine.begin() as connection:
            yield connection
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise DatabaseUnusable(reason=f"the migration would leave {len(broken)} rows that refer to nothing")
    except DBAPIError as error:
        raise _known(error.orig or error, path) from error
    finally:
        engine.dispose()


def _engine(name: str, connect: Callable[[], sqlite3.Connection], size: int = 0, timeout: float = 30) -> Engine:
    queue = {"poolclass": pool.QueuePool, "pool_size": size, "max_overflow": 0, "pool_timeout": timeout}
    pooling: dict[str, Any] = queue if size else {"poolclass": pool.NullPool}
    return sqlalchemy.create_engine(URL.create(name), creator=connect, paramstyle="named", hide_parameters=True, **pooling)


def _connect(path: Path, timeout: float, *, foreign_keys: bool = True) -> sqlite3.Connection:
    # mode=rw: a file that is missing stays missing. isolation_level=None: the driver begins no transaction of its own.
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA foreign_keys={int(foreign_keys)}")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    # The change of the journal mode does not wait for other connections by itself.
    deadline = time.monotonic() + timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise DatabaseUnusable(reason=f"this file system does not carry a write-ahead log (journal mode {mode})")


def _known(error: BaseException, path: Path) -> SessionStoreError | BaseException:
    """Our error for the driver's, told apart by SQLite's result code; anything else as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy()
    if code == sqlite3.SQLITE_FULL:
        return DiskFull()
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return NotADatabase(reason=f"{path} is damaged or no SQLite database")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return DatabaseUnusable(reason=f"{path} cannot be opened for reading and writing")
    if code == sqlite3.SQLITE_IOERR or "rolled back by SQLite" in str(error):
        return StorageFailed(reason=getattr(error, "sqlite_errorname", None) or "a transaction was lost")
    return error


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_INTEGRITY = sqlalchemy.text("PRAGMA integrity_check(1)")


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
