"""Throughput of both handshake joins and with punctuation, by nodes (LLHJ paper, figure 17).

The driver sends as fast as the chain takes; windows are full from the start and hold 2^16 tuples a side. A tuple of the
original join meets its partners along the whole chain, so a run ends before its last tuples have met theirs: its speed
counts by the share of the pairs that it found, and the low-latency join, which finds all, says how many there are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Experiment, Finding, Row, human, judge_claim, not_tested
from benchmarks.papers.crowding import crowding, uncrowded
from benchmarks.papers.llhj_latency import of
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY, ChainRun
from benchmarks.papers.llhj_streams import Stream

WINDOW = 1 << 16
PUNCTUATED = "low_latency_handshake punctuated"
_COMPARISONS = 1 << 30
"""A node's, of a run; a run with and one without punctuation differ by a tenth by chance, so there are many."""
_ROUNDS = 24
_LEAST_ROUNDS = 5
_QUICK_WINDOW = 1 << 12
_QUICK_COMPARISONS, _QUICK_ROUNDS = 1 << 24, 5
_OTHERS = 2  # the driver and the collector


class Figure17(Experiment):
    """Tuples and comparisons a second."""

    title = "throughput of both handshake joins, 2-D band"
    claim = "LLHJ, figure 17: the low-latency join is as fast as the original, punctuations cost next to nothing"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1
    against: ClassVar = {"system": HANDSHAKE}
    across, lines = "nodes", ("system",)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three systems at every number of nodes."""
        window = _QUICK_WINDOW if quick else WINDOW
        systems = (HANDSHAKE, LOW_LATENCY, PUNCTUATED)
        return [{"system": s, "nodes": n, "window": window} for n in uncrowded(quick, _OTHERS) for s in systems]

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
            "uneven": float(np.ptp(outcome.comparisons) / outcome.comparisons.mean()),
            "results": len(outcome.pairs),
            "punctuations": len(outcome.punctuations),
        }

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Both joins beside each other, the growth with nodes, the cost of punctuation."""
        parts = []
        by_nodes = {row["nodes"]: row for row in of(rows, system=LOW_LATENCY)}
        for nodes, row in by_nodes.items():
            marked = of(rows, system=PUNCTUATED, nodes=nodes)[0]
            original = of(rows, system=HANDSHAKE, nodes=nodes)[0]
            balanced = original["uneven"]
            parts += [
                _as_fast(row, original),
                judge_claim(
                    f"{nodes} nodes: home nodes in turn spread the load better than handshake's own balancing",
                    f"the nodes' comparisons differ by {row['uneven']:.1%} of their mean, handshake's {balanced:.1%}",
                    "no more than handshake's, or at most 5 %",
                    row["uneven"] <= max(0.05, balanced),
                ),
                judge_claim(
                    f"{nodes} nodes: punctuations have no noticeable effect",
                    f"{marked['cost']:.1%}, the median of {marked['rounds']} pairs of runs",
                    "at most 5 %",
                    marked["cost"] <= 0.05,
                ),
            ]
        most = max(nodes for nodes in by_nodes if not crowding(nodes))
        if most > 1:
            gain = by_nodes[most]["comparisons_per_s"] / by_nodes[1]["comparisons_per_s"]
            parts.append(
                judge_claim(
                    "throughput scales with the nodes",
                    f"{most} nodes make {gain:.2f} times the comparisons of one",
                    "at least 0.6 a node",
                    gain >= 0.6 * most,
                    allowed(most),
                )
            )
        return parts


def _as_fast(row: Row, original: Row) -> Finding:
    what = f"{row['nodes']} nodes: the low-latency join is as fast as the original or slightly faster"
    share = found(original, row)
    ratio = row["ratio"] / share
    seen = (
        f"{human(row['comparisons_per_s'])} comparisons/s, {ratio:.2f} times handshake's, which found {share:.0%} of "
        "the pairs"
    )
    if shared := crowding(row["nodes"]):
        return not_tested(what, f"{shared}: {seen}; {spreads(row, original)}")
    return judge_claim(what, seen, "0.95 to 1.3 times", 0.95 <= ratio <= 1.3, spreads(row, original))


def found(original: Row, row: Row, count: str = "results") -> float:
    """The share of the pairs that a run of the original join found, by what the low-latency join found."""
    return float(original[count] / max(1e-9, row[count]))


def spreads(row: Row, original: Row) -> str:
    """How far the repeats of both joins lie apart, in words."""
    ours, others = (f"{human(each['least'])} to {human(each['most'])}" for each in (row, original))
    return f"repeats give {ours} tuples/s, handshake's {others}"


def _middle(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return sorted(answers, key=lambda answer: float(answer["tuples_per_s"]))[len(answers) // 2]


EXPERIMENT = Figure17()
