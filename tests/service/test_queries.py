"""The queries of the service: created, checked, listed, paused, dropped, and their rows."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest

from streamjoin.adhoc import QueryHandle
from streamjoin.model.errors import StateError
from streamjoin.service.app import create_app
from streamjoin.service.config import Limits, ServiceConfig
from streamjoin.service.web.waiting import QUEUED, THREADS
from tests.service.asgi_client import ask
from tests.service.conftest import NEAR, Live, Start
from tests.service.ticking import TickingEngine


@pytest.fixture
def client(live: Live) -> httpx.Client:
    return live.client()


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, object] = answer.json()
    assert body["type"] == f"urn:streamjoin:problem:{kind}"
    assert body["status"] == status
    assert body["title"] and body["detail"]
    return body


def test_a_query_lives_from_create_to_drop(live: Live, client: httpx.Client) -> None:
    made = client.post("/api/v1/queries", json={"sql": NEAR, "name": "near"})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/queries/near")
    assert made.json()["columns"] == [["sym", "string"], ["px", "int64"], ["bid", "int64"]]
    assert [query["name"] for query in client.get("/api/v1/queries").json()["queries"]] == ["near"]
    live.engine.tick()
    shown = client.get("/api/v1/queries/near").json()
    assert (shown["state"], shown["sql"]) == ("running", NEAR)
    assert shown["rows"] > 0
    page = client.get("/api/v1/queries/near/rows", params={"limit": 3}).json()
    assert page["total"] == shown["rows"]
    assert len(page["rows"]) == 3
    assert all(abs(px - bid) <= 1 for _, px, bid in page["rows"])
    assert client.delete("/api/v1/queries/near").status_code == 204
    problem(client.get("/api/v1/queries/near"), 404, "no-such-query")
    assert "/api/v1/openapi.json lists what is" in client.get("/v1/queries").json()["detail"]
    wrong = client.post("/api/v1/queries/near")
    assert wrong.json()["detail"].startswith("POST is not for /api/v1/queries/near, which takes ")
    assert wrong.json()["detail"].endswith(wrong.headers["Allow"].removesuffix(", HEAD"))
    problem(client.delete("/api/v1/queries/near"), 404, "no-such-query")
    problem(client.get("/api/v1/queries/near/rows"), 404, "no-such-query")
    changes = client.get("/api/v1/changelog").json()["changes"]
    actions = [(change["action"], change["name"]) for change in changes]
    assert actions == [
        *(("register", name) for name in ("trades", "quotes", "clicks")),
        ("create", "near"),
        ("drop", "near"),
    ]
    later = client.get("/api/v1/changelog", params={"since": changes[-2]["serial"]}).json()["changes"]
    assert [change["action"] for change in later] == ["drop"]


def test_a_paused_query_gives_nothing_until_it_is_resumed(live: Live, client: httpx.Client) -> None:
    name = live.create()
    assert client.post(f"/api/v1/queries/{name}/pause").json()["state"] == "paused"
    live.engine.tick()
    assert client.get(f"/api/v1/queries/{name}").json()["rows"] == 0
    assert client.post(f"/api/v1/queries/{name}/resume").json()["state"] == "running"
    live.engine.tick()
    assert client.get(f"/api/v1/queries/{name}").json()["rows"] > 0


def test_a_dry_run_creates_nothing_and_says_what_would_be_shared(live: Live, client: httpx.Client) -> None:
    alone = client.post("/api/v1/queries", params={"dry_run": True}, json={"sql": NEAR}).json()
    assert alone["shares_with"] == []
    assert alone["streams"] == ["trades", "quotes"]
    name = live.create()
    beside = client.post("/api/v1/queries", params={"dry_run": True}, json={"sql": f"{NEAR} WHERE t.qty > 3"}).json()
    assert beside["shares_with"] == [name]
    assert len(client.get("/api/v1/queries").json()["queries"]) == 1


def test_a_wrong_query_names_the_place(client: httpx.Client) -> None:
    text = "SELECT t.sym\nFROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.symbol = q.sym"
    for params in ({}, {"dry_run": True}):
        told = problem(client.post("/api/v1/queries", params=params, json={"sql": text}), 422, "invalid-query")
        [place] = told["places"]
        assert (place["line"], place["column"]) == (2, text.split("\n")[1].index("t.symbol") + 1)
        assert (place["end_line"], place["end_column"]) == (2, place["column"] + len("t.symbol"))
        assert "did you mean t.sym?" in place["message"]
    assert client.get("/api/v1/queries").json()["queries"] == []


@pytest.mark.parametrize("text", ["SELECT", "DROP TABLE trades", "SELECT 1; SELECT 2", "SELECT * FROM a, b", "é\x00"])
def test_what_is_no_join_is_refused(client: httpx.Client, text: str) -> None:
    told = problem(client.post("/api/v1/queries", json={"sql": text}), 422, "invalid-query")
    assert told["places"]


@pytest.mark.parametrize("body", [{}, {"sql": 3}, {"sql": NEAR, "more": 1}, {"sql": NEAR, "name": "a b"}, [], "text"])
def test_a_wrong_body_names_the_part(client: httpx.Client, body: object) -> None:
    told = problem(client.post("/api/v1/queries", json=body), 422, "invalid-request")
    assert all(error["at"].startswith("body") for error in told["errors"])  # type: ignore[attr-defined]


def test_names_are_unique_and_made_up_where_left_out(live: Live, client: httpx.Client) -> None:
    live.create(name="q1")
    assert live.create() == "q2"
    problem(client.post("/api/v1/queries", json={"sql": NEAR, "name": "q1"}), 409, "name-taken")
    problem(client.post("/api/v1/queries", json={"sql": NEAR, "sink": "nowhere"}), 422, "unknown-sink")


def test_limits_on_streams_windows_and_queries(start: Start) -> None:
    limits = Limits(queries=2, streams_in_query=2, window_seconds=5, window_rows=100)
    client = start(config=ServiceConfig(limits=limits)).client()

    def refused(sql: str) -> str:
        [place] = problem(client.post("/api/v1/queries", json={"sql": sql}), 422, "invalid-query")["places"]
        lines = sql.split("\n")
        assert place["end_line"] == place["line"] == 1
        return lines[0][place["column"] - 1 : place["end_column"] - 1]

    assert "6 SECONDS" in refused(NEAR.replace("3 SECONDS", "6 SECONDS"))
    assert "101 ROWS" in refused(NEAR.replace("3 SECONDS", "101 ROWS"))
    assert "quotes r" in refused(f"{NEAR} JOIN quotes r WITHIN 1 SECOND ON r.sym = t.sym")
    around = "SELECT count(*) AS n FROM trades t WINDOW JOIN quotes q RANGE BETWEEN {} EXCLUDE PREVAILING"
    assert "9 SECONDS" in refused(around.format("9 SECONDS PRECEDING AND 1 SECOND PRECEDING"))
    assert "6 SECONDS" in refused(f"{NEAR} UNION ALL {NEAR.replace('3 SECONDS', '6 SECONDS')}")
    for _ in range(2):
        assert client.post("/api/v1/queries", json={"sql": NEAR}).status_code == 201
    told = problem(client.post("/api/v1/queries", json={"sql": NEAR}), 409, "too-many-queries")
    assert "2 queries" in str(told["detail"])


def test_a_query_with_too_many_words_is_refused_before_it_is_read(client: httpx.Client) -> None:
    wrong = f"{NEAR} AND {' OR '.join(['t.px > 1'] * 900)}"
    answer = client.post("/api/v1/queries", json={"sql": wrong}, params={"dry_run": "true"})
    assert answer.status_code == 422
    assert "at most 5,000 tokens, not 5," in answer.json()["detail"]
    nested = f"{NEAR} AND {'(' * 9000}t.px > 1{')' * 9000}"
    answer = client.post("/api/v1/queries", json={"sql": nested})
    assert "nests more than 40 levels deep" in answer.json()["detail"]
    assert answer.json()["places"][0]["column"] == len(f"{NEAR} AND ") + 41


@pytest.mark.parametrize("kind", ["previews", "changes"])
def test_what_waits_for_the_engine_leaves_the_other_routes_their_threads(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TickingEngine()
    app = create_app(engine)
    boundary, began = threading.Event(), threading.Semaphore(0)

    def until_the_boundary(*_: object, **__: object) -> Any:
        began.release()
        assert boundary.wait(60)
        raise StateError("a boundary")

    monkeypatch.setattr(engine, "preview", until_the_boundary)
    monkeypatch.setattr(engine, "create", until_the_boundary)
    query = "dry_run=true" if kind == "previews" else ""

    async def run() -> list[int]:
        asked = [asyncio.create_task(ask(app, "POST", "/api/v1/queries", {"sql": NEAR}, query)) for _ in range(100)]
        for _ in range(THREADS):
            await asyncio.to_thread(began.acquire)
        # With the threads that all routes share, this would wait for the boundary.
        assert await ask(app, "GET", "/api/v1/queries") == (200, {"queries": [], "next": None})
        assert (await ask(app, "GET", "/api/v1/changelog"))[0] == 200
        assert (await ask(app, "GET", "/api/v1/queries/nowhere"))[0] == 404
        assert (await ask(app, "GET", "/api/v1/plan"))[0] == 200
        refused = [await task for task in asked if task.done()]
        assert {answer["type"] for _, answer in refused} == {"urn:streamjoin:problem:engine-busy"}
        boundary.set()
        return [status for status, _ in await asyncio.gather(*asked)]

    statuses = Counter(asyncio.run(run()))
    engine.stop()
    # A dry run that the engine can't answer may be tried again, as one that found no room.
    late = 503 if kind == "previews" else 409
    assert statuses == Counter({late: THREADS + QUEUED}) + Counter({503: 100 - THREADS - QUEUED})


def test_the_limit_on_queries_holds_whatever_runs_at_the_same_time(start: Start) -> None:
    live = start(config=ServiceConfig(limits=Limits(queries=5)))
    together = threading.Barrier(12)
    refuse = live.app.state.service._refuse

    def checked(*arguments: Any) -> None:
        """All of them find room before the first is created."""
        refuse(*arguments)
        if len(waited) < 12:
            waited.append(1)
            together.wait(120)

    waited: list[int] = []
    live.app.state.service._refuse = checked
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(httpx.post(f"{live.url}/api/v1/queries", json={"sql": NEAR}, timeout=120).status_code)

    askers = [threading.Thread(target=ask) for _ in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert sorted(statuses) == [201] * 5 + [409] * 7
    assert len(live.engine.queries()) == 5


def test_a_join_that_compares_every_pair_needs_permission(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    live = start()
    monkeypatch.setattr(live.engine, "settings", replace(live.engine.settings, scan_pairs=1))
    live.engine.tick()
    client = live.client()
    sql = "SELECT t.px FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.px < q.bid"
    shown = client.post("/api/v1/queries", params={"dry_run": True}, json={"sql": sql}).json()
    assert "every pair within the window is compared" in shown["warning"]
    assert shown["needs_allow_scan"] is True
    told = problem(client.post("/api/v1/queries", json={"sql": sql}), 422, "invalid-request")
    assert "allow_scan" in told["detail"]
    assert client.post("/api/v1/queries", json={"sql": sql, "allow_scan": True}).status_code == 201


def test_numbers_that_json_can_not_hold_become_texts(live: Live, client: httpx.Client) -> None:
    sql = NEAR.replace("t.px, q.bid", "t.ts AS at, t.px * 1000000000000000 AS big, t.px / 0.0 AS ratio")
    name = live.create(sql)
    live.engine.tick()
    row = client.get(f"/api/v1/queries/{name}/rows", params={"limit": 1}).json()["rows"][0]
    assert row[1].startswith("2026-01-01T00:00:0")
    assert int(row[2]) > 1 << 53
    assert isinstance(row[2], str)
    assert row[3] in (None, "Infinity")


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")])
def test_a_query_that_is_dropped_meanwhile_is_not_found(
    live: Live, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = live.create()
    submit = live.engine._ask_for

    def after_another(action: Any, name: str, wait: bool, timeout: float) -> None:
        monkeypatch.undo()
        submit("drop", name, True, 30.0)
        submit(action, name, wait, timeout)

    monkeypatch.setattr(live.engine, "_ask_for", after_another)
    answer = live.client().request(method, f"/api/v1/queries/{name}{path}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:streamjoin:problem:no-such-query")
    assert answer.json()["detail"] == f"there is no query '{name}'"


def test_a_create_is_answered_also_if_the_query_is_dropped_at_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = QueryHandle.wait

    def dropped(handle: QueryHandle, timeout: float | None = None) -> None:
        wait(handle, timeout)
        live.engine.drop(handle.name)

    monkeypatch.setattr(QueryHandle, "wait", dropped)
    answer = live.client().post("/api/v1/queries", json={"sql": NEAR, "name": "near"})
    assert (answer.status_code, answer.json()["state"]) == (201, "dropped")


def test_an_empty_text_is_told_what_to_write(live: Live) -> None:
    for path in ("/api/v1/queries", "/api/v1/queries?dry_run=true"):
        answer = live.client().post(path, json={"sql": ""})
        assert answer.status_code == 422
        assert "the query is empty; write SELECT" in answer.json()["detail"]


def test_parameters_become_literals(client: httpx.Client) -> None:
    body = {
        "sql": "SELECT t.sym FROM trades t WHERE t.px > :px AND t.sym IN :syms",
        "parameters": {"px": 5, "syms": ["A"]},
    }
    made = client.post("/api/v1/queries", json=body)
    assert made.json()["sql"] == "SELECT t.sym FROM trades t WHERE t.px > 5 AND t.sym IN ('A')"
    told = problem(client.post("/api/v1/queries?dry_run=true", json={"sql": body["sql"]}), 422, "invalid-query")
    assert ":px has no value" in told["detail"]
