"""The fan-out of immutable trees: the paper's f_ib, beside the B+-tree with its 30 keys per node.

A larger node means fewer levels and more words to compare on each. Whole periods are measured, so merges count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import benchmarks.papers.chain.index  # noqa: F401 - registers its kinds
from benchmarks.harness import Cell, Finding, Row, judge_aim
from benchmarks.papers.index_experiment import BASELINE, IndexExperiment, pick, power, speeds, values
from benchmarks.papers.index_join import IndexJoin, Measured
from streamjoin.indexes.registry import make_index

_SETTING = {"im_tree": "fanout", "pim_tree": "fanout", "ib_chain": "immutable_fanout"}
_CLOSE_ENOUGH = 0.95


class Fanout(IndexExperiment):
    """Three indexes with immutable parts by fan-out."""

    title = "throughput against the fan-out of immutable trees, match rate 2"
    claim = "SIGMOD paper, section 3.1: an immutable tree has more children per node than a B+-tree (f_ib > f_b)"
    against: ClassVar = {"index": BASELINE, "fanout": None}
    across, lines = "fanout", ("window", "index")

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every power of two that the kernels know; the chain at one window, since its period is long."""
        windows, fanouts = ((12,), (16, 32)) if quick else ((17, 20, 22), (8, 16, 32, 64))
        cells: list[Cell] = []
        for window in (1 << w for w in windows):
            cells.append({"window": window, "index": "btree", "fanout": None})
            kinds = _SETTING if window == 1 << windows[0] else ("im_tree", "pim_tree")
            cells += [{"window": window, "index": index, "fanout": n} for index in kinds for n in fanouts]
        return cells

    def chosen(self, cell: Cell) -> dict[str, float]:
        """The fan-out under the name that the index gives it."""
        return {} if cell["fanout"] is None else {_SETTING[cell["index"]]: cell["fanout"]}

    def explain(self, join: IndexJoin, measured: Measured) -> Mapping[str, Any]:  # noqa: ARG002
        """Nodes that a search goes through."""
        return {"searched_nodes": measured.steps["search"] / measured.tuples}

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The best fan-out of each index, and what the default gives."""
        findings = []
        for window in values(rows, "window"):
            for index in _SETTING:
                by_fanout = speeds(rows, "fanout", index=index, window=window)
                if not by_fanout:
                    continue
                best = max(by_fanout, key=by_fanout.__getitem__)
                default = int(make_index(index, 1 << 10).settings().get(_SETTING[index], 32))
                share = by_fanout[default] / by_fanout[best]
                nodes, base = (
                    pick(rows, window=window, **which)[0]["searched_nodes"]
                    for which in ({"index": index, "fanout": default}, {"index": "btree"})
                )
                findings.append(
                    judge_aim(
                        f"{index}, w = {power(window)}: the default fan-out, {default}, is near the best",
                        f"{share:.0%} of the speed at {best}; {nodes:.1f} nodes per search, {base:.1f} in the B+-tree",
                        f"at least {_CLOSE_ENOUGH:.0%}",
                        share >= _CLOSE_ENOUGH,
                    )
                )
        return findings


EXPERIMENT = Fanout()
