"""How SQLite is opened and begun, and what its errors mean.

`facts` are measurements that DESIGN.md rests on; the sections are those of SQLite's own pages where they are named.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, pool
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from sessionstore.dialect import Statement, Variants
from sessionstore.engine import sqlite3
from sessionstore.errors import (
    Busy,
    DatabaseUnusable,
    DiskFull,
    NotADatabase,
    StorageFailed,
    UnsupportedUrl,
)
from sessionstore.model import Engine as EngineFacts
from sessionstore.sqlite.files import check_companions, check_place, check_writable, create
from sessionstore.sqlite.log import LOG_LIMIT_BYTES
from sessionstore.sqlite.opened import Files, Opened, enter, refuse_lost
from sessionstore.sqlite.turn import refuse_inherited

Synchronous = Literal["full", "normal"]

DRIVER_ERRORS = (sqlite3.Error, DBAPIError)
CONTRADICTIONS = (sqlite3.IntegrityError,)


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


class SQLite:
    """One database file: the engines for its two doors, and what is SQLite's about it."""

    def __init__(self, url: str, synchronous: Synchronous, busy_timeout_ms: int) -> None:
        self.path = path_of(url)
        check_place(self.path)
        if not self.path.exists():
            raise DatabaseUnusable(reason=f"there is no database at {self.path}")
        self.synchronous, self._timeout = synchronous, busy_timeout_ms / 1000
        self.files, self.fault = Files(self.path), engine_fault()
        check_companions(self.path, self.fault)

    def write_engine(self) -> Engine:
        """One connection, whose transactions hold the write lock from their first moment."""
        return _engine("sqlite+immediate", self.connect_writer, size=1)

    def read_engine(self, size: int) -> Engine:
        """Connections on which the database refuses writes."""
        return _engine("sqlite", self.connect_reader, size=size, timeout=self._timeout)

    def connect_writer(self) -> sqlite3.Connection:
        """A connection that may write, with the settings that durability rests on."""
        connection = self._connect()
        connection.execute(f"PRAGMA synchronous={self.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit={LOG_LIMIT_BYTES}")
        _use_wal(connection, self._timeout)
        if connection.opened is not None:
            connection.opened.note_log()
        return connection

    def _connect(self) -> "Watched":
        connection = connect(self.path, self._timeout)
        self.files.opened = connection.opened
        return connection

    def connect_reader(self) -> sqlite3.Connection:
        """A connection on which the database refuses writes."""
        connection = self._connect()
        connection.execute("PRAGMA query_only=ON")
        # SQLite's own lower() knows ASCII only; "any case" in a search means everybody's letters.
        connection.create_function("lower", 1, _lower, deterministic=True)
        return connection

    def compiled(self, statement: Statement, engine: Engine) -> tuple[str, dict[str, Any]]:
        """The SQL of a statement, and the values of its constants."""
        core: Any = statement.variants["sqlite"] if isinstance(statement, Variants) else statement
        compiled = core.compile(dialect=engine.dialect)
        return str(compiled), {name: bind.value for name, bind in compiled.binds.items() if not bind.required}

    def check_writable(self) -> None:
        """Raise what keeps us from writing: `DatabaseUnusable`."""
        check_companions(self.path, self.fault)
        check_writable(self.path)

    def engine(self) -> EngineFacts:
        """Which engine this is, and how long its log."""
        return EngineFacts(name=f"SQLite {sqlite3.sqlite_version}", fault=self.fault, log_bytes=self.files.log_bytes())

    def known(self, error: BaseException) -> BaseException:
        """Our error for the driver's; anything else as it is."""
        return known(error, self.path)


# What SQLite says besides SQLITE_FULL when there is no room: for the log's index (SQLITE_IOERR_SHMSIZE), and in the search
# index, where it gets lost what was wrong. A broken disk says more than SQLITE_IOERR, where the driver tells.
NO_ROOM = (4874, sqlite3.SQLITE_IOERR) if hasattr(sqlite3, "SQLITE_IOERR_SHMSIZE") else ()
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"
EMPTY_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
INTEGRITY = sqlalchemy.text("PRAGMA integrity_check(1)")
INTEGRITY_FAULTS = sqlalchemy.text("PRAGMA integrity_check(100)")
BROKEN_REFERENCES = sqlalchemy.text('SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT 100')
COMMITS = "PRAGMA data_version"
# The last numbers of the tables with AUTOINCREMENT. (https://www.sqlite.org/autoinc.html)
NUMBERS = "SELECT name, seq FROM sqlite_sequence"
FORGET_NUMBERS = "DELETE FROM sqlite_sequence WHERE name IN ('conversations', 'generations')"
NOTE_NUMBERS = "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)"
SETTINGS = ("journal_mode", "page_size", "page_count", "freelist_count")


@contextmanager
def without_waiting(connection: Any, timeout: float) -> Iterator[None]:
    """Meanwhile a lock that is not free is an error at once."""
    connection.execute("PRAGMA busy_timeout=0")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout={round(timeout * 1000)}")


def setting(connection: Any, name: str) -> Any:
    """A setting of a connection, as it is in force."""
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def settings(connection: Any) -> dict[str, Any]:
    """The settings that a file itself carries."""
    return {name: setting(connection, name) for name in SETTINGS}


def schema_cookie(connection: Any) -> int:
    """A number that changes with every change of the schema, whoever makes it."""
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def revision(connection: Any) -> str | None:
    """The revision of the schema, as Alembic has noted it."""
    try:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        return None
    return None if found is None else str(found[0])


def abandon(connection: sqlite3.Connection) -> None:
    """Leave it open until the process ends: to close it would copy a lost log back over what others have written since."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


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
    except (ArgumentError, ValueError):
        raise UnsupportedUrl(reason=f"{url!r} is no database URL; sqlite:///path/to/file.db is") from None
    if parsed.get_backend_name() != "sqlite":
        there_are = "sqlite:///path/to/file.db and postgresql://user@host/database are"
        raise UnsupportedUrl(reason=f"{parsed.get_backend_name()} is not supported; {there_are}")
    if not parsed.database or parsed.database == ":memory:" or parsed.query or "\0" in parsed.database:
        raise UnsupportedUrl(reason="the database is a file: sqlite:///path/to/file.db, without parameters")
    return Path(parsed.database).absolute()


def url_of(path: Path) -> str:
    """The URL of a file, whatever it is called."""
    return f"sqlite:///{quote(str(path))}"


@contextmanager
def migration(url: str, busy_timeout_ms: int = 60_000) -> Iterator[Connection]:
    """One transaction for all of a migration, under the write lock, its references checked before it commits.

    Foreign keys are off meanwhile: rebuilding a table drops it, and with them on that deletes the children (facts, 2.7).
    """
    path = path_of(url)
    refuse_inherited(path)
    check_place(path)
    create(path)

    def opening() -> Watched:
        connection = connect(path, busy_timeout_ms / 1000, foreign_keys=False)
        # A rebuilt table is dropped before its copy takes the name; without this the views over it would refuse that.
        connection.execute("PRAGMA legacy_alter_table=ON")
        _use_wal(connection, busy_timeout_ms / 1000)
        return connection

    engine = _engine("sqlite+immediate", opening)
    try:
        with engine.begin() as connection:
            yield connection
            # Whoever has it open sees by the schema that it is another one, also when a migration has changed rows alone.
            connection.exec_driver_sql("CREATE TABLE sessionstore_migrated (at INTEGER)")
            connection.exec_driver_sql("DROP TABLE sessionstore_migrated")
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise DatabaseUnusable(reason=f"the migration would leave {len(broken)} rows that refer to nothing")
    except DBAPIError as error:
        raise known(error.orig or error, path) from error
    finally:
        engine.dispose()


def _engine(name: str, connect: Callable[[], sqlite3.Connection], size: int = 0, timeout: float = 30) -> Engine:
    queue = {"poolclass": pool.QueuePool, "pool_size": size, "max_overflow": 0, "pool_timeout": timeout}
    pooling: dict[str, Any] = queue if size else {"poolclass": pool.NullPool}
    return sqlalchemy.create_engine(
        URL.create(name), creator=connect, paramstyle="named", module=sqlite3, hide_parameters=True, **pooling
    )


class Watched(sqlite3.Connection):
    """A connection that is known to its process, and is not closed over a log that is lost."""

    opened: Opened | None = None

    def close(self) -> None:
        """Close it, or leave it open until the process ends."""
        opened, self.opened = self.opened, None
        if opened is None or opened.leave():
            super().close()
        else:
            abandon(self)


def connect(path: Path, timeout: float, *, foreign_keys: bool = True) -> Watched:
    """A connection to a file that is there, with the settings that all of ours have."""
    refuse_inherited(path)
    refuse_lost(path)
    # mode=rw: a file that is missing stays missing. isolation_level=None: the driver begins no transaction of its own.
    connection: Watched = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=timeout, isolation_level=None, check_same_thread=False, factory=Watched
    )
    try:
        connection.execute(f"PRAGMA foreign_keys={int(foreign_keys)}")
        connection.execute("PRAGMA trusted_schema=OFF")
        if engine_fault():
            connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.opened = enter(path)
        connection.opened.check()
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
    # A log that is new is made by the first who looks.
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def known(error: BaseException, path: Path) -> BaseException:
    """Told apart by SQLite's result code; what is neither ours nor the disk's is a bug and stays what it is."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    if not isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError) or isinstance(error, _BUGS):
        return error
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy()
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) in NO_ROOM:
        return DiskFull()
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return NotADatabase(reason=f"{path} is damaged or no SQLite database")
    if code == sqlite3.SQLITE_IOERR or "rolled back by SQLite" in str(error):
        return StorageFailed(reason=getattr(error, "sqlite_errorname", None) or "a transaction was lost")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return DatabaseUnusable(reason=f"{path} cannot be opened for reading and writing")
    return DatabaseUnusable(reason=f"{path}: {error}")


_BUGS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
