"""Exactly once under kill -9: joins killed at random moments and restarted write what an undisturbed run writes.

Drivers, executors and Python workers are killed, with merges and other numbers of partitions under way. The output is
compared byte by byte: sorted, and for the ordered join in the order in which it was written.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.exactly_once_driver import AS_OF_SPEC, FULL_SPEC, KINDS, TIME_CASE, joined, started
from tests.spark.joining import expected, pairs, read_parquet, stream, tables, write_files
from tests.spark.three_sources import SPEC, expected_pairs, expected_rows, rising_rows, rows_in_order, write_source
from tests.spark.torture import Kills, Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("STREAMJOIN_KILLS", "20"))
"""Altogether; `make torture` asks for two hundred."""
BATCHES = 12
TIMELESS = range(100_000, 100_030)
"""The ids of rows without a time, some in every batch."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "kills", "share_of_drivers"),
    [("local[2,1000]", KILLS - 2 * KILLS // 5, 0.8), ("local-cluster[2,1,512]", 2 * KILLS // 5, 0.1)],
    ids=["drivers", "executors"],
)
def test_the_output_is_that_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], master: str, kills: int,
    share_of_drivers: float,
) -> None:  # fmt: skip
    rng = random.Random(KILLS)
    state = Kills(kills, _teller(capsys))
    laps = 0
    while laps == 0 or state.left:
        directory = tmp_path / str(laps)
        _write_input(directory, laps)
        Victim(directory, master, BATCHES, rng, state).run_to_the_end(share_of_drivers)
        _check(spark, directory, laps)
        laps += 1
    assert state.done == kills
    assert state.of_drivers > 0 or share_of_drivers < 0.5
    assert "merge" in state.seen
    assert len(state.seen) > 2, "the joins were never rescaled"


def _teller(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Where a long run shows what it has done so far."""

    def tell(line: str) -> None:
        if KILLS > 20:
            with capsys.disabled():
                print(line, flush=True)

    return tell


def _write_input(directory: Path, lap: int) -> None:
    left, right = stream(TIME_CASE, seed=lap, n=20 * BATCHES)
    write_files(directory, tables(TIME_CASE, _with_timeless(left, "ts"), right, BATCHES))
    for name, rows in _sources(lap).items():
        write_source(directory / name, _with_timeless(rows, "t") if name == "a" else rows, BATCHES)


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


def _check(spark: SparkSession, directory: Path, lap: int) -> None:
    """The output of all joins against the definition, and against one undisturbed batch over all files."""
    whole = directory / "undisturbed"
    running = [started(joined(spark, directory, kind, 2, per_batch=BATCHES), whole / kind) for kind in KINDS]
    for query in running:
        query.awaitTermination()
    a, b, c = _sources(lap).values()
    found = pairs(read_parquet(directory / "time/out"))
    assert found == expected(TIME_CASE, *stream(TIME_CASE, seed=lap, n=20 * BATCHES))
    for kind, spec in (("full", FULL_SPEC), ("as_of", AS_OF_SPEC)):
        assert pairs(read_parquet(directory / kind / "out")) == Counter(expected_rows(a, c, spec))
    ordered = rows_in_order(directory / "ordered")
    ids = list(zip(ordered["id_left"].to_pylist(), ordered["id_right"].to_pylist(), strict=True))
    assert ids == expected_pairs([a, b], c, SPEC)
    for kind in KINDS:
        late_rows = pq.read_table(directory / kind / "late")
        assert sorted(late_rows["id_left"].to_pylist()) == list(TIMELESS)
    for kind in ("time", "full", "as_of"):
        assert _sorted_bytes(directory / kind) == _sorted_bytes(whole / kind)
    assert _bytes(ordered) == _bytes(rows_in_order(whole / "ordered"))


def _sorted_bytes(directory: Path) -> bytes:
    table = read_parquet(directory / "out")
    assert table.num_rows > 50
    return _bytes(table.sort_by([("id_left", "ascending"), ("id_right", "ascending")]))


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata().combine_chunks())
    return bytes(sink.getvalue())
