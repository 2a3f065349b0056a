"""What the service says in figures, against counts of one's own: pairs, rates, sinks, and rows of a preview."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import MemorySink, ParquetSink
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.execution import RecentCounts
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.engine.figures import Rate, RunningQuery
from streamjoin.queries.language.sql import parse
from streamjoin.service.metrics import Text, of_engine
from streamjoin.service.plan_graph import PlanGraph
from tests.service import feeds
from tests.service.conftest import NEAR
from tests.service.ticking import TickingEngine

BATCHES = 5
WINDOW = dt.timedelta(seconds=3)


class Clock:
    """Stands until it is turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine() -> Iterator[TickingEngine]:
    started = TickingEngine()
    yield started
    started.stop()


def near(batches: Sequence[int], of: Callable[[int], Any] = feeds.batch) -> list[tuple[Any, ...]]:
    """The pairs of NEAR among some batches, counted without the engine."""
    trades, quotes = (pa.concat_tables([of(n)[name] for n in batches]).to_pylist() for name in ("trades", "quotes"))
    return [
        (t["sym"], t["px"], q["bid"])
        for t, q in product(trades, quotes)
        if t["sym"] == q["sym"] and abs(t["px"] - q["bid"]) <= 1 and abs(t["ts"] - q["ts"]) <= WINDOW
    ]


def test_pairs_found_are_those_that_satisfy_the_whole_condition(clock: Clock) -> None:
    core = Shared(feeds.STREAMS)
    core._execution.recent = RecentCounts(clock)
    core.apply([Create("near", NEAR)])
    for number in range(BATCHES):
        core.process(number, feeds.batch(number))
        clock.now += 2
    counts = core._execution.counts.values()
    everything, first = len(near(range(BATCHES))), len(near([0]))
    assert sum(step.pairs for step in counts) == everything
    assert everything < sum(step.candidates for step in counts)
    (join,) = (node for node in PlanGraph(core.explain(), [], [], {}).as_data()["nodes"] if node["kind"] == "join")
    # From the end of the first batch to that of the last.
    assert join["rows_per_second"] == pytest.approx((everything - first) / (2 * (BATCHES - 1)))
    assert join["rows_per_second"] <= join["candidates_per_second"]
    assert join["selectivity"] == pytest.approx(everything / sum(step.candidates for step in counts))
    assert join["detail"] == "|bid − px| ≤ 1, sym"
    for root in core.explain().roots:
        assert root.step.selectivity == pytest.approx(join["selectivity"])
    clock.now += 30
    assert {step.lately.pairs for root in core.explain().roots for step in root.step.walk()} == {0}


def test_a_rate_is_the_same_whenever_it_is_asked_for(clock: Clock) -> None:
    rate = Rate(clock)
    for _ in range(30):
        clock.now += 1
        rate.add(50)
        assert rate.value == pytest.approx(50)
    clock.now += 0.9
    assert rate.value == pytest.approx(50)
    # What stops is seen to fall, and is 0 after ten seconds.
    clock.now += 5
    assert 0 < rate.value < 40
    clock.now += 5
    assert rate.value == 0


def test_a_rate_of_batches_far_apart_is_by_the_time_between_them(clock: Clock) -> None:
    rate = Rate(clock)
    assert rate.value == 0
    for _ in range(3):
        clock.now += 8
        rate.add(40)
    assert rate.value == pytest.approx(5)
    # Two of one moment have come since the beginning.
    burst = Rate(clock)
    clock.now += 2
    burst.add(3)
    burst.add(3)
    assert burst.value == 3


def test_a_query_whose_sink_waits_for_more_rows_shows_its_rate(tmp_path: Path) -> None:
    streams = {stream.name: stream for stream in feeds.STREAMS}
    query = RunningQuery(parse(NEAR, streams, "near"), 0, 0.0, ParquetSink(str(tmp_path)))
    rows = pa.table([["ACME"] * 7, [1] * 7, [1] * 7], schema=query.query.schema)
    query.take(0, rows, None)
    query.pooled = 7
    info = query.info()
    assert (info.rows, info.rows_undelivered) == (0, 7)
    assert info.rows_per_second > 0


def test_sums_beyond_their_type_are_a_metric_of_their_query() -> None:
    streams = {stream.name: stream for stream in feeds.STREAMS}
    query = RunningQuery(parse(NEAR, streams, "near"), 0, 0.0, MemorySink(), overflowed=3)
    text = Text()
    of_engine(text, [], [query.info()], None, 0)
    assert 'streamjoin_query_overflowed_total{query="near"} 3' in text.lines


def test_a_preview_shows_rows_of_the_newest_tuples_and_keeps_none(engine: TickingEngine) -> None:
    assert engine.preview(NEAR).rows_found is None
    for _ in range(3):
        engine.tick()
    expected = near(range(3))
    found = engine.preview(NEAR)
    assert found.tuples == {"trades": 60, "quotes": 60}
    assert found.rows_found == len(expected)
    assert len(found.rows) == 5
    assert set(found.rows) <= set(expected)
    assert sum(engine.metrics().state_bytes.values()) == 0, "no query holds a tuple"


def test_a_preview_of_far_too_many_pairs_has_no_rows(engine: TickingEngine) -> None:
    engine.tick()
    engine.tick()
    joins = " ".join(f"JOIN quotes q{n} WITHIN 9 SECONDS ON t.px < q{n}.bid + 90" for n in range(4))
    found = engine.preview(f"SELECT t.px FROM trades t {joins}")
    assert (found.rows, found.rows_found, found.tuples) == ((), None, {"trades": 40, "quotes": 40})
