"""The parallel joins' baselines on ScaleJoin's benchmark: comparisons a second against threads.

Tuples carry an int32 and a float32, both uniform over 1 to 10,000; a pair matches when both differ by at most 10. Left
and right tuples take turns, both windows are full and slide by one with every tuple. All of them do the same
comparisons on the same arrays, without Arrow or a driver around: `three_step` scans the other window for one tuple
after another; `nested_loop` deals out the tuples of a batch and compares them in blocks; `cell_join` deals out the
windows anew for every task. Time is that of the clock. A task is sent to the threads from Python, which costs more than
CellJoin's own dispatch did: tasks of 1 show the shape of its overhead, not its size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim, judge_claim
from benchmarks.papers.cell_join import PairRoom, ProbeRanges, RepartitionedScan
from benchmarks.papers.three_step import three_step
from streamjoin._arrays import Array
from streamjoin.windows.crew import Crew

_BAND = 10
_THREADS = (1, 2, 4, 8, 16)
_BATCH = 4096  # tuples of both sides that nested_loop deals out at a time
_WORK = {True: 1 << 27, False: 1 << 32}  # comparisons of a cell, about
_LEAST_TUPLES, _MOST_TUPLES = 64, 1 << 16
_FEWER = 16  # tasks of one tuple are mostly overhead: a share of the work tells as much


@dataclass(frozen=True)
class Stream:
    """A full window on both sides and the tuples that come next, left and right in turn."""

    window: int
    sides: tuple[ProbeRanges, ProbeRanges]

    @property
    def tuples(self) -> int:
        """Tuples of both sides."""
        return 2 * self.sides[0].first.size

    @property
    def comparisons(self) -> int:
        """What they compare: each meets one window."""
        return self.tuples * self.window


def stream(window: int, tuples: int, seed: int) -> Stream:
    """The benchmark's tuples as words. Positive floats are ordered as their bits."""
    rng = np.random.default_rng(seed)
    half = tuples // 2
    columns = []
    for _ in range(2):
        x = rng.integers(1, 10_001, window + half).astype(np.uint32)
        columns.append((x, rng.uniform(1, 10_000, window + half).astype(np.float32)))
    words = [(x, y.view(np.uint32)) for x, y in columns]
    sides = []
    for own, other in ((0, 1), (1, 0)):
        x, y = columns[own][0][window:], columns[own][1][window:]
        low_x = np.maximum(x, _BAND) - np.uint32(_BAND)
        low_y = np.maximum(y - _BAND, 0).astype(np.float32).view(np.uint32)
        high_y = (y + _BAND).astype(np.float32).view(np.uint32)
        bounds = np.stack([low_x, x + np.uint32(_BAND) - low_x, low_y, high_y - low_y])
        # The left tuple of a turn comes first: a right one meets it, and what it pushed out is gone.
        first = np.arange(half) + own
        sides.append(ProbeRanges(words[other], bounds, first, first + window))
    return Stream(window, (sides[0], sides[1]))


def by_three_step(given: Stream) -> int:
    """One tuple after another; returns the matches."""
    n = given.tuples
    is_right = np.arange(n) % 2 == 1
    bounds, limits = np.empty((4, n), np.uint32), np.empty((2, n), np.int64)
    for side, probes in enumerate(given.sides):
        bounds[:, side::2] = probes.bounds
        limits[0, side::2], limits[1, side::2] = probes.first, probes.last
    out = np.empty(given.window, np.int64), np.empty(given.window, np.int64)
    left, right = given.sides[1].words, given.sides[0].words
    start, matches = 0, 0
    while start < n:
        start, found = three_step(is_right, bounds, limits, left, right, start, *out)
        matches += found
    return matches


def by_nested_loop(given: Stream, crew: Crew) -> int:
    """Each thread takes its share of the tuples of a batch through the whole window."""
    matches = [0] * crew.n
    rooms = [PairRoom() for _ in range(crew.n)]
    half = given.tuples // 2
    for begin in range(0, half, _BATCH // 2):
        end = min(begin + _BATCH // 2, half)

        def scan(k: int, begin: int = begin, end: int = end) -> None:
            rows = begin + (end - begin) * k // crew.n, begin + (end - begin) * (k + 1) // crew.n
            for probes in given.sides:
                if rows[0] < rows[1]:
                    matches[k] += sum(found.size for found, _ in probes.pairs(rows, probes.part(rows, 0, 1), rooms[k]))

        crew.run(scan)
    return sum(matches)


def by_cell_join(given: Stream, scan: RepartitionedScan, task: int) -> int:
    """Each thread takes its part of the windows for all tuples of a task."""
    matches = [0] * scan.workers

    def taker(k: int) -> Any:
        def take(side: int, probes: Array, places: Array) -> None:  # noqa: ARG001
            matches[k] += probes.size

        return take

    takers = [taker(k) for k in range(scan.workers)]
    for begin in range(0, given.tuples, task):
        end = min(begin + task, given.tuples)
        rows = [((begin + 1 - side) // 2, (end + 1 - side) // 2) for side in (0, 1)]
        scan.run(given.sides, rows, takers)
    return sum(matches)


def _timed(cell: Cell, given: Stream) -> tuple[int, float]:
    """Matches and seconds; threads are started before the clock."""
    if cell["system"] == "three_step":
        return _clocked(lambda: by_three_step(given))
    if cell["system"] == "nested_loop":
        crew = Crew(cell["threads"])
        try:
            crew.run(lambda _: None)
            return _clocked(lambda: by_nested_loop(given, crew))
        finally:
            crew.close()
    scan = RepartitionedScan(cell["threads"])
    try:
        scan.run(given.sides, [(0, 1), (0, 0)], [lambda *_: None] * cell["threads"])
        return _clocked(lambda: by_cell_join(given, scan, cell["task"]))
    finally:
        scan.close()


def _clocked(work: Callable[[], int]) -> tuple[int, float]:
    begin = time.perf_counter()
    matches = work()
    return matches, time.perf_counter() - begin


class Baselines(Experiment):
    """Comparisons a second of three ways to scan."""

    title = "baselines of the parallel joins: 2-D band of ScaleJoin's benchmark"
    claim = (
        "low-latency handshake join, section 2.2.1: CellJoin answers as early as the three-step procedure, but cuts "
        "the windows anew for every tuple, which costs more the more cores there are"
    )
    measure = "comparisons_per_s"
    unit = "comparisons/s"
    against: ClassVar = {"system": "three_step", "task": 1, "threads": 1}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every number of threads that the machine has cores for."""
        windows = (1 << 14,) if quick else (1 << 14, 1 << 17)
        cores = os.cpu_count() or 1
        threads = [n for n in _THREADS if n <= max(2, cores)]
        systems = [("three_step", 1, 1), *(("nested_loop", _BATCH, n) for n in threads)]
        systems += [("cell_join", task, n) for task in (1, 64) for n in threads]
        return [
            {"window": window, "system": system, "task": task, "threads": n}
            for window in windows
            for system, task, n in systems
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Time the whole stream on the clock; threads are started before."""
        work = _WORK[context.quick] // (_FEWER if cell["system"] == "cell_join" and cell["task"] == 1 else 1)
        tuples = min(_MOST_TUPLES, max(_LEAST_TUPLES, work // cell["window"]))
        given = stream(cell["window"], tuples, context.seed)
        matches, spent = _timed(cell, given)
        return {
            "comparisons_per_s": given.comparisons / spent,
            "tuples_per_s": given.tuples / spent,
            "task_us": spent / given.tuples * cell["task"] * 1e6,
            "matches_per_m": matches / given.comparisons * 1e6,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Comparisons a second against threads, a panel a window."""
        windows = sorted({row["window"] for row in rows})
        for axes, window in zip(np.atleast_1d(figure.subplots(1, len(windows), sharey=True)), windows, strict=True):
            lines: dict[str, list[tuple[int, float]]] = {}
            for row in rows:
                if row["window"] == window:
                    name = f"{row['system']}, tasks of {row['task']}"
                    lines.setdefault(name, []).append((row["threads"], row[self.measure]))
            for name, points in lines.items():
                axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
            axes.set(xscale="log", yscale="log", xlabel="threads", title=f"window {window:,}")
            axes.grid(visible=True, alpha=0.25)
        figure.axes[0].set_ylabel(self.unit)
        figure.axes[0].legend(fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """What cutting the windows for every tuple costs, and what threads and blocks gain."""
        parts = []
        for window in sorted({row["window"] for row in rows}):
            speed = {(r["system"], r["task"], r["threads"]): r[self.measure] for r in rows if r["window"] == window}
            most = max(threads for _, _, threads in speed)
            kang, blocked = speed["three_step", 1, 1], speed["nested_loop", _BATCH, 1]
            more = speed["nested_loop", _BATCH, most] / blocked
            gains = [speed["cell_join", task, most] / speed["cell_join", task, 1] for task in (1, 64)]
            shares = [speed["cell_join", 1, n] / speed["cell_join", 64, n] for n in (1, most)]
            parts += [
                judge_claim(
                    f"window {window:,}: cutting the windows for every tuple costs more the more threads there are",
                    f"single tuples reach {shares[0]:.0%} of the speed of tasks of 64 with 1 thread, {shares[1]:.0%} "
                    f"with {most}; {most} threads are {gains[0]:.2f} and {gains[1]:.2f} times one",
                    "a smaller share with the most threads",
                    shares[1] < shares[0],
                ),
                judge_aim(
                    f"window {window:,}: comparing in blocks beats the three-step procedure, and threads add to it",
                    f"three_step {human(kang)} comparisons/s; nested_loop {blocked / kang:.2f} times that in one "
                    f"thread, {most} threads {more:.2f} times one",
                    "faster than three_step, and at least 0.6 per thread",
                    blocked > kang and more >= 0.6 * most,
                    allowed(most),
                ),
            ]
        return parts


EXPERIMENT = Baselines()
