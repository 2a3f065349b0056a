"""Joins behind a gate on real Spark: count windows, order, several sources, and the same bytes however it is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark import Source, join, late, punctuations
from streamjoin.spark.stream_join import Options, build
from streamjoin.testing import oracle
from tests.spark.joining import EAGER
from tests.spark.three_sources import (
    SCHEMA,
    SPEC,
    expected_of_three,
    read_source,
    rising_rows,
    rows_in_order,
    three_sources,
    write_source,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _run(joined: DataFrame, directory: Path) -> None:
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@dataclass(frozen=True)
class Way:
    """How one input is run: files of each source, how many of them a batch takes, ranges and tasks."""

    files: tuple[int, int, int]
    per_batch: int
    partitions: int
    most: int | None = None


WAYS = (
    Way((1, 1, 1), 1, 1),
    Way((3, 3, 3), 1, 2),
    Way((4, 2, 3), 2, 3),
    Way((2, 4, 2), 1, 5),
    Way((2, 2, 2), 2, 2, most=4),
    Way((3, 2, 1), 1, 3),
)


def test_one_input_run_six_ways_gives_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    written = set()
    for i, way in enumerate(WAYS):
        directory = tmp_path / str(i)
        for name, rows, files in zip("abc", three_sources(), way.files, strict=True):
            write_source(directory / name, rows, files)
        a, b, c = (read_source(spark, directory / name, way.per_batch) for name in "abc")
        options = Options(way.partitions, way.most, ordered=True, positions=True, spool=1 if i % 2 else None)
        sides = [Source(frame, position="id") for frame in (a, b, c)]
        _run(build(sides[:2], sides[2], SPEC, options, EAGER), directory)
        table = rows_in_order(directory)
        pairs = list(zip(table["id_left"].to_pylist(), table["id_right"].to_pylist(), strict=True))
        assert pairs == expected_of_three()
        assert len(pairs) > 300
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
            writer.write_table(table.replace_schema_metadata().combine_chunks())
        written.add(sink.getvalue().to_pybytes())
    assert len(written) == 1


def test_punctuations_and_late_rows_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """One side's second batch has a row behind what was let out; what waits is joined by the next start."""

    def row(t: int | None, i: int) -> dict[str, Any]:
        return {"t": t, "x": 1, "id": i}

    write_source(tmp_path / "a", [row(1, 0), row(5, 1), row(4, 2), row(9, 3)], 2)
    write_source(tmp_path / "b", [row(2, 10), row(6, 11), row(7, 12), row(None, 13)], 2)
    spec = sj.JoinSpec(sj.Equi("x"), sj.CountWindow(1), time="t", order="event_time")
    frames = read_source(spark, tmp_path / "a"), read_source(spark, tmp_path / "b")
    _run(join(*frames, spec, ordered=True), tmp_path)
    assert _ids(rows_in_order(tmp_path)) == [(0, 10), (1, 10), (1, 11), (1, 12)]
    rows = late(tmp_path / "checkpoint").select(["batch", "side", "reason", "id_left", "id_right"])
    assert rows.to_pylist() == [
        {"batch": 1, "side": "left", "reason": "late", "id_left": 2, "id_right": None},
        {"batch": 1, "side": "right", "reason": "no time", "id_left": None, "id_right": 13},
    ]
    assert punctuations(tmp_path / "checkpoint").to_pylist() == [
        {"batch": 0, "bound": 5, "position": 3, "waiting": 1, "lag": 1},
        {"batch": 1, "bound": 7, "position": 5, "waiting": 1, "lag": 2},
    ]
    pq.write_table(pa.Table.from_pylist([row(20, 20)], SCHEMA), tmp_path / "b/more.parquet")
    _run(join(*frames, spec, ordered=True), tmp_path)
    assert _ids(rows_in_order(tmp_path))[4:] == [(3, 12)]


def _ids(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["id_left"].to_pylist(), table["id_right"].to_pylist(), strict=True))


def test_every_batch_ends_with_its_punctuation(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever reads the rows in order knows at each punctuation that nothing before its time follows."""
    for name, rows in zip("abc", three_sources(), strict=True):
        write_source(tmp_path / name, rows, 4)
    a, b, c = (Source(read_source(spark, tmp_path / name), position="id") for name in "abc")
    _run(join([a, b], c, SPEC, ordered=True, punctuate=True, partitions=3), tmp_path)
    table = rows_in_order(tmp_path)
    said = [i for i, is_bound in enumerate(table["punctuation"].to_pylist()) if is_bound]
    assert len(said) == 4
    assert said[-1] == table.num_rows - 1
    times = table["t"].to_pylist()
    for place in said:
        assert max(times[:place]) <= times[place] <= min(times[place:])
    bounds = punctuations(tmp_path / "checkpoint")["bound"].to_pylist()
    assert [times[place] for place in said] == bounds
    results = table.filter(pc.invert(table["punctuation"]))
    assert _ids(results) == expected_of_three()
    assert table.take(said).drop(["t", "punctuation"]).column("id_left").null_count == 4


def test_values_of_a_column_are_sources_and_an_idle_one_is_not_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """`x` tells the sources of the left side; its third one is declared and never sends."""
    left = [{"t": t, "x": x, "id": 10 * t + x} for t in range(6) for x in (0, 1)]
    right = [{"t": t, "x": t % 2, "id": t} for t in range(6)]
    spec = sj.JoinSpec(sj.Theta("l.x = r.x"), sj.TimeWindow(1), time="t", order="event_time")
    write_source(tmp_path / "a", left, 3)
    write_source(tmp_path / "b", right, 3)
    sides = Source(read_source(spark, tmp_path / "a"), by="x", values=[0, 1, 2]), read_source(spark, tmp_path / "b")
    _run(join(*sides, spec, ordered=True, idle="1 millisecond"), tmp_path)
    events = [oracle.Event(False, row, row["t"], str(row["x"])) for row in left]
    events += [oracle.Event(True, row, row["t"]) for row in right]
    ready = [e for e in oracle.event_time_order(events) if (e.ts, int(e.right), e.source) <= (5, 0, "0")]
    pairs = oracle.join(ready, lambda l, r: l["x"] == r["x"], ("time", 1), ("time", 1))
    lefts, rights = ([e.row["id"] for e in ready if e.right == side] for side in (False, True))
    assert _ids(rows_in_order(tmp_path)) == [(lefts[l], rights[r]) for l, r in pairs]
    waiting = punctuations(tmp_path / "checkpoint")["waiting"].to_pylist()
    assert waiting[0] == 6
    assert waiting[-1] == 2


def test_a_self_join_of_a_count_window_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    rows = rising_rows(4, 50)
    write_source(tmp_path / "a", rows, 2)
    spec = sj.JoinSpec(sj.Band("x", "x", 2), sj.CountWindow(7), time="t", order="event_time", self_join=True)
    joined = join(read_source(spark, tmp_path / "a"), None, spec, ordered=True, positions=True)
    query = joined.writeStream.format("memory").queryName("itself").trigger(availableNow=True).start()
    query.awaitTermination()
    events = [oracle.Event(False, row, row["t"]) for row in rows]
    wanted = oracle.self_join(events, lambda l, r: abs(l["x"] - r["x"]) <= 2, ("count", 7), ("count", 7))
    found = spark.table("itself").orderBy("position", "partner").collect()
    assert [(row.id_left, row.id_right) for row in found] == wanted


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda df: ([], df, {}), sj.InputError, "this list is empty"),
        (lambda df: ([df, df.drop("x")], df, {}), sj.InputError, "differ in 'x'"),
        (lambda df: ([Source(df, "a"), Source(df, "a")], df, {}), sj.SpecError, "two sources called 'a'"),
        (lambda df: (Source(df, by="k"), df, {}), sj.SchemaError, "no column 'k'"),
        (lambda df: (Source(df.selectExpr("*", "'a' AS s"), position="s"), df, {}), sj.SchemaError, "a whole number"),
        (lambda df: (df, df, {"idle": 3}), sj.SpecError, "idle=3"),
        (lambda df: (df, df, {"idle": "0 seconds"}), sj.SpecError, "at least a millisecond"),
        (lambda df: (df, df, {"most_waiting": 0}), sj.SpecError, "most_waiting=0: it is a whole number"),
        (lambda df: (df, df, {"partitions": 4, "most_partitions": 2}), sj.SpecError, "most_partitions=2 is less"),
        (lambda df: (df.selectExpr("*", "1 AS partner"), df, {"positions": True}), sj.SchemaError, "'partner'"),
        (lambda df: (df, df, {"punctuate": True}), sj.SpecError, "without ordered=True"),
        (
            lambda df: (df.selectExpr("*", "1 AS punctuation"), df, {"punctuate": True, "ordered": True}),
            sj.SchemaError,
            "with punctuate=True the result has a column 'punctuation'",
        ),
        (lambda df: (df.withColumnRenamed("id", "#id"), df, {}), sj.InputError, "begins with #"),
    ],
)
def test_a_mistake_is_named(
    spark: SparkSession, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    write_source(tmp_path / "a", [], 0)
    left, right, options = change(read_source(spark, tmp_path / "a"))
    with pytest.raises(error, match=message):
        join(left, right, SPEC, **options)


def test_a_join_without_a_gate_has_no_limit_on_what_waits_there(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path / "a", [], 0)
    frame = read_source(spark, tmp_path / "a")
    with pytest.raises(sj.SpecError, match="most_waiting=5 limits what waits in a gate, which this join has not"):
        join(frame, frame, replace(SPEC, window=sj.TimeWindow(9)), most_waiting=5)


def test_a_source_says_what_it_can_not_be(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path / "a", [], 0)
    frame = read_source(spark, tmp_path / "a")
    with pytest.raises(sj.SpecError, match="without a slash"):
        Source(frame, "a/b")
    with pytest.raises(sj.SpecError, match="say which with by="):
        Source(frame, values=[1])
