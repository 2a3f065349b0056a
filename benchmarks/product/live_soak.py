"""Live joins at full load for ten minutes: memory stays flat, every row comes, and nothing stands still.

Every algorithm with threads of its own, and the driver thread in both orders. Four sources push as fast as they may,
others come and go, one consumer reads, and the resident memory of the process is recorded. A join in which nothing
moves for a while is stopped, and the run fails with where its threads stand. `make soak` runs it; the suite runs some
seconds of it.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim
from benchmarks.product.live_feed import TYPES, Batches, LiveLoad, Reader
from streamjoin.windows import crew

_SAMPLES = 60
# The first part of a run fills windows and pools.
_WARM = 0.25
_GROWTH = 1.05
# Seconds without progress after which a join counts as stuck.
_STUCK = 30.0
_JOINS = (
    ("auto", "arrival"), ("auto", "event_time"), ("low_latency_handshake", "arrival"), ("handshake", "arrival"),
    ("scalejoin", "event_time"), ("pim_parallel", "arrival"),
)  # fmt: skip


class LiveSoak(Experiment):
    """Resident memory over time at full load."""

    title = "sj.live: memory over ten minutes at full load"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1
    warmups = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Behind the driver thread and with threads of their own, ten minutes in all."""
        seconds = 2.0 if quick else 600.0 / len(_JOINS)
        return [
            {"order": order, "algorithm": algorithm, "seconds": seconds, "window": 1 << 14}
            for algorithm, order in _JOINS
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Push and read for the given time."""
        # In a process of its own, which begins with little memory.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            args = (cell["algorithm"], cell["order"], cell["window"], cell["seconds"], context.seed)
            return pool.submit(soak, *args).result()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Memory over time."""
        axes = figure.subplots()
        for row in rows:
            seconds, megabytes = zip(*row["memory"], strict=True)
            axes.plot(seconds, megabytes, label=f"{row['algorithm']}, {row['order']}")
        axes.set(xlabel="seconds", ylabel="resident memory, MB", ylim=(0, None))
        axes.legend()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Whether memory grew after the windows were full."""
        return [
            judge_aim(
                f"{row['algorithm']}, {row['order']} order, {row['seconds']:,.0f} s at full load: memory stays flat",
                f"{row['rss_mb'][0]:.0f} MB in the second quarter, {row['rss_mb'][1]:.0f} MB in the last, "
                f"{row['rss_mb'][2]:.0f} MB at the most, {human(row['tuples'])} tuples",
                f"at most {_GROWTH:g} times",
                row["rss_mb"][1] <= _GROWTH * row["rss_mb"][0],
            )
            for row in rows
        ]


def soak(algorithm: str, order: Any, window: int, seconds: float, seed: int) -> dict[str, Any]:
    """Run a live join at full load; returns memory over time and what was joined."""
    load = LiveLoad(algorithm, 1 if algorithm == "auto" else 2, window, order, sources=4)
    memory: list[tuple[float, float]] = []
    with load.open() as join:
        reader = Reader(join, keep=False)
        sources = [join.source(("left", "right")[n % 2], f"source {n}") for n in range(load.sources)]
        begin = time.perf_counter()
        over = threading.Event()

        def feed(number: int) -> None:
            batches = Batches(TYPES, load.values, 1_024, seed + number)
            visitors = 0
            while not over.is_set():
                sources[number].push(batches.stamped())
                if number == 0:
                    # A source that comes, pushes and leaves.
                    visitors += 1
                    with join.source("left", f"visitor {visitors}") as visitor:
                        visitor.push(batches.stamped())
            sources[number].finish()

        threads = [threading.Thread(target=feed, args=(number,)) for number in range(load.sources)]
        for thread in threads:
            thread.start()
        progress, moved_at = (0, 0), begin
        for sample in range(1, _SAMPLES + 1):
            join.wait(max(0.0, begin + seconds * sample / _SAMPLES - time.perf_counter()))
            now = time.perf_counter()
            memory.append((round(now - begin, 2), resident_megabytes()))
            if progress != (progress := (sum(source.tuples for source in sources), reader.rows)):
                moved_at = now
            elif now - moved_at > _STUCK:
                standing = "\n".join(each.standing() for each in crew.live())
                join.stop()
                raise RuntimeError(f"nothing moved for {_STUCK:g} s after {progress}\n{standing}")
        over.set()
        for thread in threads:
            thread.join()
        join.close()
        reader.result()
        took = time.perf_counter() - begin
        figures = join.metrics()
    sizes = np.array([size for _, size in memory])
    warm = int(_WARM * _SAMPLES)
    tuples = figures["pushed_left"] + figures["pushed_right"]
    if figures["reached"] + figures.get("late", 0) != tuples or reader.rows != figures["rows"]:
        raise RuntimeError(f"rows were lost: {tuples:,} tuples were pushed and {reader.rows:,} rows read: {figures}")
    return {
        "tuples_per_s": tuples / took,
        "tuples": tuples,
        "rows": reader.rows,
        "sources_in_all": figures["sources_in_all"],
        "rss_mb": [float(np.median(sizes[warm : 2 * warm])), float(np.median(sizes[-warm:])), float(sizes.max())],
        "memory": memory,
    }


def resident_megabytes() -> float:
    """The resident memory of this process."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


EXPERIMENT = LiveSoak()
