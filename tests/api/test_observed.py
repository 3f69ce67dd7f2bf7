"""What an operator sees: metrics, log lines and spans, and nothing of what was said."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from sessionstore_api import logs, observed
from starlette.testclient import TestClient

from sessionstore import Store, errors
from sessionstore.settings import Settings
from tests.api.conftest import C, acquire, message, problem
from tests.conftest import TOKEN, Clock

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def measured(client: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of each name, by their labels."""
    answered = client.get("/metrics")
    assert answered.status_code == 200
    assert answered.headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answered.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_page_explains_each_metric_and_no_other(client: TestClient) -> None:
    client.get(C)
    explained = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), flags=re.MULTILINE))
    answered = client.get("/metrics").text
    told = set(re.findall(r"^# TYPE (\w+) ", answered, flags=re.MULTILINE))
    on_servers = set() if "sessionstore_log_bytes" in told else {"sessionstore_log_bytes"}
    assert told == set(explained) - on_servers
    for name, samples in measured(client).items():
        family = re.sub("_(bucket|sum|count)$", "", name)
        if family in explained:
            labels = {label for sample in samples for label, _ in sample} - {"le"}
            assert labels == set(re.findall(r"`(\w+)`", explained[family])), name


def test_requests_are_counted_by_route_and_code_and_never_by_what_they_name(client: TestClient) -> None:
    client.post(C, json={"id": "a-private-name"})
    client.get(f"{C}/a-private-name")
    client.get(f"{C}/never")
    client.get("/a-private-name")
    client.request("PURGE", C)
    client.get(C, headers={"Host": "evil.example"})
    found = measured(client)
    counts = found["sessionstore_requests_total"]
    route = f"{C}/{{conversation_id}}"
    for labels, count in {
        ("GET", route, "200"): 1,
        ("GET", route, "404"): 1,
        ("POST", C, "201"): 1,
        ("other", "other", "404"): 1,
    }.items():
        assert counts[tuple(zip(("method", "route", "status"), labels, strict=True))] == count
    problems = {dict(labels)["code"]: count for labels, count in found["sessionstore_problems_total"].items()}
    assert problems == {"conversation-not-found": 1, "host-refused": 1}
    assert "private" not in client.get("/metrics").text


def test_leases_takeovers_and_lost_leases_are_told(client: TestClient, clock: Clock) -> None:
    for id in ("a", "b", "c"):
        client.post(C, json={"id": id})
        acquire(client, id, token=f"{TOKEN}-{id}", ttl_ms=1_000 if id == "a" else 60_000)
    clock.advance(2_000)
    found = measured(client)
    assert found["sessionstore_leases"] == {(("state", "live"),): 2, (("state", "expired"),): 1}
    assert found["sessionstore_takeovers_total"][()] == 0
    assert client.post(f"{C}/a/messages", json={"messages": [message("mine now")]}).status_code == 201
    problem(client.patch(f"{C}/a/lease", json={}, headers={"Lease-Token": f"{TOKEN}-a"}), 409, "lease-lost")
    found = measured(client)
    assert (found["sessionstore_takeovers_total"][()], found["sessionstore_lost_leases_total"][()]) == (1, 1)
    assert found["sessionstore_leases"][(("state", "expired"),)] == 0
    # What was done is told again, and nothing is lost.
    for _ in range(3):
        assert client.post(f"{C}/b/lease/finish", json={}, headers={"Lease-Token": f"{TOKEN}-b"}).status_code == 200
    assert measured(client)["sessionstore_lost_leases_total"][()] == 1


def test_commits_groups_and_waits_are_told(client: TestClient) -> None:
    for n in range(5):
        client.post(C, json={"id": f"c{n}"})
    found = measured(client)
    for name in ("commit_seconds", "group_size", "write_wait_seconds"):
        assert found[f"sessionstore_{name}_count"][()] == 5, name
    assert found["sessionstore_group_size_sum"][()] == 5
    assert found["sessionstore_write_queue"][()] == 0
    assert found["sessionstore_oldest_read_seconds"][()] >= 0
    buckets = [
        count for _, count in sorted(found["sessionstore_commit_seconds_bucket"].items(), key=lambda one: float(one[0][0][1]))
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 5


def test_the_oldest_read_is_that_which_goes_on(plain: Store) -> None:
    import time

    assert plain.measured().oldest_read == 0

    def look(_: Any) -> float:
        time.sleep(0.02)
        oldest = plain.database.measures.oldest_read
        assert oldest is not None
        return time.monotonic() - oldest

    assert plain.database.read(look) >= 0.02
    assert plain.database.measures.oldest_read is None


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.TextIOWrapper]:
    """What is written to stderr, as `serve` has it written."""
    written, root = io.TextIOWrapper(io.BytesIO(), write_through=True), logging.getLogger()
    before = (root.handlers, root.level)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(observed, "log", structlog.get_logger())
    logs.configure(Settings(log_format="json"))
    yield written
    structlog.reset_defaults()
    root.handlers, root.level = before
    for name in ("sessionstore", "sessionstore_api"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def text(written: io.TextIOWrapper) -> str:
    buffer: Any = written.buffer
    return str(buffer.getvalue().decode())


def lines(written: io.TextIOWrapper) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(written).splitlines()]


def test_each_request_is_a_line_with_its_id_its_trace_and_its_end(logged: io.TextIOWrapper, client: TestClient) -> None:
    client.post(C, json={"id": "c"}, headers={"X-Request-Id": "mine-1", "traceparent": TRACE})
    client.get(f"{C}/never")
    done, refused = (line for line in lines(logged) if line["event"] == "request")
    assert {name: done[name] for name in ("method", "route", "status", "request_id", "trace_id", "level")} == {
        "method": "POST", "route": C, "status": 201, "request_id": "mine-1", "trace_id": TRACE.split("-")[1], "level": "info",
    }  # fmt: skip
    assert done["ms"] > 0
    assert (refused["code"], refused["status"]) == ("conversation-not-found", 404)
    assert "trace_id" not in refused


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "<script>", 'a"b', "a,b"])
def test_a_request_id_that_could_do_harm_is_replaced(client: TestClient, given: str) -> None:
    assert client.get("/healthz", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    answered = client.get("/healthz", headers={"X-Request-Id": given}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", answered)


def test_every_answer_has_a_request_id_and_no_two_the_same(client: TestClient) -> None:
    answers = [client.get(path, headers=headers) for path in (C, "/nothing", "/healthz") for headers in ({}, {"Host": "evil"})]
    assert len({answered.headers["x-request-id"] for answered in answers}) == len(answers)


@pytest.mark.parametrize(
    "told", ["00-0-0-01", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", TRACE.upper(), "x" * 10_000, TRACE + "\u00e9"]
)
def test_a_trace_that_is_none_is_left_out(logged: io.TextIOWrapper, client: TestClient, told: str) -> None:
    assert client.get("/healthz", headers=[(b"traceparent", told.encode("latin-1"))]).status_code == 200
    assert "trace_id" not in lines(logged)[-1]


def test_errors_are_logged_by_kind_and_place_without_their_words(
    logged: io.TextIOWrapper, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a private word")

    monkeypatch.setattr(Store, "create", fail)
    with TestClient(app, raise_server_exceptions=False, headers={"Host": "localhost"}) as client:
        monkeypatch.setattr("sessionstore.aio.AsyncStore.create", fail)
        assert client.post(C, json={"id": "c"}).status_code == 500
    failed = next(line for line in lines(logged) if line["event"] == "unexpected error")
    assert failed["error"] == "ValueError"
    assert any("conversations.py" in place for place in failed["places"])
    assert "private" not in text(logged)


def test_nothing_that_is_said_sent_or_held_reaches_the_log(
    logged: io.TextIOWrapper, client: TestClient, url: str, clock: Clock
) -> None:
    with Store.open(url, clock=clock) as store:
        secret = store.keys.create("k", "", admin=True).secret
    key = {"Authorization": f"Bearer {secret}"}
    client.post(C, json={"id": "private-id", "title": "private", "messages": [message("private", "m")]}, headers=key)
    client.post(f"{C}/private-id/lease", json={"holder": "private", "token": TOKEN}, headers=key)
    client.put(f"{C}/private-id/messages/m", json=message("private"), headers={**key, "Lease-Token": TOKEN})
    client.get("/v1/search?q=private", headers=key)
    client.post(C, content=b'{"private": ', headers={**key, "Content-Type": "application/json"})
    written = text(logged)
    assert len(lines(logged)) >= 5
    for one in (secret, TOKEN, "private"):
        assert one not in written


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """For this test only: what is set up for the whole process stays for its other tests."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return found


def test_each_write_is_a_span_of_the_callers_trace(exporter: InMemorySpanExporter, client: TestClient) -> None:
    client.post(C, json={"id": "c"})
    exporter.clear()
    client.post(f"{C}/c/messages", json={"messages": [message("private", "m")]}, headers={"traceparent": TRACE})
    client.get(f"{C}/c", headers={"traceparent": TRACE})
    (span,) = exporter.get_finished_spans()
    assert span.name == "sessionstore.write"
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE.split("-")[1]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == TRACE.split("-")[2]
    assert dict(span.attributes or {}) == {"sessionstore.lane": "grouped", "sessionstore.bytes": len('"private"')}
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time > span.start_time


def test_a_refused_write_says_why_and_nothing_else(exporter: InMemorySpanExporter, plain: Store) -> None:
    plain.create("private", messages=[])
    exporter.clear()
    with pytest.raises(errors.ConversationExists):
        plain.create("private", title="another")
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "conversation-exists"
    assert "private" not in span.to_json()
