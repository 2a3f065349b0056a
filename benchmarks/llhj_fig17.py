"""Throughput of both handshake joins and with punctuation, by nodes (LLHJ paper, figure 17).

The driver sends as fast as the chain takes; windows are full from the start and hold 2^16 tuples a side.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Row, human
from benchmarks.llhj_latency import node_counts, of
from benchmarks.llhj_run import HANDSHAKE, LOW_LATENCY, ChainRun
from benchmarks.llhj_streams import Stream
from benchmarks.report_lines import draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = 1 << 16
PUNCTUATED = "low_latency_handshake punctuated"
_COMPARISONS = 1 << 32
_ROUNDS = 5
_QUICK_WINDOW = 1 << 12
_QUICK_COMPARISONS = 1 << 26


class Figure17(Experiment):
    """Tuples and comparisons a second."""

    title = "throughput of both handshake joins, 2-D band"
    claim = "LLHJ, figure 17: the low-latency join is as fast as the original, punctuations cost next to nothing"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 5

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three systems at every number of nodes."""
        window = _QUICK_WINDOW if quick else WINDOW
        systems = (HANDSHAKE, LOW_LATENCY, PUNCTUATED)
        return [{"system": s, "nodes": n, "window": window} for n in node_counts(quick) for s in systems]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original join with as many nodes."""
        return None if cell["system"] == HANDSHAKE else {**cell, "system": HANDSHAKE}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Send tuples for a while through full windows; with punctuation, beside a run without, in turn."""
        if cell["system"] != PUNCTUATED:
            return self._answer(cell, self._stream(cell, context, 1), "collect")
        stream = self._stream(cell, context, _ROUNDS)
        runs = [[self._answer(cell, stream, output) for output in ("collect", "punctuate")] for _ in range(_ROUNDS)]
        costs = [1 - after["tuples_per_s"] / before["tuples_per_s"] for before, after in runs]
        middle = sorted((after for _, after in runs), key=lambda answer: answer["tuples_per_s"])[_ROUNDS // 2]
        return {**middle, "cost": statistics.median(costs)}

    def _stream(self, cell: Cell, context: Context, rounds: int) -> Stream:
        window = cell["window"]
        budget = (_QUICK_COMPARISONS if context.quick else _COMPARISONS) * cell["nodes"] // rounds
        count = max(1024, budget // window // 2)
        return Stream(window + count, (window, window), filled=window, seed=context.seed)

    def _answer(self, cell: Cell, stream: Stream, output: str) -> dict[str, Any]:
        system = HANDSHAKE if cell["system"] == HANDSHAKE else LOW_LATENCY
        outcome = ChainRun(system, cell["nodes"], stream, output=output).run(paced=False)
        moved = 2 * (stream.count - stream.filled)
        return {
            "tuples_per_s": moved / outcome.seconds,
            "comparisons_per_s": moved * cell["window"] / outcome.seconds,
            "results": len(outcome.pairs),
            "punctuations": len(outcome.punctuations),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Tuples a second against nodes."""
        draw_lines(figure.subplots(), rows, x="nodes", y="tuples_per_s", by=("system",))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The cost of punctuation, and what both joins reach."""
        lines = []
        for row in of(rows, system=PUNCTUATED):
            plain = of(rows, system=LOW_LATENCY, nodes=row["nodes"])[0]
            cost = row["cost"]
            lines.append(
                f"{row['nodes']} nodes: {human(plain['comparisons_per_s'])} comparisons/s, {plain['ratio']:.2f} times "
                f"handshake's; punctuation costs {cost:.1%}; 5 % or less: {'met' if cost <= 0.05 else 'missed'}"
            )
        return lines


EXPERIMENT = Figure17()
