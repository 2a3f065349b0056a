"""The kinds of join on Spark beside the inner join, on the same files in the same session.

All but the joins by symbol join by |l.key - r.key| <= 1 in windows of as many tuples as a batch has, at about one
partner per tuple. As-of joins by key look up one of 500 symbols, or without a tolerance one of a thousand or a million
keys, all of which are known before the batches that count; summaries count, add and compare the right tuples of a
symbol in a window behind each left one. Joins on intervals ask for l.key BETWEEN r.key AND
r.payload, with lengths over three orders of magnitude, at about as many partners. The rounds run all kinds in turn. The
inner joins have no gate, the others do: the ratio includes it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim
from benchmarks.spark.spark_runs import Files, SparkExperiment, speed, steady
from benchmarks.workload import Side

INNER = "inner"
HOWS = (INNER, "left", "right", "full", "semi", "anti")
AS_OF = ("as-of backward", "as-of nearest", "as-of by band")
KNOWN = {"as-of, 1,000 keys": 1_000, "as-of, 1,000,000 keys": 1_000_000}
SUMMARY = "summary"
INTERVALS = ("interval", "interval, left")
_AIM, _KEYS_AIM = 0.8, 0.9
_STEP_US, _SYMBOLS, _MEAN_LENGTH = 1_000, 500, 145


def spec_of(kind: str, rows: int) -> sj.JoinSpec:
    """The join of one kind, with windows of about `rows` tuples per side."""
    length = timedelta(microseconds=rows * _STEP_US)
    if kind in HOWS:
        band = sj.Band("key", "key", 1)
        return sj.JoinSpec(band, sj.TimeWindow(length), time="ts", order="event_time", how=kind)  # type: ignore[arg-type]
    if kind in INTERVALS:
        how: Literal["left", "inner"] = "left" if kind.endswith("left") else "inner"
        within = sj.Within("key", "key", "payload")
        return sj.JoinSpec(within, sj.TimeWindow(length), time="ts", order="event_time", how=how)
    if kind == SUMMARY:
        values = {"n": "count(*)", "total": "sum(r.key)", "low": "min(r.key)", "high": "max(r.key)"}
        around = sj.Summary(values, between=(f"-{rows * _STEP_US} us", "0 us"))
        return sj.JoinSpec(sj.Equi("payload"), match=around, time="ts", order="event_time", how="left")
    if kind in KNOWN:
        return sj.JoinSpec(sj.Equi("key"), match=sj.AsOf("backward"), time="ts", order="event_time", how="left")
    near = timedelta(microseconds=rows // 20 * _STEP_US)
    match = sj.AsOf("nearest", near) if kind == "as-of nearest" else sj.AsOf("backward", length)
    on = sj.Band("key", "key", 1) if kind == "as-of by band" else sj.Equi("payload")
    return sj.JoinSpec(on, match=match, time="ts", order="event_time", how="left")


class SparkKinds(SparkExperiment):
    """Rows per second by kind of join."""

    title = "spark_kinds: the kinds of join on Spark, both sides together, result to the noop sink"
    measure = "rows_per_s"
    repeats = 3
    warmups = 1
    against: ClassVar = {"kind": INNER}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each kind, with small and with large batches."""
        batches = (20_000,) if quick else (100_000, 400_000)
        return [
            {"batch": batch, "kind": kind} for batch in batches for kind in (*HOWS, *AS_OF, *KNOWN, SUMMARY, *INTERVALS)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the batches of one cell."""
        rows, batches = cell["batch"] // 2, 5 if context.quick else 10

        def table(side: Side, number: int) -> pa.Table:
            rng, first = np.random.default_rng([context.seed, side == "right", number]), number * rows
            ticks = pa.array((first + np.arange(rows)) * _STEP_US, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            if cell["kind"] in INTERVALS:
                keys = rng.integers(0, 2 * _MEAN_LENGTH * rows, rows)
                lengths = (10 ** rng.uniform(0, 3, rows)).astype(np.int64)
                return pa.table({"ts": ticks, "key": keys, "payload": keys + lengths})
            if cell["kind"] in KNOWN:
                n = KNOWN[cell["kind"]]
                keys = rng.permutation(n) if side == "right" and not number else rng.integers(0, n, rows)
                ticks = pa.array(np.linspace(number * rows, (number + 1) * rows - 1, keys.size).astype(np.int64))
                times = pc.multiply(ticks, _STEP_US).cast(pa.timestamp("us", tz="UTC"))
                return pa.table({"ts": times, "key": keys, "payload": keys})
            keys, symbols = rng.integers(0, 6 * rows, rows), rng.integers(0, _SYMBOLS, rows)
            return pa.table({"ts": ticks, "key": keys, "payload": symbols})

        name = f"{rows} {cell['kind']}" if cell["kind"] in (*INTERVALS, *KNOWN) else str(rows)
        files = Files(context, name).write(lambda side: [table(side, i) for i in range(batches)])
        build = functools.partial(sj.spark.join, spec=spec_of(cell["kind"], rows))
        ran = steady(self.timed(build, files, context.scratch / "checkpoint"), 3)
        return {"rows_per_s": speed(ran), "results": sum(b.results for b in ran) / sum(b.rows for b in ran)}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bars by kind."""
        axes = figure.subplots()
        sizes = sorted({row["batch"] for row in rows})
        for i, batch in enumerate(sizes):
            own = [row for row in rows if row["batch"] == batch]
            axes.bar([place + 0.4 * i for place in range(len(own))], [row["rows_per_s"] for row in own], 0.4)
            axes.set_xticks(range(len(own)), [row["kind"] for row in own], rotation=30)
        axes.legend([f"batches of {batch:,}" for batch in sizes])
        axes.set(ylabel="rows/s")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The rate of each kind as a share of another's: of the inner join's, or of a like join's."""
        rates = {(row["batch"], row["kind"]): row["rows_per_s"] for row in rows}
        few, many = KNOWN
        beside = {SUMMARY: (AS_OF[0], _AIM), many: (few, _KEYS_AIM)}
        found = []
        for (batch, kind), rate in rates.items():
            other, aim = beside.get(kind, (INNER, _AIM))
            if kind != INNER and (batch, other) in rates:
                share = rate / rates[batch, other]
                claim = f"{kind} at {aim:.0%} of the rate of {other}, batches of {batch:,}"
                wanted = f"rows/s over those of {other}, at least {aim}"
                found.append(judge_aim(claim, f"{share:.0%}", wanted, met=share >= aim))
        return found


EXPERIMENT = SparkKinds()
