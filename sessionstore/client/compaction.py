"""Compaction, as a request."""

from sessionstore import orders
from sessionstore.client.bodies import without_id
from sessionstore.client.exchange import Exchange, Steps, address, claims
from sessionstore.client.wire import CompactedSent
from sessionstore.drafts import Draft, prepare_summary
from sessionstore.limits import Limits
from sessionstore.model import Answer, Compacted, IfMatch


def compact(
    limits: Limits,
    id: str,
    summary: Draft,
    *,
    through_position: int,
    seen_version: int,
    token: str | None = None,
    incarnation: int | None = None,
    if_match: IfMatch | None = None,
) -> Steps[Answer[Compacted]]:
    """See `Store.compact`."""
    limits.required_number(through_position, "$.through_position")
    limits.required_number(seen_version, "$.seen_version", least=1)
    draft = prepare_summary(summary, limits)
    orders.call(limits, id, token, incarnation, if_match)
    said = without_id(draft)
    del said["status"]
    body = {"id": draft.id, "through_position": through_position, "seen_version": seen_version, "summary": said}
    reply = yield Exchange("POST", address(id, "compact"), headers=claims(token, incarnation, if_match), body=body)
    sent = reply.read(CompactedSent)
    return reply.answer(Compacted(conversation=sent.view, summary=sent.summary.value()))
