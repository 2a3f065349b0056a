"""How evenly the work of a batch is divided: what one task does of it, by stage, and what Python and the driver spend.

For n input partitions a side and n ranges the longest tasks of all stages would take one n-th of the sum of all tasks
if nothing were left to one task; a gate is a stage of one task. By `CPU` the stages run in this process, one task after
the other: processor time of each, whatever else the machine does. By `Spark` they are tasks of a query, with what Spark
adds to them, in their own time. A window holds as many rows as a batch, or those of twenty. Batches that fill the
window and warm the workers are not counted, but the first batch of a band join, which knows nothing of its words, is
told apart. A million as-of keys are in `spark_kinds`.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim
from benchmarks.spark.spark_runs import Files, SparkExperiment, Timed, speed, steady
from benchmarks.workload import Side
from streamjoin.model.binding import bind
from streamjoin.spark.capacity.rehearsal import BatchOfRehearsal, Rehearsal
from streamjoin.storage import background
from streamjoin.storage.blueprint import Blueprint, GatePlan, SourcePlan

INNER, BAND, ORDERED, COUNT, AS_OF = "inner", "band", "inner, ordered", "inner, count window", "as-of"
KINDS = (INNER, "left", "full", "semi", "anti", AS_OF, COUNT, ORDERED)
HEAVY = "half on one key"
LONG = ", a window of 20 batches"
_UNORDERED = (INNER, "left", "full", "semi", "anti", AS_OF)
_AIM, _LONE_AIM, _LARGEST, _HEAVIEST = 1.5, 0.02, 1.3, 2.0
_RATE, _SMALL, _SMALL_AIM, _FLAT, _WRITTEN = 0.9, 20, 1.15, 1.1, 3.0
_STEP_US, _SKIPPED, _SYMBOLS = 100, 3, 5_000
_COLD, _HEAVY_ROWS, _LONG_ROWS = 2, 8_000, 2_000
_WINDOW = 20
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.int64()), ("payload", pa.int64())])


def spec_of(kind: str, rows: int) -> sj.JoinSpec:
    """The join of one kind, with windows of about `rows` tuples per side."""
    length = timedelta(microseconds=rows * _STEP_US)
    if kind == AS_OF:
        return sj.JoinSpec(sj.Equi("payload"), match=sj.AsOf("backward", length), time="ts", how="left")
    window = sj.CountWindow(rows) if kind == COUNT else sj.TimeWindow(length)
    how: Any = kind if kind in ("left", "full", "semi", "anti") else "inner"
    on: sj.JoinPredicate = sj.Band("key", "key", 1) if kind == BAND else sj.Equi("key")
    return sj.JoinSpec(on, window, "ts", "event_time", how)


def plan_of(kind: str, ranges: int) -> Blueprint:
    """The join of one kind as its tasks get it."""
    source = (SourcePlan("0000"),)
    gate = GatePlan((source, source), ordered=kind == ORDERED, shared=True) if kind in (COUNT, ORDERED) else None
    return Blueprint(bind(spec_of(kind, 1_000).in_order(), _SCHEMA, _SCHEMA), "join", ranges, gate=gate)


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

    def __init__(self) -> None:
        super().__init__()
        self._warm = False

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each kind, with few and many ranges."""
        size, numbers, few = (100_000, (2, 8), (4,)) if quick else (1_000_000, (2, 4, 8, 16), (2, 16))
        kinds = (INNER, "left", AS_OF, COUNT) if quick else KINDS
        long = (INNER,) if quick else (INNER, "left", AS_OF)
        by_spark = (INNER, "left", AS_OF) if quick else KINDS

        def cell(by: str, batch: int, ranges: int, kind: str, batches: int) -> Cell:
            return {"by": by, "batch": batch, "ranges": ranges, "kind": kind, "batches": batches}

        return [
            *(cell("CPU", size, n, kind, _COLD + 5) for n in numbers for kind in (*kinds, BAND)),
            *(cell("CPU", _HEAVY_ROWS, n, HEAVY, _COLD + 5) for n in numbers),
            *(cell("CPU", size // 5, 4, kind + LONG, 3 * _WINDOW) for kind in kinds if kind in _UNORDERED),
            *(cell("CPU", _LONG_ROWS, 4, kind, 100 if quick else 1_000) for kind in long),
            *(
                cell("Spark", 20_000 if quick else size, n, kind, _SKIPPED + (2 if quick else 4))
                for n in few
                for kind in by_spark
            ),
            *(cell("Spark", _SMALL, 2, kind, _SKIPPED + (5 if quick else 20)) for kind in by_spark),
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The inner join, which has no gate, of the same rows and window."""
        if cell["kind"] == HEAVY:
            return None
        base = {**cell, "kind": INNER + (LONG if cell["kind"].endswith(LONG) else "")}
        return None if base == cell else base

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the batches of one cell."""
        return (self._by_cpu if cell["by"] == "CPU" else self._by_spark)(cell, context)

    def _by_cpu(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """The stages in this process."""
        n, kind, root = cell["ranges"], cell["kind"].removesuffix(LONG), context.scratch / "stages"
        heavy, window = kind == HEAVY, _WINDOW if kind != cell["kind"] else 1
        plan = plan_of(INNER if heavy else kind, n)
        rehearsal = Rehearsal(plan, root, n, cell["batch"], window=window, inputs=n, heavy=heavy / 2, seed=context.seed)
        ran = [rehearsal.batch() for _ in range(cell["batches"])]
        shutil.rmtree(root)
        warm = ran[2 * window :]
        spent = [_work(batch) for batch in warm]
        share = statistics.median(_longest(batch) / _work(batch) for batch in warm)
        part = max(1, len(warm) // 10)
        return {
            "evenness": 1 / (n * share),
            "longest_share": share,
            "lone_share": statistics.median(batch.gate / _work(batch) for batch in warm),
            "largest_range": statistics.median(batch.skew for batch in warm),
            "first_largest": ran[0].skew,
            "python_us_a_row": 1e6 * statistics.median(spent) / cell["batch"],
            "merge_us_a_row": 1e6 * sum(batch.merge for batch in warm) / sum(batch.rows for batch in warm),
            "written_a_row": statistics.median((batch.rows + batch.folded) / batch.rows for batch in warm),
            "growth": statistics.median(spent[-part:]) / statistics.median(spent[part : 2 * part] or spent),
            "batch_ms": 1000 * statistics.median(spent),
            "rows_per_s": cell["batch"] / statistics.median(spent),
        }

    def _by_spark(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        if not self._warm:
            # The first query of a session pays for what all others find compiled.
            self._warm = True
            self._by_spark({**cell, "batch": 2_000, "batches": 4 * _SKIPPED}, context)
        n, batches = cell["ranges"], cell["batches"]
        rows = max(1, cell["batch"] // 2 // n)

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
            "batch_ms": 1000 * statistics.median(batch.seconds for batch in warm),
            "rows_per_s": speed(warm),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The share of the longest tasks by number of ranges, beside a perfect division."""
        axes = figure.subplots()
        most = max((row["batch"] for row in rows if row["by"] == "CPU"), default=0)
        shown = [row for row in rows if row["by"] == "CPU" and row["batch"] == most]
        for kind in dict.fromkeys(row["kind"] for row in shown):
            own = sorted((row["ranges"], row["longest_share"]) for row in shown if row["kind"] == kind)
            axes.plot(*zip(*own, strict=True), marker="o", label=kind)
        numbers = sorted({row["ranges"] for row in shown})
        axes.plot(numbers, [1 / n for n in numbers], "k--", label="perfect")
        axes.set(xlabel="ranges", ylabel="longest tasks over all tasks, by CPU")
        axes.legend()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The division of work, of rows and of what is written, beside the aims; then what Spark's own tasks took."""
        inner = {(r["by"], r["batch"], r["ranges"]): r for r in rows if r["kind"] == INNER}
        long = {row["kind"]: row["rows_per_s"] for row in rows if row["kind"].endswith(LONG)}
        found = []
        for row in rows:
            by, batch, n, kind = (row[name] for name in ("by", "batch", "ranges", "kind"))
            where, beside = f"{kind}, {n} ranges, batches of {batch:,}", inner.get((by, batch, n))
            if by == "Spark" and batch == _SMALL:
                ratio = row["batch_ms"] / beside["batch_ms"] if beside else 1.0
                aim = f"at most {_SMALL_AIM} of the inner join's batch"
                ours = f"{row['batch_ms']:.0f} ms, {ratio:.2f} of the inner join's"
                found.append(judge_aim(f"a batch of {batch} rows, {kind}", ours, aim, met=ratio <= _SMALL_AIM))
            elif kind in long:
                rate, aim = long[kind] / long[INNER + LONG], f"at least {_RATE} of the inner join's"
                ours = f"{rate:.2f} of the inner join's, {row['python_us_a_row']:.2f} us of Python a row"
                if kind != INNER + LONG:
                    found.append(judge_aim(f"the rate of {where}", ours, aim, met=rate >= _RATE))
            elif by == "CPU" and row["batches"] > _COLD + 5:
                aim = f"the last tenth of {row['batches']:,} batches at most {_FLAT} of the second"
                ours = f"{row['growth']:.2f} times the processor time, {row['written_a_row']:.2f} rows written for one"
                flat = row["growth"] <= _FLAT and row["written_a_row"] <= _WRITTEN
                found.append(judge_aim(f"{kind} for long", ours, f"{aim}, at most {_WRITTEN:g} written", met=flat))
            elif kind in (HEAVY, BAND):
                most = _HEAVIEST if kind == HEAVY else _LARGEST
                ours = f"{row['largest_range']:.2f}/n, {row['first_largest']:.2f}/n in the first batch"
                met = row["largest_range"] <= most
                found.append(judge_aim(f"rows of the largest range: {where}", ours, f"at most {most}/n", met=met))
            else:
                found += self._of_kind(row, where, beside)
        return found

    def _of_kind(self, row: Row, where: str, beside: Row | None) -> list[Finding]:
        share, lone = row["longest_share"] * row["ranges"], row["lone_share"]
        ours = f"{share:.2f}/n of all tasks' time, {lone:.1%} in stages of one task; largest range "
        ours += f"{row['largest_range']:.2f}/n; {row['python_us_a_row']:.2f} us of Python and "
        ours += f"{row['merge_us_a_row']:.2f} of merges a row"
        rate = row["rows_per_s"] / beside["rows_per_s"] if beside else 1.0
        if row["by"] == "CPU":
            aim = f"at most {_AIM}/n, {_LONE_AIM:.0%} in stages of one task, and {_LARGEST}/n of the rows in a range"
            met = share <= _AIM and lone <= _LONE_AIM and row["largest_range"] <= _LARGEST
            return [judge_aim(f"the longest tasks: {where}", f"{ours}; {rate:.2f} of inner's rate", aim, met=met)]
        aim = f"at most {_LONE_AIM:.0%} in stages of one task"
        found = [judge_aim(f"the longest tasks in Spark's time: {where}", ours, aim, met=lone <= _LONE_AIM)]
        if row["kind"] in _UNORDERED and row["kind"] != INNER:
            aim = f"at least {_RATE} of the inner join's"
            found.append(judge_aim(f"the rate of {where}", f"{rate:.2f} of the inner join's", aim, met=rate >= _RATE))
        return found


def _work(batch: BatchOfRehearsal) -> float:
    return batch.route + batch.gate + batch.join


def _longest(batch: BatchOfRehearsal) -> float:
    return max(batch.route_tasks) + batch.gate + max(batch.join_tasks)


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
