"""What the handshake experiments on latency share: streams paced by the machine's clock, windows of seconds, figures.

The papers' windows of 100 and 200 seconds (or 15 minutes) are a few seconds here; latencies of the original join
scale with them, those of the low-latency join do not. Both sides bring as many tuples per second as make 0.8 times the
comparisons that the system sustains with these nodes, batches and windows, measured right before. Counted are results
whose later tuple came when both windows were full, and early enough that the run could still find them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from benchmarks.hardware import cores
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, judge_aim, judge_claim
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY, ChainRun, Outcome
from benchmarks.papers.llhj_streams import Stream
from streamjoin.indexes.base import ticks_per_ns

LOAD = 0.8
# Comparisons per node of a run that measures what is sustained, and the tuples of the windows that it begins with.
_TRIAL, _FIRST_WINDOW = 1 << 29, 1 << 15
_QUICK_TRIAL = 1 << 24
# Room for a paced run's results.
_MOST = 1 << 22
_BINS = 8
_QUICK = 0.1
# Windows that a run lasts.
_LENGTH = 2.5
_SMALL_BATCH = 4


def chain_lengths(quick: bool) -> list[int]:
    """Nodes to go through where the load is light: a chain of eight runs on two processors as well."""
    return [2] if quick else [n for n in (2, 4, 8, 16) if n <= max(8, os.cpu_count() or 1)]


def node_counts(quick: bool) -> list[int]:
    """Nodes to go through on this machine: powers of two up to its processors."""
    most = 2 if quick else max(2, os.cpu_count() or 1)
    return [n for n in (1, 2, 4, 8, 16) if n <= most]


def model(window_r: float, window_s: float) -> float:
    """The most that handshake join takes to find a pair (LLHJ paper, equation 8)."""
    return window_r * window_s / (window_r + window_s)


class LatencyExperiment(Experiment):
    """A cell has a `system`, `nodes`, `batch`, and windows in seconds."""

    measure = "latency_ms"
    unit = "ms (less is better)"
    against: ClassVar = {"system": HANDSHAKE, "batch": 1}
    repeats = 3
    warmups = 0
    output: ClassVar[str] = "collect"

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pace a stream of two and a half windows through the chain and look at what came after the first."""
        rate = self.rate(cell, context)
        return {**summary(self.outcome(cell, context, rate), *steady(cell)), "tuples_per_s": 2 * rate}

    def rate(self, cell: Cell, context: Context) -> float:
        """The tuples of a side per second at which the chain does `LOAD` of the comparisons that it can."""
        output = self._output(cell)
        _compile(cell["system"], output)
        trial = _QUICK_TRIAL if context.quick else _TRIAL
        span = cell["window_r"] + cell["window_s"]
        window, rate = _FIRST_WINDOW, 0.0
        # Small windows are bounded by what a tuple costs: the second trial has the windows that the first one led to.
        for _ in range(2):
            count = max(1024, trial * cell["nodes"] // window // 2)
            stream = Stream(window + count, (window, window), filled=window, seed=context.seed)
            run = ChainRun(cell["system"], cell["nodes"], stream, batch=cell["batch"], output=output)
            sustained = 2 * count * window / run.run(paced=False).seconds
            rate = math.sqrt(LOAD * sustained / span)
            window = max(1, int(rate * span / 2))
        return rate

    def outcome(self, cell: Cell, context: Context, rate: float) -> Outcome:
        """A run of the cell's system, paced at `rate`."""
        windows = (int(cell["window_r"] * rate), int(cell["window_s"] * rate))
        stream = Stream(
            int(_LENGTH * max(windows)),
            windows,
            spacing=int(ticks_per_ns() * 1e9 / rate),
            seed=context.seed,
        )
        run = ChainRun(cell["system"], cell["nodes"], stream, batch=cell["batch"], output=self._output(cell))
        return run.run(paced=True, most=_MOST)

    def _output(self, cell: Cell) -> str:
        return self.output if cell["system"] == LOW_LATENCY else "collect"

    def cell(self, system: str, nodes: int, batch: int, windows: tuple[float, float], quick: bool) -> Cell:
        """One point of a grid."""
        scale = _QUICK if quick else 1
        own = 1 if system == HANDSHAKE else batch
        return {
            "system": system, "nodes": nodes, "batch": own,
            "window_r": windows[0] * scale, "window_s": windows[1] * scale,
        }  # fmt: skip


@cache
def _compile(system: str, output: str) -> None:
    """Load or compile the kernels: a paced stream does not wait for it."""
    stream = Stream(256, (64, 64), spacing=1, seed=0)
    ChainRun(system, 2, stream, output=output).run(paced=False)


def steady(cell: Cell) -> tuple[float, float]:
    """From when both windows are full, and to when the original join finds all pairs before the run ends; seconds."""
    windows = cell["window_r"], cell["window_s"]
    return max(windows), _LENGTH * max(windows) - model(*windows)


def summary(outcome: Outcome, begin: float, end: float) -> dict[str, Any]:
    """Latencies of what was due from `begin` to `end`, and how they went over time."""
    chosen = outcome.latency[(outcome.due >= begin) & (outcome.due < end)] * 1e3
    if not chosen.size:
        raise RuntimeError("no result came after the windows had filled: the run is too short")
    return {
        "latency_ms": float(chosen.mean()),
        "median_ms": float(np.median(chosen)),
        "p99_ms": float(np.percentile(chosen, 99)),
        "max_ms": float(chosen.max()),
        "results": int(chosen.size),
        "over_time": series(outcome, end),
    }


def series(outcome: Outcome, end: float) -> list[list[float]]:
    """(second, mean ms, max ms) of equal spans of the run up to `end`."""
    edges = np.linspace(0, end, _BINS + 1)
    at = np.digitize(outcome.due, edges) - 1
    rows = []
    for k in range(_BINS):
        inside = outcome.latency[at == k] * 1e3
        if inside.size:
            rows.append([round(float(edges[k + 1]), 2), round(float(inside.mean()), 3), round(float(inside.max()), 2)])
    return rows


def draw_over_time(rows: Sequence[Row], figure: Figure, *, log: bool) -> None:
    """Mean and greatest latency against the time of the run, a panel a pair of windows."""
    pairs = sorted({(row["window_r"], row["window_s"]) for row in rows}, reverse=True)
    panels = figure.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    for axes, pair in zip(panels, pairs, strict=True):
        for row in rows:
            if (row["window_r"], row["window_s"]) != pair or not row.get("over_time"):
                continue
            seconds, mean, most = zip(*row["over_time"], strict=True)
            label = f"{row['system']}, {row['nodes']} nodes, batch {row['batch']}"
            line = axes.plot(seconds, mean, marker="o", label=f"{label}: mean")[0]
            axes.plot(seconds, most, linestyle=":", color=line.get_color(), label=f"{label}: max")
        axes.axhline(1e3 * model(*pair), color="grey", linestyle="--", label="model of handshake's max")
        axes.set(xlabel="seconds", ylabel="latency, ms", title=f"windows of {pair[0]:g} s and {pair[1]:g} s")
        if log:
            axes.set_yscale("log")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize="x-small")


def of(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def crowded(row: Row) -> str:
    """Whether the nodes, driver and collector of a run had to share processors, in words; nothing if not."""
    threads, processors = row["nodes"] + 2, cores()
    return f"{threads} threads share {processors} cores, and a node waits for its turn" if threads > processors else ""


def low_latency_findings(rows: Sequence[Row], batch: int, factor: float) -> list[Finding]:
    """How far the low-latency join is below the original at one batch; at small batches our aim as well."""
    parts = []
    for row in of(rows, system=LOW_LATENCY, batch=batch):
        base = of(rows, system=HANDSHAKE, nodes=row["nodes"], window_r=row["window_r"], window_s=row["window_s"])[0]
        times = base["latency_ms"] / row["latency_ms"]
        where = f"{row['nodes']} nodes, windows of {row['window_r']:g} and {row['window_s']:g} s, batch {batch}"
        parts.append(
            judge_claim(
                f"{where}: latency orders of magnitude below the original's",
                f"mean {row['latency_ms']:.2f} ms (median {row['median_ms']:.2f}), handshake {times:,.0f} times it",
                f"at least {factor:,.0f} times, as the windows are shorter than the paper's",
                times >= factor,
                crowded(row),
            )
        )
        if batch <= _SMALL_BATCH:
            parts.append(
                judge_aim(
                    f"{where}: 1 ms or less on average",
                    f"{row['latency_ms']:.2f} ms",
                    "at most 1 ms",
                    row["latency_ms"] <= 1,
                )
            )
    return parts
