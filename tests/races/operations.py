"""Operations as data: one description that runs on a Store, in another process, or over HTTP, with comparable outcomes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import msgspec

from sessionstore import Draft, Store, errors
from sessionstore.model import (
    Acquired,
    Answer,
    Compacted,
    Conversation,
    Created,
    Finished,
    Interruption,
    Message,
    Renewed,
    Saved,
    Truncated,
)


class Op(NamedTuple):
    """A call: its name in the library, its conversation, and its other arguments as JSON."""

    name: str
    id: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class Outcome(NamedTuple):
    """`done`, `replayed`, or the code of the error; and what the answer said."""

    code: str
    value: Mapping[str, Any] = MappingProxyType({})


def op(name: str, id: str, **arguments: Any) -> Op:
    """Write an operation down."""
    return Op(name, id, arguments)


def message(content: Any, id: str | None = None, **rest: Any) -> dict[str, Any]:
    """A message as JSON."""
    return {"role": "user", "content": content, **({} if id is None else {"id": id}), **rest}


# On a store ------------------------------------------------------------------------------------------------------------


def on_store(store: Store, operation: Op) -> Outcome:
    """Run an operation on a store."""
    try:
        done = _call(store, operation)
    except errors.SessionStoreError as error:
        return Outcome(error.code, msgspec.to_builtins(error.fields))
    if isinstance(done, Answer):
        return Outcome("replayed" if done.replayed else "done", told(done.value))
    return Outcome("done", told(done))


def _call(store: Store, operation: Op) -> Any:
    arguments = {name: _argument(name, value) for name, value in operation.arguments.items()}
    method = getattr(store, operation.name)
    match operation.name:
        case "put":
            return method(operation.id, Draft(**arguments.pop("message")), **arguments)
        case "append":
            return method(operation.id, arguments.pop("messages"), **arguments)
        case "acquire":
            return method(operation.id, arguments.pop("holder", "holder"), **arguments)
        case "compact":
            return method(operation.id, Draft(**arguments.pop("summary")), **arguments)
        case "delete_message" | "message":
            return method(operation.id, arguments.pop("message_id"), **arguments)
        case _:
            return method(operation.id, **arguments)


def _argument(name: str, value: Any) -> Any:
    return [Draft(**draft) for draft in value] if name == "messages" else value


def told(value: Any) -> dict[str, Any]:
    """What an answer says, in the same words whichever way it came."""
    match value:
        case Conversation():
            return _conversation(value)
        case Message():
            return {"messages": [_message(value)]}
        case Saved(message=saved):
            return {"messages": [_message(saved)]}
        case Created() | Finished() | Acquired():
            return _conversation(value.conversation) | {"messages": [_message(one) for one in value.messages]}
        case Compacted():
            return _conversation(value.conversation) | {"messages": [_message(value.summary)]}
        case Renewed() | Truncated() | Interruption():
            return _conversation(value.conversation)
        case list():
            return {"messages": [_message(one) for one in value]}
        case None:
            return {}
    return {"messages": [_message(one) for one in value.items]}


def _conversation(value: Conversation) -> dict[str, Any]:
    turn = value.generation
    return {
        "incarnation": value.incarnation,
        "version": value.version,
        "message_count": value.message_count,
        "generation": turn and turn.number,
        "holder": turn and turn.holder,
    }


def _message(value: Message) -> dict[str, Any]:
    return {"id": value.id, "position": value.position, "content": value.content, "status": value.status}


# Over HTTP -------------------------------------------------------------------------------------------------------------

# Arguments that HTTP carries as headers or in the query, under the names that it has for them.
HEADERS = {"token": "Lease-Token", "incarnation": "Incarnation"}
PATHS: dict[str, tuple[str, str]] = {
    "create": ("POST", ""),
    "get": ("GET", "/{id}"),
    "label": ("PATCH", "/{id}"),
    "delete": ("DELETE", "/{id}"),
    "append": ("POST", "/{id}/messages"),
    "messages": ("GET", "/{id}/messages"),
    "put": ("PUT", "/{id}/messages/{message_id}"),
    "message": ("GET", "/{id}/messages/{message_id}"),
    "delete_message": ("DELETE", "/{id}/messages/{message_id}"),
    "truncate": ("POST", "/{id}/truncate"),
    "compact": ("POST", "/{id}/compact"),
    "fork": ("POST", "/{id}/fork"),
    "acquire": ("POST", "/{id}/lease"),
    "renew": ("PATCH", "/{id}/lease"),
    "release": ("DELETE", "/{id}/lease"),
    "finish": ("POST", "/{id}/lease/finish"),
    "interrupt": ("POST", "/{id}/interrupt"),
    "queue": ("POST", "/{id}/inputs"),
    "cancel": ("DELETE", "/{id}/inputs/{message_id}"),
    "claim": ("POST", "/{id}/inputs/claim"),
}


def over_http(client: httpx2.Client, operation: Op) -> Outcome:
    """Run an operation on a server."""
    answered = client.send(request_of(client, operation))
    body = answered.json() if answered.content else {}
    if answered.is_success:
        return Outcome("replayed" if "idempotent-replayed" in answered.headers else "done", told_by_http(body))
    return Outcome(body["code"], body)


def request_of(client: httpx2.Client, operation: Op) -> httpx2.Request:
    """The request of an operation."""
    method, path = PATHS[operation.name]
    arguments = dict(operation.arguments)
    headers = {HEADERS[name]: str(arguments.pop(name)) for name in HEADERS if name in arguments and operation.name != "acquire"}
    if operation.name == "put":
        arguments = arguments["message"]
    message_id = arguments.pop("id" if operation.name == "put" else "message_id", "")
    where = path.format(id=quote(operation.id, safe=""), message_id=quote(str(message_id), safe=""))
    if operation.name == "create":
        arguments["id"] = operation.id
    if "new" in arguments:
        arguments["id"] = arguments.pop("new")
    if operation.name == "acquire":
        arguments = {"holder": "holder", **arguments}
    query = {name: str(value).lower() for name, value in arguments.items()} if method in ("GET", "DELETE") else {}
    body = None if method in ("GET", "DELETE") else arguments
    return client.build_request(method, f"/v1/conversations{where}", params=query, json=body, headers=headers)


def told_by_http(body: dict[str, Any]) -> dict[str, Any]:
    """What a body says, in the words of `told`."""
    conversation = body.get("conversation", body if "message_count" in body else None)
    said: dict[str, Any] = {}
    if conversation is not None:
        turn = conversation["generation"]
        said = {name: conversation[name] for name in ("incarnation", "version", "message_count")}
        said |= {"generation": turn and turn["number"], "holder": turn and turn["holder"]}
    summary = [body["summary"]] if "summary" in body else None
    messages = body.get("messages", body.get("data", [body] if "position" in body else summary))
    if messages is not None:
        said["messages"] = [{name: one[name] for name in ("id", "position", "content", "status")} for one in messages]
    return said
