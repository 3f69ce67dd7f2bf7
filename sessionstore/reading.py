"""From rows to values."""

from typing import Any

from sessionstore.model import Conversation, ForkedFrom, Generation, LastGeneration, lease_expired


def conversation_of(row: Any, now: int) -> Conversation:
    """The value of a row of `statements.VIEW_COLUMNS`. An expired lease is shown as expired; nothing is written for it."""
    (conversation_id, pk, title, metadata, created_at, updated_at, version, message_count, queued_count, parent_id,
     forked_from_id, forked_from_position, number, holder, phase, acquired_at, expires_at, ttl_ms, interrupt_requested_at,
     last_number, last_outcome, last_ended_at, last_usage, _) = row  # fmt: skip
    generation = last = forked_from = None
    if number is not None:
        expired, requested = lease_expired(now, expires_at, ttl_ms), interrupt_requested_at is not None
        generation = Generation(
            number=number, holder=holder, phase=phase, acquired_at=acquired_at, expires_at=expires_at,
            expired=expired, interrupt_requested=requested,
        )  # fmt: skip
    if last_number is not None:
        last = LastGeneration(number=last_number, outcome=last_outcome, ended_at=last_ended_at, usage_json=last_usage)
    if forked_from_id is not None:
        forked_from = ForkedFrom(id=forked_from_id, position=forked_from_position)
    return Conversation(
        id=conversation_id, incarnation=pk, title=title, metadata_json=metadata, created_at=created_at, updated_at=updated_at,
        version=version, message_count=message_count, queued_inputs=queued_count, parent_id=parent_id,
        forked_from=forked_from, generation=generation, last_generation=last,
    )  # fmt: skip
