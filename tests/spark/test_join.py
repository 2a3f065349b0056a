"""`streamjoin.spark.join` on real Spark: the same rows as the definition, any sink, and every mistake named."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark import join, late
from streamjoin.spark.stream_join import Options, build
from streamjoin.storage.blueprint import FORMAT
from tests.spark.joining import (
    CASES,
    EAGER,
    EPOCH,
    Case,
    expected,
    pairs,
    run_to_parquet,
    stream,
    streams,
    tables,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
BAND = CASES[0]
SPEC = BAND.bound_spec()
UNIX = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("case", "partitions", "per_batch"),
    [
        pytest.param(case, partitions, per_batch, id=f"{case.name}, {partitions} partitions")
        for case, partitions, per_batch in zip(
            CASES, [1, 5, 2, 5, 2, 3, 3, 2, 3], [1, 1, 2, 3, 3, 1, 1, 2, 2], strict=True
        )
    ],
)
def test_rows_are_those_of_the_definition(
    spark: SparkSession, tmp_path: Path, case: Case, partitions: int, per_batch: int
) -> None:
    left, right = stream(case, seed=partitions, n=160)
    write_files(tmp_path, tables(case, left, right, 4))
    sides = streams(spark, tmp_path, case.left, case.right, per_batch)
    joined = build(*sides, case.bound_spec(), Options(partitions, spool=1 if per_batch % 2 else None), EAGER)
    found = run_to_parquet(joined, tmp_path)
    assert pairs(found) == expected(case, left, right)


def test_the_result_has_the_columns_of_both_sides_and_its_time(spark: SparkSession, tmp_path: Path) -> None:
    case, sides = _files(spark, tmp_path)
    joined = join(*sides, case.bound_spec())
    assert joined.isStreaming
    assert [(f.name, f.dataType.simpleString()) for f in joined.schema] == [
        ("ts_left", "timestamp"), ("x", "bigint"), ("id_left", "bigint"),
        ("ts_right", "timestamp"), ("a", "int"), ("id_right", "bigint"), ("ts", "timestamp"),
    ]  # fmt: skip
    rows = run_to_parquet(joined, tmp_path).to_pylist()
    assert rows
    assert all(row["ts"] == max(row["ts_left"], row["ts_right"]) for row in rows)


def _files(spark: SparkSession, directory: Path, batches: int = 3) -> tuple[Case, tuple[DataFrame, DataFrame]]:
    left, right = stream(BAND, seed=6, n=60)
    write_files(directory, tables(BAND, left, right, batches))
    return BAND, streams(spark, directory, BAND.left, BAND.right)


def _wanted() -> Counter[tuple[int, int]]:
    return expected(BAND, *stream(BAND, seed=6, n=60))


def _ids(frame: DataFrame) -> Counter[tuple[int, int]]:
    return Counter((row.id_left, row.id_right) for row in frame.select("id_left", "id_right").collect())


def test_a_memory_sink_takes_it(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path)
    query = join(*sides, SPEC).writeStream.format("memory").queryName("joined").trigger(availableNow=True).start()
    query.awaitTermination()
    assert _ids(spark.table("joined")) == _wanted()


def test_foreach_batch_takes_it_and_may_read_a_batch_twice(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path)
    seen: list[Counter[tuple[int, int]]] = []

    def take(frame: DataFrame, _: int) -> None:
        seen.append(_ids(frame))
        assert seen[-1] == _ids(frame)

    query = join(*sides, SPEC).writeStream.foreachBatch(take).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(seen, Counter()) == _wanted()
    assert len(seen) == 3


def test_what_follows_may_drop_put_together_and_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    """Partitions put together run several ranges in one task; an aggregate also runs batches without any rows.

    One side is far behind the other, in batches of its own: with a watermark as late as the window nothing is dropped.
    """
    from pyspark.sql import functions as f

    left, right = stream(BAND, seed=6, n=90)
    batches = tables(BAND, left, right, 3)
    write_files(tmp_path, [(BAND.left.empty_table(), batches[0][1]), (batches[0][0], batches[1][1])])
    for i, sides in enumerate((batches[1][0], batches[2][0])):
        pq.write_table(sides, tmp_path / f"left/more{i}.parquet")
    pq.write_table(batches[2][1], tmp_path / "right/more0.parquet")
    joined = join(*streams(spark, tmp_path, BAND.left, BAND.right), SPEC, partitions=3)
    counted = (
        joined.coalesce(1)
        .withWatermark("ts", "40 milliseconds")
        .groupBy(f.window("ts", "10 milliseconds"))
        .agg(f.count("*").alias("n"))
    )
    writer = counted.writeStream.format("memory").queryName("counted").outputMode("append")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len([p for p in query.recentProgress if p["numInputRows"] == 0]) >= 1
    assert {p["stateOperators"][0]["numRowsDroppedByWatermark"] for p in query.recentProgress} == {0}
    times = {(side, row["id"]): row["ts"] for side, rows in enumerate((left, right)) for row in rows}
    results = Counter(max(times[0, l], times[1, r]) for l, r in expected(BAND, left, right).elements())
    # Windows that end before the watermark are closed and in the output.
    closed: Counter[dt.datetime] = Counter()
    for at, n in results.items():
        start = at - (at - EPOCH) % dt.timedelta(milliseconds=10)
        if start <= max(results) - dt.timedelta(milliseconds=50):
            closed[start] += n
    rows = spark.table("counted").selectExpr("unix_millis(window.start) AS start", "n").collect()
    assert {UNIX + dt.timedelta(milliseconds=row.start): row.n for row in rows} == closed
    assert len(closed) > 5


def test_a_watermark_before_the_join_is_warned_of(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _empty(spark, tmp_path)
    with pytest.warns(
        UserWarning, match=r"right side has a watermark on 'ts'.*withWatermark\('ts', \.\.\.\)"
    ) as caught:
        join(left, right.withWatermark("ts", "1 second"), SPEC)
    assert caught[0].filename == __file__
    join(left, right.withWatermark("ts", "1 second").dropDuplicatesWithinWatermark(["id"]), SPEC)


def test_joins_can_be_joined(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path)
    first = join(*sides, SPEC).selectExpr("ts", "x", "id_left AS l", "id_right AS r")
    third = streams(spark, tmp_path, BAND.left, BAND.right)[1]
    # The results of a join are not in the order of their times: what they are joined with has to wait for them.
    spec = sj.JoinSpec(sj.Equi("r", "id"), sj.TimeWindow("1 hour"), time="ts", order="event_time", lateness="1 hour")
    both = join(first, third, spec)
    found = run_to_parquet(both, tmp_path)
    assert Counter(zip(found["l"].to_pylist(), found["id"].to_pylist(), strict=True)) == _wanted()
    assert {path.name for path in (tmp_path / "checkpoint/streamjoin").iterdir()} == {"join", "join2"}


def test_two_joins_of_one_name_in_a_query_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    _, sides = _files(spark, tmp_path)
    with pytest.raises(sj.SpecError, match=r"both called 'join'.*name='...'"):
        join(*sides, SPEC).select("x").where("x > 1").union(join(*sides, SPEC).select("x"))
    one, two = join(*sides, SPEC, name="one"), join(*sides, SPEC, name="two")
    with pytest.raises(AnalysisException, match="metric name is not unique: rows"):
        one.observe("rows", f.count("x")).union(two.observe("rows", f.count("x")))
    named = one.union(two)
    found = run_to_parquet(named, tmp_path / "named")
    assert pairs(found) == _wanted() + _wanted()


def test_a_stream_joins_itself(spark: SparkSession, tmp_path: Path) -> None:
    left, _ = stream(BAND, seed=6, n=80)
    write_files(tmp_path, tables(BAND, left, [], 3))
    frame, _ = streams(spark, tmp_path, BAND.left, BAND.right)
    spec = sj.JoinSpec(
        sj.Band("x", "x", 1), sj.TimeWindow("40 milliseconds"), time="ts", order="event_time", self_join=True
    )
    found = run_to_parquet(join(frame, None, spec, partitions=2), tmp_path)
    keyed = [row for row in left if row["x"] is not None]
    window = dt.timedelta(milliseconds=40)
    assert pairs(found) == Counter(
        (l["id"], r["id"])
        for l in keyed
        for r in keyed
        if l["id"] != r["id"] and abs(l["x"] - r["x"]) <= 1 and abs(l["ts"] - r["ts"]) <= window
    )


def test_other_types_travel_along(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [("ts", pa.timestamp("us")), ("k", pa.decimal128(10, 2)), ("day", pa.date32()), ("raw", pa.binary()),
         ("list", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())]))),
         ("map", pa.map_(pa.string(), pa.float32())), ("id", pa.int64())]
    )  # fmt: skip
    at = EPOCH.replace(tzinfo=None)
    rows = [
        {
            "ts": at,
            "k": i % 2,
            "day": at.date(),
            "raw": b"\0",
            "list": [{"a": 1, "b": None}],
            "map": [("k", 1.5)],
            "id": i,
        }
        for i in range(4)
    ]
    table = pa.Table.from_pylist(rows, schema)
    write_files(tmp_path, [(table, table), (table.slice(0, 0), table.slice(0, 1))])
    sides = streams(spark, tmp_path, schema, schema)
    spec = sj.JoinSpec(sj.Equi("k"), sj.TimeWindow("0 seconds"), time="ts", order="event_time")
    found = run_to_parquet(join(*sides, spec), tmp_path)
    assert found.num_rows == 8 + 2
    assert found["list_left"].to_pylist()[0] == [{"a": 1, "b": None}]
    assert found["map_right"].to_pylist()[0] == [("k", 1.5)]


def test_late_rows_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    early, now = ({"ts": EPOCH + dt.timedelta(seconds=s), "x": 1, "id": s} for s in (1, 9))
    batches = [
        (BAND.left.empty_table().from_pylist([row], BAND.left), BAND.right.empty_table()) for row in (now, early)
    ]
    write_files(tmp_path, batches)

    def run(spec: sj.JoinSpec) -> pa.Table:
        joined = join(*streams(spark, tmp_path, BAND.left, BAND.right), spec)
        query = (
            joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "a checkpoint %41"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return late(tmp_path / "a checkpoint %41")

    rows = run(SPEC)
    assert rows.select(["batch", "side", "reason", "id_left", "id_right"]).to_pylist() == [
        {"batch": 1, "side": "left", "reason": "late", "id_left": 1, "id_right": None}
    ]
    # The state does not depend on how the result's columns are named, so a restart may name them otherwise.
    pq.write_table(BAND.left.empty_table().from_pylist([early], BAND.left), tmp_path / "left/again.parquet")
    renamed = run(replace(SPEC, order=None, suffixes=("_a", "_b"), result_time="at"))
    assert renamed.select(["batch", "id_left", "id_a"]).to_pylist() == [
        {"batch": 1, "id_left": 1, "id_a": None},
        {"batch": 2, "id_left": None, "id_a": 1},
    ]


# Restarts


def test_a_restart_goes_on_with_other_partitions(spark: SparkSession, tmp_path: Path) -> None:
    left, right = stream(BAND, seed=6, n=60)
    batches = tables(BAND, left, right, 2)
    write_files(tmp_path, batches[:1])
    run_to_parquet(join(*streams(spark, tmp_path, BAND.left, BAND.right), SPEC, partitions=3), tmp_path)
    write_files(tmp_path / "more", batches[1:])
    for side in ("left", "right"):
        (tmp_path / "more" / side / "0000.parquet").rename(tmp_path / side / "0001.parquet")
    found = run_to_parquet(join(*streams(spark, tmp_path, BAND.left, BAND.right), SPEC, partitions=2), tmp_path)
    assert pairs(found) == _wanted()


def test_a_restart_with_another_join_schema_or_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    _, sides = _files(spark, tmp_path, batches=1)
    run_to_parquet(join(*sides, SPEC), tmp_path)
    # Nothing new has come since: the query itself is refused, not a batch.
    other = join(*sides, sj.JoinSpec(sj.Band("x", "a", 4), SPEC.window, time="ts", order="event_time"))
    changed = re.escape("on was '|l.x - r.a| <= 3' and is now '|l.x - r.a| <= 4'")
    with pytest.raises(sj.CheckpointError, match=changed):
        run_to_parquet(other, tmp_path)
    assert not spark.streams.active
    counted = other.groupBy("x").count().writeStream.format("noop").outputMode("complete")
    with pytest.raises(sj.CheckpointError, match=changed):
        counted.start(checkpointLocation=str(tmp_path / "checkpoint"))
    # The frame of a view has Spark's own start(): there it is the query that ends with the error.
    other.createOrReplaceTempView("changed")
    writer = spark.table("changed").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=f"CheckpointError: .*{changed}"):
        query.awaitTermination()
    assert not query.recentProgress
    wider = sides[0].selectExpr("*", "id + 1 AS more"), sides[1]
    assert re.search(r"left columns was '.*' and is now '.*, more int64'", _failure(join(*wider, SPEC), tmp_path))
    known = tmp_path / "checkpoint/streamjoin/join/join.json"
    known.write_text(known.read_text().replace(f'"format": "{FORMAT}"', '"format": "0"'))
    assert "the checkpoint has format 0 of the window log" in _failure(join(*sides, SPEC), tmp_path)


@pytest.mark.parametrize("options", [{"ordered": True}, {"positions": True}, {"idle": "1 hour"}])
def test_an_option_that_adds_a_gate_is_named(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    _, sides = _files(spark, tmp_path, batches=1)
    run_to_parquet(join(*sides, SPEC), tmp_path)
    failure = _failure(join(*sides, SPEC, **options), tmp_path)
    assert "no gate came before the join and one does now: leave out ordered=True, positions=True, idle=" in failure
    assert "0000" not in failure
    run_to_parquet(join(*sides, SPEC, **options), tmp_path / "gated")
    assert "a gate came before the join and none does now: it had one of ordered=True" in _failure(
        join(*sides, SPEC), tmp_path / "gated"
    )


def test_another_name_is_told_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path, batches=1)
    run_to_parquet(join(*sides, SPEC, name="trades"), tmp_path)
    for name in ("quotes", None):
        writer = join(*sides, SPEC, name=name).writeStream.format("noop")
        with pytest.raises(
            sj.CheckpointError,
            match=rf"batches up to 0 with the state of 'trades', and this join is called '{name or 'join'}': use "
            r"name='trades' as before, or start with a new checkpoint",
        ):
            writer.start(checkpointLocation=str(tmp_path / "checkpoint"))
    assert sorted(path.name for path in (tmp_path / "checkpoint/streamjoin").iterdir()) == ["trades"]
    plain = sides[0].writeStream.format("noop").trigger(availableNow=True)
    plain.start(checkpointLocation=str(tmp_path / "plain")).awaitTermination()
    with pytest.raises(sj.CheckpointError, match="with no join's state, and this join is called 'join': run the query"):
        join(*sides, SPEC).writeStream.format("noop").start(checkpointLocation=str(tmp_path / "plain"))


def test_a_checkpoint_deleted_by_half_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path, batches=1)
    run_to_parquet(join(*sides, SPEC), tmp_path)
    (tmp_path / "left/0000.parquet").rename(tmp_path / "left/again.parquet")
    for piece in tmp_path.rglob("*.piece"):
        piece.unlink()
    assert "does not hold batch 0" in _failure(join(*sides, SPEC), tmp_path)


def test_a_checkpoint_that_can_not_be_written_is_one_of_our_errors(spark: SparkSession, tmp_path: Path) -> None:
    _, sides = _files(spark, tmp_path, batches=1)
    (tmp_path / "file").touch()
    writer = join(*sides, SPEC).writeStream.format("noop")
    with pytest.raises(
        sj.CheckpointError, match=r"can't start the query: .*not a directory.*file/checkpoint"
    ) as caught:
        writer.start(checkpointLocation=str(tmp_path / "file/checkpoint"))
    assert len(str(caught.value)) < 500
    run_to_parquet(join(*sides, SPEC), tmp_path)
    # At a restart, with nothing to do.
    epochs = tmp_path / "checkpoint/streamjoin/join/epochs"
    shutil.rmtree(epochs)
    epochs.touch()
    assert re.search(r"join/epochs can't be written: .* restart the query", _failure(join(*sides, SPEC), tmp_path))


def test_whatever_is_wrong_with_a_checkpoint_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what Arrow raises that is no OSError, and what nobody thought of."""

    def no_token(*_: object, **__: object) -> None:
        raise pa.ArrowException("no token was found by any credential")

    _, sides = _files(spark, tmp_path, batches=1)
    monkeypatch.setattr("streamjoin.spark.runtime.checkpoints.new_epoch", no_token)
    assert "no token was found by any credential" in _failure(join(*sides, SPEC), tmp_path)


def _failure(joined: DataFrame, directory: Path) -> str:
    from pyspark.errors import StreamingQueryException

    with pytest.raises((StreamingQueryException, sj.CheckpointError)) as caught:
        run_to_parquet(joined, directory)
    return str(caught.value)


# Mistakes


def _spec(**changes: Any) -> sj.JoinSpec:
    given = {"on": sj.Band("x", "a", 3), "window": sj.TimeWindow("1 second"), "time": "ts", "order": "event_time"}
    return sj.JoinSpec(**{**given, **changes})


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        (_spec(order="arrival"), {}, sj.NotSupportedError, "leave order= out"),
        (_spec(on=sj.Band("x", "b", 3)), {}, sj.SchemaError, "right side has no column 'b'"),
        (_spec(time="at"), {}, sj.SchemaError, "left side has no column 'at'"),
        (_spec(on=sj.Band("x", "a", "3 s")), {}, sj.SchemaError, "a duration is a distance between timestamps"),
        (_spec(window=sj.TimeWindow(3)), {}, sj.SchemaError, "give a duration"),
        ("x = a", {}, sj.SpecError, "a streamjoin.JoinSpec"),
        (_spec(), {"partitions": 0}, sj.SpecError, "partitions=0"),
        (_spec(), {"partitions": 2.0}, sj.SpecError, r"partitions=2\.0"),
        (_spec(), {"partitions": True}, sj.SpecError, "partitions=True"),
        (_spec(), {"name": "a/b"}, sj.SpecError, "name='a/b'"),
        (_spec(self_join=True), {}, sj.InputError, "give None"),
    ],
)
def test_a_mistake_is_named_when_the_join_is_built(
    spark: SparkSession, tmp_path: Path, spec: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    sides = _empty(spark, tmp_path)
    with pytest.raises(error, match=message):
        join(*sides, spec, **options)


def _empty(spark: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    write_files(directory, [])
    return streams(spark, directory, BAND.left, BAND.right)


def test_a_side_must_be_a_streaming_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _empty(spark, tmp_path)
    batch = spark.createDataFrame([], right.schema)
    with pytest.raises(sj.InputError, match="right side is a batch DataFrame; read it with"):
        join(left, batch, SPEC)
    with pytest.raises(sj.InputError, match="left side is a str"):
        join("trades", right, SPEC)  # type: ignore[arg-type]
    with pytest.raises(sj.InputError, match="right side is missing"):
        join(left, None, SPEC)
    other = spark.newSession().readStream.schema(right.schema).parquet(str(tmp_path / "right"))
    with pytest.raises(sj.InputError, match="different Spark sessions"):
        join(left, other, SPEC)


def test_two_columns_of_one_name_are_told(spark: SparkSession, tmp_path: Path) -> None:
    left, right = _empty(spark, tmp_path)
    with pytest.raises(sj.SchemaError, match="'x'"):
        join(left.select("*", left.x), right, SPEC)
