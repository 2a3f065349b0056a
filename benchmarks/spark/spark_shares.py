"""How evenly the work of a batch is divided: what one task does of it, by stage, and what Python and the driver spend.

For n input partitions and n ranges the longest tasks of all stages would take one n-th of the sum of all tasks if
nothing were left to one task; a gate is a stage of one task. Shares are of the tasks' own time on a machine that may
have fewer cores than tasks, so they are about division of work and not about wall time. Batches that fill the window
and warm the workers are not counted.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Finding, Row, judge_aim
from benchmarks.spark.spark_runs import Files, SparkExperiment, Timed, speed, steady
from benchmarks.workload import Side
from streamjoin.storage import background

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INNER, ORDERED, COUNT, AS_OF = "inner", "inner, ordered", "inner, count window", "as-of"
KINDS = (INNER, "left", "full", "semi", "anti", AS_OF, COUNT, ORDERED)
_AIM, _LONE_AIM = 1.5, 0.02
_STEP_US, _SKIPPED, _SYMBOLS = 100, 3, 5_000
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def spec_of(kind: str, rows: int) -> sj.JoinSpec:
    """The join of one kind, with windows of about `rows` tuples per side."""
    length = timedelta(microseconds=rows * _STEP_US)
    if kind == AS_OF:
        return sj.JoinSpec(sj.Equi("payload"), match=sj.AsOf("backward", length), time="ts", how="left")
    window = sj.CountWindow(rows) if kind == COUNT else sj.TimeWindow(length)
    how: Any = kind if kind in ("left", "full", "semi", "anti") else "inner"
    return sj.JoinSpec(sj.Equi("key"), window, "ts", "event_time", how)


def longest_share(batch: Timed) -> float:
    """The longest task of each stage, over the sum of all tasks.

    >>> longest_share(Timed(1, 0, 1.0, {}, [[1.0, 1.0], [2.0]]))
    0.75
    """
    tasks = sum(map(sum, batch.stages))
    return sum(max(stage, default=0.0) for stage in batch.stages) / tasks if tasks else 0.0


def lone_share(batch: Timed) -> float:
    """What stages of one task take of the sum of all tasks.

    >>> lone_share(Timed(1, 0, 1.0, {}, [[1.0, 1.0], [2.0]]))
    0.5
    """
    tasks = sum(map(sum, batch.stages))
    return sum(sum(stage) for stage in batch.stages if len(stage) == 1) / tasks if tasks else 0.0


def python_seconds() -> float:
    """The processor time of the Python processes below this one, Spark's workers; 0 where it can't be read."""
    known: dict[int, tuple[int, str, float]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = status.read_text().rpartition(")")
        except OSError:
            # It has ended meanwhile.
            continue
        number, _, name = head.partition(" (")
        fields = tail.split()
        # The times of children that have ended are their parent's.
        known[int(number)] = int(fields[1]), name, sum(map(int, fields[11:15])) / _TICKS_A_SECOND

    def below(number: int) -> bool:
        while number in known and number != os.getpid():
            number = known[number][0]
        return number == os.getpid()

    return sum(
        seconds
        for number, (_, name, seconds) in known.items()
        if name.startswith("python") and number != os.getpid() and below(number)
    )


class SparkShares(SparkExperiment):
    """The share of the longest tasks."""

    title = "spark_shares: what one task does of a batch on Spark, by kind of join and number of ranges"
    measure = "evenness"
    unit = "of a perfect division"
    against: ClassVar = {"kind": INNER}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each kind, with few and many ranges."""
        sizes = (20_000,) if quick else (1_000_000,)
        numbers = (4,) if quick else (2, 8, 16)
        kinds = (INNER, "left", AS_OF) if quick else KINDS
        return [{"batch": size, "ranges": n, "kind": kind} for size in sizes for n in numbers for kind in kinds]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the batches of one cell."""
        n, batches = cell["ranges"], _SKIPPED + (2 if context.quick else 4)
        rows = cell["batch"] // 2 // n

        def table(side: Side, number: int) -> pa.Table:
            """The files of a batch have the same times, row by row in turn."""
            rng = np.random.default_rng([context.seed, side == "right", number])
            batch, place = divmod(number, n)
            ticks = pa.array((batch * rows * n + place + np.arange(rows) * n) * _STEP_US, pa.int64())
            times = ticks.cast(pa.timestamp("us", tz="UTC"))
            keys, symbols = rng.integers(0, 2 * rows * n, rows), rng.integers(0, _SYMBOLS, rows)
            return pa.table({"ts": times, "key": keys, "payload": symbols})

        self.spark.conf.set("spark.sql.files.minPartitionNum", n)
        files = Files(context, f"{rows} of {n}").write(lambda side: [table(side, i) for i in range(batches * n)])
        build = functools.partial(
            sj.spark.join, spec=spec_of(cell["kind"], rows * n), partitions=n, ordered=cell["kind"] == ORDERED
        )
        merges: list[float] = []
        before = python_seconds()
        with mock.patch.object(background, "merge_due", _timing(background.merge_due, merges)):
            ran = self.timed(build, files, context.scratch / "checkpoint", n)
        spent, rows_in = python_seconds() - before, sum(batch.rows for batch in ran)
        warm = steady(ran, _SKIPPED)
        share = statistics.median(map(longest_share, warm))
        return {
            "evenness": 1 / (n * share) if share else 0.0,
            "longest_share": share,
            "lone_share": statistics.median(map(lone_share, warm)),
            "largest_range": statistics.median(b.observed["streamjoin_join"]["skew"] / 1000 for b in warm),
            "python_us_a_row": 1e6 * spent / rows_in,
            "merge_us_a_row": 1e6 * sum(merges) / rows_in,
            "rows_per_s": speed(warm),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The share of the longest tasks by number of ranges, beside a perfect division."""
        axes = figure.subplots()
        for kind in dict.fromkeys(row["kind"] for row in rows):
            own = sorted((row["ranges"], row["longest_share"]) for row in rows if row["kind"] == kind)
            axes.plot(*zip(*own, strict=True), marker="o", label=kind)
        numbers = sorted({row["ranges"] for row in rows})
        axes.plot(numbers, [1 / n for n in numbers], "k--", label="perfect")
        axes.set(xlabel="ranges", ylabel="longest tasks over all tasks")
        axes.legend()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Both shares of each kind."""
        found = []
        for row in rows:
            share = row["longest_share"] * row["ranges"]
            found.append(
                judge_aim(
                    f"the longest tasks of {row['kind']}, {row['ranges']} ranges, batches of {row['batch']:,}",
                    f"{share:.2f}/n of all tasks' time, {row['lone_share']:.1%} in stages of one task; largest range "
                    f"{row['largest_range']:.2f} of the average; {row['python_us_a_row']:.2f} us of Python and "
                    f"{row['merge_us_a_row']:.2f} of merges a row",
                    f"at most {_AIM}/n, and {_LONE_AIM:.0%} in stages of one task",
                    met=share <= _AIM and row["lone_share"] <= _LONE_AIM,
                )
            )
        return found


def _timing(function: Callable[..., bool], seconds: list[float]) -> Callable[..., bool]:
    """`function`, which adds the processor time of each call to `seconds`."""

    @functools.wraps(function)
    def timed(*args: Any) -> bool:
        began = time.thread_time()
        try:
            return function(*args)
        finally:
            seconds.append(time.thread_time() - began)

    return timed


EXPERIMENT = SparkShares()
