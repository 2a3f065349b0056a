"""Minutes of creates and drops, ten a second at a batch every two seconds, one batch right after the other.

Batches repeat after a while, shifted in time, so the oracle of the first of them in a query's life tells all others.
One change of each batch goes through the interface, the others to the engine behind it: 2,400 in the suite, 6,000 in
`make thorough`.
STREAMJOIN_BATCHES=900 runs for half an hour.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from fastapi import FastAPI

from streamjoin.queries.core.settings import Settings
from streamjoin.queries.language.sql import parse
from streamjoin.service.app import create_app
from tests.oracles import adhoc_meaning, adhoc_oracle
from tests.seeds import THOROUGH
from tests.service import feeds
from tests.service.asgi_client import ask
from tests.service.conftest import NEAR
from tests.service.ticking import TickingEngine

BATCHES = int(os.environ.get("STREAMJOIN_BATCHES", "300" if THOROUGH else "120"))
PERIOD = 30
ROWS = 4
CHANGES = 20
TEMPLATES = [
    NEAR.replace("3 SECONDS", "{w} SECONDS").replace("<= 1", "<= {d}"),
    "SELECT t.sym, q.ask FROM trades t JOIN quotes q WITHIN {w} SECONDS ON t.sym = q.sym WHERE t.qty > {d}",
    "SELECT a.page, b.user FROM clicks a JOIN clicks b WITHIN {w} SECONDS ON a.page = b.page WHERE b.user < {d}0",
    "SELECT t.px, c.user FROM trades t JOIN clicks c WITHIN {w} SECONDS ON abs(t.px - c.user) <= {d}",
]
SURVIVORS = {
    "first": (0, NEAR),
    "self": (7, TEMPLATES[2].format(w=2, d=5)),
    "late": (100, TEMPLATES[1].format(w=3, d=4)),
}
"""The batch from which each is there, and its text."""


def periodic(number: int) -> Mapping[str, pa.Table]:
    """The rows of a minute again and again, at their own time."""
    shift = dt.timedelta(seconds=number - number % PERIOD)
    return feeds.batch(number % PERIOD, ROWS, feeds.START + shift)


def arrivals(first: int, last: int) -> list[adhoc_oracle.Arrival]:
    found = [
        arrival
        for number in range(first, last)
        for stream, table in periodic(number).items()
        for arrival in adhoc_meaning.arrivals_of(stream, table, "ts", number)
    ]
    return adhoc_oracle.gate_order(found)


def expected(sql: str, created: int) -> int:
    """How many rows a query gives until the end."""
    meaning = adhoc_meaning.meaning_of(parse(sql, feeds.STREAMS))
    width, longest = 5, 3
    counts: dict[int, int] = {}
    for number in range(created, created + PERIOD + width):
        seen = arrivals(max(created, number - longest - 1), number + 1)
        counts[number] = sum(adhoc_oracle.rows_by_batch(seen, meaning).get(number, {}).values())
    return sum(
        counts[b] if b in counts else counts[created + width + (b - created - width) % PERIOD]
        for b in range(created, BATCHES)
    )


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def change(app: FastAPI, engine: TickingEngine, number: int, live: list[str]) -> None:
    """A batch's changes: a create, then a drop of the oldest, from a few queries on."""
    for n in range(CHANGES):
        serial = number * CHANGES + n
        asked = serial % CHANGES == 0
        if len(live) >= 6:
            name = live.pop(0)
            if asked:
                assert await ask(app, "DELETE", f"/api/v1/queries/{name}") == (204, None)
            else:
                engine.drop(name, wait=False)
            continue
        name, sql = f"q{serial}", TEMPLATES[serial % 4].format(w=1 + serial % 3, d=1 + serial % 7)
        live.append(name)
        if asked:
            status, made = await ask(app, "POST", "/api/v1/queries", {"sql": sql, "name": name})
            assert status == 201, made
        else:
            engine.create(sql, name, wait=False)


@pytest.mark.slow
def test_thousands_of_changes_lose_no_row_and_no_memory() -> None:
    engine = TickingEngine(periodic, Settings(newest_rows=100))
    app = create_app(engine)
    sizes: list[int] = []

    async def run() -> None:
        live: list[str] = []
        for number in range(BATCHES):
            for name, (created, sql) in SURVIVORS.items():
                if created == number:
                    status, _ = await ask(app, "POST", "/api/v1/queries", {"sql": sql, "name": name})
                    assert status == 201
            await change(app, engine, number, live)
            engine.tick()
            if number in (BATCHES // 3, BATCHES - 1):
                sizes.append(resident())
        for name, (created, sql) in SURVIVORS.items():
            status, shown = await ask(app, "GET", f"/api/v1/queries/{name}")
            assert (status, shown["rows"]) == (200, expected(sql, created)), name

    asyncio.run(run())
    engine.stop()
    assert sizes[1] - sizes[0] < BATCHES // 3 * (120 << 10), f"memory grew by {(sizes[1] - sizes[0]) >> 20} MiB"
