"""The end of input: stage by stage against the oracle, and in queries that are stopped, killed and started again."""

from __future__ import annotations

import json
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.spark import Progress, backlog, join
from streamjoin.spark.batch_lines import SETTING
from streamjoin.spark.runtime.end_of_input import plan_end, planned_end
from streamjoin.spark.stages.undecided import Undecided, undecided
from streamjoin.storage.log import WindowLog
from streamjoin.testing import conformance
from streamjoin.testing.cases import JoinCase, cases
from tests.oracles.expected import expected
from tests.oracles.kind_cases import as_of_cases, extreme_cases, interval_kind_cases, kind_cases
from tests.seeds import examples
from tests.spark.gated import PLANS, SCHEMA, deal, gated_batch, gated_blueprint, gated_table
from tests.spark.joining import BAND, blueprint, in_process, pairs, read_parquet, stream, streams, tables, write_files
from tests.spark.joining import expected as expected_pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIGHT = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
KINDS = kind_cases("event_time") | kind_cases("event_time", self_join=True) | as_of_cases("event_time")


def _check(case: JoinCase, seed: int, ordered: bool) -> None:
    """Two streams with an end each, the second one with the first one's rows: all rows come, twice."""
    rng = random.Random(seed)
    plans = [gated_blueprint(case.spec, case.schemas, p, (PLANS, PLANS), ordered=ordered) for p in (3, 1, 4)]
    sides = (0,) if case.spec.self_join else (0, 1)
    nothing = {(side, i): case.schemas[side].empty_table() for side in sides for i in (0, 1)}
    wanted = expected(case)
    root = Path(tempfile.mkdtemp())
    try:
        batch = 0
        for _ in range(2):
            rows: list[conformance.IdPair] = []
            for sent in (*deal(case, rng), None):
                plan, ends = plans[batch % len(plans)], sent is None
                found = gated_batch(plan, root, batch, sent or nothing, epoch=2 * batch + 1, ends=ends)
                if ends and rng.random() < 0.5:
                    again = gated_batch(plan, root, batch, nothing, epoch=2 * batch + 2, ends=True)
                    assert sorted(map(str, again.to_pylist())) == sorted(map(str, found.to_pylist()))
                rows += conformance.ids(found)
                batch += 1
            log = WindowLog(root, 2 * batch, plan)
            assert undecided(plan, log, batch - 1) == Undecided()
            assert not log.version(batch - 1).runs
            assert log.is_whole(batch - 1)
            assert rows == wanted if ordered else sorted(map(str, rows)) == sorted(map(str, wanted))
    finally:
        shutil.rmtree(root)


@LIGHT
@given(case=KINDS, seed=st.integers(0, 99), ordered=st.booleans())
def test_every_row_of_every_kind_comes(case: JoinCase, seed: int, ordered: bool) -> None:
    _check(case, seed, ordered)


@LIGHT
@given(case=interval_kind_cases() | extreme_cases(KINDS), seed=st.integers(0, 99), ordered=st.booleans())
def test_intervals_and_times_at_the_ends_of_int64_too(case: JoinCase, seed: int, ordered: bool) -> None:
    _check(case, seed, ordered)


@LIGHT
@given(case=cases("event_time") | cases("event_time", self_join=True), seed=st.integers(0, 99), ordered=st.booleans())
def test_every_pair_of_inner_joins_comes(case: JoinCase, seed: int, ordered: bool) -> None:
    _check(case, seed, ordered)


def test_without_a_gate_what_follows_is_a_stream_of_its_own(tmp_path: Path) -> None:
    plan = blueprint(BAND, 2)
    left, right = stream(BAND, seed=6, n=80)
    batches = tables(BAND, left, right, 2)
    nothing = tables(BAND, [], [], 1)[0]
    for lap in range(2):
        found = [row for i, sides in enumerate(batches) for row in in_process(plan, tmp_path, 3 * lap + i, sides)]
        assert not in_process(plan, tmp_path, 3 * lap + 2, nothing, ends=True)
        version = WindowLog(tmp_path, 1, plan).version(3 * lap + 2)
        assert (version.runs, version.clocks) == ((), (None, None))
        assert sum(map(pairs, [[row] for row in found]), pairs([])) == expected_pairs(BAND, left, right)


def _checkpoint(directory: Path, newest: int, committed: int, metadata: str = "{}") -> Path:
    for name, entry in (("offsets", f'v1\n{metadata}\n{{"a":1}}\n-'), ("commits", 'v1\n{"nextBatchWatermarkMs":7}')):
        (directory / name).mkdir(parents=True)
        for batch in range((newest if name == "offsets" else committed) + 1):
            (directory / name / str(batch)).write_text(entry)
    return directory


def test_the_end_is_a_batch_with_the_offsets_of_the_last_one(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path / "a", 3, 3, '{"batchWatermarkMs":5,"batchTimestampMs":6,"conf":{"x":"y"}}')
    assert (planned_end(checkpoint, 3), plan_end(checkpoint), planned_end(checkpoint, 3)) == (None, 4, 4)
    version, metadata, *offsets = (checkpoint / "offsets/4").read_text().split("\n")
    assert (version, offsets) == ("v1", ['{"a":1}', "-"])
    facts = json.loads(metadata)
    assert facts["batchWatermarkMs"] == 7
    assert facts["batchTimestampMs"] > 6
    assert facts["conf"] == {"x": "y", "spark.streamjoin.end_of_input": "true"}
    with pytest.raises(sj.StateError, match=r"batch 4 of .* is planned and not committed"):
        plan_end(checkpoint)
    shutil.copy(checkpoint / "commits/3", checkpoint / "commits/4")
    assert (plan_end(checkpoint), planned_end(checkpoint, 4)) == (None, None)


def test_nothing_ends_before_a_batch_or_in_a_damaged_log(tmp_path: Path) -> None:
    assert plan_end(_checkpoint(tmp_path / "new", -1, -1)) is None
    with pytest.raises(sj.StateError, match=r"batch 1 of .* is planned and not committed"):
        plan_end(_checkpoint(tmp_path / "late", 1, 0))
    for name, metadata in (("json", "{"), ("short", "")):
        damaged = _checkpoint(tmp_path / name, 0, 0, metadata)
        if name == "short":
            (damaged / "offsets/0").write_text("v1")
        with pytest.raises(sj.CheckpointError, match=r"offsets/0 .* is damaged"):
            plan_end(damaged)
    assert plan_end(_checkpoint(tmp_path / "dash", 0, 0, "-")) == 1


SPEC = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(3), time="t", how="left")


def test_what_waits_is_counted_where_it_waits(tmp_path: Path) -> None:
    plan = gated_blueprint(SPEC, (SCHEMA, SCHEMA), 2, (PLANS[:1], PLANS[:1]))
    left = gated_table((1, 1, 0), (8, 1, 1), (8, 2, 2), (9, 3, 3), (12, 1, 4))
    gated_batch(plan, tmp_path, 0, {(0, 0): left, (1, 0): gated_table((8, 1, 10), (10, 7, 11))})
    found = undecided(plan, WindowLog(tmp_path, 1, plan), 0)
    # Of the left rows the first has left its window, the second has matched, and the last is in the gate.
    assert found == Undecided((1, 0), (2, 0))
    assert str(found) == (
        "3 tuples wait undecided: 1 left in the gate, until every source has passed their times; 2 left for a "
        "match or a nearer one, until none can follow"
    )
    assert undecided(blueprint(BAND, 2), WindowLog(tmp_path, 1, plan), 0) == Undecided()


# On Spark

LAPS = (
    ([(0, 1), (1, 2), (6, 3)], [(1, 1), (7, 9)]),
    ([(8, 3), (9, 5), (12, 9)], [(9, 4), (11, 3)]),
    # Older than what came before, and of a stream of its own.
    ([(5, 4), (7, 9)], [(7, 9), (8, 3)]),
)


def _table(rows: Sequence[tuple[int, int]], first: int) -> pa.Table:
    return gated_table(*((t, x, first + i) for i, (t, x) in enumerate(rows)))


TABLES = [(_table(left, 10 * lap), _table(right, 100 + 10 * lap)) for lap, (left, right) in enumerate(LAPS)]


def _embedded(*laps: int) -> Counter[tuple[Any, ...]]:
    """The rows of a join of these laps that is closed."""
    opened = sj.open(SPEC)
    found = [opened.push(left=TABLES[lap][0], right=TABLES[lap][1]) for lap in laps]
    return sum((_rows(table) for table in [*found, opened.close()]), Counter())


def _rows(table: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def _start(spark: SparkSession, directory: Path, **options: Any) -> Any:
    joined = join(*streams(spark, directory, SCHEMA, SCHEMA), SPEC, partitions=2, **options)
    writer = joined.writeStream.format("parquet").option("path", str(directory / "out"))
    return writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()


def _run(spark: SparkSession, directory: Path, **options: Any) -> list[int]:
    query = _start(spark, directory, **options)
    query.awaitTermination()
    assert not query.isActive
    return [report["batchId"] for report in query.recentProgress]


def test_a_backlog_ends_once_and_the_next_is_a_stream_of_its_own(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path / "all", TABLES)
    write_files(tmp_path, TABLES[:2])
    progress = Progress(spark)
    with caplog.at_level(logging.WARNING, "streamjoin"):
        assert _run(spark, tmp_path) == [0, 1]
    (told,) = caplog.messages
    assert told.startswith("join: 2 tuples wait undecided: 2 left for a match or a nearer one, until none can follow")
    assert told.endswith("join(..., end_of_input=True) decides it at the end of a backlog")
    caplog.clear()
    query = _start(spark, tmp_path, end_of_input=True)
    query.awaitTermination()
    progress.settle()
    progress.close()
    assert [figures.batch for figures in progress.of(query)] == [2]
    assert _rows(read_parquet(tmp_path / "out")) == _embedded(0, 1)
    # Started again, and once more without the option: nothing has come since.
    assert _run(spark, tmp_path, end_of_input=True) == []
    assert _run(spark, tmp_path) == []
    for side in ("left", "right"):
        (tmp_path / "all" / side / "0002.parquet").rename(tmp_path / side / "0002.parquet")
    assert _run(spark, tmp_path, end_of_input=True) == [3, 4]
    assert _rows(read_parquet(tmp_path / "out")) == _embedded(0, 1) + _embedded(2)
    assert not caplog.messages


def test_an_end_that_was_killed_is_the_end_at_the_next_start_too(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path, TABLES[:2])
    _run(spark, tmp_path)
    assert plan_end(tmp_path / "checkpoint") == 2
    assert _run(spark, tmp_path) == [2]
    assert _rows(read_parquet(tmp_path / "out")) == _embedded(0, 1)


def test_a_query_that_is_stopped_or_fails_has_not_ended(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import StreamingQueryException

    write_files(tmp_path, TABLES[:2])
    joined = join(*streams(spark, tmp_path, SCHEMA, SCHEMA), SPEC, partitions=2, end_of_input=True)
    found: list[int] = []

    def take(_: Any, batch: int) -> None:
        found.append(batch)
        if found == [0, 1]:
            raise ValueError("no luck")

    writer = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(StreamingQueryException, match="no luck"):
        query.awaitTermination()
    assert "no luck" in str(query.exception())
    # A query that was stopped, by whoever, ends as one that has caught up does, but for what it reports.
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, backlog.__name__):
        patch.setattr(backlog, "caught_up", lambda _: False)
        caplog.clear()
        writer.start().awaitTermination()
        assert caplog.messages == ["the input has not ended: the query was stopped before the end of its backlog"]
        caplog.clear()
        query = writer.start()
        query.stop()
        assert not query.isActive
        assert not caplog.messages
    assert found == [0, 1, 1]
    writer.start().awaitTermination()
    assert found == [0, 1, 1, 2]


def test_what_can_not_end_is_refused_before_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    write_files(tmp_path, TABLES[:1])
    joined = join(*streams(spark, tmp_path, SCHEMA, SCHEMA), SPEC, end_of_input=True)
    writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(sj.SpecError, match=r"add \.trigger\(availableNow=True\)"):
        writer.format("noop").start()
    with pytest.raises(sj.NotSupportedError, match="memory sink does not"):
        writer.trigger(availableNow=True).format("memory").start(queryName="memory")
    with pytest.raises(sj.SpecError, match=r'add \.option\("checkpointLocation"'):
        joined.writeStream.format("noop").trigger(availableNow=True).start()
    joined.createOrReplaceTempView("ending")
    view = spark.sql("SELECT * FROM ending").writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="end_of_input=True needs the query that writeStream starts"):
        view.option("checkpointLocation", str(tmp_path / "view")).start().awaitTermination()
    assert not spark.streams.active
    assert not (tmp_path / "checkpoint" / "offsets").exists()


def test_batches_are_shown_where_the_setting_says_so(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path, TABLES[:2])
    spark.conf.set(SETTING, "true")
    try:
        _run(spark, tmp_path)
        first, second, last = capsys.readouterr().err.splitlines()
        figures = "join: batch 0: 3 left and 2 right rows in, 2 out, window 3 and 2, "
        assert first.startswith(figures), first
        assert second.startswith("join: batch 1: 3 left and 2 right rows in, "), second
        assert last.startswith("join: 2 tuples wait undecided: "), last
        spark.conf.set(SETTING, "false")
        with caplog.at_level(logging.WARNING, "streamjoin"):
            _run(spark, tmp_path)
        spark.conf.set(SETTING, "perhaps")
        with pytest.raises(sj.SpecError, match="is 'perhaps': it is true or false"):
            _start(spark, tmp_path)
    finally:
        spark.conf.unset(SETTING)
    assert capsys.readouterr().err == ""
    assert not caplog.messages
