"""Events: rows as they come, without a gap; slow readers skip and hold back nobody; ends are told."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import httpx
import pytest

from streamjoin.service import event_stream
from streamjoin.service.config import Limits, ServiceConfig
from streamjoin.service.event_stream import EventStream, engine_events, row_events
from streamjoin.service.hub import Hub
from streamjoin.service.state import Service
from tests.service.conftest import Live, Start
from tests.service.events import events, wait_for

if TYPE_CHECKING:
    from streamjoin.queries.engine.info import BatchEvent


def test_rows_come_as_events_and_leave_none_out(live: Live) -> None:
    name = live.create()
    live.engine.tick()
    client = live.client()
    start = client.get(f"/api/v1/queries/{name}/rows").json()
    with client.stream("GET", f"/api/v1/queries/{name}/events", params={"after": start["total"]}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = events(answer)
        kind, state = next(stream)
        assert (kind, state["state"]) == ("state", "running")
        seen = list(start["rows"])
        for _ in range(5):
            live.engine.tick()
            kind, data = next(stream)
            assert (kind, data["skipped"]) == ("rows", 0)
            assert data["columns"] == start["columns"]
            seen += data["rows"]
        assert data["total"] == len(seen)
    page = live.client().get(f"/api/v1/queries/{name}/rows", params={"limit": 100_000}).json()
    assert page["rows"] == seen


def test_a_lost_connection_goes_on_where_it_was(live: Live) -> None:
    name = live.create()
    live.engine.tick()
    client = live.client()
    total = client.get(f"/api/v1/queries/{name}/rows").json()["total"]
    live.engine.tick()
    headers = {"Last-Event-ID": str(total)}
    with client.stream("GET", f"/api/v1/queries/{name}/events", headers=headers) as answer:
        data = next(data for kind, data in events(answer) if kind == "rows")
    assert data["skipped"] == 0
    assert len(data["rows"]) == data["total"] - total > 0
    wrong = client.get(f"/api/v1/queries/{name}/events", headers={"Last-Event-ID": "soon"})
    assert wrong.status_code == 422


def test_degraded_is_told_at_once_and_its_end(live: Live) -> None:
    """Without any batch: a stream that can't be read brings none."""
    name = live.create()
    other = live.create("SELECT c.user, d.page FROM clicks c JOIN clicks d WITHIN 1 SECONDS ON c.user = d.user")
    client, engine_client = live.client(), live.client()
    with (
        client.stream("GET", f"/api/v1/queries/{name}/events") as answer,
        engine_client.stream("GET", "/api/v1/events") as all_events,
    ):
        stream, everything = events(answer), events(all_events)
        assert next(stream)[1]["state"] == "running"
        live.engine.fail_stream("trades", "stream 'trades' failed: no broker")
        for told in (next(stream), next(everything)):
            assert (told[0], told[1]["name"], told[1]["state"]) == ("state", name, "degraded")
            assert told[1]["error"] == "stream 'trades' failed: no broker"
        assert client.get(f"/api/v1/queries/{other}").json()["state"] == "running"
        live.engine.recover_stream("trades")
        for told in (next(stream), next(everything)):
            assert (told[0], told[1]["state"], told[1]["error"]) == ("state", "running", None)


def test_state_and_end_are_told(live: Live) -> None:
    name = live.create()
    client, other = live.client(), live.client()
    with client.stream("GET", f"/api/v1/queries/{name}/events") as answer:
        stream = events(answer)
        assert next(stream)[1]["state"] == "running"
        other.post(f"/api/v1/queries/{name}/pause")
        assert next(stream)[1]["state"] == "paused"
        other.delete(f"/api/v1/queries/{name}")
        assert next(stream) == ("end", {"reason": "dropped"})
        assert list(stream) == []
    assert other.get(f"/api/v1/queries/{name}/events").status_code == 404


def test_a_query_made_anew_under_the_name_is_another_one(live: Live) -> None:
    name = live.create(name="twice")
    with live.client().stream("GET", f"/api/v1/queries/{name}/events") as answer:
        stream = events(answer)
        next(stream)
        live.engine.drop(name)
        live.create(name="twice")
        assert next(stream) == ("end", {"reason": "dropped"})


def test_batches_and_changes_come_as_events(live: Live) -> None:
    with live.client().stream("GET", "/api/v1/events") as answer:
        stream = events(answer)
        name = live.create()
        kind, change = next(stream)
        assert (kind, change["action"], change["name"]) == ("change", "create", name)
        # The create is in force from a batch without tuples on.
        kind, batch = next(stream)
        assert (kind, batch["rows_in"]) == ("batch", {})
        done = live.engine.tick()
        kind, batch = next(stream)
        assert (kind, batch["batch"], batch["rows_out"]) == ("batch", done.batch, {name: done.rows_out[name]})
        live.app.state.service.begin_stop()
        assert next(stream) == ("end", {"reason": "stopping"})


def test_a_slow_reader_skips_and_holds_back_nobody(start: Start) -> None:
    """It takes nothing while batches run; then it gets the newest rows, and how many it missed."""
    live = start(rows=200, rows_kept=2000)
    name = live.create()
    host, port = live.url.removeprefix("http://").split(":")
    with (
        socket.socket() as slow,
        live.client().stream("GET", f"/api/v1/queries/{name}/events", params={"limit": 2000}) as answer,
    ):
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/v1/queries/{name}/events?limit=2000 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert slow.recv(1) == b"H"
        quick = events(answer)
        next(quick)
        taken = 0
        for _ in range(30):
            live.engine.tick()
            _, data = next(quick)
            taken += len(data["rows"])
            assert data["skipped"] == 0
        total = live.engine.newest(name, 1).total
        assert taken == total
        assert read_skips(slow, total) > 0
    service = live.app.state.service
    assert service.readers.skipped > 0


def read_skips(slow: socket.socket, total: int) -> int:
    """Read on until the newest row; every row came or was counted as skipped."""
    received, skipped, rows = b"", 0, 0
    slow.settimeout(20)
    while f'"total":{total}'.encode() not in received:
        received += slow.recv(1 << 16)
    for line in received.split(b"\n"):
        if line.startswith(b"data: ") and b'"rows":[[' in line:
            skipped += int(line.split(b'"skipped":')[1].split(b",")[0])
            rows += line.count(b"],[") + 1 - line.split(b'"columns":')[1].count(b"],[")
    assert rows + skipped == total
    return skipped


def test_no_more_readers_than_allowed(start: Start) -> None:
    live = start(config=ServiceConfig(limits=Limits(readers=2)))
    client = live.client()
    with client.stream("GET", "/api/v1/events") as one, client.stream("GET", "/api/v1/events") as two:
        assert one.status_code == two.status_code == 200
        third = client.get("/api/v1/events")
        assert third.status_code == 503
        assert third.json()["type"].endswith("too-many-readers")
        assert "streamjoin_event_readers 2" in client.get("/metrics").text


def test_silent_readers_do_not_keep_their_places_for_ever(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    live = start(config=ServiceConfig(limits=Limits(readers=2)))
    name = live.create()
    now = 0.0
    live.app.state.service.readers._clock = lambda: now
    client = live.client()
    with client.stream("GET", "/api/v1/events") as one, client.stream("GET", f"/api/v1/queries/{name}/events") as two:
        now = 59.0
        assert client.get("/api/v1/events").status_code == 503
        now = 61.0
        with client.stream("GET", "/api/v1/events") as three, client.stream("GET", "/api/v1/events") as four:
            assert (three.status_code, four.status_code) == (200, 200)
            # Those who made room see the end of the answer and may come again.
            assert one.read().startswith(b": connected")
            assert two.read().startswith(b": connected")
            assert client.get("/api/v1/events").status_code == 503
            figures = client.get("/metrics").text
            assert "streamjoin_event_readers 2\n" in figures
            assert "streamjoin_event_readers_replaced_total 2\n" in figures
    assert caplog.text == ""


def test_a_reader_that_left_gives_its_place_back(start: Start) -> None:
    live = start(config=ServiceConfig(limits=Limits(readers=1)))
    for _ in range(3):
        with live.client().stream("GET", "/api/v1/events") as answer:
            assert answer.status_code == 200
        wait_for(lambda: live.app.state.service.readers.open == 0)


async def collected(stream: event_stream.Events, count: int) -> list[str]:
    found = []
    async for text in stream:
        found.append(text)
        if len(found) == count:
            break
    return found


def test_silence_is_filled_with_signs_of_life(live: Live) -> None:
    name = live.create()
    service: Service = live.app.state.service
    told = asyncio.run(collected(row_events(service, live.engine, name, 0, 10, heartbeat=0.01), 4))
    assert told[1:] == [": alive\n\n"] * 3
    assert asyncio.run(collected(engine_events(service, live.engine, heartbeat=0.01), 2)) == [": alive\n\n"] * 2


def test_a_client_that_takes_nothing_is_let_go(live: Live) -> None:
    service: Service = live.app.state.service
    sent: list[dict[str, object]] = []

    async def stuck(message: dict[str, object]) -> None:
        sent.append(message)
        if len(sent) > 2:
            await asyncio.Event().wait()

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        response = EventStream(service, lambda: engine_events(service, live.engine, heartbeat=0.001), patience=0.05)
        await asyncio.wait_for(response({"type": "http", "path": "/"}, never, stuck), 120)  # type: ignore[arg-type]

    asyncio.run(run())
    assert service.readers.open == 0


@pytest.mark.parametrize("kept", [1, 3, 10])
def test_a_position_far_behind_is_told_as_skipped(kept: int) -> None:
    hub, batches = Hub(kept), [cast("BatchEvent", object()) for _ in range(10)]
    for batch in batches:
        hub.publish(batch)
    fresh, gone, position = hub.since(4)
    assert (fresh, gone, position) == (batches[-min(kept, 6) :], max(0, 6 - kept), 10)
    assert hub.since(position) == ([], 0, 10)


def test_a_stopping_service_ends_its_streams(live: Live) -> None:
    with httpx.stream("GET", f"{live.url}/api/v1/events", timeout=120) as answer:
        live.app.state.service.begin_stop()
        assert list(events(answer)) == [("end", {"reason": "stopping"})]
