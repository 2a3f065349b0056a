"""Latency through `sj.live`, from a tuple's push until the consumer has the row, by load.

Sources push a batch every half millisecond each, the four of ScaleJoin every two, at 10, 50 and 80 % of the rate that
the algorithm sustains with such pushes. That rate is measured right before; if a run falls behind although it should
not, the machine has become slower meanwhile, and both are measured again. Windows hold 65,536 tuples per side; the
handshake joins run once more with 16,384 at 80 %. The original handshake join finds a pair up to a window late, so it
is measured at 80 % only: a window of 65,536 tuples takes longer than a run at lower loads, and one of 16,384 passes in
some 40 ms, too little to show what the papers show with windows of minutes. ScaleJoin runs in event-time order with
four sources, the others as tuples arrive.

*At the door*, with pushes that leave the join idle in between, `auto` is measured by key, beside what such a push needs
at least: a push of `sj.open` and two hand-overs from thread to thread, all in one run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Judgement, Row, human, judge_aim
from benchmarks.papers.parallel_experiment import cores
from benchmarks.product.live_feed import Batches, LiveLoad, Seen, pace, saturate
from benchmarks.report_lines import draw_lines

_HANDSHAKES = ("handshake", "low_latency_handshake")
_LOADS = (10, 50, 80)
_PUSH_MS = 0.5
# Four threads that push every half millisecond have not enough of the interpreter on two cores, whatever they push.
_SCALEJOIN_PUSH_MS = 2.0
_WINDOW = 1 << 16
# A rate is sustained if at most this many seconds of tuples wait at the end, and the sources could push them.
_WAITING, _PUSHED, _STEP = 0.02, 0.98, 0.9
# Seconds of a run, and of one that looks for the maximum; how often both are measured if a run falls behind.
_SECONDS, _SEARCH, _TRIES = 4.0, 1.0, 3

# At the door: the tuples of a push, the milliseconds between two pushes of a source, and the window.
_DOORS: tuple[tuple[int, float, int | str], ...] = ((4, 2.0, _WINDOW), (64, 0.5, _WINDOW), (4, 2.0, "10 seconds"))
# How many pushes and hand-overs are measured beside them, and the seconds between two.
_BESIDE, _BREATH = 500, 0.001


def hand_over(times: int) -> float:
    """The median milliseconds from one thread to another that waits for it."""
    came, waiting = threading.Condition(), threading.Event()
    box: list[int] = []
    took: list[int] = []

    def wait() -> None:
        for _ in range(times):
            with came:
                waiting.set()
                while not box:
                    came.wait()
                took.append(time.monotonic_ns() - box.pop())

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(times):
        waiting.wait()
        waiting.clear()
        time.sleep(_BREATH)
        with came:
            box.append(time.monotonic_ns())
            came.notify()
    thread.join()
    return float(np.median(took)) / 1e6


def open_push(load: LiveLoad, rows: int, times: int, seed: int) -> float:
    """The median milliseconds of a push of `sj.open`, from the moment at which its tuples are stamped."""
    types, took = load.types, []
    window = load.window if isinstance(load.window, int) else 64
    with sj.open(load.spec, left_schema=types, right_schema=types) as join:
        first = [Batches(types, load.values, window, seed + n, different=1) for n in range(2)]
        join.push(first[0].stamped(), first[1].stamped())
        batches = Batches(types, load.values, rows, seed)
        for number in range(times):
            time.sleep(_BREATH)
            begin = time.monotonic_ns()
            join.push(**{("left", "right")[number % 2]: batches.stamped()})
            took.append(time.monotonic_ns() - begin)
    return float(np.median(took)) / 1e6


def load_of(algorithm: str, window: int) -> LiveLoad:
    """The join of one algorithm, on all processors but the one that intake and collector need."""
    workers = max(1, min(4, cores() - 1))
    # A short run needs more matches.
    values = 10_000 if window >= 1 << 14 else 1_000
    if algorithm == "scalejoin":
        return LiveLoad(algorithm, workers, window, "event_time", sources=4, values=values)
    return LiveLoad(algorithm, 1 if algorithm == "auto" else workers, window, values=values)


def push_ms(load: LiveLoad) -> float:
    """The milliseconds between two pushes of a source."""
    return _SCALEJOIN_PUSH_MS if load.algorithm == "scalejoin" else _PUSH_MS


def maximum(load: LiveLoad, seconds: float, seed: int) -> float:
    """The tuples per second that the join sustains in pushes every `push_ms` from each source.

    It begins with what large pushes reach and goes down until hardly anything waits when the sources have ended.
    """
    rate = saturate(load, 1_024, seconds, seed)
    while True:
        if is_sustained(pace(load, rate, push_ms(load), seconds, seed), rate):
            return rate
        rate *= _STEP


def is_sustained(seen: Seen, rate: float) -> bool:
    """Whether a join has kept up with its sources, and they with the rate."""
    return seen.waiting <= _WAITING * rate and seen.tuples_per_s >= _PUSHED * rate


class LiveLatency(Experiment):
    """Milliseconds from push to consumer, by algorithm and load."""

    title = "sj.live: latency from push to consumer, at parts of each algorithm's own maximum"
    measure = "p50_ms"
    unit = "ms (less is better)"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._most: dict[tuple[str, int], float] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every algorithm at every load that says something about it."""
        seconds = 0.5 if quick else _SECONDS
        if quick:
            settings = [(name, 1 << 10, _LOADS[-1]) for name in (*_HANDSHAKES, "scalejoin", "auto")]
        else:
            settings = [(name, _WINDOW, load) for name in (_HANDSHAKES[1], "scalejoin", "auto") for load in _LOADS]
            settings += [(name, window, _LOADS[-1]) for window in (_WINDOW, 1 << 14) for name in _HANDSHAKES]
        doors = [
            {"algorithm": "auto", "push_rows": rows, "every_ms": every, "window": window, "seconds": seconds}
            for rows, every, window in _DOORS
        ]
        return doors + [
            {"algorithm": algorithm, "load": load, "window": window, "seconds": seconds}
            for algorithm, window, load in dict.fromkeys(settings)
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original handshake join at the same load."""
        if cell["algorithm"] == "low_latency_handshake" and cell.get("load") == _LOADS[-1]:
            return {**cell, "algorithm": "handshake"}
        return None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace the sources; the first part of a run is not measured."""
        if "load" not in cell:
            return self._at_the_door(cell, context.seed)
        load, key = load_of(cell["algorithm"], cell["window"]), (cell["algorithm"], cell["window"])
        seconds, seed = cell["seconds"], context.seed
        for _ in range(_TRIES):
            if key not in self._most:
                self._most[key] = maximum(load, min(_SEARCH, seconds / 2), seed)
            most = self._most[key]
            rate = most * cell["load"] / 100
            seen = pace(load, rate, push_ms(load), seconds, seed)
            is_kept = is_sustained(seen, rate)
            if is_kept:
                break
            del self._most[key]
        # The original join finds the last pairs only when the next tuples move them on, or at the end of the input.
        moving = min(seconds / 2, 2 * cell["window"] / rate) if cell["algorithm"] == "handshake" else 0.0
        figures = {"most_tuples_per_s": most, "sustained": is_kept}
        return {**seen.summary(seconds / 5, seconds - moving), **figures}

    def _at_the_door(self, cell: Cell, seed: int) -> Mapping[str, Any]:
        rows, seconds = cell["push_rows"], cell["seconds"]
        load = LiveLoad(cell["algorithm"], 1, cell["window"], "arrival", values=_WINDOW, condition="key")
        between = hand_over(_BESIDE)
        push = open_push(load, rows, _BESIDE, seed)
        seen = pace(load, load.sources * rows / cell["every_ms"] * 1e3, cell["every_ms"], seconds, seed, rows)
        summary = seen.summary(seconds / 5, seconds)
        least = push + 2 * between
        return {**summary, "open_push_ms": push, "hand_over_ms": between, "times_least": summary["p50_ms"] / least}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Median latency by load."""
        loads = [row for row in rows if "load" in row]
        draw_lines(figure.subplots(), loads, x="load", y=self.measure, by=("algorithm",), log=True)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims at the door, and of the two handshake joins; latencies by load are told."""
        findings = [finding for row in rows if "load" not in row for finding in self._door(row)]
        rows = [row for row in rows if "load" in row]
        findings += [
            Finding(
                f"{row['algorithm']} at {row['load']} % load, windows of {row['window']:,}",
                f"p50 {row['p50_ms']:,.2f} ms, p99 {row['p99_ms']:,.2f} ms at {human(row['tuples_per_s'])} tuples/s",
                "no aim",
                Judgement.NOT_TESTED,
                "" if row["sustained"] else "it fell behind: the machine is too uneven",
            )
            for row in rows
        ]
        for window in sorted({row["window"] for row in rows}, reverse=True):
            at = {row["algorithm"]: row for row in rows if row["load"] == _LOADS[-1] and row["window"] == window}
            if {"handshake", "low_latency_handshake"} <= at.keys():
                original, low = (at[name]["p50_ms"] for name in ("handshake", "low_latency_handshake"))
                passes = window / (at["handshake"]["tuples_per_s"] / 2) * 1e3
                findings.append(
                    judge_aim(
                        f"handshake at least 100 times as long as low_latency_handshake, windows of {window:,}",
                        f"{original / low:,.0f} times, {original:,.1f} ms; its window passes in {passes:,.0f} ms",
                        "at least 100 times",
                        original >= 100 * low,
                    )
                )
        return findings

    def _door(self, row: Row) -> list[Finding]:
        window = f"{row['window']:,} tuples" if isinstance(row["window"], int) else row["window"]
        what = f"two sources, {row['push_rows']} tuples each every {row['every_ms']} ms, windows of {window}"
        beside = (
            f"{row['times_least']:.2f} times a push of sj.open ({row['open_push_ms']:.3f} ms) and two hand-overs "
            f"({row['hand_over_ms']:.3f} ms each)"
        )
        if row["push_rows"] > 4:
            said = f"{row['p50_ms']:.3f} ms, {beside}"
            return [judge_aim(f"{what}: p50 at most 1 ms", said, "at most 1 ms", row["p50_ms"] <= 1)]
        return [
            judge_aim(
                f"{what}: p50 at most 3 times a push of sj.open and two hand-overs",
                f"{row['p50_ms']:.3f} ms, {beside}",
                "at most 3 times",
                row["times_least"] <= 3,
            ),
            judge_aim(f"{what}: p99 at most 5 ms", f"{row['p99_ms']:.2f} ms", "at most 5 ms", row["p99_ms"] <= 5),
        ]


EXPERIMENT = LiveLatency()
