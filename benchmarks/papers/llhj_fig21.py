"""How much a sorting stage behind the join must hold back, by nodes (LLHJ paper, figure 21).

Paced by the machine's clock. The low-latency join punctuates, and its sorting stage holds results until a punctuation
lets them out. The original join has nothing of the kind: results must be held as long as one can be late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import Cell, Context, Finding, Row, human, judge_claim
from benchmarks.papers.llhj_latency import LatencyExperiment, chain_lengths, of, steady
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY, Outcome

_PAPER_MOST = 30_000


def held_for_the_latest(outcome: Outcome) -> int:
    """The most results found and not yet safe to let out, when any may be as late as the latest was."""
    found = outcome.due + outcome.latency
    leaves = outcome.due + outcome.latency.max()
    at = np.concatenate([found, leaves])
    change = np.concatenate([np.ones(found.size, np.int64), np.full(leaves.size, -1)])
    return int(np.cumsum(change[np.lexsort((change, at))]).max(initial=0))


class Figure21(LatencyExperiment):
    """The most results held at a time."""

    title = "results that sorted output holds back"
    claim = "LLHJ, figure 21: a few thousand tuples at most; without punctuations it would be tens of millions"
    measure = "buffer"
    unit = "results (less is better)"
    output = "sort"
    repeats = 1
    across, lines, log = "nodes", ("system",), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both joins at every number of nodes from 2 on."""
        systems = (HANDSHAKE, LOW_LATENCY)
        return [self.cell(s, nodes, 4, (2.0, 2.0), quick) for nodes in chain_lengths(quick) for s in systems]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """The buffer of a run, and how many results a window brings."""
        outcome = self.outcome(cell, context, self.rate(cell, context))
        begin, end = steady(cell)
        a_window = int(np.count_nonzero((outcome.due >= begin) & (outcome.due < end)) * begin / (end - begin))
        sorts = cell["system"] == LOW_LATENCY
        return {
            "buffer": max(1, outcome.most_held) if sorts else held_for_the_latest(outcome),
            "results_a_window": a_window,
            "punctuations": len(outcome.punctuations),
        }

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """A few thousand at most, orders of magnitude below what would be held without punctuations."""
        parts = []
        for row in of(rows, system=LOW_LATENCY):
            base = of(rows, system=HANDSHAKE, nodes=row["nodes"])[0]
            times = base["buffer"] / row["buffer"]
            parts += [
                judge_claim(
                    f"{row['nodes']} nodes: a few thousand tuples are held at most",
                    human(row["buffer"]),
                    "at most 30 thousand",
                    row["buffer"] <= _PAPER_MOST,
                ),
                judge_claim(
                    f"{row['nodes']} nodes: without punctuations orders of magnitude more would be held",
                    f"{human(base['buffer'])}, {times:,.0f} times as many; one window brings "
                    f"{human(row['results_a_window'])}",
                    "at least 100 times",
                    times >= 100,
                    "windows of 2 seconds for the paper's 15 minutes bring fewer results to hold",
                ),
            ]
        return parts


EXPERIMENT = Figure21()
