"""The application: every route in one table, one lifespan that opens and closes the store."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import groupby
from typing import Any, TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from sessionstore import AsyncStore, errors
from sessionstore.settings import Settings
from sessionstore_api import (
    answers,
    conversations,
    events,
    feed,
    finding,
    inputs,
    leases,
    messages,
    metrics,
    problems,
    requests,
    saves,
    service,
)
from sessionstore_api.access import Access
from sessionstore_api.addresses import CONVERSATION, MESSAGE_ID, Addresses
from sessionstore_api.docs import docs_page
from sessionstore_api.hosts import Hosts
from sessionstore_api.observed import Observed, Tally
from sessionstore_api.openapi import ANSWER_HEADERS, HEADERS, openapi_document
from sessionstore_api.operations import GUARDED, LEASED, LIFE, TAGGED, Operation, Resource

log = logging.getLogger("sessionstore_api")
MATCHED = ("Lease-Token", "Incarnation", "If-Match")
STORED = (errors.MessageDeleted, errors.MessageExists, errors.MessageQueued)
PUT = (errors.MessageDeleted, errors.MessageQueued, errors.MessageComplete)
QUEUED = (errors.InputsFull, errors.OwnerFull, errors.MessageDeleted, errors.MessageExists)
CLAIMED = (errors.MessageNotFound, errors.MessageDeleted, errors.InputClaimed)
EXISTING = (errors.MessageNotFound, errors.MessageDeleted, errors.MessageQueued)

CONVERSATIONS = "/v1/conversations"
MESSAGES = CONVERSATION + "/messages"
MESSAGE = MESSAGES + MESSAGE_ID
LEASE = CONVERSATION + "/lease"
INPUTS = CONVERSATION + "/inputs"
EVENTS = "text/event-stream"

# fmt: off
OPERATIONS = [
    Operation(method="POST", path=CONVERSATIONS, handler=conversations.create_conversation, body=requests.CreateConversation,
              answers={201: answers.ConversationMessages, 200: answers.ConversationMessages},
              errors=(*LIFE, errors.ConversationExists, errors.OwnerFull)),
    Operation(method="GET", path=CONVERSATIONS, handler=conversations.list_conversations, query=requests.ConversationsQuery,
              answers={200: answers.ConversationsPage}),
    Operation(method="GET", path=CONVERSATION, handler=conversations.get_conversation, headers=("Incarnation",), tagged=True,
              answers={200: answers.ConversationBody}, errors=LIFE),
    Operation(method="PATCH", path=CONVERSATION, handler=conversations.label_conversation, body=requests.LabelConversation,
              answers={200: answers.ConversationBody}, errors=(*LIFE, *LEASED, *TAGGED), headers=MATCHED),
    Operation(method="DELETE", path=CONVERSATION, handler=conversations.delete_conversation, query=requests.DeleteQuery,
              answers={204: None}, errors=(*GUARDED, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=CONVERSATION + "/truncate", handler=conversations.truncate_conversation,
              body=requests.TruncateConversation, answers={200: answers.TruncatedAnswer},
              errors=(*GUARDED, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=CONVERSATION + "/compact", handler=conversations.compact_conversation,
              body=requests.CompactConversation, answers={201: answers.CompactedAnswer, 200: answers.CompactedAnswer},
              errors=(*GUARDED, *STORED, errors.Stale, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=CONVERSATION + "/fork", handler=conversations.fork_conversation,
              body=requests.ForkConversation, answers={201: answers.ConversationAnswer},
              errors=(*GUARDED, errors.ConversationExists, errors.OwnerFull, errors.MessageNotFound, errors.MessageDeleted,
                      *TAGGED),
              headers=MATCHED),
    Operation(method="POST", path=CONVERSATION + "/interrupt", handler=leases.interrupt_turn, body=requests.Interrupt,
              answers={202: answers.InterruptAnswer, 200: answers.InterruptAnswer},
              errors=(*LIFE, *LEASED, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=MESSAGES, handler=messages.append_messages, body=requests.AppendMessages,
              answers={201: answers.MessagesAnswer, 200: answers.MessagesAnswer},
              errors=(*GUARDED, *STORED, *TAGGED), headers=MATCHED),
    Operation(method="GET", path=MESSAGES, handler=messages.list_messages, query=requests.MessagesQuery,
              answers={200: answers.MessagesPage}, errors=(*LIFE, errors.BudgetTooSmall),
              headers=("Incarnation",)),
    Operation(method="PUT", path=MESSAGE, handler=messages.put_message, body=requests.PutMessage,
              answers={201: answers.MessageBody, 200: answers.MessageBody},
              errors=(*GUARDED, *PUT, *TAGGED), headers=(*MATCHED, "If-None-Match")),
    Operation(method="PATCH", path=MESSAGE, handler=messages.label_message, body=requests.LabelMessage,
              answers={200: answers.MessageBody}, errors=(*GUARDED, *EXISTING, *TAGGED), headers=MATCHED),
    Operation(method="GET", path=MESSAGE, handler=messages.get_message, headers=("Incarnation",), tagged=True,
              answers={200: answers.MessageBody}, errors=(*LIFE, errors.MessageNotFound, errors.MessageDeleted)),
    Operation(method="DELETE", path=MESSAGE, handler=messages.delete_message,
              answers={204: None}, errors=(*GUARDED, *EXISTING, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=LEASE, handler=leases.acquire_lease, body=requests.AcquireLease,
              answers={201: answers.AcquiredAnswer, 200: answers.AcquiredAnswer},
              errors=(*GUARDED, errors.TokenUsed, *STORED, *TAGGED), headers=("Incarnation", "If-Match")),
    Operation(method="GET", path=LEASE, handler=leases.show_lease, headers=("Incarnation",), tagged=True,
              answers={200: answers.LeaseAnswer}, errors=LIFE),
    Operation(method="PATCH", path=LEASE, handler=leases.renew_lease, body=requests.RenewLease,
              answers={200: answers.RenewedAnswer}, errors=(*LIFE, *LEASED, *TAGGED), headers=MATCHED),
    Operation(method="DELETE", path=LEASE, handler=leases.release_lease,
              answers={204: None}, errors=(*LIFE, *LEASED, *TAGGED), headers=MATCHED),
    Operation(method="POST", path=LEASE + "/finish", handler=leases.finish_turn, body=requests.FinishTurn,
              answers={200: answers.ConversationMessages}, errors=(*LIFE, *LEASED, *PUT, errors.InputsPending, *TAGGED),
              headers=MATCHED),
    Operation(method="POST", path=INPUTS, handler=inputs.queue_inputs, body=requests.QueueInputs,
              answers={202: answers.MessagesAnswer, 200: answers.MessagesAnswer},
              errors=(*LIFE, *LEASED, *QUEUED, *TAGGED), headers=MATCHED),
    Operation(method="GET", path=INPUTS, handler=inputs.list_inputs, query=requests.PageQuery,
              answers={200: answers.InputsPage}, errors=LIFE, headers=("Incarnation",)),
    Operation(method="DELETE", path=INPUTS + MESSAGE_ID, handler=inputs.cancel_input, answers={204: None},
              errors=(*LIFE, *LEASED, *CLAIMED), headers=("Lease-Token", "Incarnation")),
    Operation(method="POST", path=INPUTS + "/claim", handler=inputs.claim_inputs, body=requests.ClaimInputs,
              answers={200: answers.MessagesAnswer}, errors=(*GUARDED, *CLAIMED, *TAGGED), headers=MATCHED),
    Operation(method="GET", path=CONVERSATION + "/changes", handler=feed.list_changes, query=requests.ChangesQuery, tagged=True,
              answers={200: answers.ChangesAnswer}, errors=LIFE, headers=("Incarnation",)),
    Operation(method="GET", path=CONVERSATION + "/generations", handler=feed.list_generations, query=requests.PageQuery,
              answers={200: answers.TurnsPage}, errors=LIFE, headers=("Incarnation",)),
    Operation(method="GET", path=CONVERSATION + "/events", handler=events.follow_conversation, query=requests.StateQuery,
              answers={200: EVENTS}, errors=LIFE, headers=("Incarnation", "Last-Event-ID"), counted="streams"),
    Operation(method="GET", path="/v1/events", handler=events.follow_list, query=requests.ChangeQuery,
              answers={200: EVENTS}, headers=("Last-Event-ID",), counted="streams"),
    Operation(method="GET", path="/v1/search", handler=finding.search_messages, query=requests.SearchQuery,
              answers={200: answers.FoundPage}, errors=LIFE),
    Operation(method="GET", path="/v1/usage", handler=finding.add_usage_up, query=requests.UsageQuery,
              answers={200: answers.UsagePage}, errors=LIFE),
    Operation(method="GET", path="/v1/leases", handler=leases.list_leases, answers={200: answers.LeasesAnswer}),
    Operation(method="POST", path="/v1/saves", handler=saves.save_messages, body=requests.SaveMessages,
              answers={200: answers.SavesAnswer}),
    Operation(method="GET", path="/v1/server_info", handler=service.server_info, answers={200: answers.ServerInfo}),
    Operation(method="GET", path="/healthz", handler=service.healthz, answers={200: answers.Health}, public=True),
    Operation(method="GET", path="/readyz", handler=service.readyz, answers={200: answers.Readiness}, public=True),
    Operation(method="GET", path="/metrics", handler=metrics.metrics, answers={200: "text/plain"}, admin=True),
    Operation(method="GET", path="/openapi.json", handler=service.openapi_document, answers={200: "application/json"},
              public=True),
    Operation(method="GET", path="/docs", handler=service.docs_page, answers={200: "text/html"}, public=True),
]
# fmt: on


class State(TypedDict):
    """What every request finds in its state."""

    store: AsyncStore
    access: Access
    tally: Tally


def create_app(settings: Settings | None = None, *, clock: Callable[[], int] | None = None) -> Starlette:
    """An application on the database of `settings` (by default the environment's), which it brings to the newest schema."""
    chosen, tally = Settings.from_environment() if settings is None else settings, Tally()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[State]:
        options = chosen.store_options()
        async with await AsyncStore.open(chosen.database_url, migrate_first=True, clock=clock, **options) as store:
            fault = (await store.check_ready()).fault
            if fault is not None:
                log.warning(fault)
            access = Access(store, chosen)
            async with access.watched():
                yield {"store": store, "access": access, "tally": tally}

    resources = resources_of(chosen.limits.body_bytes, chosen.receive_seconds)
    app = Starlette(
        routes=[Route(path, resource, methods=list(resource.operations), name=path) for path, resource in resources.items()],
        middleware=middleware_of(chosen, resources, tally),
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.openapi, app.state.docs = documents()
    app.state.tally = tally
    return app


def middleware_of(settings: Settings, resources: dict[str, Resource], tally: Tally) -> list[Middleware]:
    """What a request passes, from the outside in."""
    passed = [
        Middleware(Observed, tally=tally),
        Middleware(Hosts, names=settings.hosts, origins=settings.origins),
        Middleware(Addresses, resources=resources),
    ]
    if settings.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=sorted({operation.method for operation in OPERATIONS}),
            allow_headers=["Authorization", "Content-Type", *HEADERS],
            expose_headers=[*ANSWER_HEADERS, "Retry-After"],
        )
        passed.insert(2, cors)
    return passed


@cache
def documents() -> tuple[dict[str, Any], str]:
    """The OpenAPI document and the docs page."""
    openapi = openapi_document(OPERATIONS)
    return openapi, docs_page(openapi)


def resources_of(body_limit: int, receive_seconds: int) -> dict[str, Resource]:
    """One resource for each path, so that a wrong method is told all the right ones."""
    by_path = groupby(sorted(OPERATIONS, key=lambda operation: operation.path), key=lambda operation: operation.path)
    return {path: Resource(list(operations), body_limit, receive_seconds) for path, operations in by_path}


EXCEPTION_HANDLERS = {
    HTTPException: problems.on_http_error,
    Exception: problems.on_bug,
}
