"""The server about itself, and what it says when the database cannot answer."""

from pathlib import Path
from typing import Any

import pytest
from sessionstore_api import conversations
from sessionstore_api.app import create_app
from sessionstore_api.problems import problem_of, retry_after, status_of
from starlette.applications import Starlette
from starlette.testclient import TestClient

from sessionstore import errors
from sessionstore.client.problems import error_in
from sessionstore.engine import sqlite3
from sessionstore.settings import Settings
from tests.api.conftest import LOCAL, C, message, problem
from tests.conftest import ENGINE
from tests.test_values import _all_errors


def test_healthy_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz").json()
    assert ready["status"] == "ready"
    assert ready["engine"].startswith(f"SQLite {sqlite3.sqlite_version}" if ENGINE == "sqlite" else "PostgreSQL ")
    assert "engine_fault" in ready


def test_server_info_tells_capabilities_and_limits(client: TestClient) -> None:
    info = client.get("/v1/server_info").json()
    assert "idempotent_conversation_create_v1" in info["capabilities"]
    assert info["limits"]["body_bytes"] == 16 * 1024 * 1024


def test_a_changed_schema_makes_the_server_unready(client: TestClient, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'from the future'")
    connection.commit()
    connection.close()
    problem(client.get("/readyz"), 503, "schema-ahead")
    assert client.get("/healthz").status_code == 200


def test_a_busy_database_is_503_with_retry_after(url: str, path: Path) -> None:
    with TestClient(create_app(Settings(database_url=url, busy_timeout_ms=50)), headers=LOCAL) as client:
        client.post(C, json={"id": "c"})
        rival = sqlite3.connect(path, isolation_level=None)
        rival.execute("BEGIN IMMEDIATE")
        refused = client.post(f"{C}/c/messages", json={"messages": [message("hi")]})
        document = problem(refused, 503, "busy")
        assert (document["retryable"], refused.headers["retry-after"]) == (True, "1")
        assert client.get(f"{C}/c").status_code == 200
        rival.execute("ROLLBACK")
        rival.close()
        assert client.post(f"{C}/c/messages", json={"messages": [message("hi")]}).status_code == 201


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_that_a_client_can_meet_has_one_problem(kind: type[errors.SessionStoreError]) -> None:
    if issubclass(kind, errors.Misuse | errors.UnexpectedAnswer | errors.KeyExists | errors.KeyNotFound):
        with pytest.raises(StopIteration):
            status_of(kind)
        return
    error = kind(**dict.fromkeys(kind.__dataclass_fields__, 1))  # type: ignore[attr-defined]
    found = problem_of(error)
    assert found["status"] == status_of(kind)
    assert 400 <= found["status"] < 500 or found["status"] == 503
    assert (retry_after(error) is not None) == (found["status"] in (503, 429) or kind is errors.Generating)


def test_a_bug_is_a_problem_that_tells_nothing_of_our_insides(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("the secret of the bug")

    monkeypatch.setattr(conversations, "conversation_body", broken)
    with TestClient(app, raise_server_exceptions=False, headers=LOCAL) as client:
        answered = client.post(C, json={"messages": [message("private words")]})
    assert answered.status_code == 500
    assert answered.json()["code"] == "internal-error"
    assert "secret" not in answered.text
    assert "private words" not in caplog.text


def test_no_log_has_tokens_or_message_bodies(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    client.post(C, json={"id": "c"})
    token = client.post(f"{C}/c/lease", json={"holder": "w"}).json()["token"]
    client.put(f"{C}/c/messages/m", json=message("private words"), headers={"Lease-Token": token})
    client.put(f"{C}/c/messages/m", json=message("private words", role="Bad"), headers={"Lease-Token": token})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not any(token in line or "private words" in line for line in ours)


PLACED = [
    errors.NotADatabase(reason="/var/lib/private-place.db is no database"),
    errors.DatabaseUnusable(reason="/var/lib/private-place.db cannot be written"),
    errors.SchemaChanged(database="private-place.db", revision="0009"),
    errors.StorageFailed(reason="private-place"),
    errors.Unreachable(reason="connection to server at private-place failed"),
]


@pytest.mark.parametrize("error", PLACED, ids=lambda error: error.code)
def test_what_is_wrong_with_the_database_is_told_without_its_place(
    error: errors.SessionStoreError, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers get the code, and what to do; the log has the rest."""
    told = problem_of(error)
    assert (told["code"], "private-place" in str(told)) == (error.code, False)
    assert str(error) in caplog.text
    assert error_in(told) is not None
