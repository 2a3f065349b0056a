"""ScaleJoin, figure 7a: tuples a second through one ScaleGate, by sources and readers, without a join behind it.

Sources take their turns at random, so that their tuples lie mixed in the list; they add 64 tuples a call. Every reader
reads every tuple and checks the order. More threads than cores share them, which the ratio to one reader then shows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Cell, Context, Experiment, Row, human
from benchmarks.index_experiment import draw, met
from benchmarks.scalejoin_stream import thread_grid
from streamjoin.gate.scalegate import ScaleGate
from streamjoin.kernels.scalegate.drive import PLACES, add_all, read_all
from streamjoin.model.errors import StateError
from streamjoin.windows.crew import Crew

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TUPLES = {True: 1 << 17, False: 1 << 21}
_PIECE = 64
_RING = 1 << 12
_BLOCK = 256
_AIM = 5e6
_PAPER = 150e3


def gate_rate(sources: int, readers: int, tuples: int, seed: int) -> float:
    """Tuples a second that all readers have read."""
    gate = ScaleGate(sources, readers, _RING)
    slots = [gate.add_source(k) for k in range(sources)]
    whose = np.random.default_rng(seed).integers(0, sources, tuples)
    times = [np.flatnonzero(whose == k) for k in range(sources)]
    crew = Crew(sources + readers, PLACES)
    wrong: list[int] = []

    def step(k: int) -> None:
        if k < sources:
            add_all(gate.mem, crew.words, k, slots[k], times[k], times[k], _PIECE)
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

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Sources and readers up to the cores; on two cores up to four of each."""
        grid = (1, 2) if quick else sorted({1, 2, 4, *thread_grid()})
        return [{"sources": sources, "readers": readers} for sources in grid for readers in grid]

    def baseline(self, cell: Cell) -> Cell | None:
        """One reader."""
        return None if cell["readers"] == 1 else {**cell, "readers": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Pass a column through."""
        rate = gate_rate(cell["sources"], cell["readers"], _TUPLES[context.quick], context.seed)
        return {self.measure: rate, "reads_per_s": rate * cell["readers"]}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The rate against readers, a line a number of sources."""
        draw(figure.subplots(), rows, x="readers", by=("sources",), log=True)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aim, the readers, the paper."""
        best, least = (pick(row[self.measure] for row in rows) for pick in (max, min))
        cores = os.cpu_count() or 1
        overall = (
            f"{human(least)} to {human(best)} tuples/s; aim 5 M: {met(best >= _AIM)} at best, {met(least >= _AIM)} "
            f"everywhere; paper 150 k: {least / _PAPER:.0f} to {best / _PAPER:.0f} times"
        )
        lines = [overall]
        fitting = [row["ratio"] for row in rows if "ratio" in row and row["sources"] + row["readers"] <= cores]
        if fitting:
            lines.append(
                f"with a core for every thread, more readers leave at least {min(fitting):.2f} of the rate of one; "
                f"aim not falling (0.9): {met(min(fitting) >= 0.9)}"
            )
        reads = [(row["sources"], row["readers"], row["reads_per_s"]) for row in rows]
        most = max(reads, key=lambda read: read[2])
        lines.append(f"all readers together read up to {human(most[2])} tuples/s, {most[1]} of them on {cores} cores")
        return lines


EXPERIMENT = GateRate()
