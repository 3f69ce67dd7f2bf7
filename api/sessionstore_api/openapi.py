"""The OpenAPI 3.1 document, made from the table of operations: what is documented is what is parsed."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

import sessionstore
from sessionstore import errors
from sessionstore.errors import SessionStoreError
from sessionstore_api.answers import Problem
from sessionstore_api.fields import ID_SCHEMA, TOKEN_SCHEMA
from sessionstore_api.operations import Operation
from sessionstore_api.problems import (
    MEDIA_TYPE,
    HostRefused,
    OriginRefused,
    RequestTimeout,
    UnsupportedMediaType,
    status_of,
)

REF = "#/components/schemas/{name}"
HEADERS = {
    "Lease-Token": ("The token of your turn", {"type": "string", **TOKEN_SCHEMA}),
    "Incarnation": ("The life of the conversation that you mean; another one is 410", {"type": "integer", "minimum": 1}),
    "If-Match": ("The ETag that you have seen, or *; another state is 412", {"type": "string", "pattern": '^(\\*|"[^"]*")$'}),
    "Last-Event-ID": ("The id of the last event that you had", {"type": "string"}),
    "If-None-Match": ("*: create, never replace", {"type": "string", "enum": ["*"]}),
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds until it may be worth to try again", "schema": {"type": "string"}}}
ANSWER_HEADERS = {
    "ETag": ("The state of what is answered, for If-Match", {"type": "string"}),
    "Location": ("Where the new conversation is", {"type": "string"}),
    "Idempotent-Replayed": ("true: it had been done before", {"type": "string", "enum": ["true"]}),
    "Interrupt-Requested": ("To the holder: whether to stop", {"type": "string", "enum": ["true", "false"]}),
    "Queued-Inputs": ("To the holder: how many inputs wait", {"type": "string"}),
    "Lease-Generation": ("To the holder: the number of the turn, a fence", {"type": "string"}),
    "Lease-Expires-At": ("To the holder: renew before", {"type": "string", "format": "date-time"}),
}


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document of these operations."""
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in operations:
        paths[operation.path][operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sessionstore",
            "version": sessionstore.__version__,
            "description": "Conversations, their messages and the lease of whoever is generating.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(paths),
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        # None is wanted as long as the database has none.
        "security": [{"key": []}, {}],
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    found: dict[Any, None] = {Problem: None}
    for operation in operations:
        for kind in (operation.body, operation.query, *operation.answers.values()):
            if isinstance(kind, type):
                found[kind] = None
    return list(found)


def _operation(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    about = operation.about
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": about.partition(". ")[0].rstrip("."),
        "description": about,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation), *_header_parameters(operation)],
        "responses": {**_answers(operation, schema_of), **_problems(operation, schema_of)},
    }
    if operation.public:
        described["security"] = []
    if operation.body is not None:
        required = any(field.required for field in msgspec.structs.fields(operation.body))
        kinds = ("application/json", "application/merge-patch+json") if operation.method == "PATCH" else ("application/json",)
        content = {kind: {"schema": schema_of[operation.body]} for kind in kinds}
        described["requestBody"] = {"required": required, "content": content}
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    schema = {"type": "string", **ID_SCHEMA}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    properties = msgspec.json.schema_components([operation.query])[1][operation.query.__name__].get("properties", {})
    required = {field.name for field in msgspec.structs.fields(operation.query) if field.required}
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(schema)}
        for name, schema in properties.items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    # A parameter is there or it is not; null is a word of JSON.
    one = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    return one[0] if len(one) == 1 else schema


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    described = ((name, *HEADERS[name]) for name in operation.headers)
    return [{"name": name, "in": "header", "description": about, "schema": schema} for name, about, schema in described]


def _answers(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    return {str(status): _answer(status, kind, operation, schema_of) for status, kind in operation.answers.items()}


def _answer(status: int, kind: Any, operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    words = {200: "Done, or done before", 201: "Created", 202: "Requested", 204: "Done"}
    response: dict[str, Any] = {"description": words[status]}
    if isinstance(kind, str):
        response["content"] = {kind: {"schema": {}}}
    elif kind is not None:
        response["content"] = {"application/json": {"schema": schema_of[kind]}}
    response["headers"] = {
        name: {"description": about, "schema": schema}
        for name, (about, schema) in ANSWER_HEADERS.items()
        if operation.method != "GET" or (name == "ETag" and operation.tagged)
    }
    return response


def _problems(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = defaultdict(list)
    for error in problems_of(operation):
        by_status[status_of(error)].append(f"`{error.code}`: {error.summary()}")
    content = {MEDIA_TYPE: {"schema": schema_of[Problem]}}
    described: dict[str, Any] = {}
    for status, lines in sorted(by_status.items()):
        described[str(status)] = {"description": "\n\n".join(lines), "content": content}
        if status in (409, 429, 503):
            described[str(status)]["headers"] = RETRY_AFTER
    return described


UNAVAILABLE = (
    errors.Busy,
    errors.DiskFull,
    errors.OutcomeUnknown,
    errors.Closed,
    errors.StorageFailed,
    errors.SchemaChanged,
)


def problems_of(operation: Operation) -> list[type[SessionStoreError]]:
    """Every problem that an operation can answer: its own, and those that any call of its kind can meet."""
    found: dict[type[SessionStoreError], None] = {errors.Malformed: None, errors.InvalidInput: None}
    found |= {HostRefused: None, OriginRefused: None, RequestTimeout: None}
    if not operation.public:
        found |= {errors.Unauthorized: None, errors.TooManyRequests: None}
    if operation.admin or operation.method != "GET":
        found |= {errors.Forbidden: None}
    if operation.body is not None:
        found |= {UnsupportedMediaType: None}
    found |= {errors.TooLarge: None}
    found |= dict.fromkeys(operation.errors)
    if operation.path not in ("/healthz", "/openapi.json", "/docs", "/v1/server_info"):
        found |= dict.fromkeys(UNAVAILABLE)
    return list(found)
