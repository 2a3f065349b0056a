"""What stands before the routes: token, host, origin, size, headers. No secret is shown."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging

import httpx
import pytest

from streamjoin.service.config import Limits, ServiceConfig, is_loopback
from streamjoin.service.web.guard import host_name
from tests.service.conftest import NEAR, Live, Start

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def locked(start: Start) -> Live:
    return start(config=ServiceConfig(token=TOKEN))


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_without_the_token_nothing_is_told(locked: Live, given: str | None) -> None:
    client = locked.client()
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for path in ("/api/v1/queries", "/api/v1/info", "/metrics", "/api/v1/openapi.json", "/api/v1/events", "/nowhere"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    assert client.post("/api/v1/queries", json={"sql": NEAR}, headers=headers).status_code == 401
    assert locked.engine.queries() == []


def test_with_the_token_everything_works_and_it_is_in_no_answer(locked: Live, caplog: pytest.LogCaptureFixture) -> None:
    client = locked.client(headers={"Authorization": f"bearer {TOKEN}"})
    with caplog.at_level(logging.DEBUG):
        assert client.post("/api/v1/queries", json={"sql": NEAR}).status_code == 201
        for path in ("/api/v1/queries", "/api/v1/info", "/metrics", "/api/v1/openapi.json", "/api/v1/plan"):
            answer = client.get(path)
            assert answer.status_code == 200
            assert TOKEN not in answer.text + str(answer.headers)
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(locked.app.state.service.config)


def test_probes_need_no_token(locked: Live) -> None:
    client = locked.client()
    assert client.get("/api/v1/health").json() == {"status": "ok"}
    assert client.get("/api/v1/ready").json()["status"] == "ready"


def test_another_address_needs_a_token() -> None:
    with pytest.raises(ValueError, match="a token is needed"):
        ServiceConfig(host="0.0.0.0")
    assert ServiceConfig(host="0.0.0.0", token=TOKEN).host == "0.0.0.0"
    with pytest.raises(ValueError, match="at least 16"):
        ServiceConfig(token="short")
    with pytest.raises(ValueError, match="ASCII"):
        ServiceConfig(token="ünïcödé-token-that-is-long")
    assert not is_loopback("example.org")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused_on_loopback(live: Live, host: str) -> None:
    answer = live.client().get("/api/v1/queries", headers={"Host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize("name", ["Host", "Authorization", "Origin", "Sec-Fetch-Site"])
def test_a_header_that_is_checked_is_given_once(live: Live, name: str) -> None:
    given = ["Host"] * (1 + (name == "Host")) + [name] * (2 * (name != "Host"))
    with contextlib.closing(http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=120)) as connection:
        connection.putrequest("GET", "/api/v1/queries", skip_host=True)
        for header in given:
            connection.putheader(header, "localhost")
        connection.endheaders()
        answer = connection.getresponse()
        problem = json.loads(answer.read())
    assert (answer.status, problem["type"]) == (400, "urn:streamjoin:problem:doubled-header")
    assert f"the header {name.lower()} is given more than once" in problem["detail"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8765"])
def test_names_of_this_machine_are_taken(live: Live, host: str) -> None:
    assert live.client().get("/api/v1/queries", headers={"Host": host}).status_code == 200


def test_other_names_can_be_allowed(start: Start) -> None:
    client = start(config=ServiceConfig(allowed_hosts=("joins.example.org",))).client()
    assert client.get("/api/v1/health", headers={"Host": "joins.example.org"}).status_code == 200
    assert host_name("[fe80::1]:80") == "fe80::1"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_foreign_page_changes_nothing(live: Live, headers: dict[str, str]) -> None:
    name = live.create()
    client = live.client()
    assert client.post("/api/v1/queries", json={"sql": NEAR}, headers=headers).status_code == 403
    assert client.post(f"/api/v1/queries/{name}/pause", headers=headers).status_code == 403
    assert client.delete(f"/api/v1/queries/{name}", headers=headers).status_code == 403
    assert [query.state for query in live.engine.queries()] == ["running"]


def test_the_page_itself_may(live: Live) -> None:
    headers = {"Origin": live.url, "Sec-Fetch-Site": "same-origin"}
    assert live.client().post("/api/v1/queries", json={"sql": NEAR}, headers=headers).status_code == 201


def test_cors_is_off(live: Live) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = live.client().request("OPTIONS", "/api/v1/queries", headers=headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.status_code == 405


def test_large_bodies_are_refused_with_and_without_a_length(start: Start) -> None:
    live = start(config=ServiceConfig(limits=Limits(request_bytes=2000)))
    client = live.client()
    large = {"sql": NEAR + " " * 3000}
    assert client.post("/api/v1/queries", json=large).status_code == 413

    def pieces() -> object:
        yield b'{"sql": "'
        for _ in range(100):
            yield b" " * 1000
        yield b'"}'

    answer = client.post("/api/v1/queries", content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert client.get("/api/v1/queries").status_code == 200
    assert live.engine.queries() == []


def test_headers_of_every_answer(live: Live) -> None:
    for path in ("/api/v1/queries", "/nowhere", "/"):
        headers = live.client().get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "default-src 'self'" in headers["content-security-policy"]


def test_what_nobody_expected_is_a_problem_without_details(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> object:
        raise ZeroDivisionError("a secret of the code")

    live.engine.queries = broken  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.ERROR, logger="streamjoin.service"):
        answer = httpx.get(f"{live.url}/api/v1/queries")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text
