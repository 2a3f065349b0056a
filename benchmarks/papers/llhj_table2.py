"""Throughput of the low-latency handshake join with an index at each node (LLHJ paper, table 2).

The condition is an equality of int64 keys, so that a hash table can answer it; a tuple matches one in its window on
average. The driver sends as fast as the chain takes, windows are full from the start. Driver and collector are threads
as well: the most nodes that have a core each are two fewer than the machine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.hardware import cores
from benchmarks.harness import Cell, Context, Experiment, Finding, Row, human, judge_aim, judge_claim
from benchmarks.papers.llhj_fig17 import found, spreads
from benchmarks.papers.llhj_latency import crowded, node_counts, of
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY, ChainRun
from benchmarks.papers.llhj_streams import Stream

_SYSTEMS = {"scan": None, "hashed": "hashed", "pim_tree": "pim_tree"}
_COMPARISONS = 1 << 32
_PAPER_GAIN = 44
_OTHERS = 2  # threads that are no nodes
_TUPLES = 1 << 18
_WINDOW = {True: 1 << 12, False: 1 << 17}


class Table2(Experiment):
    """Tuples a second."""

    title = "low_latency_handshake with an index at each node, equal keys"
    claim = "LLHJ, table 2: 5,125 tuples/s handshake, 5,117 low-latency, 225,234 with a hash table a node: 44 times"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"system": HANDSHAKE, "index": "scan"}
    repeats = 3
    across, lines, log = "nodes", ("system", "index"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's three and the PIM-Tree, at the machine's numbers of nodes."""
        window = _WINDOW[quick]
        return [
            {"system": system, "index": index, "nodes": nodes, "window": window}
            for nodes in sorted({*node_counts(quick), *_alone(quick)})
            for system, index in ((HANDSHAKE, "scan"), *((LOW_LATENCY, index) for index in _SYSTEMS))
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Send tuples for a while through full windows."""
        window, index = cell["window"], _SYSTEMS[cell["index"]]
        scanned = max(2048, _COMPARISONS // (16 if context.quick else 1) * cell["nodes"] // window // 4)
        count = scanned if index is None else _TUPLES // (8 if context.quick else 1)
        stream = Stream(window + count, (window, window), filled=window, keyed=True, values=window, seed=context.seed)
        outcome = ChainRun(cell["system"], cell["nodes"], stream, index=index).run(paced=False, most=1 << 22)
        return {"tuples_per_s": 2 * count / outcome.seconds, "results_per_tuple": len(outcome.pairs) / (2 * count)}

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Both joins, what an index gains, and whether nodes slow it down."""
        parts = []
        hashed = of(rows, index="hashed")
        for row in hashed:
            scan = of(rows, system=LOW_LATENCY, index="scan", nodes=row["nodes"])[0]
            gain = row["tuples_per_s"] / scan["tuples_per_s"]
            original = of(rows, system=HANDSHAKE, nodes=row["nodes"])[0]
            share = found(original, scan, "results_per_tuple")
            ratio = scan["ratio"] / share
            parts += [
                judge_claim(
                    f"{row['nodes']} nodes: the low-latency join is as fast as the original",
                    f"{human(scan['tuples_per_s'])} tuples/s, {ratio:.2f} times handshake's, which found {share:.0%} "
                    "of the pairs",
                    "0.8 to 1.25 times",
                    0.8 <= ratio <= 1.25,
                    spreads(scan, original),
                ),
                judge_claim(
                    f"{row['nodes']} nodes: a hash table per node makes it 44 times as fast",
                    f"{human(row['tuples_per_s'])} tuples/s, {gain:.0f} times",
                    "at least 22 times",
                    gain >= _PAPER_GAIN / 2,
                    f"nodes share the work of scanning, {_gain(rows, 'scan', row):.1f} times that of one here, but "
                    f"each looks every tuple up in its table: {_gain(rows, 'hashed', row):.1f} times",
                ),
            ]
        best = max(row["tuples_per_s"] for row in hashed)
        for row in [row for row in hashed if row["nodes"] >= max(2, cores() - _OTHERS)]:
            share = row["tuples_per_s"] / best
            parts.append(
                judge_aim(
                    f"{row['nodes']} nodes do not slow the hash tables down",
                    f"{human(row['tuples_per_s'])} tuples/s, {share:.0%} of the best ({human(best)})",
                    "at least 80 %",
                    share >= 0.8,
                    crowded(row)
                    or "every node looks every tuple up and hands it on: with so little work the hops decide",
                )
            )
        return parts


def _alone(quick: bool) -> list[int]:
    """The most nodes that have a core each, where those are several."""
    nodes = cores() - _OTHERS
    return [nodes] if nodes > 1 and not quick else []


def _gain(rows: Sequence[Row], index: str, row: Row) -> float:
    """The speed with a row's nodes over that with the fewest."""
    found = {each["nodes"]: each["tuples_per_s"] for each in of(rows, system=LOW_LATENCY, index=index)}
    return float(found[row["nodes"]] / found[min(found)])


EXPERIMENT = Table2()
