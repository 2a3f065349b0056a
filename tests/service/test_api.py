"""The interface as other programs use it: media types, HEAD, lists in parts, files, and calls while a batch runs."""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from streamjoin.model.errors import StateError
from streamjoin.queries.engine.inbox import SourceBatch
from streamjoin.service import state
from tests.service import feeds
from tests.service.conftest import NEAR, Live
from tests.service.held_engine import HeldRows, hold


@pytest.fixture
def client(live: Live) -> httpx.Client:
    return live.client()


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", None])
def test_a_body_that_is_no_json_is_refused(live: Live, client: httpx.Client, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    answer = client.post("/api/v1/queries", content=b'{"sql": "%s"}' % NEAR.encode(), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "urn:streamjoin:problem:unsupported-media-type")
    assert answer.headers["accept"] == "application/json"
    # Also where the length is not known before.
    assert client.post("/api/v1/queries", content=iter([b"{}"]), headers=headers).status_code == 415
    assert live.engine.queries() == []
    json = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/api/v1/queries", content=b'{"sql": "no"}', headers=json).status_code == 422
    # What has no body needs no type.
    assert client.post("/api/v1/queries/nowhere/pause").status_code == 404


def test_head_is_get_without_the_body(live: Live, client: httpx.Client) -> None:
    live.create(name="near")
    paths = ["/", "/static/app.js", "/metrics"]
    paths += [f"/api/v1/{path}" for path in ("health", "queries", "queries/near", "plan", "openapi.json", "nowhere")]
    for path in paths:
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
    # A stream is not opened for its headers.
    for path in ("/api/v1/events", "/api/v1/queries/near/events"):
        assert client.head(path).headers["content-type"].startswith("text/event-stream")
    assert live.app.state.service.readers.open == 0
    refused = client.put("/api/v1/queries")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert 'method="HEAD",route="/api/v1/plan",status="200"} 1' in client.get("/metrics").text


def test_lists_are_read_in_parts(live: Live, client: httpx.Client) -> None:
    names = [live.create(name=f"q{number}") for number in range(5)]
    for _ in range(3):
        live.engine.tick()

    def parts(path: str, items: str, key: str) -> list[list[object]]:
        found: list[list[object]] = []
        cursor = None
        while cursor is not None or not found:
            answer = client.get(f"/api/v1/{path}", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
            found.append([item[key] for item in answer[items]])
            cursor = answer["next"]
        return found

    assert parts("queries", "queries", "name") == [names[:2], names[2:4], names[4:]]
    assert parts("streams", "streams", "name") == [["trades", "quotes"], ["clicks"]]
    assert parts("changelog", "changes", "serial") == [[1, 2], [3, 4], [5, 6], [7, 8]]
    whole = [sample["batch"] for sample in client.get("/api/v1/history").json()["samples"]]
    assert [batch for part in parts("history", "samples", "batch") for batch in part] == whole
    # What comes and goes between two requests is neither repeated nor skipped.
    first = client.get("/api/v1/queries", params={"limit": 2}).json()
    client.delete("/api/v1/queries/q1")
    client.delete("/api/v1/queries/q2")
    live.create(name="a_new_one")
    rest = client.get("/api/v1/queries", params={"cursor": first["next"]}).json()
    assert ([query["name"] for query in rest["queries"]], rest["next"]) == (["q3", "q4", "a_new_one"], None)
    for wrong in ("nonsense", "W10", "WyJhIl0=", "W1sxXV0=", "é"):
        answer = client.get("/api/v1/streams", params={"cursor": wrong})
        assert (answer.status_code, "cursor" in answer.json()["detail"]) == (422, True), wrong
    assert client.get("/api/v1/queries", params={"limit": 0}).status_code == 422


def test_rows_as_files(live: Live, client: httpx.Client) -> None:
    name = live.create("SELECT t.sym, t.ts AS at, t.px, q.bid / 3.0 AS third FROM trades t JOIN quotes q "
                       "WITHIN 3 SECONDS ON t.sym = q.sym AND abs(t.px - q.bid) <= 1")  # fmt: skip
    live.engine.tick()
    rows = live.engine.rows(name, 1000)
    path = f"/api/v1/queries/{name}/rows"
    parquet = client.get(path, params={"limit": 1000, "format": "parquet"})
    assert parquet.headers["content-disposition"] == f'attachment; filename="{name}.parquet"'
    assert pyarrow.parquet.read_table(io.BytesIO(parquet.content)) == rows
    csv = client.get(path, params={"limit": 1000}, headers={"Accept": "text/csv"})
    assert csv.headers["content-type"] == "text/csv; charset=utf-8"
    read = pyarrow.csv.read_csv(io.BytesIO(csv.content))
    assert read.column_names == rows.column_names
    assert read.drop_columns("at").to_pylist() == rows.drop_columns("at").to_pylist()
    assert read["at"].cast(pa.timestamp("us")) == rows["at"]
    assert client.get(path, params={"format": "xlsx"}).status_code == 422


@contextlib.contextmanager
def batch_running(live: Live) -> Iterator[HeldRows]:
    """A batch runs until the end of the block."""
    held = hold(live.engine)
    ticking = threading.Thread(target=live.engine.tick)
    ticking.start()
    assert held.entered.wait(60)
    try:
        yield held
    finally:
        held.released.set()
        ticking.join(60)


def test_nothing_waits_for_a_batch_that_does_not_end(
    live: Live, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "_LONGEST_PREVIEW", 0.01)
    service = live.app.state.service
    live.create(name="near")
    before = client.get("/api/v1/plan").json()
    assert client.get("/api/v1/activity").json() == {
        "running": None,
        "words": None,
        "stuck": False,
        "catching_up": None,
    }
    with batch_running(live):
        activity = client.get("/api/v1/activity").json()
        assert (activity["running"]["stage"], activity["stuck"]) == ("joining", False)
        assert activity["running"]["rows_in"] == {"trades": 20, "quotes": 20, "clicks": 20}
        assert activity["words"].startswith(f"batch {activity['running']['batch']} has been running for 0 s, joining")
        # The last known plan says when it was read, also after a change that is not in it.
        service.hub.poke()
        service.plans._patience = 0.01
        assert client.get("/api/v1/plan").json() == before
        with caplog.at_level(logging.WARNING, logger="streamjoin.service"):
            refused = client.post("/api/v1/queries", params={"dry_run": True}, json={"sql": NEAR})
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:streamjoin:problem:engine-busy")
        assert "none ended within 0.01 seconds: batch" in refused.json()["detail"]
        assert "/api/v1/queries answered 503: it is answered between two batches" in caplog.text
        assert service.previews.open == 0
        with pytest.raises(StateError, match=r"none ended within 0\.01 seconds"):
            live.engine.explain(timeout=0.01)
        # Wrong text needs no batch.
        wrong = client.post("/api/v1/queries", params={"dry_run": True}, json={"sql": "SELECT"})
        assert wrong.status_code == 422
        # Tuples that come meanwhile wait: that is back-pressure.
        live.engine._inbox.put(SourceBatch("trades", 1, feeds.batch(1)["trades"]))
        shares = {stream["name"]: stream["backpressure"] for stream in client.get("/api/v1/streams").json()["streams"]}
        assert 0 < shares["trades"] <= 1
        real = live.engine.activity()
        assert real is not None
        monkeypatch.setattr(live.engine, "activity", lambda: replace(real, seconds=60.1))
        stuck = client.get("/api/v1/ready")
        assert (stuck.status_code, stuck.json()["status"]) == (503, "stuck")
        assert "has been running for 60 s" in stuck.json()["reason"]
        assert client.get("/api/v1/activity").json()["stuck"] is True
        assert "streamjoin_ready 0" in client.get("/metrics").text
        assert client.get("/api/v1/health").status_code == 200
        monkeypatch.undo()
    live.engine.tick()
    assert client.get("/api/v1/ready").json() == {"status": "ready", "reason": None, "catching_up": None}
    service.hub.poke()
    service.plans._patience = 20
    assert client.get("/api/v1/plan").json()["at"] > before["at"]


def test_what_a_client_half_sends_costs_no_thread(live: Live, client: httpx.Client) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            half = stack.enter_context(socket.create_connection((host, int(port))))
            half.sendall(b"POST /api/v1/queries?dry_run=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert client.get("/api/v1/queries").status_code == 200
        assert live.create(name="near") == "near"
