"""Streams, plan, history, health, metrics and the page."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.responses import Response

from streamjoin.model.errors import StateError
from streamjoin.queries.core.changes import Create, Pause
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine.info import QueryInfo
from streamjoin.queries.language.condition_words import readable
from streamjoin.service import app as application
from streamjoin.service.app import create_app
from streamjoin.service.config import Limits, ServiceConfig
from streamjoin.service.hub import Hub
from streamjoin.service.plan_graph import PlanGraph
from streamjoin.service.server import _Progress
from streamjoin.service.web.cached import Together
from tests.service import feeds
from tests.service.conftest import NEAR, Live, serving

AGAIN = "SELECT a.user FROM clicks a JOIN clicks b WITHIN 2 SECONDS ON a.user = b.user"


def test_streams_with_their_columns_and_figures(live: Live) -> None:
    client = live.client()
    live.engine.tick()
    found = client.get("/api/v1/streams").json()["streams"]
    assert [stream["name"] for stream in found] == ["trades", "quotes", "clicks"]
    assert found[0]["columns"][0] == ["ts", "timestamp[us]"]
    assert found[0]["rows"] == 20
    shown = client.get("/api/v1/streams/quotes").json()
    moving = {"rows_per_second", "lag_seconds", "backpressure"}
    assert {key: shown[key] for key in shown.keys() - moving} == {key: found[1][key] for key in shown.keys() - moving}
    assert client.get("/api/v1/streams/nowhere").status_code == 404


def test_what_was_set_aside_of_a_stream(live: Live) -> None:
    client = live.client()
    bad = pa.table(
        {
            "topic": ["t"] * 3,
            "offset": [7, 8, 9],
            "value": [b"not json", b"{", "ü".encode()],
            "key": [b"\xff", None, None],
        }
    )
    live.engine.tick(malformed={"trades": bad})
    live.engine.push("quotes", feeds.batch(0)["quotes"].slice(0, 3))
    found = client.get("/api/v1/streams/trades/malformed", params={"limit": 2}).json()
    assert found["total"] == 3
    assert dict(found["columns"]) == {"topic": "string", "offset": "int64", "value": "string", "key": "string"}
    assert found["rows"] == [["t", 8, "{", None], ["t", 9, "ü", None]]
    # What is no text is told as base64, as everywhere.
    assert client.get("/api/v1/streams/trades/malformed").json()["rows"][0] == ["t", 7, "not json", "/w=="]
    assert client.get("/api/v1/streams/quotes/malformed").json() == {"columns": [], "rows": [], "total": 0}
    late = client.get("/api/v1/streams/quotes/late").json()
    assert (late["total"], [name for name, _ in late["columns"]]) == (3, ["ts", "sym", "bid", "ask"])
    assert late["rows"][0][0] == "2026-01-01T00:00:00.000000"
    assert client.get("/api/v1/streams/nowhere/late").status_code == 404
    assert client.get("/api/v1/streams/nowhere/malformed").status_code == 404
    assert client.get("/api/v1/streams/quotes/late", params={"limit": 0}).status_code == 422
    figures = client.get("/metrics").text
    assert 'streamjoin_stream_malformed_total{stream="trades"} 3' in figures
    assert 'streamjoin_stream_late_total{stream="quotes"} 3' in figures


def test_the_plan_shows_what_is_shared_and_why(live: Live) -> None:
    client = live.client()
    one, two = live.create(), live.create(f"{NEAR} WHERE t.px > 120")
    live.create(AGAIN, name="again")
    for _ in range(10):
        last = live.engine.tick()
    plan = client.get("/api/v1/plan").json()
    nodes = {node["id"]: node for node in plan["nodes"]}
    kinds = [node["kind"] for node in plan["nodes"]]
    assert (kinds.count("source"), kinds.count("sink"), kinds.count("join")) == (3, 3, 2)
    shared = next(node for node in plan["nodes"] if node["kind"] == "join" and one in node["queries"])
    assert shared["queries"] == [one, two]
    assert shared["cost_apart"] == pytest.approx(2 * shared["cost_shared"])
    assert 0 < shared["selectivity"] <= 1
    assert two in shared["reason"]
    assert {edge["from"] for edge in plan["edges"]} | {edge["to"] for edge in plan["edges"]} == set(nodes)
    to_sink = next(edge for edge in plan["edges"] if edge["to"] == f"sink:{one}")
    assert (to_sink["from"], to_sink["rate"]) == (shared["id"], last.rows_out[one])
    assert nodes["source:trades"]["queries"] == [one, two]
    client.delete(f"/api/v1/queries/{two}")
    live.engine.tick()
    plan = client.get("/api/v1/plan").json()
    assert [n["queries"] for n in plan["nodes"] if n["kind"] == "join" and one in n["queries"]] == [[one]]


def test_the_plan_as_text_and_dot(live: Live) -> None:
    live.create()
    client = live.client()
    text = client.get("/api/v1/plan", params={"format": "text"})
    assert text.headers["content-type"].startswith("text/plain")
    assert "1 queries, sharing: cost" in text.text
    dot = client.get("/api/v1/plan", headers={"Accept": "text/vnd.graphviz"})
    assert dot.text.startswith("digraph plan {")
    assert client.get("/api/v1/plan", headers={"Accept": "text/plain"}).text == text.text
    assert client.get("/api/v1/plan", params={"format": "svg"}).status_code == 422


def test_a_join_is_one_node_whichever_side_drives_it() -> None:
    core = Shared(feeds.STREAMS)
    three = f"{NEAR} JOIN quotes r WITHIN 2 SECONDS ON r.sym = q.sym"
    core.apply([Create("two", NEAR), Create("three", three)])
    core.process(0, feeds.batch(0))
    graph = PlanGraph(core.explain(), [], [], {}).as_data()
    joins = {node["id"]: node["queries"] for node in graph["nodes"] if node["kind"] == "join"}
    shared = [queries for queries in joins.values() if queries == ["three", "two"]]
    assert len(shared) == 1
    ends = {edge["from"] for edge in graph["edges"] if edge["to"] == "sink:three"}
    assert len(ends) == 1
    assert readable("any tuple in the window", ["a", "b"]) == "any tuple in the window"


def test_window_joins_and_groups_are_steps_before_the_sinks() -> None:
    around = "SELECT t.sym, {counted} AS n FROM trades t WINDOW JOIN quotes q ON t.sym = q.sym "
    around += "RANGE BETWEEN 5 SECONDS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
    after = " WINDOW JOIN quotes p ON t.sym = p.sym RANGE BETWEEN CURRENT ROW AND 1 SECOND FOLLOWING EXCLUDE PREVAILING"
    grouped = f"SELECT t.sym, count(*) AS n {NEAR[NEAR.index('FROM') :]} GROUP BY t.sym, TUMBLE(t.ts, INTERVAL '{{}}')"
    for sharing in ("cost", "nothing"):
        core = open_core(feeds.STREAMS, Settings(sharing=sharing))
        core.apply([Create("near", NEAR), Create("around", around.format(counted="count(*)"))])
        core.apply([Create("twice", around.format(counted="count(q.ts) AS m, count(p.ts)") + after)])
        both = " UNION ALL ".join(around.replace("5", n).format(counted="count(*)") for n in "57")
        core.apply([Create("both", both)])
        core.apply([Create("short", grouped.format("10 seconds")), Create("long", grouped.format("1 minute"))])
        ranged = "SELECT t.sym, count(*) AS n FROM trades t JOIN quotes q WITHIN 5 SECONDS ON t.sym = q.sym "
        core.apply([Create("ranged", f"{ranged} GROUP BY t.sym, TUMBLE(t.ts, INTERVAL '1' MINUTE)")])
        core.apply([Create("plain", "SELECT t.sym FROM trades t UNION ALL SELECT q.sym FROM quotes q")])
        core.process(0, feeds.batch(0))
        explanation = core.explain()
        infos = [QueryInfo(name, "", "running", 0, 0.0, 0, 0.0, None, "memory", ()) for name in core.queries]
        given = {"around": 3, "twice": 2, "both": 4, "plain": 8}
        graph = PlanGraph(explanation, [], infos, given).as_data()
        nodes = {node["id"]: node for node in graph["nodes"]}
        into = {
            name: [nodes[edge["from"]] for edge in graph["edges"] if edge["to"] == f"sink:{name}"]
            for name in core.queries
        }
        (window,), (first, second), (groups,) = into["around"], into["twice"], into["short"]
        assert [node["kind"] for node in into["near"]] == ["join"]
        assert (window["kind"], window["detail"], window["rate"]) == ("window", "sym, from -5 s to 0", 3)
        assert window["label"].startswith("trades ⋈ quotes: window join by t.sym = q.sym")
        assert (first["detail"], second["detail"]) == ("sym, from -5 s to 0", "sym, from 0 to 1 s")
        before = {nodes[edge["from"]]["label"] for edge in graph["edges"] if edge["to"] == second["id"]}
        assert before == {"trades", "quotes"}
        assert [node["kind"] for node in into["both"]] == ["window", "window"]
        assert groups["kind"] == "groups"
        rates = {
            name: [edge["rate"] for edge in graph["edges"] if edge["to"] == f"sink:{name}"] for name in core.queries
        }
        assert (rates["around"], rates["twice"]) == ([3], [2, 2])
        # A row of a union is of one of its parts.
        assert all(
            min(rates[name]) > 0 and sum(rates[name]) == pytest.approx(given[name]) for name in ("both", "plain")
        )
        if sharing == "cost":
            told = "windows of 10 s and 1 min; of pairs, as the join has other conditions than equalities"
            assert (groups["label"], groups["queries"]) == (f"by sym: {told}", ["long", "short"])
            assert f"long, short: groups by t.sym, {told}" in str(explanation)
        (groups,) = into["ranged"]
        assert groups["label"].endswith("; from ranges of q by key and time, no pair is enumerated")
        before = {nodes[edge["from"]]["label"] for edge in graph["edges"] if edge["to"] == groups["id"]}
        assert before == {"trades", "quotes"}
        core.apply([Pause(name) for name in ("around", "short", "long", "ranged")])
        assert {step.queries for step in core.explain().last_steps} == {("both",), ("twice",)}


def test_what_a_window_join_costs_is_what_it_looked_at() -> None:
    around = "SELECT t.sym, count(*) AS n FROM trades t WINDOW JOIN quotes q ON t.sym = q.sym {more}"
    around += "RANGE BETWEEN 2 SECONDS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
    one_by_one = around.format(more="AND q.bid < t.px ")
    for sharing in ("cost", "nothing"):
        core = open_core(feeds.STREAMS, Settings(sharing=sharing))
        core.apply([Create("ends", around.format(more="")), Create("each", one_by_one)])
        core.apply([Create("both", f"{around.format(more='')} UNION ALL {one_by_one}")])
        tables = [core.process(number, feeds.batch(number)) for number in range(4)]
        counts = pa.concat_tables([batch["ends"] for batch in tables])["n"].to_pylist()
        windows, matches = len(counts), sum(counts)
        assert 0 < windows < matches
        nodes = PlanGraph(core.explain(), [], [], {}).as_data()["nodes"]
        steps = [node for node in nodes if node["kind"] == "window"]
        costs = {name: [n["cost_shared"] for n in steps if name in n["queries"]] for name in core.queries}
        assert costs["ends"] == [windows / 4]
        assert costs["each"] == [(windows + matches) / 4]
        assert sorted(costs["both"]) == [windows / 4, (windows + matches) / 4]
        assert all(node["cost_apart"] == node["cost_shared"] for node in steps)


def test_no_direction_finds_more_pairs_than_it_compares() -> None:
    core = open_core(feeds.STREAMS, Settings())
    core.apply([Create("near", "SELECT t.px FROM trades t JOIN quotes q WITHIN 30 SECONDS ON t.sym = q.sym")])
    for number in range(2):
        core.process(number, {"trades": feeds.batch(number)["trades"], "quotes": feeds.batch(number + 1)["quotes"]})
    steps = [root.step for root in core.explain().roots]
    assert sum(step.pairs for step in steps) > 0
    assert [step for step in steps if step.pairs > step.candidates] == []


def test_decisions_show_at_their_queries() -> None:
    core = Shared(feeds.STREAMS, Settings(replan_every=1_000_000, group_cost=0))
    # A query's name says nothing: this one is a word of every decision.
    core.apply([Create("two", NEAR), Create("because", f"{NEAR} WHERE t.px > 120")])
    core.apply([Create("three", f"{NEAR} JOIN clicks c WITHIN 2 SECONDS ON c.ts = q.ts"), Create("clicks", AGAIN)])
    for number in range(2):
        core.process(number, feeds.batch(number))
    core.replan()
    graph = PlanGraph(core.explain(), [], [], {}).as_data()
    rules: dict[str, set[str]] = {}
    for node in graph["nodes"]:
        lines = node["reason"].splitlines()
        assert bool(lines) == (node["kind"] in ("join", "selection"))
        for name in node["queries"] if node["kind"] == "join" and len(node["queries"]) == 1 else ():
            rules.setdefault(name, set()).update(one.rule for one in node["decisions"])
    assert rules["clicks"] == {"share_eagerly"}
    assert rules["three"] == {"share_eagerly", "reorder_joins"}
    told = [one.rule for node in graph["nodes"] if "two" in node["queries"] for one in node["decisions"]]
    assert "group_by_cost" in told
    assert graph["decisions"] == [str(decision) for decision in core.snapshot().optimizer.decisions]


def test_history_keeps_the_newest_batches(live: Live) -> None:
    name = live.create()
    batches = [live.engine.tick() for _ in range(3)]
    found = live.client().get("/api/v1/history").json()["samples"]
    # The create was a batch of its own, without tuples.
    assert [sample["batch"] for sample in found[1:]] == [batch.batch for batch in batches]
    assert found[0]["changes"][0]["name"] == name
    assert found[-1]["rows_out"] == {name: batches[-1].rows_out[name]}


def test_info_tells_limits_and_no_paths(live: Live) -> None:
    info = live.client().get("/api/v1/info").json()
    assert info["limits"]["queries"] == 500
    assert info["limits"].keys() == vars(Limits()).keys()
    assert info["checkpoint_present"] is False
    assert "/" not in str({key: value for key, value in info.items() if key != "version"})


def test_before_the_engine_is_there_and_after_it_failed() -> None:
    app = create_app(None, ServiceConfig())
    service = app.state.service
    with serving(app) as url:
        live = Live(None, app, url)  # type: ignore[arg-type]
        client = live.client()
        assert client.get("/api/v1/health").status_code == 200
        ready = client.get("/api/v1/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "starting")
        answer = client.get("/api/v1/queries")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:streamjoin:problem:starting")
        assert answer.headers["retry-after"]
        assert "streamjoin_ready 0" in client.get("/metrics").text
        service.fail("the disk is full")
        failed = {"status": "failed", "reason": "the disk is full", "catching_up": None}
        assert client.get("/api/v1/ready").json() == failed
        assert "the disk is full" in client.get("/api/v1/queries").json()["detail"]
        client.close()


def test_a_failed_engine_is_not_ready(live: Live) -> None:
    live.engine.fail(StateError("the disk is full"))
    ready = live.client().get("/api/v1/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "failed")
    assert "the disk is full" in ready.json()["reason"]


def test_a_failed_stream_is_shown_and_everything_else_is_served(live: Live) -> None:
    live.engine.fail_stream("trades", "stream 'trades' failed: no broker")
    client = live.client()
    assert client.get("/api/v1/ready").json()["status"] == "ready"
    trades, quotes, _ = client.get("/api/v1/streams").json()["streams"]
    assert (trades["error"], trades["failures"]) == ("stream 'trades' failed: no broker", 3)
    assert trades["retry_at"] == 1_767_225_600
    assert (quotes["error"], quotes["failures"], quotes["retry_at"]) == (None, 0, None)
    figures = client.get("/metrics").text
    for line in (
        'stream_up{stream="trades"} 0',
        'stream_up{stream="quotes"} 1',
        'stream_failures_total{stream="trades"} 3',
    ):
        assert f"streamjoin_{line}\n" in figures


def test_a_degraded_query_is_seen_in_the_list_and_the_metrics(live: Live) -> None:
    client = live.client()
    name = live.create()
    live.engine.fail_stream("trades", "stream 'trades' failed: no broker")
    listed = client.get("/api/v1/queries").json()["queries"]
    assert [(query["state"], query["error"]) for query in listed] == [("degraded", "stream 'trades' failed: no broker")]
    text = client.get("/metrics").text
    for line in ('queries{state="running"} 0', 'queries{state="degraded"} 1', f'query_degraded{{query="{name}"}} 1'):
        assert f"streamjoin_{line}\n" in text
    live.engine.recover_stream("trades")
    assert f'streamjoin_query_degraded{{query="{name}"}} 0\n' in client.get("/metrics").text


def test_metrics_are_what_prometheus_reads(live: Live) -> None:
    client = live.client()
    name = live.create()
    live.engine.tick()
    client.get("/api/v1/queries/nowhere")
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.text
    assert f'streamjoin_query_rows_total{{query="{name}"}} {live.engine.query(name).rows}' in text
    assert 'streamjoin_stream_rows_total{stream="trades"} 20' in text
    assert 'streamjoin_queries{state="running"} 1' in text
    assert 'streamjoin_http_requests_total{method="GET",route="/api/v1/queries/{name}",status="404"} 1' in text
    sample = re.compile(r'streamjoin_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name_ = line.split()[2]
            assert name_ not in typed
            typed.add(name_)
        elif not line.startswith("#"):
            assert sample.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] in typed


def test_the_page_and_its_files(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>joins</title>")
    (tmp_path / "page.js").write_text("1")
    monkeypatch.setattr(application, "PAGE", tmp_path)
    app = create_app(live.engine, ServiceConfig(token="x" * 20))
    with serving(app) as url:
        client = Live(live.engine, app, url).client()
        page = client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert client.get("/static/page.js").headers["content-type"].startswith("text/javascript")
        for path in ("/static/", "/static/nothing.js", "/static/../app.py", "/static/%2e%2e/app.py"):
            assert client.get(path).status_code in (401, 404)
        client.close()


def test_who_asks_for_an_answer_that_is_being_made_waits_for_it() -> None:
    hub = Hub()
    together = Together(hub)
    made: list[int] = []
    go = threading.Event()

    def make() -> Response:
        made.append(len(made))
        go.wait(120)
        return Response(str(len(made)))

    def fail() -> Response:
        raise ValueError("once")

    async def run() -> None:
        asked = [asyncio.create_task(together.answer("x", make)) for _ in range(5)]
        await asyncio.sleep(0)
        asked.pop().cancel()
        hub.poke()
        # This one came after a change, and gets an answer of its own.
        later = asyncio.create_task(together.answer("x", make))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*asked, later)
        assert len(made) == 2
        for _ in range(2):
            with pytest.raises(ValueError, match="once"):
                await together.answer("y", fail)

    asyncio.run(run())


def test_a_service_that_catches_up_is_ready_and_says_how_far_it_is(live: Live) -> None:
    client = live.client()
    catch_up = live.engine._catalog.streams["trades"].catch_up
    catch_up.note(0, 100)
    catch_up.note(41, 59)
    ready = client.get("/api/v1/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["catching_up"].startswith("catching up: 41 %, 0 s")
    shown = client.get("/api/v1/activity").json()["catching_up"]
    assert (shown["share"], shown["streams"]) == (0.41, ["trades"]) and shown["seconds"] >= 0
    streams = {one["name"]: one["caught_up"] for one in client.get("/api/v1/streams").json()["streams"]}
    assert streams["trades"] == 0.41 and streams["quotes"] is None
    lines: list[str] = []
    times = iter((0.0, 0.5, 1.0, 5.0, 11.0, 12.0, 13.0, 14.0))
    progress = _Progress(live.app.state.service, lines.append, lambda: next(times))
    for _ in range(6):
        progress.tell()
    assert [line.partition(",")[0] for line in lines] == ["catching up: 41 %"] * 2 and lines[0].endswith("(trades)")
    assert 'streamjoin_stream_caught_up{stream="trades"} 0.41' in client.get("/metrics").text
    catch_up.note(50, 9)
    progress.tell()
    progress.tell()
    assert lines[2:] == ["the streams have caught up"]
    assert client.get("/api/v1/ready").json()["catching_up"] is None
    assert 'streamjoin_stream_caught_up{stream="trades"} 1' in client.get("/metrics").text
