"""How a PostgreSQL database is reached, what a connection of ours is set to, and what the server's errors mean."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import sqlalchemy
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import PipelineAborted
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import Engine, pool
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from sessionstore.dialect import Statement, Variants
from sessionstore.errors import (
    Busy,
    DatabaseUnusable,
    DiskFull,
    InvalidInput,
    StorageFailed,
    Unavailable,
    Unreachable,
    UnsupportedUrl,
)

DRIVER_ERRORS = (psycopg.Error, DBAPIError)
CONTRADICTIONS = (psycopg.IntegrityError,)
SCHEME = re.compile(r"postgres(ql)?(\+psycopg)?://")
# A machine that is gone answers nothing. The kernel notices after 10 + 3 * 5 seconds, or when what was sent is not taken.
ALIVE = {
    "application_name": "sessionstore", "connect_timeout": 5, "keepalives": 1, "keepalives_idle": 10,
    "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000,
}  # fmt: skip
FORCED = {"client_encoding": "UTF8"}
# Acknowledged means durable, also where somebody has made another default. What waits for standbys stays as it is.
DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
# The server ends whoever holds a row and says nothing for so long.
IDLE_MS = 10_000
STATEMENT_MS = 60_000
READING_MS = 3_600_000


# Asked inside of the statement that waits for a lock, the clock would tell when the waiting began. Outside of what is locked
# first and then handed out, it tells when it has ended; and whoever has the lock keeps migrations away.
CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
REVISION = "(SELECT version_num FROM alembic_version)"
LOCKS, LOCKED = " FOR UPDATE", f"WITH locked AS MATERIALIZED ({{}}) SELECT locked.*, {CLOCK}, {REVISION} FROM locked"


class Lost(Exception):
    """The connection is gone, or another attempt may succeed: nothing of this one was stored."""

    def __init__(self, error: Unavailable) -> None:
        super().__init__(str(error))
        self.error = error


class Session(psycopg.Connection[Any]):
    """A connection that remembers whether the server has warned."""

    warned = False
    _pipeline_kept: ExitStack | None = None
    _piped: psycopg.Pipeline

    def piped(self) -> psycopg.Pipeline:
        """The pipeline that it is in, from when this is first asked until it is closed: to leave one costs a trip."""
        if self._pipeline_kept is None:
            self._pipeline_kept = ExitStack()
            self._piped = self._pipeline_kept.enter_context(self.pipeline())
        return self._piped

    def plain(self) -> None:
        """Leave the pipeline that it is in, if it is in one."""
        kept, self._pipeline_kept = self._pipeline_kept, None
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """Close it. To leave the pipeline before would be to wait for a server that may not answer."""
        super().close()
        with suppress(Exception):
            self.plain()

    def heed(self, notice: psycopg.errors.Diagnostic) -> None:
        """Hear what the server has to say besides."""
        self.warned = self.warned or notice.severity_nonlocalized == "WARNING"


class PostgreSQL:
    """A database on a server, or on whichever of several servers writes."""

    def __init__(self, url: str, synchronous: str, busy_timeout_ms: int) -> None:
        self.parameters = parameters_of(url)
        self.name = name_of(self.parameters)
        self.synchronous, self.timeout_ms = synchronous, busy_timeout_ms
        self.statement_ms = max(STATEMENT_MS, busy_timeout_ms)
        self.dialect = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]

    def reader(self) -> "Session":
        """A connection whose transactions are snapshots in which the server refuses writes."""
        # It holds nobody up, and an operator's may read everything.
        session = self.connect(autocommit=False, most_ms=READING_MS)
        session.isolation_level, session.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
        return session

    def writer(self) -> "Session":
        """A connection whose transactions begin with their first statement."""
        return self.connect(autocommit=False)

    def connect(self, *, autocommit: bool = True, most_ms: int | None = None) -> "Session":
        """A connection with the settings that all of ours have. Raises `Unreachable`, `Busy`, or `DatabaseUnusable`."""
        try:
            connection = Session.connect(make_conninfo(**{**ALIVE, **self.parameters, **FORCED}), autocommit=autocommit)
        except psycopg.Error as error:
            raise self._refused(error) from error
        connection.prepare_threshold = 2
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_loader("numeric", NumberLoader)
        connection.add_notice_handler(connection.heed)
        try:
            for name, value in self._settings(most_ms).items():
                connection.execute(f"SET {name} = {value}")
            if self.synchronous == "full":
                connection.execute(DURABLE)
            if not autocommit:
                connection.commit()
                # Whatever the role's or the database's own defaults are.
                connection.isolation_level, connection.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
        except BaseException:
            connection.close()
            raise
        return connection

    def _settings(self, most_ms: int | None) -> Mapping[str, Any]:
        settings: dict[str, Any] = {
            "lock_timeout": max(1, self.timeout_ms),
            "statement_timeout": most_ms or self.statement_ms,
            "idle_in_transaction_session_timeout": most_ms or IDLE_MS,
            "standard_conforming_strings": "on",
            "client_min_messages": "warning",
            "TimeZone": "'UTC'",
        }
        if self.synchronous == "normal":
            settings["synchronous_commit"] = "off"
        return settings

    def _refused(self, error: psycopg.Error) -> Exception:
        wrong = isinstance(error, psycopg.ProgrammingError) or "invalid" in str(error)
        if wrong and error.sqlstate is None and "connection to server" not in str(error):
            return UnsupportedUrl(reason=f"{self.name}: {_first_line(error)}")
        code = error.sqlstate or _code_in(str(error))
        if code is None or code.startswith("08") or code in AWAY:
            return Unreachable(reason=f"{self.name}: {_first_line(error)}")
        return self.known(error) if code in MEANINGS else DatabaseUnusable(reason=f"{self.name}: {_first_line(error)}")

    def compiled(self, statement: Statement) -> tuple[str, dict[str, Any]]:
        """The SQL of a statement, and the values of its constants."""
        core: Any = statement.variants["postgresql"] if isinstance(statement, Variants) else statement
        compiled = core.compile(dialect=self.dialect)
        sql = str(compiled)
        if sql.endswith(LOCKS):
            sql = LOCKED.format(sql)
        return sql, {name: bind.value for name, bind in compiled.binds.items() if not bind.required}

    def engine(self, *, autocommit: bool = True) -> Engine:
        """SQLAlchemy's way to it, for Alembic."""
        return sqlalchemy.create_engine(
            URL.create("postgresql+psycopg"), creator=lambda: self.connect(autocommit=autocommit), poolclass=pool.NullPool,
            hide_parameters=True,
        )  # fmt: skip

    def known(self, error: BaseException) -> Exception:
        """Our error for the driver's; anything else as it is. `Lost` where another attempt may succeed."""
        if isinstance(error, DBAPIError) and error.orig is not None:
            error = error.orig
        if not isinstance(error, psycopg.Error):
            return error  # type: ignore[return-value]
        code = error.sqlstate
        if code is None and not (isinstance(error, psycopg.OperationalError) and not isinstance(error, PipelineAborted)):
            # The driver's own word about what it was given.
            return error
        if code is None or code.startswith("08") or code in AWAY:
            return Lost(Unreachable(reason=f"{self.name}: {_first_line(error)}"))
        if code in AGAIN or (code == "23505" and error.diag.constraint_name == "uq_conversations_living"):
            return Lost(Busy())
        meaning = MEANINGS.get(code)
        if meaning is not None:
            return meaning(f"{self.name}: {_first_line(error)}")
        if isinstance(error, psycopg.IntegrityError | psycopg.ProgrammingError | psycopg.InterfaceError):
            return error
        return DatabaseUnusable(reason=f"{self.name}: {_first_line(error)}")


# Who was ended by the server, or has to look for another one: it is going down, comes up, or does not write (any more).
# 0A000 is what a standby says to a transaction that is to write.
AWAY = ("57P01", "57P02", "57P03", "57P05", "25P03", "25006", "0A000")
# Deadlocks and what could not be put in an order; and an id that somebody else took at the same moment.
AGAIN = ("40001", "40P01")
MEANINGS: Mapping[str, Callable[[str], Exception]] = {
    "55P03": lambda _: Busy(),
    "57014": lambda _: Busy(),
    "53200": lambda _: Busy(),
    "53300": lambda _: Busy(),
    "53400": lambda _: Busy(),
    "53100": lambda _: DiskFull(),
    "58030": lambda reason: StorageFailed(reason=reason),
    "XX001": lambda reason: StorageFailed(reason=reason),
    "XX002": lambda reason: StorageFailed(reason=reason),
    "54000": lambda _: InvalidInput(reason="This is too long for an index of the server"),
    "42501": lambda reason: DatabaseUnusable(reason=reason),
    "42P01": lambda reason: DatabaseUnusable(reason=reason),
    "42703": lambda reason: DatabaseUnusable(reason=reason),
    "42883": lambda reason: DatabaseUnusable(reason=reason),
}
"""By SQLSTATE (PostgreSQL, appendix A)."""


class NumberLoader(Loader):
    """A number as it is spelled: whole, or not."""

    def load(self, data: Buffer) -> int | float:
        """The number."""
        text = bytes(data)
        return float(text) if b"." in text or b"e" in text or b"N" in text else int(text)


def parameters_of(url: str) -> dict[str, Any]:
    """What libpq makes of a URL like postgresql://user@host/database. Raises `UnsupportedUrl`, without a word of it."""
    try:
        return dict(conninfo_to_dict(SCHEME.sub("postgresql://", url, count=1)))
    except psycopg.Error:
        raise UnsupportedUrl(reason="this is no URL that libpq knows; postgresql://user@host/database is") from None


def name_of(parameters: Mapping[str, Any]) -> str:
    """What people read of it: where it is, and never who comes, or with which password."""
    hosts = str(parameters.get("host") or parameters.get("hostaddr") or "localhost").split(",")
    ports = str(parameters.get("port") or "5432").split(",")
    places = [f"{host}:{ports[min(place, len(ports) - 1)]}" for place, host in enumerate(hosts)]
    return f"postgresql://{','.join(places)}/{parameters.get('dbname') or ''}"


@contextmanager
def migration(url: str, busy_timeout_ms: int = 60_000) -> Iterator[sqlalchemy.Connection]:
    """One transaction for all of a migration. Nobody else migrates meanwhile, and nobody is inside a change."""
    postgresql = PostgreSQL(url, "full", busy_timeout_ms)
    engine = postgresql.engine(autocommit=False)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING})")
            _check_encoding(connection, postgresql.name)
            for table in ("conversations", "messages", "generations"):
                if connection.exec_driver_sql(f"SELECT to_regclass('{table}')").scalar():
                    # Whoever has a row of it locked has asked for the revision, or will; then it is the new one.
                    connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield connection
    except DBAPIError as error:
        raise plain(postgresql.known(error)) from error
    finally:
        engine.dispose()


MIGRATING = 5_318_008_617
"""The advisory lock of migrations: any number that is nobody else's."""


def _check_encoding(connection: sqlalchemy.Connection, name: str) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        raise DatabaseUnusable(reason=f"{name} has the encoding {encoding}; it has to be UTF8")


def plain(error: Exception) -> Exception:
    """Without the hope of another attempt."""
    return error.error if isinstance(error, Lost) else error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _code_in(message: str) -> str | None:
    """What a server says that lets nobody in has no code of its own in the driver's error."""
    return next((code for words, code in _REFUSALS.items() if words in message), None)


_REFUSALS = {
    "too many clients": "53300",
    "remaining connection slots": "53300",
    "starting up": "57P03",
    "shutting down": "57P03",
    "in recovery mode": "57P03",
    "not yet accepting": "57P03",
    "session is read-only": "25006",
    "session is not read-only": "25006",
    "server is in hot standby": "25006",
    "server is not in hot standby": "25006",
    "authentication failed": "28P01",
    "does not exist": "3D000",
    "permission denied": "42501",
    "no pg_hba.conf entry": "28000",
}
