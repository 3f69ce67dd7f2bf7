"""What is always true of the tables, in PostgreSQL's words."""

from sessionstore.dialect import CHANGES_PER_TRANSACTION
from sessionstore.invariants import Invariant, invariants

INVARIANTS = (
    *invariants("sessionstore_is_json"),
    Invariant(
        "order",
        "No change is ahead of those that are still to come. (It is when rows came from another server by its own tools.)",
        f"""
        SELECT c.pk, 'change ' || c.change || ' is still to come' FROM conversations c
        WHERE c.change >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint * {CHANGES_PER_TRANSACTION}
        + (SELECT base FROM change_epoch)""",
    ),
)
