"""Schema versions: where the Alembic scripts are, and how a database gets to the newest of them.

A migration is one transaction under the write lock: two processes that start at once both succeed, and one that dies half way
leaves nothing behind.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from sessionstore.database import Database
from sessionstore.engines import exists, migration, open_database
from sessionstore.errors import DatabaseUnusable, NotADatabase, SchemaAhead, SchemaBehind

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

# Alembic is imported where there is something to migrate: it is a third of what starting costs, and nothing afterwards.
HEAD = "0003"
"""The newest revision."""
COPYING = "copying "
"""In front of what stands in place of the revision of a database that is not whole yet. See `copying`."""


def script_location() -> Path:
    """The folder of the scripts: inside the package when it was installed from a wheel, beside it in a checkout."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "migrations"


@cache
def scripts() -> ScriptDirectory:
    """All revisions that this version of the library knows."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def current(database: Database) -> str | None:
    """The revision of a database, or None where there is no schema yet."""
    with database.sqlalchemy_reads() as connection:
        if "alembic_version" not in inspect(connection).get_table_names():
            return None
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    if len(found) > 1:
        raise DatabaseUnusable(reason=f"{database.name} has no one schema version, but {', '.join(found)}")
    return found[0] if found else None


def verify(database: Database) -> None:
    """Raise `SchemaBehind` or `SchemaAhead` unless the schema is this version's, `NotADatabase` for somebody else's file."""
    revision = current(database)
    if revision == HEAD:
        return
    if revision is None and _is_foreign(database):
        raise NotADatabase(reason=f"{database.name} is another program's database")
    if revision is not None and revision.startswith(COPYING):
        raise DatabaseUnusable(reason=f"{database.name} is half of a copy: run `sessionstore copy` again to finish it")
    known = {script.revision for script in scripts().walk_revisions()}
    if revision is None or revision in known:
        raise SchemaBehind(reason=f"the schema of {database.name} is at {revision or 'nothing'}, not at {HEAD}")
    raise SchemaAhead(reason=f"the schema of {database.name} is at {revision}, which this version does not know")


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
    _run(url, "upgrade", revision, busy_timeout_ms)
    if revision in ("head", HEAD):
        _index(url, busy_timeout_ms)
    return True


def prepare(url: str) -> None:
    """Bring a database to the newest schema that is to be copied into, unless that has begun already."""
    if exists(url):
        database = open_database(url)
        try:
            begun = (current(database) or "").startswith(COPYING)
        finally:
            database.close()
        if begun:
            return
    upgrade(url)


def _index(url: str, busy_timeout_ms: int) -> None:
    """Let the search index learn what is there already, in pieces that let others write."""
    database = open_database(url, busy_timeout_ms=busy_timeout_ms)
    try:
        database.catch_search_up()
    finally:
        database.close()


def downgrade(url: str, revision: str, *, busy_timeout_ms: int = 60_000) -> None:
    """Take a database back to a revision. What the newer schema alone can hold is lost."""
    _run(url, "downgrade", revision, busy_timeout_ms)


def _is_current(url: str, busy_timeout_ms: int) -> bool:
    # Looked up before the lock is taken, so that starts do not queue, and before anything is written.
    if not exists(url):
        return False
    database = open_database(url, busy_timeout_ms=busy_timeout_ms)
    try:
        verify(database)
    except SchemaBehind:
        return False
    finally:
        database.close()
    return True


def _run(url: str, action: str, revision: str, busy_timeout_ms: int) -> None:
    from alembic import command
    from alembic.util import CommandError

    config = _config()
    with migration(url, busy_timeout_ms) as connection:
        config.attributes["connection"] = connection
        try:
            getattr(command, action)(config, revision)
        except CommandError as error:
            raise DatabaseUnusable(reason=str(error)) from error


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
