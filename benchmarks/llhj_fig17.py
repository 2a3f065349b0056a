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
_COMPARISONS = 1 << 31
"""A node's, of a run; a run with and one without punctuation differ by a tenth by chance, so there are many."""
_ROUNDS = 122
_LEAST_ROUNDS = 9
_QUICK_WINDOW = 1 << 12
_QUICK_COMPARISONS, _QUICK_ROUNDS = 1 << 24, 5


class Figure17(Experiment):
    """Tuples and comparisons a second."""

    title = "throughput of both handshake joins, 2-D band"
    claim = "LLHJ, figure 17: the low-latency join is as fast as the original, punctuations cost next to nothing"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three systems at every number of nodes."""
        window = _QUICK_WINDOW if quick else WINDOW
        systems = (HANDSHAKE, LOW_LATENCY, PUNCTUATED)
        return [{"system": s, "nodes": n, "window": window} for n in node_counts(quick) for s in systems]

    def baseline(self, cell: Cell) -> Cell | None:
        """The original join with as many nodes."""
        return None if cell["system"] == HANDSHAKE else {**cell, "system": HANDSHAKE}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Send tuples for a while through full windows; with punctuation, beside runs without, in turn."""
        stream = self._stream(cell, context)
        rounds = _QUICK_ROUNDS if context.quick else max(_LEAST_ROUNDS, _ROUNDS // cell["nodes"])
        if cell["system"] != PUNCTUATED:
            return _middle([self._answer(cell, stream, "collect") for _ in range(_LEAST_ROUNDS)])
        outputs = ["collect", "punctuate"]
        runs: dict[str, list[dict[str, Any]]] = {output: [] for output in outputs}
        for _ in range(rounds):
            for output in outputs:
                runs[output].append(self._answer(cell, stream, output))
            outputs.reverse()
        pairs = zip(runs["collect"], runs["punctuate"], strict=True)
        cost = statistics.median(1 - after["tuples_per_s"] / before["tuples_per_s"] for before, after in pairs)
        return {**_middle(runs["punctuate"]), "cost": cost, "rounds": rounds}

    def _stream(self, cell: Cell, context: Context) -> Stream:
        window = cell["window"]
        budget = (_QUICK_COMPARISONS if context.quick else _COMPARISONS) * cell["nodes"]
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
                f"handshake's; punctuation costs {cost:.1%}, the median of {row['rounds']} pairs of runs; "
                f"5 % or less: {'met' if cost <= 0.05 else 'missed'}"
            )
        return lines


def _middle(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return sorted(answers, key=lambda answer: float(answer["tuples_per_s"]))[len(answers) // 2]


EXPERIMENT = Figure17()
