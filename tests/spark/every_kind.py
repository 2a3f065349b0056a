"""The input of every kind of join for the tests that kill and that use Spark Connect, and what their output must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.testing.cases import JoinCase
from tests.spark.arrival_model import Model
from tests.spark.exactly_once_driver import (
    ARRIVAL_SPEC,
    AS_OF_SPEC,
    FULL_SPEC,
    KINDS,
    SUMMARY_SPEC,
    TIME_CASE,
    joined,
    started,
)
from tests.spark.joining import expected, pairs, read_parquet, stream, tables, write_files
from tests.spark.three_sources import (
    SCHEMA,
    SPEC,
    embedded_rows,
    expected_pairs,
    expected_rows,
    rising_rows,
    rows_in_order,
    write_source,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 12
TIMELESS = range(100_000, 100_030)
"""The ids of rows without a time, some in every batch."""


def write_input(directory: Path, lap: int, batches: int = BATCHES) -> None:
    """Write the rows of a lap, in `batches` files per source."""
    left, right = stream(TIME_CASE, seed=lap, n=20 * BATCHES)
    write_files(directory, tables(TIME_CASE, _with_timeless(left, "ts"), right, batches))
    for name, rows in _sources(lap).items():
        write_source(directory / name, _with_timeless(rows, "t") if name == "a" else rows, batches)


def _with_timeless(rows: list[dict[str, Any]], time: str) -> list[dict[str, Any]]:
    """The rows, and rows without a time among them and at the end, which are no part of any result."""
    step = len(rows) // len(TIMELESS)
    return [
        entry
        for i, row in enumerate(rows)
        for entry in ([row] if (i + 1) % step else [row, {**row, time: None, "id": TIMELESS[i // step]}])
    ]


def _sources(lap: int) -> dict[str, list[dict[str, int]]]:
    sizes = {"a": 90, "b": 60, "c": 120}
    return {name: rising_rows(10 * lap + i, n, 1000 * i) for i, (name, n) in enumerate(sizes.items())}


def check_undisturbed(spark: SparkSession, directory: Path) -> None:
    """The output of all joins against that of one undisturbed batch over all files."""
    whole = directory / "undisturbed"
    running = [started(joined(spark, directory, kind, 2, per_batch=BATCHES), whole / kind) for kind in KINDS]
    for query in running:
        query.awaitTermination()
    check_same(directory, whole)


def check_same(directory: Path, other: Path) -> None:
    """The output of all joins, byte by byte, against that of another run."""
    for kind in ("time", "arrival", "full", "as_of"):
        assert _sorted_bytes(directory / kind) == _sorted_bytes(other / kind)
    assert _bytes(rows_in_order(directory / "ordered")) == _bytes(rows_in_order(other / "ordered"))
    # What is in the place of a NULL depends on the file.
    assert rows_in_order(directory / "summary").to_pylist() == rows_in_order(other / "summary").to_pylist()


def check_output(directory: Path, lap: int, kinds: Sequence[str] = KINDS) -> None:
    """The output of the joins, and their late rows, against the definition."""
    a, b, c = _sources(lap).values()
    if "time" in kinds:
        found = pairs(read_parquet(directory / "time/out"))
        assert found == expected(TIME_CASE, *stream(TIME_CASE, seed=lap, n=20 * BATCHES))
    for kind, spec in (("full", FULL_SPEC), ("as_of", AS_OF_SPEC)):
        if kind in kinds:
            assert pairs(read_parquet(directory / kind / "out")) == Counter(expected_rows(a, c, spec))
    arrived = Model(JoinCase(ARRIVAL_SPEC, lambda l, r: abs(l["x"] - r["x"]) <= 1, (SCHEMA, SCHEMA), (), ()))
    arrived.add([a, c])
    assert pairs(read_parquet(directory / "arrival/out")) == arrived.rows()[0]
    ordered = rows_in_order(directory / "ordered")
    ids = list(zip(ordered["id_left"].to_pylist(), ordered["id_right"].to_pylist(), strict=True))
    assert ids == expected_pairs([a, b], c, SPEC)
    assert rows_in_order(directory / "summary").to_pylist() == embedded_rows(a, c, SUMMARY_SPEC).to_pylist()
    for kind in kinds:
        late_rows = pq.read_table(directory / kind / "late")
        assert sorted(late_rows["id_left"].to_pylist()) == list(TIMELESS)


def _sorted_bytes(directory: Path) -> bytes:
    table = read_parquet(directory / "out")
    assert table.num_rows > 50
    return _bytes(table.sort_by([("id_left", "ascending"), ("id_right", "ascending")]))


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata().combine_chunks())
    return bytes(sink.getvalue())
