"""What figures 13b and 13c share: a self-join by many threads on a Gaussian whose centre drifts.

Three phases as in the paper: rest for three windows, a drift by `drift` within ten, rest for three. The trees are the
paper's as well: w = 2^20, merge ratio 1, 1,024 sub-indexes; or, as "chosen", with the product's own settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import draw
from benchmarks.index_keys import Drift, ShapedKeys, gaussian
from benchmarks.parallel_experiment import PARALLEL, ParallelExperiment, answer, thread_counts
from benchmarks.parallel_join import ParallelJoin
from benchmarks.pim_fig8c import depths
from streamjoin.kernels.trees.task import INSERTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REST, _DRIFT, _REST_AGAIN = 3, 10, 3  # windows after those that fill the index and settle
_SETTLING = 3  # windows, at most
PAPER, CHOSEN = "figure 13", "chosen"
_IDLE = 0.1  # of an even share
_READINGS = 4
PAPER_FASTEST = 1.0


class Drifting(ParallelExperiment):
    """Speed before, during and after the drift, and how the inserts spread during it."""

    self_join = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's drifts over its tree; with our own settings also one ten times as fast as its fastest."""
        window = 1 << (12 if quick else 20)
        drifts = {PAPER: (0.0, 0.2, 0.6, 0.8, 1.0), CHOSEN: (0.0, 1.0, 10.0)}
        if quick:
            drifts = {PAPER: (0.0, 1.0), CHOSEN: (0.0, 10.0)}
        threads = sorted({1, thread_counts()[-1]})
        return [
            {"window": window, "system": PARALLEL, "layout": layout, "threads": n, "drift": drift}
            for layout, each in drifts.items()
            for drift in each
            for n in threads
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The same threads at rest."""
        return None if cell["drift"] == 0.0 else {**cell, "drift": 0.0}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Go through the three phases."""
        window = cell["window"]
        begin = (1 + _SETTLING + _REST) * window
        drift = Drift(cell["drift"], begin, begin + _DRIFT * window)
        keys = ShapedKeys(window, gaussian(), seed=context.seed, drift=drift)
        settings = _settings(window) if cell["layout"] == PAPER else {}
        join = ParallelJoin((window, window), keys, cell["threads"], settings, self_join=True)
        try:
            join.settle()
            join.run(begin - (1 + _REST) * window - join.arrived, op=INSERTS)
            before = join.run(_REST * window)
            during = join.run((_DRIFT - 2) * window)
            spread = _spread(join, 2 * window)
            join.run((_REST_AGAIN - 1) * window, op=INSERTS)
            after = join.run(window)
        finally:
            join.close()
        return {
            **answer(during),
            "before_per_s": before.answer()["tuples_per_s"],
            "after_per_s": after.answer()["tuples_per_s"],
            **spread,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Speed against the drift, and the largest sub-index's share."""
        left, right = figure.subplots(1, 2)
        draw(left, rows, x="drift", by=("layout", "threads"))
        draw(right, rows, x="drift", by=("layout", "threads"), y="largest_share")
        for axes in (left, right):
            axes.set_xscale("symlog", linthresh=1)


def _settings(window: int) -> dict[str, float]:
    """Merge ratio 1, and as many sub-indexes as the level of T_S above the leaves has nodes."""
    return {"merge_ratio": 1.0, "insertion_depth": depths(window)[-1] - 1}


def _spread(join: ParallelJoin, tuples: int) -> dict[str, float]:
    """Go on drifting and read the sizes of the sub-indexes a few times; the fullest reading counts."""
    readings = []
    step = max(1, join.period() // _READINGS)
    for done in range(0, tuples, step):
        join.run(min(step, tuples - done), op=INSERTS)
        sizes = np.array(join.sides[0].sub_index_sizes())
        total = max(1, int(sizes.sum()))
        readings.append((total, float(sizes.max()) / total, float(np.mean(sizes < _IDLE * sizes.mean()))))
    _, largest, idle = max(readings)
    return {"largest_share": largest, "idle_share": idle}
