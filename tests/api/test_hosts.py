"""Browsers: by which name a server may be called, and which pages may call it."""

from collections.abc import Iterator

import pytest
from sessionstore_api.app import create_app
from starlette.testclient import TestClient

from sessionstore import errors
from sessionstore.settings import Settings
from tests.api.conftest import LOCAL, C, problem
from tests.conftest import Clock, Tables

PATHS = ("/v1/conversations", "/v1/conversations/c", "/v1/events", "/healthz", "/docs", "/openapi.json", "/nothing")
PAGE = "https://chat.example"


@pytest.mark.parametrize("address", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.9"]
)
def test_a_name_that_somebody_pointed_at_us_is_refused(client: TestClient, host: str, address: str) -> None:
    """DNS rebinding: a page has its own name lead to 127.0.0.1, and only the Host header tells."""
    problem(client.get(address, headers={"Host": host}), 403, "host-refused")


@pytest.mark.parametrize("host", ["", " ", "a b", "[::1", "localhost:", "localhost:x", "user@localhost", "localhost/"])
def test_what_is_no_host_is_400(client: TestClient, host: str) -> None:
    problem(client.get(C, headers={"Host": host}), 400, "malformed")


def test_two_hosts_are_400(client: TestClient) -> None:
    for second in ("evil.example", "localhost"):
        problem(client.get(C, headers=[("Host", "localhost"), ("Host", second)]), 400, "malformed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]", "[::1]:8080", "localhost."])
def test_this_machine_has_its_own_names(client: TestClient, host: str) -> None:
    assert client.get(C, headers={"Host": host}).status_code == 200


def test_the_address_that_was_called_is_no_name_that_could_be_pointed_here(url: str, clock: Clock) -> None:
    with TestClient(create_app(Settings(database_url=url), clock=clock), base_url="http://10.0.0.5:8080") as client:
        assert client.get("/healthz").status_code == 200
        problem(client.get("/healthz", headers={"Host": "10.0.0.6:8080"}), 403, "host-refused")


def test_two_origins_are_400(client: TestClient) -> None:
    twice = [("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://localhost")]
    problem(client.get(C, headers=twice), 400, "malformed")


def test_names_of_the_server_are_a_setting(url: str, clock: Clock) -> None:
    settings = Settings(database_url=url, allowed_hosts="chat.example, other.example")
    with TestClient(create_app(settings, clock=clock)) as client:
        for host, status in {"chat.example": 200, "OTHER.example:443": 200, "localhost": 200, "evil.example": 403}.items():
            assert client.get(C, headers={"Host": host}).status_code == status
    with TestClient(create_app(Settings(database_url=url, allowed_hosts="*"), clock=clock)) as client:
        assert client.get(C, headers={"Host": "anything.example"}).status_code == 200


FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Origin": "file://"},
    {"Origin": "http://[::1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "nonsense"},
    {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_from_elsewhere_reads_nothing_and_changes_nothing(
    client: TestClient, headers: dict[str, str], tables: Tables
) -> None:
    client.post(C, json={"id": "c"})
    before = tables.everything()
    for method, path in (("GET", C), ("POST", C), ("POST", f"{C}/c/interrupt"), ("DELETE", f"{C}/c"), ("GET", "/v1/events")):
        problem(client.request(method, path, headers=headers), 403, "origin-refused")
    assert tables.everything() == before


def test_what_comes_from_the_servers_own_pages_or_from_a_person_is_served(client: TestClient) -> None:
    for headers in ({"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert client.get(C, headers=headers).status_code == 200


def test_a_link_from_anywhere_leads_to_the_documentation_and_no_further(client: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/docs", headers=link).status_code == 200
    problem(client.get(C, headers=link), 403, "origin-refused")
    problem(client.get("/docs", headers={**link, "Sec-Fetch-Mode": "no-cors"}), 403, "origin-refused")


def test_a_form_of_a_page_is_no_call(client: TestClient, tables: Tables) -> None:
    """A form needs no leave of ours to be sent, but it cannot say that it is JSON."""
    client.post(C, json={"id": "c"})
    before = tables.everything()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        for body in (b'{"id": "new"}', b""):
            problem(client.post(C, content=body, headers={"Content-Type": kind}), 415, "unsupported-media-type")
            problem(
                client.post(f"{C}/c/interrupt", content=body, headers={"Content-Type": kind}), 415, "unsupported-media-type"
            )
    assert tables.everything() == before


def test_without_a_word_in_the_settings_no_page_is_told_that_it_may_call(client: TestClient) -> None:
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    for headers in (preflight, {"Origin": "http://127.0.0.1"}):
        answered = client.options(C, headers=headers)
        assert "access-control-allow-origin" not in answered.headers


@pytest.fixture
def opened(url: str, clock: Clock) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(database_url=url, allowed_origins=PAGE.upper()), clock=clock), headers=LOCAL) as client:
        yield client


def test_the_pages_of_the_settings_may_call_and_no_others(opened: TestClient) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,lease-token,if-match"}
    allowed = opened.options(C, headers={"Origin": PAGE, **asked})
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "access-control-allow-credentials" not in allowed.headers
    answered = opened.get(C, headers={"Origin": PAGE, "Sec-Fetch-Site": "cross-site"})
    assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "ETag" in answered.headers["access-control-expose-headers"]
    for origin in ("https://evil.example", PAGE + ".evil.example", "http://chat.example"):
        refused = opened.options(C, headers={"Origin": origin, **asked})
        problem(refused, 403, "origin-refused")
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("origins", ["*", "chat.example", "https://chat.example/", "https://*.example", "null"])
def test_not_every_page_and_no_pattern_can_be_allowed(origins: str) -> None:
    with pytest.raises(errors.InvalidInput, match="allowed_origins"):
        Settings(allowed_origins=origins)


def test_answers_are_not_guessed_at_and_pages_load_nothing(client: TestClient) -> None:
    for path in (C, "/docs", "/openapi.json", "/nothing", "/healthz"):
        assert client.get(path).headers["x-content-type-options"] == "nosniff"
    page = client.get("/docs").headers
    assert page["content-security-policy"].startswith("default-src 'none'")
    assert (page["referrer-policy"], page["x-frame-options"]) == ("no-referrer", "DENY")
