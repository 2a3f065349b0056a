"""Joins of two streams in streamjoin and in the systems that people would use otherwise, on the same data.

Two streams of events with a time, a key and a price, in order of time. `band`: prices at most a distance apart, times
at most a window apart. `key`: equal keys, times at most a window apart. `asof`: the newest right event of the same key,
at most a window old. `queries`: twenty queries by key, each for left prices above another bound. Every system's pairs
are compared with those of streamjoin, one by one; a system that fails has a rate of zero and says why. The twenty
queries are separate ones in each system, as if twenty users had sent them. `once` is no stream: `key` with all input in
one call, which is the work that Polars and DuckDB are made for.

Polars and DuckDB join each micro-batch anew with the events that the window still holds. A band is joined by their
inequality joins, and by cells of the price: an equality of cells, which is what Spark and Flink need anyway, then the
exact test. The other systems run in processes and environments of their own, which the first run installs
(`benchmarks/rivals/programs`). Their start-up is not counted: what they take for a thousandth of the input, after a
first run that warms up, is subtracted; where that is more than half of all, the rate is with it (`at_least`). The
slowest get less input (`rows`), which leaves their window emptier.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human
from benchmarks.rivals.rival_runs import Programs, RivalRun
from benchmarks.rivals.rival_works import (
    OURS_ON_SPARK,
    SPARK_ROWS,
    WORKERS,
    Work,
    make_work,
    run_duckdb,
    run_polars,
    run_program,
    run_streamjoin,
    sorted_pairs,
)

if TYPE_CHECKING:
    from streamjoin._arrays import Array

_OURS = "streamjoin"
_WORKS = ("band", "key", "asof", "queries", "once")
_IN_PROCESS = (_OURS, "polars", "duckdb")
_CELLS = " by cells"
"""Ends the name of a system that joins a band by an equality of cells."""
_QUICK_ROWS = 4_000
_ROWS: Mapping[tuple[str, str], int] = {
    ("polars", "band"): 10_000,
    ("duckdb", "band"): 20_000,
    ("pathway", "asof"): 50_000,
    ("pathway", "queries"): 50_000,
    ("bytewax", "queries"): 5_000,
    ("flink", "queries"): 50_000,
    ("spark", "queries"): 100_000,
}
"""Rows per side of what would take minutes with as many as the others get."""
_NOT_MEASURED = {(OURS_ON_SPARK, "queries")}
"""The ad-hoc engine runs on Spark too: `ajoin_fig15` measures it."""
CANNOT: Mapping[tuple[str, str], str] = {
    ("spark", "asof"): "Spark has no as-of join of two streams",
}
NOTES: Mapping[str, str] = {
    _OURS: "aggregates by windows of time; a row is never taken back",
    OURS_ON_SPARK: "`sj.spark.join`; the same files and batches as Spark's own join",
    "polars": "no streams: the program keeps the window and joins each micro-batch anew",
    "duckdb": "no streams: the program keeps the window and joins each micro-batch anew",
    "pathway": "gets all input at once; a band is an interval join by price whose pairs are filtered by time",
    "bytewax": "no join by a condition on two times: Python steps with state; a band is the state of one key",
    "flink": "a band by cells of the price, as its interval join without an equality runs in one task",
    "spark": "refuses a band without an equality, so cells; no as-of join of two streams",
}
"""What each system can't express, or how it does."""
SETTINGS: Mapping[str, str] = {
    _OURS: "the embedded engine, for the queries the ad-hoc engine, pushes of 2 x 5,000",
    OURS_ON_SPARK: f"local[{WORKERS}], micro-batches of 2 x {SPARK_ROWS:,}, Parquet in and out",
    "polars": "all cores, micro-batches of 2 x 5,000",
    "duckdb": f"{WORKERS} threads, micro-batches of 2 x 5,000",
    "pathway": "one process, static mode, CSV in and out",
    "bytewax": "one worker, input in memory",
    "flink": f"parallelism {WORKERS}, heap state, no checkpoints, CSV in and out",
    "spark": f"local[{WORKERS}], micro-batches of 2 x {SPARK_ROWS:,}, HDFS-backed state, Parquet in and out",
}


class RivalsExperiment(Experiment):
    """Events per second of both sides together; the pairs are compared with those of streamjoin."""

    title = "the same joins in streamjoin and in other systems"
    measure = "events_per_s"
    unit = "events/s"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._programs = Programs()
        self._expected: dict[tuple[str, int, int], list[Array]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each work in each system that can express it; quick: those without an environment of their own."""
        systems: tuple[str, ...] = _IN_PROCESS
        if not quick:
            systems = (*systems, "pathway", "bytewax", "flink", "spark", OURS_ON_SPARK)
        return [
            {"work": work, "system": name, "rows": _QUICK_ROWS if quick else _rows(name, work)}
            for system in systems
            for work in _WORKS
            if (system, work) not in {*CANNOT, *_NOT_MEASURED} and (work != "once" or system in _IN_PROCESS)
            for name in _names(system, work)
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The embedded engine of streamjoin."""
        if cell["system"] == _OURS:
            return None
        rows = _QUICK_ROWS if cell["rows"] == _QUICK_ROWS else _rows(_OURS, cell["work"])
        return {**cell, "system": _OURS, "rows": rows}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One work in one system."""
        name, rows, system = cell["work"], cell["rows"], cell["system"]
        work = make_work(name, rows, context.seed)
        key = (name, rows, context.seed)
        if key not in self._expected:
            # The first time compiles or loads what streamjoin runs.
            self._expected[key] = sorted_pairs(run_streamjoin(work))
        try:
            run = self._run(system, work)
        except Exception as error:
            if system == _OURS:
                raise
            return _answer(system, 0.0, failed=f"failed: {error}")
        pairs, expected = sorted_pairs(run.tables), self._expected[key]
        other = [(a, b) for a, b in zip(pairs, expected, strict=True) if not np.array_equal(a, b)]
        return _answer(
            system,
            2 * rows / run.seconds,
            seconds=run.seconds,
            start_up_s=run.start_up,
            pairs=sum(map(len, pairs)),
            missing=sum(len(np.setdiff1d(b, a)) for a, b in other),
            same=not other,
            version=run.version,
            at_least=run.at_least,
        )

    def _run(self, system: str, work: Work) -> RivalRun:
        base, cells = system.removesuffix(_CELLS), system.endswith(_CELLS)
        in_process: dict[str, Callable[[Work], list[pa.Table]]] = {
            _OURS: run_streamjoin,
            "polars": lambda work: run_polars(work, cells),
            "duckdb": lambda work: run_duckdb(work, cells),
        }
        if base not in in_process:
            return run_program(self._programs, base, work)
        began = time.perf_counter()
        tables = in_process[base](work)
        return RivalRun(time.perf_counter() - began, 0.0, importlib.metadata.version(base), tables)

    def close(self) -> None:
        """End the program that still runs."""
        self._programs.close()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The rates of each work, the fastest first; wrong pairs and failures; where another system is faster."""
        lines = []
        for work in _WORKS:
            parts = [f"{row['system']} {human(row[self.measure])}" for row in by_rate(rows, work) if not row["failed"]]
            lines.append(f"{work}, events/s: {', '.join(parts)}")
        lines += [f"{row['system']}, {row['work']}: {row['failed']}" for row in rows if row["failed"]]
        lines += [
            f"{row['system']}, {row['work']}: other pairs than streamjoin's, {row['missing_pairs']:,} are missing"
            for row in rows
            if not row["failed"] and not row["same_pairs"]
        ]
        lines += [f"{row['system']} is {row['ratio']:.2f} times streamjoin in {row['work']}" for row in faster(rows)]
        return lines + [f"{system} can't express {work}: {why}" for (system, work), why in CANNOT.items()]

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel per work, bars by system on a logarithmic axis."""
        axes = figure.subplots(2, 2).flat
        for axis, work in zip(axes, [work for work in _WORKS if work != "once"], strict=True):
            chosen = [row for row in reversed(by_rate(rows, work)) if not row["failed"]]
            names = [row["system"] for row in chosen]
            colours = ["tab:blue" if _OURS in name else "tab:grey" for name in names]
            bars = axis.barh(names, [row[self.measure] for row in chosen], color=colours)
            axis.bar_label(bars, [human(row[self.measure]) for row in chosen], padding=3, fontsize=7)
            axis.set_xscale("log")
            axis.margins(x=0.25)
            axis.set_title(f"{work}, events/s", fontsize="medium")
            axis.tick_params(labelsize=8)


def _rows(system: str, work: str) -> int:
    """Rows per side: more for what runs in this process, because it is faster."""
    in_process = work != "queries" and system.removesuffix(_CELLS) in _IN_PROCESS
    return _ROWS.get((system, work), 500_000 if in_process else 200_000)


def _names(system: str, work: str) -> tuple[str, ...]:
    """A band is joined by cells where there is no other way, and both ways where there are two."""
    if work != "band" or system not in ("polars", "duckdb", "flink", "spark"):
        return (system,)
    return (system + _CELLS,) if system in ("flink", "spark") else (system, system + _CELLS)


def _answer(
    system: str,
    rate: float,
    *,
    seconds: float = 0.0,
    start_up_s: float = 0.0,
    pairs: int = 0,
    missing: int = 0,
    same: bool = False,
    version: str = "",
    at_least: bool = False,
    failed: str = "",
) -> dict[str, Any]:
    return {
        "events_per_s": rate,
        "seconds": seconds,
        "start_up_s": start_up_s,
        "pairs": pairs,
        "missing_pairs": missing,
        "same_pairs": same,
        "version": version,
        "at_least": at_least,
        "failed": failed,
        # A list, because the table on the terminal has no room for it.
        "settings": [SETTINGS[system.removesuffix(_CELLS)]],
    }


def by_rate(rows: Sequence[Row], work: str) -> list[Row]:
    """The rows of one work, the fastest first."""
    return sorted((row for row in rows if row["work"] == work), key=lambda row: -float(row["events_per_s"]))


def faster(rows: Sequence[Row]) -> list[Row]:
    """What is faster than streamjoin, and finds the same pairs."""
    return [row for row in rows if row.get("ratio", 0.0) > 1 and row["same_pairs"] and _OURS not in row["system"]]


EXPERIMENT = RivalsExperiment()
