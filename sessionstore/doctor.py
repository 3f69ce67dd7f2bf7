"""The doctor: everything about a database that an operator wants to know, and whether it is healthy. It changes nothing."""

from typing import Any

from sessionstore import migrate
from sessionstore.database import Database
from sessionstore.errors import DatabaseUnusable, SessionStoreError, Unavailable
from sessionstore.store import Store


def examine(database: Database) -> dict[str, Any]:
    """What is known about a database. `problems` is empty when it is healthy; `notes` are worth knowing."""
    engine, facts = database.engine(), database.facts()
    findings: dict[str, Any] = {
        "engine": engine.name,
        "engine_fault": engine.fault,
        "schema": migrate.current(database),
        "schema_newest": migrate.HEAD,
        **facts,
    }
    checks = (migrate.verify, Database.check_usable)
    refusals = [str(error) for error in (_refusal(check, database) for check in checks) if error]
    if not refusals:
        findings["leases"] = _leases(Store(database))
    return findings | {"problems": [*refusals, *database.ailments(facts)], "notes": [engine.fault] if engine.fault else []}


def _leases(store: Store) -> dict[str, int]:
    turns = [conversation.generation for conversation in store.leases() if conversation.generation is not None]
    expired = sum(turn.expired for turn in turns)
    return {"live": len(turns) - expired, "expired": expired}


def _refusal(check: Any, database: Database) -> SessionStoreError | None:
    try:
        check(database)
    except (DatabaseUnusable, Unavailable) as error:
        return error
    return None
