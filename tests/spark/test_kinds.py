"""The kinds of join on real Spark: the embedded engine's rows, in its order, and the cases that others got wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark import Source, join, punctuations, stream_join
from streamjoin.spark.stream_join import Options, build
from streamjoin.storage.blueprint import GatePlan, SourcePlan
from tests.seeds import THOROUGH
from tests.spark.joining import EAGER, read_parquet
from tests.spark.three_sources import SCHEMA, read_source, rising_rows, rows_in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

Batch = tuple[Sequence[tuple[int, int | None]], Sequence[tuple[int, int | None]]]
"""The (time, key) of the left and the right rows of a batch."""
Row = tuple[int | None, int | None]

FULL = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(5), time="t", order="event_time", how="full")


def _tables(batches: Sequence[Batch]) -> list[tuple[pa.Table, pa.Table]]:
    """The batches as tables; ids count the rows of a side, those of the right one from 100 on."""
    counts = [0, 100]
    out = []
    for batch in batches:
        tables = []
        for side, rows in enumerate(batch):
            entries = [{"t": t, "x": x, "id": counts[side] + i} for i, (t, x) in enumerate(rows)]
            counts[side] += len(rows)
            tables.append(pa.Table.from_pylist(entries, SCHEMA))
        out.append((tables[0], tables[1]))
    return out


def _write(directory: Path, tables: Sequence[tuple[pa.Table, pa.Table]], first: int = 0) -> None:
    """One file for each side and batch."""
    for number, sides in enumerate(tables, first):
        for name, table in zip("lr", sides, strict=True):
            (directory / name).mkdir(parents=True, exist_ok=True)
            path = directory / name / f"{number:04}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _start(spark: SparkSession, files: Path, run: Path, spec: sj.JoinSpec, **options: Any) -> StreamingQuery:
    left, right = (Source(read_source(spark, files / name), position="id") for name in "lr")
    joined = build(left, right, spec, Options(**{"partitions": 3, "ordered": True, **options}), EAGER)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(run / "checkpoint"))
    return writer.option("path", str(run / "out")).trigger(availableNow=True).start()


def _ids(table: pa.Table) -> list[Row]:
    names = table.column_names
    columns = [table[name].to_pylist() for name in ("id_left", "id_right") if name in names]
    return list(zip(*columns, strict=True)) if columns else [(number, None) for number in table["id"].to_pylist()]


def _on_spark(spark: SparkSession, directory: Path, spec: sj.JoinSpec, batches: Sequence[Batch]) -> list[Row]:
    return _all_on_spark(spark, {directory: spec}, batches)[0]


def _all_on_spark(spark: SparkSession, specs: dict[Path, sj.JoinSpec], batches: Sequence[Batch]) -> list[list[Row]]:
    """The rows of each, run side by side in a directory of its own."""
    for directory in specs:
        _write(directory, _tables(batches))
    queries = [_start(spark, directory, directory, spec) for directory, spec in specs.items()]
    for query in queries:
        query.awaitTermination()
    return [_ids(rows_in_order(directory)) for directory in specs]


def _embedded(spec: sj.JoinSpec, tables: Sequence[tuple[pa.Table, pa.Table]]) -> list[Row]:
    """The rows that the embedded engine gives before the end of its input."""
    with sj.open(spec, on_close=lambda _: None) as running:
        return [row for left, right in tables for row in _ids(running.push(left, right))]


def _random_tables() -> list[tuple[pa.Table, pa.Table]]:
    """Three batches; the last tuple of each side decides everything before it."""
    sides = [
        [*rising_rows(side, 75, 1000 * side), {"t": 500, "x": 99, "id": 1000 * side + 999}] for side in (0, 1)
    ]  # fmt: skip
    cuts = ((0, 25), (25, 50), (50, 76))
    return [
        (pa.Table.from_pylist(sides[0][a:b], SCHEMA), pa.Table.from_pylist(sides[1][a:b], SCHEMA)) for a, b in cuts
    ]  # fmt: skip


BAND = sj.JoinSpec(sj.Band("x", "x", 1), sj.TimeWindow(1), time="t")
# Without an order, which is event time here as in the embedded engine.
EVERY = {
    **{how: replace(BAND, how=how) for how in ("right", "semi", "anti")},
    "full": replace(BAND, how="full", window=(sj.CountWindow(3), sj.TimeWindow(4))),
    "intervals": replace(BAND, on=sj.Overlaps(("x", "t"), ("x", "t")), how="full"),
    "nearest": sj.JoinSpec(sj.Equi("x"), match=sj.AsOf("nearest", 4), time="t", how="left"),
    "as-of by condition": sj.JoinSpec(
        sj.Band("x", "x", 1), match=sj.AsOf("nearest", 6, exact=False), time="t", how="left"
    ),
    "without tolerance": sj.JoinSpec(sj.Equi("x"), match=sj.AsOf(), time="t", how="anti"),
}  # fmt: skip
# The suite runs each kind with a gate or without one; other tests run the stages of all.
GATED: tuple[str, ...] = ("anti", "full", "intervals", "as-of by condition")
UNGATED: tuple[str, ...] = ("left", "right", "semi", "nearest", "without tolerance")
if THOROUGH:
    GATED, UNGATED = tuple(EVERY), (*UNGATED, "full", "anti", "as-of by condition")


@pytest.mark.filterwarnings("ignore:with time= the default order:FutureWarning")
def test_every_kind_gives_the_rows_of_the_embedded_engine_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches, then a restart with another number of partitions, then the rest."""
    tables = _random_tables()
    for first, end, partitions in ((0, 2, 3), (2, 3, 2)):
        _write(tmp_path, tables[first:end], first)
        queries = [_start(spark, tmp_path, tmp_path / name, EVERY[name], partitions=partitions) for name in GATED]
        for query in queries:
            query.awaitTermination()
    for name in GATED:
        rows = _ids(rows_in_order(tmp_path / name))
        assert rows, name
        assert rows == _embedded(EVERY[name], tables), name


def _start_plain(spark: SparkSession, files: Path, run: Path, spec: sj.JoinSpec, **options: Any) -> StreamingQuery:
    """The join of plain sources in any order, which has no gate."""
    left, right = (read_source(spark, files / name) for name in "lr")
    joined = build(left, right, spec, Options(**{"partitions": 3, **options}), EAGER)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", str(run / "checkpoint"))
    return writer.option("path", str(run / "out")).trigger(availableNow=True).start()


@pytest.mark.filterwarnings("ignore:with time= the default order:FutureWarning")
def test_kinds_without_a_gate_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Two batches, then a restart with another number of partitions, then the rest and the end of input."""
    specs = {how: replace(BAND, how=how, order="event_time") for how in ("left", "right", "full", "semi", "anti")}
    specs = {name: specs.get(name) or EVERY[name] for name in UNGATED}
    tables = _random_tables()
    for first, end, partitions in ((0, 2, 3), (2, 3, 5)):
        _write(tmp_path, tables[first:end], first)
        options: dict[str, Any] = {"partitions": partitions, "end_of_input": end == 3}
        queries = [_start_plain(spark, tmp_path, tmp_path / how, spec, **options) for how, spec in specs.items()]
        for query in queries:
            query.awaitTermination()
    for how, spec in specs.items():
        assert not list((tmp_path / how).rglob("*.gate"))
        rest: list[pa.Table] = []
        with sj.open(spec, on_close=rest.append) as running:
            wanted = [row for left, right in tables for row in _ids(running.push(left, right))]
        wanted += [row for table in rest for row in _ids(table)]
        rows = _ids(read_parquet(tmp_path / how / "out"))
        assert sorted(rows, key=str) == sorted(wanted, key=str), how
        ends = punctuations(tmp_path / how / "checkpoint").select(["position", "waiting"]).to_pylist()
        assert ends[-1] == {"position": None, "waiting": None}


def test_a_checkpoint_with_a_gate_goes_on_without_it_and_not_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions wrote it: rows wait in the gate, some that came out have a mark."""
    tables = _random_tables()
    spec = replace(BAND, how="full", order="event_time")
    _write(tmp_path, tables[:2])
    plans = (SourcePlan("0000"),)
    with monkeypatch.context() as patch:
        patch.setattr(stream_join, "_gate", lambda *_: GatePlan((plans, plans)))
        _start_plain(spark, tmp_path, tmp_path / "run", spec).awaitTermination()
    assert list((tmp_path / "run").rglob("*.gate"))
    _write(tmp_path, tables[2:], 2)
    _start_plain(spark, tmp_path, tmp_path / "run", spec, end_of_input=True).awaitTermination()
    rest: list[pa.Table] = []
    with sj.open(spec, on_close=rest.append) as running:
        wanted = [row for left, right in tables for row in _ids(running.push(left, right))]
    wanted += [row for table in rest for row in _ids(table)]
    assert sorted(_ids(read_parquet(tmp_path / "run" / "out")), key=str) == sorted(wanted, key=str)
    with pytest.raises(sj.CheckpointError, match="no gate came before the join and one does now: leave out ordered"):
        _start_plain(spark, tmp_path, tmp_path / "run", spec, ordered=True)


def test_a_match_and_an_eviction_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    batch = [(0, 1), (1, 2), (20, 3)], [(2, 1), (21, 9)]
    assert _on_spark(spark, tmp_path, FULL, [batch]) == [(0, 100), (1, None)]


def test_asymmetric_windows(spark: SparkSession, tmp_path: Path) -> None:
    """A left tuple is gone after 2, a right one after 9; the second right one matches the left one of 8."""
    spec = replace(FULL, window=(sj.TimeWindow(2), sj.TimeWindow(9)))
    batches: list[Batch] = [([(0, 1), (4, 2)], [(1, 7), (3, 2)]), ([(8, 2), (30, 5)], [(5, 1), (31, 6)])]
    rows = _on_spark(spark, tmp_path, spec, batches)
    assert rows == [(0, None), (1, 101), (2, 101), (None, 100), (None, 102)]
    assert rows == _embedded(spec, _tables(batches))


def test_windows_and_tolerances_of_centuries(spark: SparkSession, tmp_path: Path) -> None:
    """In nanoseconds from 1850 to 2020, and over all of int64: lengths were once cut to 2**62 - 1 without a word."""
    day, ends = 86_400 * 10**9, (-(2**63), 2**63 - 1)
    old, new = -43_829 * day, 18_262 * day
    batch = [(new, 1), (ends[1] - 1, 2), (ends[1], 9)], [(ends[0] + 1, 2), (old, 1), (ends[1], 8)]
    wanted: dict[int, list[Row]] = {
        70_000 * day: [(0, 101), (1, None)],
        62_091 * day: [(0, 101), (1, None)],
        62_091 * day - 1: [(0, None), (1, None)],
        2**64 - 3: [(0, 101), (1, 100)],
        2**64 - 4: [(0, 101), (1, None)],
        10**30: [(0, 101), (1, 100)],
    }
    by_time = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(1), time="t", order="event_time")
    windows = {tmp_path / f"window {n}": replace(by_time, window=sj.TimeWindow(n)) for n in wanted}
    as_of = {
        tmp_path / f"as of {n}": replace(by_time, window=None, how="left", match=sj.AsOf("backward", n)) for n in wanted
    }
    found = _all_on_spark(spark, windows | as_of, [batch])
    pairs = [[row for row in rows if row[1] is not None] for rows in wanted.values()]
    assert dict(zip([*windows, *as_of], found, strict=True)) == dict(
        zip([*windows, *as_of], [*pairs, *wanted.values()], strict=True)
    )


def test_a_watermark_that_moves_in_the_matching_batch(spark: SparkSession, tmp_path: Path) -> None:
    batches: list[Batch] = [([(0, 1)], [(0, 7)]), ([(30, 2)], [(4, 1), (31, 3)])]
    assert _on_spark(spark, tmp_path, FULL, batches) == [(0, 101), (None, 100)]


def test_a_restart_between_match_and_eviction(spark: SparkSession, tmp_path: Path) -> None:
    """The mark is in the checkpoint; a tuple that has not matched waits there, as stopping is not the end of input."""
    tables = _tables([([(0, 1), (2, 5)], [(1, 1), (2, 6)]), ([(30, 2)], [(31, 3)])])
    for first, partitions, rows in ((0, 3, [(0, 100)]), (1, 2, [(0, 100), (1, None), (None, 101)])):
        _write(tmp_path, tables[first : first + 1], first)
        _start(spark, tmp_path, tmp_path, FULL, partitions=partitions, punctuate=True).awaitTermination()
        written = rows_in_order(tmp_path)
        assert _ids(written.filter(pc.invert(written["punctuation"]))) == rows
    # Unmatched rows have their own time: the last bound of 30 promises nothing after 30 - 5.
    assert punctuations(tmp_path / "checkpoint")["bound"].to_pylist() == [-3, 25]
    with pytest.raises(sj.CheckpointError, match="how was 'full' and is now 'left'"):
        _start(spark, tmp_path, tmp_path, replace(FULL, how="left"))


def test_a_stream_that_falls_silent_before_anything_is_decided(spark: SparkSession, tmp_path: Path) -> None:
    """The right side sends one tuple; a gate that waits for it no longer lets unmatched left tuples out."""
    _write(tmp_path, _tables([([(0, 1)], [(0, 7)]), ([(9, 2)], []), ([(20, 3)], [])]))
    _start(spark, tmp_path, tmp_path, replace(FULL, how="left"), idle="1 millisecond").awaitTermination()
    assert _ids(rows_in_order(tmp_path)) == [(0, None), (1, None)]


def test_a_result_has_nullable_columns_and_keys_of_the_side_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path, _tables([([(0, None), (9, 4)], [(0, 7), (9, 5)])]))
    left, right = (read_source(spark, tmp_path / name) for name in "lr")
    joined = join(left, right, FULL, columns=["x", "id_right"])
    assert [(field.name, field.nullable) for field in joined.schema] == [("x", True), ("id_right", True), ("t", False)]
    query = joined.writeStream.format("memory").queryName("kinds").trigger(availableNow=True).start()
    query.awaitTermination()
    assert join(left, right, replace(FULL, how="anti"), columns=["id"]).columns == ["id"]
    rows = [tuple(row) for row in spark.table("kinds").collect()]
    assert sorted(rows, key=str) == [(7, 100, 0), (None, None, 0)]


@pytest.mark.parametrize(("left", "right", "common"), [("int", "bigint", "bigint"), ("double", "int", "double")])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_key_of_two_types_has_their_common_type(
    spark: SparkSession, tmp_path: Path, left: str, right: str, common: str, swapped: bool
) -> None:
    _write(tmp_path, _tables([([(0, 1), (1, 4), (20, 9)], [(0, 7), (1, 4), (20, 8)])]))
    types = (right, left) if swapped else (left, right)
    frames = [
        read_source(spark, tmp_path / name).selectExpr("t", f"CAST(x AS {type_}) x", "id")
        for name, type_ in zip("lr", types, strict=True)
    ]
    joined = join(frames[0], frames[1], replace(FULL, how="full"), columns=["x"])
    assert joined.schema["x"].dataType.simpleString() == common
    name = f"keys_{left}_{swapped}"
    joined.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    assert sorted(row.x for row in spark.table(name).collect()) == [1, 4, 7]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"how": "left"}, {"positions": True}, "positions=True numbers the two tuples of a pair"),
        ({"how": "anti"}, {"ordered": True, "punctuate": True}, "how='anti' has none"),
        ({"how": "left", "window": sj.CountWindow(3)}, {"ordered": True, "punctuate": True}, "use a TimeWindow"),
        ({"order": "arrival", "how": "semi"}, {}, "no common order of arrival"),
    ],
)
def test_what_a_kind_can_not_do_is_refused(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    _write(tmp_path, _tables([([], [])]))
    left, right = (read_source(spark, tmp_path / name) for name in "lr")
    with pytest.raises(sj.NotSupportedError, match=message):
        join(left, right, replace(FULL, **changes), **options)


def test_times_that_are_intervals_are_refused_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path, _tables([([], [])]))
    frames = [
        read_source(spark, tmp_path / name).selectExpr("make_dt_interval(0, 0, 0, t) AS t", "x", "id") for name in "lr"
    ]
    with pytest.raises(sj.NotSupportedError, match="'t' is an interval: Spark's watermarks count timestamps"):
        join(frames[0], frames[1], replace(FULL, window=sj.TimeWindow("5 seconds")))
