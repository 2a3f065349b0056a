"""Functions for `foreachBatch` that do not read all of their rows: the state is whole nevertheless."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import streamjoin as sj
from streamjoin.spark import join
from streamjoin.spark.runtime import whole_batches
from tests.seeds import crossed
from tests.spark.joining import CASES, blueprint, expected, in_process, stream, streams, tables, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BAND = CASES[0]
SPEC = BAND.bound_spec()
Found = dict[int, Counter[tuple[int, int]]]
PARTIAL: dict[str, Callable[[Any], object]] = {
    "show": lambda frame: frame.show(5),
    "take": lambda frame: frame.take(1),
    "first": lambda frame: frame.first(),
    "limit": lambda frame: frame.limit(1).collect(),
    "is empty": lambda frame: frame.isEmpty(),
    "local iterator": lambda frame: next(frame.toLocalIterator(), None),
    "nothing": lambda _: None,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input of every test: four batches."""
    path = tmp_path_factory.mktemp("input")
    write_files(path, tables(BAND, *stream(BAND, seed=6, n=80), 4))
    return path


def _joined(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    return join(*streams(spark, directory, BAND.left, BAND.right), SPEC, partitions=3, **options)


def _ids(frame: DataFrame) -> Counter[tuple[int, int]]:
    return Counter((row.id_left, row.id_right) for row in frame.select("id_left", "id_right").collect())


def _run(frame: DataFrame, checkpoint: Path, function: Callable[[Any, int], object]) -> None:
    writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _collecting(found: Found) -> Callable[[Any, int], None]:
    return lambda frame, batch: found.__setitem__(batch, _ids(frame))


@pytest.fixture(scope="module")
def rows(spark: SparkSession, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Found]]:
    """The rows of each batch, unordered and ordered, where a function reads all of them."""
    found: dict[bool, Found] = {False: {}, True: {}}
    for ordered, batches in found.items():
        frame = _joined(spark, directory, ordered=ordered)
        _run(frame, tmp_path_factory.mktemp("all") / "checkpoint", _collecting(batches))
    assert sum(found[False].values(), Counter()) == expected(BAND, *stream(BAND, seed=6, n=80))
    assert sorted(found[True]) == [0, 1, 2, 3]
    yield found


@pytest.mark.parametrize(("action", "ordered"), crossed([(action,) for action in PARTIAL], [False, True]))
def test_a_function_may_read_some_rows_of_some_batches(
    spark: SparkSession, directory: Path, rows: dict[bool, Found], tmp_path: Path, action: str, ordered: bool
) -> None:
    found: Found = {}

    def take(frame: DataFrame, batch: int) -> None:
        if batch % 2:
            found[batch] = _ids(frame)
        else:
            PARTIAL[action](frame)

    # What follows the join keeps the promise.
    frame = _joined(spark, directory, ordered=ordered).select("id_left", "id_right").where("id_left >= 0")
    _run(frame, tmp_path / "checkpoint", take)
    assert found == {batch: rows[ordered][batch] for batch in (1, 3)}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_function_that_fails_gets_the_batch_again(
    spark: SparkSession, directory: Path, rows: dict[bool, Found], tmp_path: Path, ordered: bool
) -> None:
    from pyspark.errors import StreamingQueryException

    found: Found = {}

    def fail(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            frame.take(1)
            raise ValueError("no luck")
        found[batch] = _ids(frame)

    with pytest.raises(StreamingQueryException, match="no luck"):
        _run(_joined(spark, directory, ordered=ordered), tmp_path / "checkpoint", fail)
    assert sorted(found) == [0]
    _run(_joined(spark, directory, ordered=ordered), tmp_path / "checkpoint", _collecting(found))
    assert found == rows[ordered]


@pytest.mark.parametrize(
    ("action", "first", "reads_later", "gated"),
    crossed(
        [("take", 2, True), ("nothing", 0, True), ("nothing", 2, True), ("nothing", 0, False), ("nothing", 2, False)],
        [False, True],
    ),
)
def test_where_nobody_looks_in_time_the_next_start_runs_the_batch_again(
    spark: SparkSession,
    directory: Path,
    rows: dict[bool, Found],
    tmp_path: Path,
    gated: bool,
    action: str,
    first: int,
    reads_later: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The function of a view of the result is Spark's alone."""
    from pyspark.errors import StreamingQueryException

    found: Found = {}

    def take(frame: DataFrame, batch: int) -> None:
        if batch < first:
            found[batch] = _ids(frame)
        elif batch == first:
            PARTIAL[action](frame)
        elif reads_later:
            frame.collect()

    def view() -> DataFrame:
        _joined(spark, directory, idle="1 hour" if gated else None).createOrReplaceTempView("whole")
        return spark.sql("SELECT * FROM whole")

    failing = pytest.raises(
        StreamingQueryException,
        match=rf"(?s)does not hold batch {first}, .*foreachBatch did not read all.*batch {first} runs again",
    )
    # If no task of a later batch runs either, nothing fails.
    with failing if reads_later else contextlib.nullcontext():
        _run(view(), tmp_path / "checkpoint", take)
    with caplog.at_level(logging.WARNING, whole_batches.__name__):
        _run(view(), tmp_path / "checkpoint", _collecting(found))
    assert f"batch {first} of {tmp_path}/checkpoint was committed although" in caplog.text.replace("file:", "")
    assert found[first] == rows[gated][first]
    assert sum(found.values(), Counter()) == sum(rows[gated].values(), Counter())
    caplog.clear()
    _run(view(), tmp_path / "checkpoint", take)
    assert not caplog.text


def test_a_batch_that_can_not_be_made_whole_fails(tmp_path: Path) -> None:
    """As if Spark ran no task of the join for what follows it."""
    plan = blueprint(BAND, 2)
    ran: list[int] = []
    answer = json.dumps({"root": str(tmp_path), "epoch": 1})
    conf = SimpleNamespace(get=lambda key, _: answer if key.endswith(plan.token) else None)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf), count=lambda: ran.append(1))
    whole = whole_batches.reading_all(lambda _, batch: ran.append(batch), [plan])
    with pytest.raises(sj.StateError, match="batch 0 can't be committed: Spark runs no task of the join"):
        whole(frame, 0)
    assert ran == [0, 1]
    in_process(plan, tmp_path, 0, tables(BAND, *stream(BAND, seed=6, n=8), 1)[0])
    whole(frame, 0)
    assert ran == [0, 1, 0]


def test_what_is_no_function_is_spark_s_to_refuse(spark: SparkSession, directory: Path) -> None:
    with pytest.raises(Exception, match=r"NoneType|callable|function") as refusal:
        _joined(spark, directory).writeStream.foreachBatch(None).trigger(availableNow=True).start().awaitTermination()  # type: ignore[arg-type]
    assert not isinstance(refusal.value, sj.StreamJoinError)
