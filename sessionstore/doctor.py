"""The doctor: everything about a database that an operator wants to know, and whether it is healthy."""

from typing import Any

from sessionstore import migrate
from sessionstore.store import Store

WAL_ALARM_BYTES = 64 * 1024 * 1024


def examine(store: Store) -> dict[str, Any]:
    """What is known about a store's database. `problems` is empty when it is healthy; `notes` are worth knowing."""
    database = store.database
    engine, settings, leases = database.engine(), database.settings(), store.leases()
    findings: dict[str, Any] = {
        "file": str(database.path),
        "file_bytes": database.path.stat().st_size,
        "wal_bytes": database.log_bytes(),
        "engine": engine.name,
        "engine_fault": engine.fault,
        "schema": migrate.current(database),
        "schema_newest": migrate.head(),
        "settings": settings,
        "integrity": database.integrity(),
        "leases": {
            "live": sum(1 for conversation in leases if conversation.generation and not conversation.generation.expired),
            "expired": sum(1 for conversation in leases if conversation.generation and conversation.generation.expired),
        },
    }
    return findings | {"problems": list(_problems(findings)), "notes": [engine.fault] if engine.fault else []}


def _problems(findings: dict[str, Any]) -> list[str]:
    settings = findings["settings"]
    wrong = {
        f"the file is damaged: {findings['integrity']}": findings["integrity"] != "ok",
        f"the journal mode is {settings['journal_mode']}, not wal": settings["journal_mode"] != "wal",
        "foreign keys are off": not settings["foreign_keys"],
        "synchronous is below full: the last commits may go with the power": settings["synchronous"] < 2,
        f"the write-ahead log has {findings['wal_bytes']} bytes: a reader may be holding it": (
            findings["wal_bytes"] > WAL_ALARM_BYTES
        ),
    }
    return [problem for problem, is_so in wrong.items() if is_so]
