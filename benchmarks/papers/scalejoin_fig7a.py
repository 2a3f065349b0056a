"""ScaleJoin, figure 7a: tuples a second through one ScaleGate, by sources and readers, without a join behind it.

Sources take their turns at random, so that their tuples lie mixed in the list; they add 64 tuples a call or, as in the
paper, one. Every reader reads every tuple and checks the order. More threads than cores share them, which the ratio to
one reader then shows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.hardware import cores
from benchmarks.harness import (
    Cell,
    Context,
    Experiment,
    Figure,
    Finding,
    Row,
    human,
    judge_aim,
    judge_claim,
    not_tested,
)
from benchmarks.papers.gate_ends import PLACES, add_all, read_all
from benchmarks.papers.scalejoin_stream import thread_grid
from benchmarks.report_lines import draw_lines
from streamjoin.model.errors import StateError
from streamjoin.scalejoin.gate import GateArena
from streamjoin.windows.crew import Crew

_TUPLES = {True: 1 << 17, False: 1 << 21}
_AT_ONCE = 64
_RING = 1 << 12
_BLOCK = 256
_AIM = 5e6
_PAPER = 150e3


def gate_rate(sources: int, readers: int, tuples: int, seed: int, at_once: int = _AT_ONCE) -> float:
    """Tuples a second that all readers have read, when sources add `at_once` per call."""
    gate = GateArena(sources, readers, _RING)
    slots = [gate.add_source(k) for k in range(sources)]
    whose = np.random.default_rng(seed).integers(0, sources, tuples)
    times = [np.flatnonzero(whose == k) for k in range(sources)]
    crew = Crew(sources + readers, PLACES)
    wrong: list[int] = []

    def step(k: int) -> None:
        if k < sources:
            add_all(gate.mem, crew.words, k, slots[k], times[k], times[k], at_once)
        else:
            read_slots, payload, read_times = (np.empty(_BLOCK, np.int64) for _ in range(3))
            wrong.append(read_all(gate.mem, crew.words, k, k - sources, read_slots, payload, read_times, tuples))

    crew.run(lambda _: None)
    begin = time.perf_counter()
    try:
        crew.run(step)
    finally:
        crew.close()
    took = time.perf_counter() - begin
    if any(wrong):
        raise StateError(f"a reader saw {sum(wrong)} tuples out of order")
    return tuples / took


class GateRate(Experiment):
    """The rate of the gate."""

    title = "ScaleJoin, figure 7a: tuples a second through one ScaleGate"
    claim = "figure 7a: the rate grows with the sources to 150 thousand tuples/s and does not fall with the readers"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"readers": 1}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Sources and readers up to the cores; on two cores up to four of each."""
        grid = (1, 2) if quick else sorted({1, 2, 4, *thread_grid()})
        return [
            {"sources": sources, "readers": readers, "at_once": at_once}
            for at_once, several in ((_AT_ONCE, grid), (1, (1,)))
            for sources in grid
            for readers in several
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pass a column through."""
        rate = gate_rate(cell["sources"], cell["readers"], _TUPLES[context.quick], context.seed, cell["at_once"])
        return {self.measure: rate, "reads_per_s": rate * cell["readers"]}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The rate against readers, a line a number of sources; and against sources, by how many tuples a call adds."""
        left, right = figure.subplots(1, 2, sharey=True)
        draw_lines(left, [row for row in rows if row["at_once"] > 1], x="readers", by=("sources",), log=True)
        draw_lines(right, [row for row in rows if row["readers"] == 1], x="sources", by=("at_once",), log=True)
        for axes, what in ((left, "sources, 64 per call"), (right, "tuples per call, one reader")):
            axes.legend(title=what, fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Growth with the sources, no fall with the readers, the paper's rate, our aim."""
        rates = [row[self.measure] for row in rows]
        least = min(row[self.measure] for row in rows if row["at_once"] == _AT_ONCE)
        processors = cores()
        parts = [
            *(_by_sources([row for row in rows if row["readers"] == 1 and row["at_once"] == n]) for n in (1, _AT_ONCE)),
            judge_claim(
                "it grows to 150 thousand tuples/s",
                f"{human(min(rates))} to {human(max(rates))}",
                "as much or more",
                min(rates) >= _PAPER,
            ),
        ]
        held = [row["ratio"] for row in rows if "ratio" in row and row["sources"] + row["readers"] <= processors]
        what = "it does not fall with the readers"
        if held:
            parts.append(
                judge_claim(
                    what,
                    f"with a core for every thread at least {min(held):.2f} of the rate of one reader is left",
                    "at least 0.9",
                    min(held) >= 0.9,
                    "every reader reads every tuple's cache lines, which the sources write",
                )
            )
        else:
            parts.append(not_tested(what, f"{processors} cores are too few for a core per thread"))
        parts.append(judge_aim("5 M tuples/s everywhere, 64 per call", human(least), "at least 5 M", least >= _AIM))
        return parts


def _by_sources(rows: Sequence[Row]) -> Finding:
    """Whether the rate grows with the sources that have a core each, beside the reader."""
    rates = {row["sources"]: row["tuples_per_s"] for row in rows}
    fitting = {n: rate for n, rate in rates.items() if n < cores()} or rates
    most = max(fitting)
    return judge_claim(
        f"the rate grows with the sources, which add {human(rows[0]['at_once'])} per call",
        "one reader, tuples/s by sources " + ", ".join(f"{n}: {human(rate)}" for n, rate in sorted(rates.items())),
        "most with the most sources that have a core each",
        fitting[most] == max(fitting.values()),
        f"one source takes {1e9 / rates[1]:.0f} ns per tuple, as it meets no other in the list that keeps their order; "
        f"the paper's rate is {1e9 / _PAPER / 1e3:.0f} us per tuple",
    )


EXPERIMENT = GateRate()
