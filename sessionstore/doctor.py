"""The doctor: everything about a database that an operator wants to know, and whether it is healthy. It changes nothing."""

from typing import Any

from sessionstore import migrate
from sessionstore.database import Database
from sessionstore.errors import DatabaseUnusable, SessionStoreError
from sessionstore.log import LOG_ALARM_BYTES
from sessionstore.store import Store


def examine(database: Database) -> dict[str, Any]:
    """What is known about a database. `problems` is empty when it is healthy; `notes` are worth knowing."""
    engine, settings = database.engine(), database.settings()
    findings: dict[str, Any] = {
        "file": str(database.path),
        "file_bytes": database.path.stat().st_size,
        "wal_bytes": database.log_bytes(),
        "engine": engine.name,
        "engine_fault": engine.fault,
        "schema": migrate.current(database),
        "schema_newest": migrate.HEAD,
        "settings": settings,
        "integrity": database.integrity(),
    }
    checks = (migrate.verify, Database.check_writable)
    refusals = [str(error) for error in (_refusal(check, database) for check in checks) if error]
    if not refusals:
        findings["leases"] = _leases(Store(database))
    return findings | {"problems": [*refusals, *_problems(findings)], "notes": [engine.fault] if engine.fault else []}


def _leases(store: Store) -> dict[str, int]:
    turns = [conversation.generation for conversation in store.leases() if conversation.generation is not None]
    expired = sum(turn.expired for turn in turns)
    return {"live": len(turns) - expired, "expired": expired}


def _refusal(check: Any, database: Database) -> SessionStoreError | None:
    try:
        check(database)
    except DatabaseUnusable as error:
        return error
    return None


def _problems(findings: dict[str, Any]) -> list[str]:
    settings = findings["settings"]
    wrong = {
        f"the file is damaged: {findings['integrity']}": findings["integrity"] != "ok",
        f"the journal mode is {settings['journal_mode']}, not wal": settings["journal_mode"] != "wal",
        "synchronous is normal: the last commits may go with the power": settings["synchronous"] != "full",
        f"the write-ahead log has {findings['wal_bytes']} bytes: a reader may be holding it": (
            findings["wal_bytes"] > LOG_ALARM_BYTES
        ),
    }
    return [problem for problem, is_so in wrong.items() if is_so]
