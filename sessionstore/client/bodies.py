"""From what the library takes to what is sent."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from sessionstore.drafts import Prepared


def sent_all(drafts: Sequence[Prepared], *, as_named: bool = False) -> list[dict[str, Any]]:
    """Messages as they are sent: each with an id, or, where the call itself is known again, with the caller's ids only."""
    return [sent_one(draft) if draft.named or not as_named else without_id(draft) for draft in drafts]


def sent_one(draft: Prepared) -> dict[str, Any]:
    """A message as it is sent."""
    sent = {"id": draft.id, "role": draft.role, "content": Raw(draft.content_json.encode()), "status": draft.status}
    return sent if draft.metadata_json is None else {**sent, "metadata": Raw(draft.metadata_json.encode())}


def without_id(draft: Prepared) -> dict[str, Any]:
    """A message whose id is said elsewhere, or nowhere."""
    sent = sent_one(draft)
    del sent["id"]
    return sent


def given(body: dict[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in body.items() if value is not None}
