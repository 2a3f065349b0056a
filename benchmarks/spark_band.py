"""`spark.join` beside what Spark offers for a band join of two streams, on the same files in the same session.

Both join by |l.key - r.key| <= d and a time window, d set so that a tuple meets two partners in a full window; the
workaround runs with both cell sizes that were found good, and the better one counts. The first file of each side fills
the window, in one batch that is not measured; every later one is a batch. The workaround takes minutes for what
the join does in seconds, so it gets fewer of the same files, and both must give as many rows on those.

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
from benchmarks.harness import Cell, Context, Experiment, Row, human
from benchmarks.spark_workaround import BEST_MEMORY, BEST_SETTINGS, CELLS_IN_BANDS, FilesRun, run_files, workaround
from benchmarks.workload import BandWorkload, Side
from streamjoin.spark import session

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

JOIN, WORKAROUND, NOTHING = "spark.join", "workaround", "Spark alone"
SIDES: tuple[Side, Side] = ("left", "right")

_STEP_US = 1_000
_TINY = 20
_WARM_UP = 5_000
_AIM_WINDOW, _AIM = 1_000_000, 20.0


@dataclass(frozen=True)
class Plan:
    """How many batches are measured, after the one that fills the window and `settling` more."""

    join: int
    workaround: int
    settling: int


def plan(batch: int, quick: bool) -> Plan:
    """Short where a batch of the workaround takes half a minute."""
    if quick:
        return Plan(join=4, workaround=2, settling=1)
    return Plan(join=8, workaround=1, settling=0) if batch >= 500_000 else Plan(join=12, workaround=3, settling=1)


class Load:
    """The files of one cell: the window first, then one file a side for each batch."""

    def __init__(self, cell: Cell, context: Context) -> None:
        self.window: int = cell["window"]
        self.data = BandWorkload(self.window, seed=context.seed)
        self._rows = cell["batch"] // 2
        self._root = context.scratch / f"{self.window}-{cell['batch']}"

    @property
    def window_ms(self) -> int:
        """The time in which a side sends `window` rows."""
        return self.window * _STEP_US // 1000

    def directories(self, batches: int) -> tuple[Path, Path]:
        """The two sides, with the window and `batches` files each."""
        left, right = (self._root / f"{side}-{batches}" for side in SIDES)
        for side, directory in zip(SIDES, (left, right), strict=True):
            if not directory.exists():
                directory.mkdir(parents=True)
                for number in range(batches + 1):
                    os.link(self._file(side, number), directory / f"{number:06d}.parquet")
        return left, right

    def fresh(self, name: str) -> Path:
        """A checkpoint that nobody used."""
        checkpoint = self._root / name
        shutil.rmtree(checkpoint, ignore_errors=True)
        return checkpoint

    def _file(self, side: Side, number: int) -> Path:
        path = self._root / f"{side}-{number:06d}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            start, rows = (self.window + (number - 1) * self._rows, self._rows) if number else (0, self.window)
            pq.write_table(self.data.timed_table(side, start, rows, _STEP_US), path)
            # Spark takes files in the order of their times, of which two may else be the same.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return path


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
        windows = (50_000,) if quick else (100_000, _AIM_WINDOW)
        batches = (50_000,) if quick else (100_000, 1_000_000)
        points: list[Cell] = [{"window": w, "batch": b} for w in windows for b in batches]
        floors: list[Cell] = [{"window": windows[0], "batch": _TINY, "system": name} for name in (NOTHING, JOIN)]
        return [*({**at, "system": name} for at in points for name in (JOIN, WORKAROUND)), *floors]

    def baseline(self, cell: Cell) -> Cell | None:
        """The workaround on the same point; the floors have none."""
        return {**cell, "system": WORKAROUND} if cell["system"] == JOIN and cell["batch"] != _TINY else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the query over the cell's files."""
        load, plan_ = Load(cell, context), plan(cell["batch"], context.quick)
        if self._spark is None:
            self._warm_up(context)
        if cell["system"] == WORKAROUND:
            return self._workaround(cell, load, plan_)
        build = self._join(load) if cell["system"] == JOIN else _union
        left, right = load.directories(plan_.settling + plan_.join)
        run = run_files(self._session(), build, left, right, checkpoint=load.fresh("join"), skip=1 + plan_.settling)
        if cell["system"] == JOIN:
            self._agree(cell, "join", run)
        return _answer(run, f"{plan_.join} batches")

    def close(self) -> None:
        """Stop Spark, if a run started it."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        self._results.clear()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bars by point, with the ratio above ours."""
        points = [row for row in rows if "ratio" in row]
        axes = figure.subplots()
        for offset, system in ((-0.2, WORKAROUND), (0.2, JOIN)):
            speeds = [_at(rows, row, system)["rows_per_s"] for row in points]
            bars = axes.bar([i + offset for i in range(len(points))], speeds, 0.4, label=system)
            if system == JOIN:
                axes.bar_label(bars, [f"{row['ratio']:.0f}×" for row in points])
        labels = [f"window {human(row['window'])}\nbatch {human(row['batch'])}" for row in points]
        axes.set_xticks(range(len(points)), labels)
        axes.set(yscale="log", ylabel="rows/s", ylim=(1_000, 10_000_000))
        axes.legend()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Ratio and speed by point, the aim, and the floor."""
        lines = []
        for row in rows:
            if "ratio" in row:
                aimed = row["window"] >= _AIM_WINDOW
                met = f"; aim {_AIM:.0f}: {'met' if row['ratio'] >= _AIM else 'missed'}" if aimed else ""
                lines.append(
                    f"window {row['window']:,} a side, batches of {row['batch']:,}: {human(row['rows_per_s'])} rows/s, "
                    f"{row['ratio']:.3g} times the workaround{met}"
                )
        floors = {row["system"]: row["batch_s"] for row in rows if row["batch"] == _TINY}
        lines.append(
            f"a batch of {_TINY} rows takes {floors[JOIN]:.2f} s with the join and {floors[NOTHING]:.2f} s in Spark "
            "without one: no batch is faster than that"
        )
        if not any(row["window"] >= _AIM_WINDOW for row in rows):
            lines.append("the aim is set at windows of a million tuples: run without --quick")
        return lines

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = session("spark_band", memory=BEST_MEMORY)
        return self._spark

    def _warm_up(self, context: Context) -> None:
        """Both systems once over little, so that neither pays for being first in a young Java."""
        self._session()
        for system in (JOIN, WORKAROUND):
            cell = {"window": _WARM_UP, "batch": 2 * _WARM_UP, "system": system}
            self.run(cell, dataclasses.replace(context, quick=True))

    def _join(self, load: Load) -> Any:
        spec = sj.JoinSpec(
            on=sj.Band("key", "key", load.data.band),
            window=sj.TimeWindow(timedelta(milliseconds=load.window_ms)),
            time="ts",
            order="event_time",
        )
        return lambda left, right: sj.spark.join(left, right, spec)

    def _workaround(self, cell: Cell, load: Load, plan_: Plan) -> Mapping[str, Any]:
        runs = {}
        for bands in CELLS_IN_BANDS:
            runs[bands] = run_files(
                self._session(),
                lambda left, right, bands=bands: workaround(
                    left, right, band=load.data.band, window_ms=load.window_ms, cell=bands * load.data.band
                ),
                *load.directories(plan_.settling + plan_.workaround),
                checkpoint=load.fresh(f"cells-{bands}"),
                skip=1 + plan_.settling,
                settings=BEST_SETTINGS,
            )
            self._agree(cell, f"cells of {bands} bands", runs[bands])
        best = max(runs, key=lambda bands: runs[bands].rows_per_second)
        others = ", ".join(f"{n} bands {human(run.rows_per_second)}" for n, run in runs.items() if n != best)
        return _answer(runs[best], f"cells of {best} bands ({others})")

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
        "fill_s": run.batches[0].seconds,
        "how": how,
    }


def _at(rows: Sequence[Row], point: Row, system: str) -> Row:
    return next(r for r in rows if all(r[k] == v for k, v in {**_point(point), "system": system}.items()))


def _point(row: Row) -> dict[str, Any]:
    return {"window": row["window"], "batch": row["batch"]}


EXPERIMENT = SparkBand()
