"""The handler of saves: many growing replies in one call."""

from typing import Any

from starlette.responses import Response

from sessionstore.errors import SessionStoreError
from sessionstore.model import Answer, Lease, Saved
from sessionstore_api.answers import SaveResult, SavesAnswer
from sessionstore_api.calls import Call, answer
from sessionstore_api.problems import problem_of
from sessionstore_api.rendering import message_body, moment
from sessionstore_api.requests import NoQuery, SaveMessages


async def save_messages(call: Call[SaveMessages, NoQuery]) -> Response:
    """Put up to 64 messages of conversations that you are generating, in one transaction. Each has a result of its own.

    Every save renews the lease that it names. What cannot be stored is told in its result, and harms no other one.
    """
    done = await call.store.save_all([save.save() for save in call.body.saves])
    return answer(200, SavesAnswer(results=[_result(one) for one in done]))


def _result(done: Answer[Saved] | SessionStoreError) -> SaveResult:
    if isinstance(done, SessionStoreError):
        problem = problem_of(done)
        return SaveResult(status=problem["status"], problem=problem, **_lease_fields(done.lease))
    saved = done.value
    return SaveResult(
        status=201 if saved.created and not done.replayed else 200,
        message=message_body(saved.message),
        etag=str(saved.message.tag),
        replayed=done.replayed,
        **_lease_fields(done.lease),
    )


def _lease_fields(lease: Lease | None) -> dict[str, Any]:
    if lease is None:
        return {}
    return {
        "interrupt_requested": lease.interrupt_requested,
        "queued_inputs": lease.queued_inputs,
        "lease_generation": lease.generation,
        "lease_expires_at": moment(lease.expires_at),
    }
