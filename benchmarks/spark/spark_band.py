"""`spark.join` beside what Spark offers for a band join of two streams, on the same files in the same session.

All join by |l.key - r.key| <= d and a time window, d set so that a tuple meets two partners in a full window. The
workaround cuts keys into cells (`spark_workaround`) of one of two sizes that were found good: small batches run with
both, and the better one counts; of large ones each size gets one batch, and the better one the rest.
`transformWithState` has the same kernels over Spark's state store (`spark_state`). The first five files of each
side fill the window, in batches that are not measured, nor are the next few, to let Java compile; as many later ones
are (of the workaround's large ones fewer). All must give as many rows, batch by batch, on the files in common.

Two cells without a baseline show the floor: batches of a few rows, with the join and with none.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human, met
from benchmarks.spark.spark_runs import ROW_BYTES, state_bytes
from benchmarks.spark.spark_state import ROCKSDB, by_state
from benchmarks.spark.spark_workaround import (
    BEST_MEMORY,
    BEST_SETTINGS,
    CELLS_IN_BANDS,
    FilesRun,
    run_files,
    workaround,
)
from benchmarks.workload import BandWorkload, Side
from streamjoin.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOIN, WORKAROUND, STATE, NOTHING = "spark.join", "workaround", "transformWithState", "Spark alone"
SIDES: tuple[Side, Side] = ("left", "right")

FILL = 5
"""Batches that fill the window: it does not come as one run, which no stream would make it."""
_STEP_US = 1_000
_TINY = 20
_WARM_UP = 5_000
_AIM, _AIM_BATCH, _AIM_SPEED, _AIM_STATE = 20.0, 1_000_000, 1e6, 1.5


@dataclass(frozen=True)
class Plan:
    """How many batches are measured, after those that fill the window and `settling` more."""

    measured: int
    settling: int


def plan(batch: int, quick: bool, system: str = JOIN) -> Plan:
    """The same for all systems; short where a batch takes long: half a minute, if large, with the workaround."""
    slow = system == WORKAROUND and batch >= _AIM_BATCH
    if quick or slow:
        return Plan(2, 1)
    return Plan(6, 4) if batch >= _AIM_BATCH else Plan(8, 8)


_TRIAL = Plan(1, 0)
"""What shows which size of cells is the better one, where a batch takes long."""


class Load:
    """The files of one cell: the window first, in `FILL` files a side, then one for each batch."""

    def __init__(self, cell: Cell, context: Context) -> None:
        self.window: int = cell["window"]
        self.data = BandWorkload(self.window, seed=context.seed)
        self._rows = cell["batch"] // 2
        self._root = context.scratch / f"{self.window}-{cell['batch']}"

    @property
    def window_ms(self) -> int:
        """The time in which a side sends `window` rows."""
        return self.window * _STEP_US // 1000

    @property
    def spec(self) -> sj.JoinSpec:
        """The join."""
        window = sj.TimeWindow(timedelta(milliseconds=self.window_ms))
        return sj.JoinSpec(sj.Band("key", "key", self.data.band), window, time="ts", order="event_time")

    def directories(self, batches: int) -> tuple[Path, Path]:
        """The two sides, with the window and `batches` files each."""
        left, right = (self._root / f"{side}-{batches}" for side in SIDES)
        for side, directory in zip(SIDES, (left, right), strict=True):
            if not directory.exists():
                directory.mkdir(parents=True)
                for number in range(FILL + batches):
                    os.link(self._file(side, number), directory / f"{number:06d}.parquet")
        return left, right

    def fresh(self, name: str) -> Path:
        """A new checkpoint."""
        checkpoint = self._root / name
        shutil.rmtree(checkpoint, ignore_errors=True)
        return checkpoint

    def _file(self, side: Side, number: int) -> Path:
        path = self._root / f"{side}-{number:06d}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            start, end = (self._begin(at) for at in (number, number + 1))
            pq.write_table(self.data.timed_table(side, start, end - start, _STEP_US), path)
            # Spark takes files in the order of their times, of which two may else be the same.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return path

    def _begin(self, number: int) -> int:
        return self.window * number // FILL if number <= FILL else self.window + (number - FILL) * self._rows


class SparkBand(Experiment):
    """Rows a second of a streaming band join on Spark."""

    title = "spark_band: streaming band join on Spark, match rate 2, both sides together, result to the noop sink"
    measure = "rows_per_s"
    unit = "rows/s"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._results: dict[tuple[int, int, str], list[int]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every window with every batch, and two floors."""
        windows = (50_000,) if quick else (100_000, 1_000_000)
        batches = (50_000,) if quick else (100_000, _AIM_BATCH)
        points: list[Cell] = [{"window": w, "batch": b} for w in windows for b in batches]
        floors: list[Cell] = [{"window": windows[0], "batch": _TINY, "system": name} for name in (NOTHING, JOIN)]
        return [*({**at, "system": name} for at in points for name in (JOIN, WORKAROUND, STATE)), *floors]

    def baseline(self, cell: Cell) -> Cell | None:
        """The workaround on the same point; the floors have none."""
        compared = cell["system"] in (JOIN, STATE) and cell["batch"] != _TINY
        return {**cell, "system": WORKAROUND} if compared else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the query over the cell's files."""
        load, plan_ = Load(cell, context), plan(cell["batch"], context.quick, cell["system"])
        if self._spark is None:
            self._warm_up(context)
        if cell["system"] == WORKAROUND:
            return self._workaround(cell, load, plan_)
        spec = load.spec
        builds: dict[str, tuple[Any, dict[str, str]]] = {
            JOIN: (lambda left, right: sj.spark.join(left, right, spec), {}),
            STATE: (lambda left, right: by_state(left, right, spec, load.data.domain), ROCKSDB),
            NOTHING: (_union, {}),
        }
        build, settings = builds[cell["system"]]
        checkpoint = load.fresh(cell["system"].replace(" ", "-"))
        run = self._run(build, load, plan_, checkpoint, settings)
        if cell["system"] == NOTHING:
            return _answer(run, f"{plan_.measured} batches")
        self._agree(cell, cell["system"], run)
        answer = _answer(run, f"{plan_.measured} batches")
        if cell["system"] == JOIN:
            answer["state"] = state_bytes(self._session(), checkpoint) / (2 * load.window * ROW_BYTES)
        return answer

    def _run(self, build: Any, load: Load, plan_: Plan, checkpoint: Path, settings: Mapping[str, str]) -> FilesRun:
        sides = load.directories(plan_.settling + plan_.measured)
        skip = FILL + plan_.settling
        return run_files(self._session(), build, *sides, checkpoint=checkpoint, skip=skip, settings=settings)

    def close(self) -> None:
        """Stop Spark, if a run started it."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        self._results.clear()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bars by point, with the ratio above ours."""
        points = [row for row in rows if "ratio" in row and row["system"] == JOIN]
        axes = figure.subplots()
        for offset, system in ((-0.27, WORKAROUND), (0, STATE), (0.27, JOIN)):
            speeds = [_at(rows, row, system)["rows_per_s"] for row in points]
            bars = axes.bar([i + offset for i in range(len(points))], speeds, 0.27, label=system)
            if system == JOIN:
                axes.bar_label(bars, [f"{row['ratio']:.0f}×" for row in points])
        labels = [f"window {human(row['window'])}\nbatch {human(row['batch'])}" for row in points]
        axes.set_xticks(range(len(points)), labels)
        axes.set(yscale="log", ylabel="rows/s", ylim=(1_000, 10_000_000))
        axes.legend()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Ratios, speed and state by point with their aims, and the floor."""
        ours = [row for row in rows if "ratio" in row and row["system"] == JOIN]
        lines = [_line(row, row["rows_per_s"] / _at(rows, row, STATE)["rows_per_s"]) for row in ours]
        floors = {row["system"]: row["batch_s"] for row in rows if row["batch"] == _TINY}
        lines.append(
            f"a batch of {_TINY} rows takes {floors[JOIN]:.2f} s with the join and {floors[NOTHING]:.2f} s in Spark "
            "without one: no batch is faster than that"
        )
        for row in ours:
            most = row["batch"] / floors[JOIN] / _at(rows, row, WORKAROUND)["rows_per_s"]
            if most < _AIM:
                lines.append(
                    f"window {row['window']:,} a side, batches of {row['batch']:,}: {_AIM:.0f} times can't be reached, "
                    f"as batches that took no longer than that would make {most:.3g} times the workaround's rows"
                )
        return lines

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = session("spark_band", memory=BEST_MEMORY, config={"spark.ui.enabled": False})
        return self._spark

    def _warm_up(self, context: Context) -> None:
        """Both systems once over little, so that neither pays for being first in a young Java."""
        self._session()
        for system in (JOIN, WORKAROUND, STATE):
            cell = {"window": _WARM_UP, "batch": 2 * _WARM_UP, "system": system}
            self.run(cell, dataclasses.replace(context, quick=True))

    def _workaround(self, cell: Cell, load: Load, plan_: Plan) -> Mapping[str, Any]:
        """The better size of cells; where a batch takes long, only that one runs more than a trial."""
        large = cell["batch"] >= _AIM_BATCH
        runs = {bands: self._in_cells(cell, load, _TRIAL if large else plan_, bands) for bands in CELLS_IN_BANDS}
        best = max(runs, key=lambda bands: runs[bands].rows_per_second)
        others = "".join(f", {n} bands {human(run.rows_per_second)}" for n, run in runs.items() if n != best)
        if large:
            others = f", in a trial {human(runs[best].rows_per_second)}{others}"
            runs[best] = self._in_cells(cell, load, plan_, best)
        return _answer(runs[best], f"{plan_.measured} batches, cells of {best} bands{others}")

    def _in_cells(self, cell: Cell, load: Load, plan_: Plan, bands: int) -> FilesRun:
        def build(left: DataFrame, right: DataFrame) -> DataFrame:
            band = load.data.band
            return workaround(left, right, band=band, window_ms=load.window_ms, cell=bands * band)

        run = self._run(build, load, plan_, load.fresh(f"cells-{bands}"), BEST_SETTINGS)
        self._agree(cell, f"cells of {bands} bands", run)
        return run

    def _agree(self, cell: Cell, name: str, run: FilesRun) -> None:
        """Fail unless all systems gave as many rows, batch by batch, on the files that they have in common."""
        mine = [batch.results for batch in run.batches if batch.rows]
        for (window, batch, other), theirs in self._results.items():
            common = min(len(mine), len(theirs))
            if (window, batch) == (cell["window"], cell["batch"]) and mine[:common] != theirs[:common]:
                raise AssertionError(
                    f"window {window:,}, batches of {batch:,}: rows by batch are {mine[:common]} with {name} and "
                    f"{theirs[:common]} with {other}"
                )
        self._results[cell["window"], cell["batch"], name] = mine


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.union(right)


def _answer(run: FilesRun, how: str) -> dict[str, Any]:
    return {
        "rows_per_s": run.rows_per_second,
        "batch_s": statistics.median(batch.seconds for batch in run.steady),
        "match_rate": sum(b.results for b in run.steady) / sum(b.rows for b in run.steady),
        "fill_s": sum(batch.seconds for batch in run.batches[:FILL]),
        "how": how,
    }


def _line(row: Row, by_state_: float) -> str:
    """One point's figures beside their aims."""

    def judged(aim: str, holds: bool) -> str:
        return f" (aim {aim}: {met(holds)})"

    speed = judged("1 M", row["rows_per_s"] >= _AIM_SPEED) if row["batch"] >= _AIM_BATCH else ""
    return (
        f"window {row['window']:,} a side, batches of {row['batch']:,}: {human(row['rows_per_s'])} rows/s{speed}, "
        f"{row['ratio']:.3g} times the workaround{judged(f'{_AIM:.0f}', row['ratio'] >= _AIM)}, {by_state_:.3g} times "
        f"transformWithState; on disk {row['state']:.2f} times the window's rows of {ROW_BYTES} bytes"
        f"{judged(f'{_AIM_STATE}', row['state'] <= _AIM_STATE)}"
    )


def _at(rows: Sequence[Row], point: Row, system: str) -> Row:
    return next(r for r in rows if all(r[k] == v for k, v in {**_point(point), "system": system}.items()))


def _point(row: Row) -> dict[str, Any]:
    return {"window": row["window"], "batch": row["batch"]}


EXPERIMENT = SparkBand()
