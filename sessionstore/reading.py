"""From rows to values."""

import re
from datetime import UTC, datetime
from typing import Any

from sessionstore.limits import USED
from sessionstore.matching import MARKS, Hit
from sessionstore.model import (
    Conversation,
    ForkedFrom,
    Found,
    Generation,
    LastGeneration,
    Message,
    Usage,
    UsageBy,
    lease_expired,
)
from sessionstore.queries import DAY_MS


def conversation_of(row: Any, now: int) -> Conversation:
    """The value of a row of `queries.VIEW_COLUMNS`. An expired lease is shown as expired; nothing is written for it."""
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


def usage_of(row: Any, by: UsageBy) -> Usage:
    """The value of a row of `queries.usage`."""
    key, conversation_id, turns, *sums = row
    of = None if by == "total" else conversation_id
    if by == "day":
        of = f"{datetime.fromtimestamp(key * DAY_MS // 1000, UTC):%Y-%m-%d}"
    return Usage(key=key, of=of, turns=turns, **dict(zip(USED, sums, strict=True)))


def found_of(hit: Hit, row: Any) -> Found:
    """The value of a hit and its row of `queries.FOUND`."""
    conversation_id, *columns = row
    begin, end = MARKS
    text, marks, started = "", list[tuple[int, int]](), 0
    for part in re.split(f"([{begin}{end}])", hit.snippet):
        if part == begin:
            started = len(text)
        elif part == end:
            marks.append((started, len(text)))
        else:
            text += part
    return Found(conversation_id=conversation_id, message=Message(*columns), snippet=text, marks=marks)
