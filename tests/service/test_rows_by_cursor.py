"""All rows of a query over REST, page by page: none twice, none left out, and gaps and strange cursors are told."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from streamjoin.adhoc import Engine
from streamjoin.model import json_values
from streamjoin.model.errors import CursorGoneError
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.engine.cursors import RowCursor
from streamjoin.queries.sinks.base import KeptBytes, NewestRows
from streamjoin.service.config import Limits, ServiceConfig
from tests.service import feeds
from tests.service.conftest import NEAR, Live, Start
from tests.service.events import wait_for


@pytest.fixture
def kept(start: Start) -> Live:
    """A service that keeps far more rows than the newest ten."""
    return start(rows_kept=10, rows_bytes=1 << 20)


def page(client: httpx.Client, name: str, **params: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/queries/{name}/rows", params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def all_pages(client: httpx.Client, name: str, after: str = "0", limit: int = 7) -> tuple[list[Any], str]:
    rows: list[Any] = []
    while True:
        found = page(client, name, after=after, limit=limit)
        assert (found["missed"], found["repeated"]) == (0, 0)
        rows, after = rows + found["rows"], found["next"]
        if not found["remaining"]:
            return rows, after


def test_pages_have_every_row_once_and_in_order(kept: Live) -> None:
    name, client = kept.create(), kept.client()
    seen: list[Any] = []
    after = "0"
    for _ in range(4):
        kept.engine.tick()
        rows, after = all_pages(client, name, after)
        seen += rows
    total = page(client, name)["total"]
    assert len(seen) == total > 40
    assert seen == all_pages(client, name, limit=100_000)[0]
    newest = page(client, name, limit=3)
    assert newest["rows"] == seen[-3:]
    assert page(client, name, after=newest["next"])["rows"] == []
    assert page(client, name, after=str(total - 2))["rows"] == seen[-2:]


def test_every_format_has_the_same_rows_and_says_the_rest_in_headers(kept: Live) -> None:
    name, client = kept.create(), kept.client()
    kept.engine.tick()
    expected = page(client, name, after=0, limit=9)

    def readers(kind: str, content: bytes) -> list[list[Any]]:
        if kind == "jsonl":
            return [list(json.loads(line).values()) for line in content.splitlines()]
        if kind == "arrow":
            return json_values.rows(pa.ipc.open_stream(content).read_all())
        read = pa.parquet.read_table if kind == "parquet" else pa.csv.read_csv
        return json_values.rows(read(io.BytesIO(content)))

    for kind, media in {
        "jsonl": "application/x-ndjson",
        "arrow": "application/vnd.apache.arrow.stream",
        "parquet": "application/vnd.apache.parquet",
        "csv": "text/csv",
    }.items():
        asked = (
            {"params": {"after": 0, "limit": 9, "format": kind}},
            {
                "params": {"after": 0, "limit": 9},
                "headers": {"Accept": media},
            },
        )
        for options in asked:
            answer = client.get(f"/api/v1/queries/{name}/rows", **options)  # type: ignore[arg-type]
            assert readers(kind, answer.content) == expected["rows"], kind
            told = {key: answer.headers[f"streamjoin-{key}"] for key in ("next", "total", "remaining", "missed")}
            assert told == {key: str(expected[key]) for key in told}
    # A page without rows is a file as well.
    empty = client.get(f"/api/v1/queries/{name}/rows", params={"after": expected["total"], "format": "arrow"})
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0


def test_a_cursor_that_fell_behind_is_told_how_many_rows_are_gone(start: Start) -> None:
    live = start(rows=200, rows_kept=10, rows_bytes=40_000)
    name, client = live.create(), live.client()
    live.engine.tick()
    first = page(client, name, after=0, limit=5)
    assert first["missed"] == 0
    for _ in range(30):
        live.engine.tick()
    late = page(client, name, after=first["next"], limit=100_000)
    assert late["missed"] > 0
    rows, after = late["rows"], late["next"]
    while late["remaining"]:
        late = page(client, name, after=after, limit=100_000)
        assert late["missed"] == 0
        rows, after = rows + late["rows"], late["next"]
    assert 5 + page(client, name, after=first["next"], limit=1)["missed"] + len(rows) == late["total"]
    assert rows[-10:] == page(client, name, limit=10)["rows"]


def test_a_reader_waits_for_rows_and_a_batch_wakes_it(kept: Live) -> None:
    name, client = kept.create(), kept.client()
    found: list[dict[str, Any]] = []
    asker = threading.Thread(target=lambda: found.append(page(client, name, after=0, wait=60, limit=1000)))
    asker.start()
    wait_for(lambda: kept.app.state.service.readers.open == 1)
    kept.engine.tick()
    asker.join(60)
    assert len(found[0]["rows"]) == found[0]["total"] > 0
    # With rows there, or without a cursor, nothing is waited for; and no slot is held.
    assert page(client, name, after=0, wait=60)["rows"]
    assert page(client, name, wait=60)["rows"]
    assert page(client, name, after=found[0]["next"], wait=0.01)["rows"] == []
    assert kept.app.state.service.readers.open == 0


def test_readers_that_wait_have_slots_and_give_them_back(start: Start) -> None:
    live = start(rows_bytes=1 << 20, config=ServiceConfig(limits=Limits(readers=2)))
    name, client = live.create(), live.client()
    readers = live.app.state.service.readers
    host, port = live.url.removeprefix("http://").split(":")
    asked = f"GET /api/v1/queries/{name}/rows?after=0&wait=60 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    waiting = [socket.create_connection((host, int(port))) for _ in range(2)]
    for connection in waiting:
        connection.sendall(asked)
    wait_for(lambda: readers.open == 2)
    refused = client.get(f"/api/v1/queries/{name}/rows", params={"after": 0, "wait": 60})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    assert page(client, name, after=0)["rows"] == [], "who does not wait needs no slot"
    # A client that leaves gives its slot back at once, and a batch ends the wait of the other.
    waiting[0].close()
    wait_for(lambda: readers.open == 1)
    live.engine.tick()
    waiting[1].settimeout(60)
    assert waiting[1].recv(15) == b"HTTP/1.1 200 OK"
    waiting[1].close()


def test_many_readers_have_cursors_of_their_own(kept: Live) -> None:
    name = kept.create()
    sizes = (1, 3, 10, 1000)
    found: dict[int, list[Any]] = {}

    def read(size: int) -> None:
        client, after, rows = httpx.Client(base_url=kept.url, timeout=120), "0", list[Any]()
        with client:
            while True:
                told = page(client, name, after=after, limit=size, wait=60)
                assert told["missed"] == 0
                rows, after = rows + told["rows"], told["next"]
                if told["state"] == "dropped" and not told["remaining"]:
                    break
        found[size] = rows

    threads = [threading.Thread(target=read, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for _ in range(3):
        kept.engine.tick()
    total = kept.engine.newest(name).total
    kept.engine.drop(name)
    kept.app.state.service.hub.poke()
    for thread in threads:
        thread.join(120)
    assert {size: len(rows) for size, rows in found.items()} == dict.fromkeys(sizes, total)
    assert all(rows == found[1] for rows in found.values())


def test_a_slow_client_holds_back_nobody(start: Start) -> None:
    live = start(rows=200, rows_bytes=1 << 20)
    name = live.create()
    for _ in range(5):
        live.engine.tick()
    host, port = live.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/v1/queries/{name}/rows?after=0&limit=100000 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert slow.recv(1) == b"H"
        live.engine.tick()
        rows, _ = all_pages(live.client(), name, limit=100_000)
        assert len(rows) == live.engine.newest(name).total


def encoded(*fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


STRANGE = [
    "-1",
    "1.5",
    "",
    "null",
    "x" * 400,
    "9" * 30,
    "\u0661",
    encoded(),
    encoded("near", 1.0, "run", -1),
    encoded("near", 1.0, "run", True),
    encoded("near", "1", "run", 1),
    encoded(*[[]] * 4),
    base64.urlsafe_b64encode(b"[" * 200).decode(),
    base64.urlsafe_b64encode(b"\xff\x00").decode(),
]


@pytest.mark.parametrize("after", STRANGE, ids=range(len(STRANGE)))
def test_what_is_no_cursor_is_refused(kept: Live, after: str) -> None:
    kept.create(name="near")
    answer = kept.client().get("/api/v1/queries/near/rows", params={"after": after})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:streamjoin:problem:invalid-request")
    assert "is no cursor: take `next`" in answer.json()["detail"]


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 10**9}, {"wait": -1}, {"wait": 1e9}, {"after": "y" * 401}])
def test_what_is_out_of_range_is_refused(kept: Live, params: dict[str, Any]) -> None:
    name = kept.create()
    assert kept.client().get(f"/api/v1/queries/{name}/rows", params={"after": 0, **params}).status_code == 422


def test_a_cursor_belongs_to_one_query(kept: Live) -> None:
    client = kept.client()
    kept.create(name="near")
    kept.create(name="other")
    kept.engine.tick()
    cursor = page(client, "near", after=0, limit=5)["next"]
    answer = client.get("/api/v1/queries/other/rows", params={"after": cursor})
    assert (answer.status_code, "is one of query 'near', and not of 'other'" in answer.json()["detail"]) == (422, True)
    beyond = client.get("/api/v1/queries/near/rows", params={"after": 10**6})
    assert (beyond.status_code, "no row number 1,000,000 yet" in beyond.json()["detail"]) == (422, True)
    # The rows of one that was dropped can be read to the end, also where another has its name.
    kept.engine.drop("near")
    rest, cursor = all_pages(client, "near", cursor)
    assert rest
    assert page(client, "near", after=cursor, wait=60)["state"] == "dropped"
    kept.create(name="near")
    assert all_pages(client, "near", cursor) == ([], cursor)
    assert page(client, "near", after=0)["total"] == 0
    kept.engine.drop("near")
    gone = client.get("/api/v1/queries/near/rows", params={"after": cursor})
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:streamjoin:problem:cursor-gone")
    assert "after=0" in gone.json()["detail"]
    assert client.get("/api/v1/queries/nowhere/rows", params={"after": cursor}).status_code == 404


def test_a_tail_that_keeps_up_gets_every_row_of_large_batches(start: Start) -> None:
    """A batch has more rows than an event, and more than are kept as the newest."""
    live = start(rows=200, rows_kept=10, rows_bytes=1 << 20)
    name = live.create()
    params = {"after": 0, "every": True, "limit": 50}
    with live.client().stream("GET", f"/api/v1/queries/{name}/events", params=params) as answer:
        for _ in range(3):
            live.engine.tick()
        live.engine.drop(name)
        live.app.state.service.hub.poke()
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    told = [json.loads(line) for line in lines]
    events = [event for event in told if "rows" in event and "skipped" in event]
    assert all(event["skipped"] == 0 for event in events)
    rows = [row for event in events for row in event["rows"]]
    assert len(rows) == events[-1]["total"] == live.engine.page(name).total > 500
    assert told[-1] == {"reason": "dropped"}


def started(checkpoint: Path) -> Engine:
    engine = Engine(checkpoint=checkpoint, settings=Settings(rows_bytes=1 << 20))
    for stream in feeds.STREAMS[:2]:
        engine.register(stream.name, schema=stream.schema, time=stream.time)
    return engine


def push(engine: Engine, number: int) -> None:
    engine.push_all({name: rows for name, rows in feeds.batch(number).items() if name != "clicks"})


def test_cursors_survive_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.create(NEAR, name="near")
        push(engine, 0)
        first = engine.page("near", limit=5)
        last = engine.page("near", first.next, 100_000)
    with started(tmp_path) as engine:
        behind, up_to_date = engine.page("near", first.next), engine.page("near", last.next)
        assert (behind.table.num_rows, behind.missed, behind.total) == (0, last.total - 5, last.total)
        assert (up_to_date.missed, up_to_date.repeated) == (0, 0)
        push(engine, 1)
        rows = engine.page("near", up_to_date.next, 100_000)
        assert (rows.missed, rows.table.num_rows) == (0, rows.total - last.total)
        assert rows.table.num_rows > 0
        # As one that was given rows of a batch that a crash left unfinished.
        place = RowCursor.of(last.next)
        told = engine.page("near", str(replace(place, row=place.row + 3)))
        assert (told.repeated, told.missed) == (3, 0)
        assert told.table.equals(rows.table)
    with started(tmp_path / "other") as engine:
        engine.create(NEAR, name="near")
        with pytest.raises(CursorGoneError, match="was in another checkpoint"):
            engine.page("near", first.next)


def test_who_holds_most_gives_up_its_oldest_rows() -> None:
    kept = KeptBytes(100_000)
    schema = pa.schema({"n": pa.int64()})
    small, large = NewestRows(schema, 2, kept=kept), NewestRows(schema, 2, kept=kept)
    small.write(0, pa.table({"n": range(10)}))
    for batch in range(200):
        large.write(batch, pa.table({"n": range(100)}))
        assert kept.total <= 100_000
    assert small.oldest == 0
    assert 0 < large.oldest < 20_000 - 2
    # The newest are kept whatever they take, and those that take no more rows make room first.
    large.close()
    while not small.oldest:
        small.write(0, pa.table({"n": range(1000)}))
    assert large.oldest >= 20_000 - 100
    assert large.newest(5)["n"].to_pylist() == [98, 99]
    for rows in (small, large):
        rows.forget()
    assert kept.total == 0


def test_a_page_ends_where_rows_of_a_batch_were_not_sent_to_the_driver() -> None:
    rows = NewestRows(pa.schema({"n": pa.int64()}), 1, kept=KeptBytes(1 << 20))
    rows.write(0, pa.table({"n": [0, 1, 2]}))
    rows.write(1, pa.table({"n": [8, 9]}), 7)
    rows.write(2, pa.table({"n": pa.array([], pa.int64())}), 0)
    read = rows.read(1, 100)
    assert (read.begin, read.table["n"].to_pylist(), read.total) == (1, [1, 2], 10)
    read = rows.read(3, 100)
    assert (read.begin, read.table["n"].to_pylist(), read.total) == (8, [8, 9], 10)
    # However small a page is, it has a row.
    assert rows.read(0, 100, nbytes=1).table["n"].to_pylist() == [0]
