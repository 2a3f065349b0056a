"""AJoin's experiments on Spark: grids, verdicts on invented rows, a small run of each, disagreement stops one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Row
from benchmarks.papers import ajoin_fig15, ajoin_fig18
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_flink import run_flink
from benchmarks.papers.ajoin_live import Asked, Latencies, Outcome
from benchmarks.papers.ajoin_spark import OPERATORS, Ran, StreamFiles, input_rate, run_each, spark_join, steady_rate
from benchmarks.rivals.rival_runs import Programs, RivalError, RivalRun, RivalTimeoutError, Stream
from streamjoin.queries.engine.info import BatchEvent, ChangeRecord
from tests.benchmarks.invented import invented, judged, mentioning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATENCY = {
    "deploy_max_ms": 900.0,
    "deploy_batches": 2,
    "latency_ms": 700.0,
    "latency_min_ms": 100.0,
    "latency_max_ms": 1500.0,
    "time_grows": 2.0,
    "rows_grow": 4.0,
}


def event(number: int, at: float, rows: int, changes: tuple[ChangeRecord, ...] = (), out: int = 0) -> BatchEvent:
    return BatchEvent(
        number, at, 0.1 + out / 100, {"S1": rows} if rows else {}, {"q": out} if out else {}, 0, 0, changes
    )


@pytest.mark.parametrize("experiment", [ajoin_fig15.Figure15(), ajoin_fig18.Figure18()])
@pytest.mark.parametrize("quick", [True, False])
def test_the_grids_have_every_cell_once_and_its_baseline(experiment: Any, quick: bool) -> None:
    cells = list(experiment.cells(quick))
    for cell in cells:
        assert cells.count(cell) == 1
        assert experiment.baseline(cell) in (None, *cells)


def rates(experiment: ajoin_fig15.Figure15, at_100: float, each: float, joined: float) -> list[Row]:
    def rate(cell: Any) -> float:
        if cell["system"] in (ajoin_fig15.SPARK, ajoin_fig15.FLINK):
            return each
        return joined if cell["system"] == ajoin_fig15.JOIN else at_100 if cell["queries"] == 100 else 90.0

    rows = invented(experiment, rate, whole=True, how="some had started", deploy_s=1.0, result_rows=5)
    return [{**row, "overall_per_s": row["queries"] * row["tuples_per_s"]} for row in rows]


def test_the_aims_of_figure_15_are_judged() -> None:
    experiment = ajoin_fig15.Figure15()
    rows = rates(experiment, 45.0, 4.0, 100.0)
    aims = ("overall throughput grows", "of spark.join", "100 queries is a third", "one Spark query each")
    seen = ("500 times", "0.90 of it", "0.50 of it", "22.5 times")
    for aim, ours in zip(aims, seen, strict=True):
        (finding,) = mentioning(experiment, rows, aim)
        assert ours in finding.ours
        assert finding.judgement in ("met", "agrees")
    assert "some had started" in mentioning(experiment, rows, "500 queries")[0].ours
    (flink,) = mentioning(experiment, rows, "one Flink query each")
    assert flink.ours == "1 queries: 22.50 times; 20 queries: 22.50 times; 100 queries: 11.25 times"
    assert flink.judgement == "differs"
    cut = [{**row, "whole": row["system"] != ajoin_fig15.FLINK} for row in rows]
    assert "(some had started)" in mentioning(experiment, cut, "one Flink query each")[0].ours
    assert judged(experiment, rows, "faster than no sharing") == ["differs"]
    slow = rates(experiment, 29.0, 5.0, 200.0)
    assert [judged(experiment, slow, aim)[0] for aim in aims[1:]] == ["missed", "missed", "differs"]
    few = [row for row in rows if row["queries"] == 1]
    assert "--quick" in experiment.verdict(few)[-1]
    figure = Figure()
    experiment.plot(rows, figure)
    assert len(figure.axes) == 2


def test_the_aims_of_figure_18_are_judged() -> None:
    experiment = ajoin_fig18.Figure18()
    rows = invented(experiment, lambda cell: 10.0 * cell["ways"], **LATENCY)
    (deployed,) = mentioning(experiment, rows, "deployment within about")
    assert "up to 500 queries: 20 ms" in deployed.ours
    assert judged(experiment, rows, "deployment within 2 batches") == ["met"]
    (grows,) = mentioning(experiment, rows, "as queries come")
    assert "2.00 times as long" in grows.ours
    assert grows.judgement == "met"
    assert "700 ms" in mentioning(experiment, rows, "event-time latency")[0].ours
    assert "2-way 700 and 20 ms" in mentioning(experiment, rows, "n-way joins take longer")[0].ours
    unknown = invented(experiment, lambda _: 1.0, **{**LATENCY, "time_grows": 0.0})
    assert judged(experiment, unknown, "as queries come") == ["not tested"]
    slow = invented(experiment, lambda _: 1.0, **{**LATENCY, "deploy_batches": 3, "time_grows": 5.0})
    assert judged(experiment, slow, "deployment within 2 batches") == judged(experiment, slow, "as queries come")
    assert judged(experiment, slow, "as queries come") == ["missed"]
    figure = Figure()
    experiment.plot(rows, figure)
    assert len(figure.axes) == 2


def test_rates_count_what_comes_after_the_warm_up() -> None:
    events = [event(0, 0.0, 0), event(1, 1.0, 50), event(2, 2.0, 50), event(3, 3.0, 100), event(4, 4.0, 100)]
    assert input_rate(events, 100) == 100.0
    with pytest.raises(ValueError, match="leave none"):
        input_rate(events, 300)
    progress = [
        {"timestamp": f"2026-01-01T00:00:0{n}.000Z", "numInputRows": 30, "durationMs": {"triggerExecution": 500}}
        for n in range(3)
    ]
    assert steady_rate(progress, 1) == 40.0
    with pytest.raises(ValueError, match="leave none"):
        steady_rate(progress, 3)


def test_deployment_is_told_in_batches_and_growth_by_the_queries_that_ran() -> None:
    query = ajoin.QueryGenerator(2, 50).query()
    records = tuple(ChangeRecord(n, "create", f"q{n}", None, n, n + 0.5) for n in range(10))
    outcome = Outcome(records=list(records))
    outcome.events = [event(n, n + 1.0, 5, (records[n],), out=n + 1) for n in range(10)]
    outcome.asked = [
        Asked(ajoin.TimedChange(0.0, "create", f"q{n}", query), at) for n, at in ((5, 5.25), (6, 5.5), (7, 5.5))
    ]
    assert outcome.deployments() == [(250.0, 1), (1000.0, 2), (2000.0, 3)]
    outcome.events.insert(6, event(5, 5.9, 0))
    assert outcome.deployments()[1] == (1000.0, 2), "a batch of changes alone is none to wait for"
    time_grows, rows_grow = outcome.growth()
    assert rows_grow == 9 / 2
    assert time_grows == pytest.approx((0.1 + 0.09) / (0.1 + 0.02))
    assert Outcome().growth() == (0.0, 0.0)


def test_latency_is_from_the_newest_event_of_a_row() -> None:
    older, newer = (pa.array([round((100 - s) * 1e6) for s in part], pa.int64()) for part in ((9, 2), (3, 4)))
    stamps = [array.cast(pa.timestamp("us", "UTC")) for array in (older, newer)]
    found = Latencies(clock=lambda: 100.0)
    found.take(0, pa.Table.from_arrays(stamps, ["ts_left", "ts_right"]))
    assert (found.rows, found.mean, found.least, found.most) == (2, 2500.0, 2000.0, 3000.0)


class InDuckDB(Programs):
    """Runs Flink's statements in DuckDB, whose rows are the same."""

    def run(
        self, system: str, task: Mapping[str, Any], streams: Sequence[Stream], outputs: Sequence[pa.Schema]
    ) -> RivalRun:
        assert system == "flink"
        if self.limit < 1:
            raise RivalTimeoutError(f"no answer within {self.limit:g} s")
        with duckdb.connect() as connection:
            for stream in streams:
                connection.register(f"{stream.name}_rows", stream.table)
                columns = "*, make_timestamp(1000 * ms) AS ms_at"
                connection.execute(f"CREATE TABLE {stream.name} AS SELECT {columns} FROM {stream.name}_rows")
            tables = [connection.sql(query["sql"]).to_arrow_table() for query in task["queries"]]
        for query, table in zip(task["queries"], tables, strict=True):
            assert len(query["columns"]) == table.num_columns
        assert task.get("discard", False) == (not outputs)
        return RivalRun(0.5, 0.1, "2.3.0", tables)


class Failing(Programs):
    """A Flink that cannot do it."""

    def run(self, *_: Any) -> RivalRun:
        raise RivalError("ParseException: no such statement")


def test_a_flink_that_fails_is_not_taken_for_a_slow_one() -> None:
    generator = ajoin.QueryGenerator(2, 50, seed=3)
    files = StreamFiles(Path("unused"), generator.pattern.streams, 10, 1, 100.0, 3)
    with pytest.raises(RivalError, match="no such statement"):
        run_flink(Failing(), files, generator.queries(1), 2)


def test_flinks_rows_are_counted_once() -> None:
    generator = ajoin.QueryGenerator(2, 50, seed=3)
    files = StreamFiles(Path("unused"), generator.pattern.streams, 10, 1, 100.0, 3)
    assert run_flink(InDuckDB(), files, generator.queries(1), 2, rows=(17,)).rows == (17,)


def test_flinks_statements_have_the_rows_of_the_queries() -> None:
    generator = ajoin.QueryGenerator(2, 50, seed=3, selectivity=0.5)
    queries = generator.queries(4)
    files = StreamFiles(Path("unused"), generator.pattern.streams, 400, 2, 100.0, 3)
    ran = run_flink(InDuckDB(), files, queries, 2)
    assert ran.tuples_per_s == files.tuples / 0.5
    tables = [ajoin.tuples(n, 800, 3, rate=100.0) for n in (0, 1)]
    values = [{name: np.asarray(table[name]) for name in table.column_names} for table in tables]
    for query, rows in zip(queries, ran.rows, strict=True):
        (left, right), (a, b) = values, query.links[0]
        chosen = [
            OPERATORS[test.operator](side[f"a{test.attribute}"], test.value)
            for side, test in zip(values, query.selections, strict=True)
        ]
        apart = np.abs(left["ts"][:, None] - right["ts"]) <= np.timedelta64(query.window_seconds, "s")
        same = left[f"a{a}"][:, None] == right[f"a{b}"]
        assert rows == np.count_nonzero(apart & same & chosen[0][:, None] & chosen[1])
    assert sum(ran.rows) > 0
    slow = run_flink(InDuckDB(0.5), files, queries, 2)
    assert not slow.whole
    assert slow.how == "of 4 queries: no answer within 0.5 s"


@pytest.mark.spark
@pytest.mark.thorough
def test_a_small_figure_15_gives_the_same_rows_in_all_systems(spark: SparkSession, tmp_path: Path) -> None:
    experiment = ajoin_fig15.Figure15()
    experiment._spark, experiment._warm = spark, True
    context = Context(seed=1, quick=True, scratch=tmp_path)
    cell = {"queries": 1, "batch": 300}
    answers = [
        experiment.run({**cell, "system": system}, context)
        for system in (ajoin_fig15.SHARED, ajoin_fig15.JOIN, ajoin_fig15.SPARK)
    ]
    assert all(answer["whole"] and answer["tuples_per_s"] > 0 for answer in answers)
    assert answers[0]["result_rows"] == answers[1]["result_rows"] > 0
    assert answers[2]["result_rows"] > 0
    files = StreamFiles(tmp_path / "streams", ("S1", "S2"), 300, 4, 100.0, 1)
    with pytest.raises(AssertionError, match="before"):
        experiment._agreed(cell, files, Ran(1.0, (answers[0]["result_rows"] + 1,)))
    frames = [lambda: spark_join([files.frame(spark, s) for s in files.streams], ajoin.QueryGenerator().query())] * 2
    stopped = run_each(spark, frames, tmp_path / "stopped", warm=1, limit=0.0, batch=600)
    assert not stopped.whole
    assert stopped.tuples_per_s > 0, "a rate of nothing could not be compared with"
    assert "1 of 2 had started" in stopped.how


@pytest.mark.spark
def test_a_small_figure_18_deploys_every_query(spark: SparkSession, tmp_path: Path) -> None:
    experiment = ajoin_fig18.Figure18()
    experiment._spark, experiment._warm = spark, True
    cell = {"scenario": ajoin_fig18.SC2, "creates_per_s": 10, "queries": 5, "ways": 2}
    answer = experiment.run(cell, Context(seed=1, quick=True, scratch=tmp_path))
    assert answer["changes"] == 15
    assert answer["deploy_batches"] >= 1
    assert 0 < answer["deploy_ms"] <= answer["deploy_max_ms"]
