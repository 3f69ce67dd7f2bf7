"""The application, as a client sees it."""

from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from sessionstore_api.app import create_app
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sessionstore.settings import Settings
from tests.conftest import Clock

C = "/v1/conversations"
LOCAL = {"Host": "127.0.0.1"}


@pytest.fixture
def app(url: str, clock: Clock) -> Starlette:
    return create_app(Settings(database_url=url), clock=clock)


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    """A client of the whole application; anything that blocks the event loop fails the test."""
    with TestClient(app, headers=LOCAL) as opened, blockbuster_ctx(["sessionstore", "sessionstore_api"]):
        yield opened


def acquire(client: TestClient, id: str, holder: str = "worker", **body: Any) -> dict[str, str]:
    """Begin a turn; answers the headers of its holder."""
    answered = client.post(f"{C}/{id}/lease", json={"holder": holder, **body})
    assert answered.status_code == 201, answered.text
    return {"Lease-Token": answered.json()["token"]}


def message(content: Any, id: str | None = None, role: str = "user", **rest: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **({} if id is None else {"id": id}), **rest}


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal, which has one shape whatever refused."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["code"], document["type"]) == (status, code, f"/docs#{code}")
    assert document["title"]
    assert isinstance(document["retryable"], bool)
    return document
