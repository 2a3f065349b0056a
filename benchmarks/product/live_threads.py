"""What a second thread gains in `sj.live`: a condition of five operations, and the rows of the ScaleJoin paper.

Two sources push in event-time order while the windows are full. The condition alone (`Theta`) tests every pair; the
paper's benchmark has a band on two numbers, and rows with `char[20]` and `bool`. Comparisons are counted a second of
wall time, and a second of the processor time of the busiest thread: the speed with a core for each thread, which other
programs on the machine hardly change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met
from benchmarks.papers.parallel_experiment import cores

THETA, PAPER = "Theta of five operations", "the paper's rows"
_CONDITIONS = {
    THETA: sj.Theta("abs(l.x - r.a) + l.y - r.b < -9000 and l.x > r.a"),
    PAPER: sj.Band("x", "a", 10) & sj.Band("y", "b", 10.0),
}
_ALGORITHMS = ("scalejoin", "low_latency_handshake")
_BATCH = 512
_AIM = 1.6
Batches = list[pa.RecordBatch]


class LiveThreads(Experiment):
    """Comparisons a second by threads."""

    title = "sj.live: comparisons a second by threads, for any condition and any row"
    measure = "comparisons_per_s"
    unit = "comparisons/s"
    repeats = 3
    against: ClassVar = {"workers": 1}
    across, lines, log = "workers", ("condition", "algorithm"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both conditions, one thread to as many as there are cores."""
        sizes = {THETA: 1 << 10, PAPER: 1 << 12} if quick else {THETA: 1 << 15, PAPER: 1 << 17}
        threads = [1, 2] if quick else [n for n in (1, 2, 4, 8, 14) if n <= max(2, cores())]
        pairs = [(THETA, name) for name in _ALGORITHMS] + [(PAPER, _ALGORITHMS[0])]
        return [
            {"condition": condition, "algorithm": name, "window": sizes[condition], "workers": n}
            for condition, name in pairs
            for n in threads
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push one window more."""
        window = cell["window"]
        left, right = (_batches(side, 2 * window, context.seed) for side in (0, 1))
        filling = window // _BATCH
        spec = sj.JoinSpec(
            on=_CONDITIONS[cell["condition"]], window=sj.CountWindow(window), time="t", order="event_time"
        )
        schemas = {"left_schema": left[0].schema, "right_schema": right[0].schema}
        with sj.live(spec, cell["algorithm"], cell["workers"], **schemas) as join:
            join.on_rows(len)
            sources = join.source("left"), join.source("right")
            for pair in zip(left[:filling], right[:filling], strict=True):
                _push(sources, pair)
            _settle(join, 2 * window - 2 * _BATCH)
            compared, begin, before = join.metrics()["compared"], time.perf_counter(), _processor_times()
            for pair in zip(left[filling:], right[filling:], strict=True):
                _push(sources, pair)
            _settle(join, 4 * window - 2 * _BATCH)
            took, after = time.perf_counter() - begin, _processor_times()
            compared = join.metrics()["compared"] - compared
        spent = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
        return {
            self.measure: compared / took,
            "per_busiest_s": compared / max(spent),
            "processor_ns": 1e9 * sum(spent) / compared,
        }

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """What the second thread gains, by wall time and by processor time."""
        lines = []
        for row in rows:
            if row["workers"] != 2:
                continue
            same = {name: row[name] for name in ("condition", "algorithm", "window")}
            alone = next(r for r in rows if r["workers"] == 1 and same.items() <= r.items())
            wall, busiest = (row[name] / alone[name] for name in (self.measure, "per_busiest_s"))
            lines.append(
                f"{row['condition']}, {row['algorithm']}: two threads are {wall:.2f} times one by wall time, "
                f"{busiest:.2f} by processor time; {row['processor_ns']:.2g} ns of it a comparison; aim {_AIM}: "
                f"{met(busiest >= _AIM)}"
            )
        return lines


def _batches(side: int, n: int, seed: int) -> Batches:
    """One side of the paper's benchmark: uniform numbers, and columns that are only carried."""
    rng = np.random.default_rng([seed, side])
    columns: dict[str, Any] = {"t": 2 * np.arange(n) + side}
    columns["xa"[side]] = rng.integers(1, 10_001, n).astype(np.int32)
    columns["yb"[side]] = rng.uniform(1, 10_000, n).astype(np.float32)
    if side:
        columns |= {"c": rng.random(n), "d": rng.random(n) < 0.5}
    else:
        columns["z"] = [f"{number:020d}" for number in rng.integers(0, 1 << 40, n)]
    batches: Batches = pa.table(columns).to_batches(max_chunksize=_BATCH)
    return batches


def _push(sources: Sequence[Any], pair: Sequence[pa.RecordBatch]) -> None:
    for source, batch in zip(sources, pair, strict=True):
        source.push(batch)


def _settle(join: sj.Live, tuples: int) -> None:
    """Wait until `tuples` are joined."""
    while join.metrics()["reached"] < tuples:
        join.wait(0.005)


def _processor_times() -> dict[int, float]:
    """Seconds of processor time by thread."""
    idents = [thread.ident for thread in threading.enumerate() if thread.ident is not None]
    return {ident: time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents}


EXPERIMENT = LiveThreads()
