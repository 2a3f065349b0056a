"""What the three experiments on skew share: sources whose rates differ and change, and how evenly threads work.

Each source's tuples carry the times that its rate gives them, and are due by the real clock, twenty times as fast. Work
is counted by slices of a second of the stream, once the windows are full: how many comparisons each thread makes for
the tuples of the slice. How far that is from what it makes in 50 real milliseconds, the delays of results say: one
comes out when all threads have passed its tuples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.hardware import cores
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_claim
from benchmarks.papers.scalejoin_stream import Stream, run_stream

Rate = Callable[[Any], Any]
"""Tuples a second at a second of the stream."""

_SECOND = 1_000_000
_AIM = 1.0
_HASTE = 20.0
_LATE = 0.1
"""Of a slice: so late may the last thread be for its slices to be those of real time."""


def stream_of(side: int, rate: Rate, seconds: int, phase: float) -> Stream:
    """A source that sends at a rate which changes over time."""
    clock = np.arange(0, seconds, 0.001)
    sent = np.concatenate([[0.0], np.cumsum(rate(clock) * 0.001)])
    moments = np.interp(np.arange(phase, sent[-1], 1.0), sent, np.append(clock, seconds))
    return Stream(side, (moments * _SECOND).astype(np.int64))


def constant(rate: float) -> Rate:
    """Always the same."""
    return lambda clock: np.full_like(clock, rate)


def wave(mean: float, swing: float, period: float) -> Rate:
    """Up and down by `swing` around the mean."""
    return lambda clock: mean + swing * np.sin(2 * np.pi * clock / period)


def peaks(rate: float, height: float, every: float, length: float) -> Rate:
    """`height` times the rate for `length` seconds, every so often."""
    return lambda clock: np.where(clock % every < length, height * rate, rate)


class Skew(Experiment):
    """Work of the threads over streams of changing rates; a figure says which streams and how many threads."""

    measure = "comparisons_per_s"
    unit = "comparisons/s"
    repeats = 3

    threads: ClassVar[int]
    paper_std: ClassVar[float]
    against: ClassVar = {"threads": 1}

    @abstractmethod
    def rates(self) -> tuple[Sequence[Rate], Sequence[Rate]]:
        """The rates of R's and of S's sources."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's number of threads, and one."""
        seconds, window = (12, 4) if quick else (60, 20)
        return [{"threads": n, "seconds": seconds, "window_s": window} for n in (1, self.threads)]

    def streams(self, seconds: int) -> list[Stream]:
        """All sources, R's first."""
        made = []
        for side, rates in enumerate(self.rates()):
            made += [stream_of(side, rate, seconds, (k + 1) / (len(rates) + 1)) for k, rate in enumerate(rates)]
        return made

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """The whole stream; slices count from when the windows are full."""
        window = cell["window_s"]
        ran = run_stream(
            cell["threads"],
            self.streams(cell["seconds"]),
            window * _SECOND,
            slice_=_SECOND,
            per_tick_ns=1e9 / _SECOND / _HASTE,
            seed=context.seed,
        )
        full = ran.work[:, window:]
        spread = 100 * full.std(axis=0) / full.mean(axis=0)
        return {
            self.measure: ran.comparisons_per_s,
            "std_percent": float(spread.mean()),
            "worst_std_percent": float(spread.max()),
            "least_a_slice": float(full.mean(axis=0).min()),
            "most_a_slice": float(full.mean(axis=0).max()),
            "late_ms": float(np.quantile(ran.delays_ms, 0.99)),
            "tuples": ran.tuples,
            "results": ran.results,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The input rates, and how far the threads' work spreads."""
        above, below = figure.subplots(2, 1)
        row = max(rows, key=lambda row: int(row["threads"]))
        clock = np.arange(0, row["seconds"], 0.1)
        for name, rates in zip("RS", self.rates(), strict=True):
            for k, rate in enumerate(rates):
                above.plot(clock, rate(clock), label=f"{name}{k + 1}")
        above.set(xlabel="time (s)", ylabel="tuples/s")
        above.legend(fontsize="small", ncols=3)
        below.bar(["mean", "worst slice"], [row["std_percent"], row["worst_std_percent"]])
        below.set_ylabel("std of work (%)")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The spread by counts against the paper's and our aim."""
        row = max(rows, key=lambda row: int(row["threads"]))
        mean, worst = row["std_percent"], row["worst_std_percent"]
        least, most = row["least_a_slice"], row["most_a_slice"]
        return [
            judge_claim(
                f"the comparisons of {row['threads']} threads per second of the stream spread by about "
                f"{self.paper_std:g} %",
                f"{mean:.3f} % on average",
                "at most three times that",
                mean <= 3 * self.paper_std,
            ),
            judge_claim(
                "the load itself changes as the rates do, and the balance holds",
                f"a thread makes {human(least)} to {human(most)} comparisons per second of the stream; {worst:.3f} % "
                "in the worst second",
                "at most 1 % in the worst second",
                worst <= _AIM,
            ),
            judge_claim(
                "it holds in real time",
                f"99 % of the results are there {row['late_ms']:.2f} ms after their tuples were due or sooner, from "
                f"the slowest thread too, and a slice takes {1e3 / _HASTE:.0f} ms",
                f"at most {_LATE:.0%} of a slice",
                row["late_ms"] <= _LATE * 1e3 / _HASTE,
                f"{row['threads']} threads, sources and consumer share {cores()} cores",
            ),
        ]
