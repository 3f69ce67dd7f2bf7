"""The document says what the application does, and the page shows all of it without a network."""

import re
from typing import Any

from openapi_spec_validator import validate
from sessionstore_api.docs import all_problems
from sessionstore_api.openapi import problems_of
from sessionstore_api.problems import status_of
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.api.test_leases import mounted


def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def test_the_document_is_valid_openapi_3_1(client: TestClient) -> None:
    found = document(client)
    assert found["openapi"].startswith("3.1")
    validate(found)


def test_the_document_has_every_route_and_no_other(app: Starlette, client: TestClient) -> None:
    described = {(method.upper(), path) for path, methods in document(client)["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path) for operation in mounted(app)}


def test_every_operation_has_words_and_its_own_name(client: TestClient) -> None:
    operations = [operation for methods in document(client)["paths"].values() for operation in methods.values()]
    assert all(operation["summary"] and operation["description"] for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))


def test_every_problem_of_an_operation_is_in_its_answers(app: Starlette, client: TestClient) -> None:
    paths = document(client)["paths"]
    for operation in mounted(app):
        answers = paths[operation.path][operation.method.lower()]["responses"]
        for error in problems_of(operation):
            assert f"`{error.code}`" in answers[str(status_of(error))]["description"]


def test_the_page_shows_every_call_body_and_problem_and_loads_nothing(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    found = document(client)
    for methods in found["paths"].values():
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page.text
    for name in found["components"]["schemas"]:
        assert f'id="schema-{name}"' in page.text
    for error in all_problems():
        assert f'id="{error.code}"' in page.text
    assert not re.search(r"<script|<link|src=|url\(", page.text)
    targets = set(re.findall(r'href="#([^"]+)"', page.text))
    assert targets <= set(re.findall(r'id="([^"]+)"', page.text))


def test_the_document_tells_the_headers_that_answers_have(client: TestClient) -> None:
    """Held against real answers (found by review: the document had no ETag, Location or Retry-After)."""
    paths = document(client)["paths"]
    created = client.post("/v1/conversations", json={"id": "my chat"})
    told = paths["/v1/conversations"]["post"]["responses"]["201"]["headers"]
    assert {"ETag", "Location"} <= set(told)
    assert {"etag", "location"} <= set(created.headers)
    client.post("/v1/conversations/my%20chat/lease", json={"holder": "w"})
    refused = client.delete("/v1/conversations/my%20chat")
    assert "retry-after" in refused.headers
    assert "Retry-After" in paths["/v1/conversations/{conversation_id}"]["delete"]["responses"]["409"]["headers"]
    merge = paths["/v1/conversations/{conversation_id}"]["patch"]["requestBody"]["content"]
    assert set(merge) == {"application/json", "application/merge-patch+json"}
    pattern = document(client)["components"]["schemas"]["ConversationBody"]["properties"]["id"]["pattern"]
    assert re.search(pattern, "my chat")
    assert not any(re.search(pattern, bad) for bad in ("a/b", " a", "a\\b", "a\x00", "a\nb"))
