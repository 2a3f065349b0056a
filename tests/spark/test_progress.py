"""What users see of a running join: its figures, its late rows as files, and only the columns they asked for."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind, narrowed
from streamjoin.spark import Progress, join
from streamjoin.spark.runtime import checkpoints
from streamjoin.spark.stages import spending
from streamjoin.spark.stages.spending import Spent, spent
from streamjoin.storage.log import WindowLog
from tests.spark.joining import CASES, blueprint
from tests.spark.three_sources import read_source, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDE = pa.schema([("t", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("blob", pa.binary()), ("n", pa.int64())])
SPEC = sj.JoinSpec(sj.Equi("k") & sj.Theta("l.v < r.v"), sj.TimeWindow(5), time="t", order="event_time")


def test_only_what_is_asked_for_or_needed_stays() -> None:
    bound = bind(SPEC, WIDE, WIDE)
    some = narrowed(bound, ["blob_right", "k"], (["n"], []))
    assert some.schema.names == ["k", "blob_right", "t"]
    assert [column.name for column in some.late_columns] == ["k_left", "k_right", "blob_right"]
    assert some.left_schema.names == ["t", "k", "v", "n"]
    assert some.right_schema.names == ["t", "k", "v", "blob"]
    assert narrowed(bound, None) is bound
    assert narrowed(bound, []).schema.names == ["t"]
    itself = sj.JoinSpec(sj.Band("k", "v", 1), sj.TimeWindow(5), time="t", order="event_time", self_join=True)
    both = narrowed(bind(itself, WIDE), ["blob_left", "n_right"])
    assert both.left_schema.names == both.right_schema.names == ["t", "k", "v", "blob", "n"]
    with pytest.raises(sj.SchemaError, match="did you mean 'blob_left'"):
        narrowed(bound, ["blobleft"])


BEGINNING = """
import os, sys, pathlib
from streamjoin.spark.stages import spending
from streamjoin.jit.compiling import WATCH
from streamjoin.storage.log import WindowLog
from tests.spark.joining import CASES, blueprint
log = WindowLog(pathlib.Path(sys.argv[1]), 7, blueprint(CASES[0], 2))
WATCH.seconds = 3.0
spending.keep(5.0)
for worker in (0, 1):
    if os.fork() == 0:
        WATCH.seconds += worker
        spending.tell(log, worker, 0)
        spending.tell(log, worker, 1)
        os._exit(0)
    os.wait()
"""


def test_what_beginning_took_is_told_once(tmp_path: Path) -> None:
    """The first worker forked from a process that loaded tells of the loading, another of its own compiling."""
    subprocess.run([sys.executable, "-c", BEGINNING, str(tmp_path)], check=True, cwd=Path(__file__).parents[2])
    log = WindowLog(tmp_path, 7, blueprint(CASES[0], 2))
    assert [spent(log, batch, 7) for batch in (0, 1, 2)] == [Spent(2.0, 3.0), Spent(0.0, 1.0), Spent()]
    assert spent(log, 0, 8) == Spent()
    assert len(list(tmp_path.rglob("*.spent"))) == 2
    next(tmp_path.rglob("*.spent")).write_text("?")
    assert Spent() in [spent(log, batch, 7) for batch in (0, 1)]


def test_a_full_disk_costs_a_figure_and_not_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spending, "_told", -1.0)
    monkeypatch.setattr(os, "fsync", full)
    log = WindowLog(tmp_path, 7, blueprint(CASES[0], 2))
    spending.tell(log, 0, 0)
    assert spent(log, 0, 7) == Spent()


@pytest.mark.spark
def test_columns_that_nobody_asks_for_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Nor shuffled, as what a side's stage takes in is all that it can send on."""
    frame = spark.readStream.schema("t long, k long, v long, blob binary, n long").parquet(str(tmp_path))
    joined = join(frame, frame, SPEC, columns=["n_left"], ordered=True)
    plan = joined._jdf.queryExecution().analyzed().toString()
    (left, right) = re.findall(r"MapInArrow streamjoin_route_\w+\((.*?)\)", plan)
    assert re.findall("[a-z]+", left) == ["t", "k", "v", "n"]
    assert re.findall("[a-z]+", right) == ["t", "k", "v"]


@pytest.mark.spark
def test_figures_late_files_and_columns_of_a_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoints, "MANY_WAITING", 1)
    rows = [{"t": t, "x": 1, "id": t} for t in range(8)]
    sources = {"a": [*rows[:5], {"t": 0, "x": 1, "id": 99}], "b": rows[:6]}
    spec = sj.JoinSpec(sj.Equi("x"), sj.CountWindow(2), time="t", order="event_time")
    progress = Progress(spark)
    figures, reports = [], []
    # A start for each batch: what a batch leaves behind is only there for so long.
    for i in range(3):
        for name, all_rows in sources.items():
            write_source(tmp_path / f"{i}{name}", all_rows[2 * i : 2 * i + 2], 1)
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / f"{i}{name}/0000.parquet").rename(tmp_path / name / f"{i:04}.parquet")
        sides = read_source(spark, tmp_path / "a"), read_source(spark, tmp_path / "b")
        joined = join(*sides, spec, columns=["id_left", "id_right"], late=tmp_path / "late files", partitions=2)
        assert joined.columns == ["id_left", "id_right", "t"]
        query = (
            joined.writeStream.format("parquet").option("path", str(tmp_path / "out")).trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        query.awaitTermination()
        progress.settle()
        figures += progress.of(query)
        reports += query.recentProgress
    progress.close()
    assert [figure.batch for figure in figures] == [0, 1, 2]
    assert [figure.rows for figure in figures] == [4, 4, 4]
    last = figures[-1]
    assert (last.join, last.ranges, last.late, last.waiting, last.gate_lag) == ("join", 2, 1, 2, 1)
    # The figures are those before a batch, what the warning says those after it.
    (_, warning) = [record.getMessage() for record in caplog.records if "wait in the gate" in record.getMessage()]
    assert warning.startswith(
        "join: 2 rows wait in the gate for source '0000' of the left side, which is behind all others. "
    )
    assert last.window_bytes > 0
    assert last.skew >= 1
    assert last.runs >= 1
    assert last.rows_per_second > 0
    assert (last.bound, last.start_seconds, last.compile_seconds) == (4, 0.0, 0.0)
    assert [report["observedMetrics"]["streamjoin_join"].asDict() for report in reports][1:] == [
        {"left_rows": 2, "right_rows": 2, "copies": 4, "window_left": 2, "window_right": 1, "window_bytes": ANY,
         "runs": 1, "merged_runs": 0, "ranges": 2, "late": 0, "overflowed": 0, "bound": 1, "position": 3, "waiting": 1,
         "gate_lag": 0, "left_in": 2, "right_in": 2, "skew": ANY, "start_ms": ANY, "compile_ms": ANY},
        {"left_rows": 2, "right_rows": 2, "copies": 4, "window_left": 2, "window_right": 2, "window_bytes": ANY,
         "runs": 1, "merged_runs": 0, "ranges": 2, "late": 0, "overflowed": 0, "bound": 3, "position": 7, "waiting": 1,
         "gate_lag": 0, "left_in": 2, "right_in": 2, "skew": ANY, "start_ms": ANY, "compile_ms": ANY},
    ]  # fmt: skip
    skews = [report["observedMetrics"]["streamjoin_join"]["skew"] for report in reports]
    assert skews == [1000, *(int(1000 * figure.skew + 1e-6) for figure in figures[:-1])]
    assert pq.read_table(tmp_path / "late files")["id_left"].to_pylist() == [99]
    assert pq.read_table(tmp_path / "out").num_rows > 0
