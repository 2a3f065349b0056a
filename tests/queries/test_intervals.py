"""Intervals as an index of ad-hoc joins: the same rows as by comparing all pairs, with few candidates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings, Stream
from streamjoin.queries.core.buckets import SortedIndex
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.intervals import split_by_length
from streamjoin.queries.core.shared import Shared

POINTS = pa.schema({"t": pa.int64(), "x": pa.float64(), "ts": pa.int64()})
SPANS = pa.schema({"lo": pa.int64(), "hi": pa.int64(), "from": pa.float64(), "to": pa.float64(), "ts": pa.int64()})
N = 300


def batches() -> list[dict[str, pa.Table]]:
    """Points and intervals whose lengths spread over three orders of magnitude; some ends are NULL or NaN."""
    generator = np.random.default_rng(5)
    result = []
    for batch in range(6):
        lows = generator.integers(-(10**6), 10**6, N)
        highs = lows + (10 ** generator.uniform(0, 5, N)).astype(np.int64)
        points = generator.integers(-(10**6), 10**6, N)
        missing = generator.random(N) < 0.02
        floats = np.where(generator.random(N) < 0.02, np.nan, highs / 8)
        times = np.full(N, batch)
        spans = [pa.array(lows), pa.array(highs, mask=missing), pa.array(lows / 8), pa.array(floats), pa.array(times)]
        tuples = [pa.array(points, mask=missing), pa.array(points / 8), pa.array(times)]
        result.append(
            {
                "s": pa.Table.from_arrays(spans, schema=SPANS),
                "p": pa.Table.from_arrays(tuples, schema=POINTS),
            }
        )
    return result


def run(*conditions: str) -> tuple[Shared, dict[str, Counter[tuple[Any, ...]]]]:
    core = Shared([Stream("p", POINTS, "ts"), Stream("s", SPANS, "ts")], Settings(future=None, threads=1))
    texts = {c: f"SELECT p.t, p.x, s.lo, s.hi FROM p JOIN s WITHIN 2 UNITS ON {c}" for c in conditions}
    core.apply([Create(name, text) for name, text in texts.items()])
    rows = {name: Counter[tuple[Any, ...]]() for name in texts}
    for number, tables in enumerate(batches()):
        for name, table in core.process(number, tables).items():
            rows[name] += Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return core, rows


@pytest.mark.parametrize(
    ("interval", "scanned"),
    [
        ("p.t BETWEEN s.lo AND s.hi", "p.t + 0 BETWEEN s.lo AND s.hi"),
        ("s.lo < p.t AND p.t < s.hi", "p.t + 0 > s.lo AND p.t + 0 < s.hi"),
        ("p.x BETWEEN s.from AND s.to", "p.x + 0 >= s.from AND p.x + 0 <= s.to"),
    ],
)
def test_an_interval_is_looked_up(interval: str, scanned: str) -> None:
    interval, scanned = interval.replace("s.from", 's."from"'), scanned.replace("s.from", 's."from"')
    core, rows = run(interval)
    wanted = run(scanned)[1][scanned]
    assert rows[interval] == wanted and wanted.total() > 100
    figures = [root.step for root in core.explain().roots]
    assert sum(step.candidates for step in figures) < 4 * sum(step.pairs for step in figures) + 50


def test_queries_with_the_same_interval_share_the_index_and_others_are_still_right() -> None:
    same = "p.t BETWEEN s.lo AND s.hi AND p.t % 2 = 0"
    core, rows = run("p.t BETWEEN s.lo AND s.hi", same)
    assert len(core.explain().roots[0].step.queries) == 2
    assert sum(root.step.candidates for root in core.explain().roots) < N * N / 10
    beside = run("p.t BETWEEN s.lo AND s.hi", same, "p.t < s.lo AND p.t % 500 = 0")[1]
    assert {name: beside[name] for name in rows} == rows


def test_an_interval_is_no_scan() -> None:
    engine = Engine(settings=Settings(scan_pairs=1))
    engine.register("p", schema=POINTS, time="ts")
    engine.register("s", schema=SPANS, time="ts")
    text = "SELECT p.t FROM p JOIN s WITHIN 2 UNITS ON p.t {} s.lo AND p.t <= s.hi"
    assert engine.preview(text.format(">=")).warning is None
    assert "every pair" in str(engine.preview(text.format("<=")).warning)


def test_classes_hold_every_interval_once_whatever_its_length() -> None:
    most, least = (1 << 63) - 1, -(1 << 63)
    begins = np.array([least, least, 0, 0, 1, 5, most])
    ends = np.array([least, most, 0, most, 2, 3, most])
    index = SortedIndex(np.sort(begins), np.argsort(begins, kind="stable"))
    parts = split_by_length(index, ends)
    assert sorted(row for part, _ in parts for row in part.rows.tolist()) == list(range(7))
    for part, reach in parts:
        for row in part.rows.tolist():
            assert int(ends[row]) - int(begins[row]) <= reach
