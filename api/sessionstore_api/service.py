"""Handlers about the server itself: what it is, whether it lives, whether it can work."""

import dataclasses

from starlette.responses import HTMLResponse, JSONResponse, Response

import sessionstore
from sessionstore_api.answers import Health, Readiness, ServerInfo, You
from sessionstore_api.calls import Call, answer
from sessionstore_api.requests import NoQuery

CAPABILITIES = [
    "changes_v1",
    "closed_range_truncate_v1",
    "compaction_v1",
    "context_budget_v1",
    "events_v1",
    "fenced_lease_v1",
    "idempotent_conversation_create_v1",
    "idempotent_finish_v1",
    "idempotent_message_append_v1",
    "incarnation_precondition_v1",
    "keys_v1",
    "message_search_v1",
    "queued_inputs_v1",
    "saves_v1",
    "settled_fork_v1",
    "usage_v1",
]


async def server_info(call: Call[None, NoQuery]) -> Response:
    """What this server is, what it can do, its limits, and who you are to it."""
    limits = dataclasses.asdict(call.store.limits)
    visitor = call.visitor
    you = You(owner=call.store.store.owner, key=visitor.name, read_only=not visitor.may_write, admin=visitor.is_admin)
    info = ServerInfo(name="sessionstore", version=sessionstore.__version__, capabilities=CAPABILITIES, limits=limits, you=you)
    return answer(200, info)


async def healthz(_: Call[None, NoQuery]) -> Response:
    """The process is alive. Touches nothing."""
    return answer(200, Health())


async def readyz(call: Call[None, NoQuery]) -> Response:
    """The database answers and has this version's schema; what it runs on, the known fault of that engine, and its log.

    Where keys are wanted, strangers are not told what it runs on. With more than 64 MiB (`log_bytes`) somebody has been
    reading for long and keeps the write-ahead log from being cut.
    """
    engine = await call.store.check_ready()
    if not call.visitor.is_admin:
        return answer(200, Readiness(engine=None, engine_fault=None, log_bytes=None))
    return answer(200, Readiness(engine=engine.name, engine_fault=engine.fault, log_bytes=engine.log_bytes))


async def openapi_document(call: Call[None, NoQuery]) -> Response:
    """This document."""
    return JSONResponse(call.app_state.openapi, headers=ALWAYS)


async def docs_page(call: Call[None, NoQuery]) -> Response:
    """The documentation of every call and every problem, for people. Needs no network."""
    return HTMLResponse(call.app_state.docs, headers=DOCS_HEADERS)


ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
DOCS_HEADERS = {
    **ALWAYS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
