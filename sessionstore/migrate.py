"""Schema versions: where the Alembic scripts are, and how a database gets to the newest of them.

A migration is one transaction under the write lock: two processes that start at once both succeed, and one that dies half way
leaves nothing behind.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import inspect

from sessionstore.database import Database
from sessionstore.dialect import migration, path_of
from sessionstore.errors import DatabaseUnusable, NotADatabase, SchemaAhead, SchemaBehind


def script_location() -> Path:
    """The folder of the scripts: inside the package when it was installed from a wheel, beside it in a checkout."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "migrations"


@cache
def scripts() -> ScriptDirectory:
    """All revisions that this version of the library knows."""
    return ScriptDirectory.from_config(_config())


@cache
def head() -> str:
    """The newest revision."""
    found = scripts().get_current_head()
    if found is None:
        raise RuntimeError(f"no migrations in {script_location()}")
    return found


def current(database: Database) -> str | None:
    """The revision of a database, or None where there is no schema yet."""
    with database.sqlalchemy_reads() as connection:
        try:
            return MigrationContext.configure(connection).get_current_revision()
        except CommandError as error:
            raise DatabaseUnusable(reason=f"{database.path} has no one schema version: {error}") from error


def verify(database: Database) -> None:
    """Raise `SchemaBehind` or `SchemaAhead` unless the schema is this version's, `NotADatabase` for somebody else's file."""
    revision = current(database)
    if revision == head():
        return
    if revision is None and _is_foreign(database):
        raise NotADatabase(reason=f"{database.path} is another program's database")
    known = {script.revision for script in scripts().walk_revisions()}
    if revision is None or revision in known:
        raise SchemaBehind(reason=f"the schema of {database.path} is at {revision or 'nothing'}, not at {head()}")
    raise SchemaAhead(reason=f"the schema of {database.path} is at {revision}, which this version does not know")


def _is_foreign(database: Database) -> bool:
    with database.sqlalchemy_reads() as connection:
        tables = inspect(connection).get_table_names()
    # Ours has at least Alembic's table, also when another process has made it only just now.
    return bool(tables) and "alembic_version" not in tables


def upgrade(url: str, revision: str = "head", *, busy_timeout_ms: int = 60_000) -> bool:
    """Bring a database to a revision, creating a private file if there is none. Answers whether there was anything to do.

    Raises `SchemaAhead`, and leaves a newer database untouched.
    """
    if _is_current(url, busy_timeout_ms):
        return False
    _run(url, lambda config: command.upgrade(config, revision), busy_timeout_ms)
    return True


def downgrade(url: str, revision: str, *, busy_timeout_ms: int = 60_000) -> None:
    """Take a database back to a revision. What the newer schema alone can hold is lost."""
    _run(url, lambda config: command.downgrade(config, revision), busy_timeout_ms)


def _is_current(url: str, busy_timeout_ms: int) -> bool:
    # Looked up before the lock is taken, so that starts do not queue, and before anything is written.
    if not path_of(url).exists():
        return False
    database = Database(url, busy_timeout_ms=busy_timeout_ms)
    try:
        verify(database)
    except SchemaBehind:
        return False
    finally:
        database.close()
    return True


def _run(url: str, action: Callable[[Config], None], busy_timeout_ms: int) -> None:
    config = _config()
    with migration(url, busy_timeout_ms) as connection:
        config.attributes["connection"] = connection
        try:
            action(config)
        except CommandError as error:
            raise DatabaseUnusable(reason=str(error)) from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
