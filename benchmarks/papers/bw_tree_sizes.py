"""The size of a Bw-Tree's leaves and the length of its chains, in the parallel join of figures 8a and 12b.

A larger leaf means fewer levels and more to copy in a consolidation; a longer chain means fewer consolidations and more
records to look through in every search. The B+-tree beside it has one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_aim
from benchmarks.papers.bw_tree.layout import CHAIN, LEAF_SIZE
from benchmarks.papers.bw_tree_join import BW_TREE, BwTreeBandJoin
from benchmarks.papers.index_experiment import pick, power, values
from benchmarks.papers.index_keys import keys_for
from benchmarks.papers.parallel_experiment import LEAST, ParallelExperiment, answer, thread_counts
from benchmarks.report_lines import draw_lines

_CLOSE_ENOUGH = 0.9


class Sizes(ParallelExperiment):
    """The join over Bw-Trees by the shape of their pages."""

    title = "throughput of the join over Bw-Trees against leaves and chains, match rate 2"
    repeats = 1  # a join is settled for every cell, and the largest take the longest

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Leaves of 32 to 128 entries, chains of 4 to 16 records."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        shapes = [(LEAF_SIZE, CHAIN)] if quick else [(leaf, chain) for leaf in (32, 64, 128) for chain in (4, 8, 16)]
        threads = thread_counts()[-1]
        alone = {"system": "btree", "threads": 1, "leaf_size": None, "chain": None}
        return [
            cell
            for window in windows
            for cell in (
                {"window": window, **alone},
                *(
                    {"window": window, "system": BW_TREE, "threads": threads, "leaf_size": leaf, "chain": chain}
                    for leaf, chain in shapes
                ),
            )
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """One thread over B+-trees."""
        if cell["system"] != BW_TREE:
            return None
        return {**cell, "system": "btree", "threads": 1, "leaf_size": None, "chain": None}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure a join that is settled anew for every cell; the one before is let go."""
        if cell["system"] != BW_TREE:
            return super().run(cell, context)
        window, shape = cell["window"], {name: cell[name] for name in ("leaf_size", "chain")}
        keys = keys_for("uniform", window, seed=context.seed)
        join = BwTreeBandJoin((window, window), keys, cell["threads"], shape)
        try:
            join.settle()
            return answer(join.run(LEAST[context.quick]))
        finally:
            join.close()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the window, a line for each shape."""
        shaped = [row for row in rows if row["system"] == BW_TREE]
        draw_lines(figure.subplots(), shaped, x="window", by=("leaf_size", "chain"))

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The best shape of each window, and what the default gives."""
        findings = []
        for window in values(rows, "window"):
            shaped = pick(rows, window=window, system=BW_TREE)
            best = max(shaped, key=lambda row: row["tuples_per_s"])
            default = pick(shaped, leaf_size=LEAF_SIZE, chain=CHAIN)[0]
            share = default["tuples_per_s"] / best["tuples_per_s"]
            findings.append(
                judge_aim(
                    f"w = {power(window)}: leaves of {LEAF_SIZE} and chains of {CHAIN} are near the best",
                    f"{share:.0%} of the speed of {best['leaf_size']} and {best['chain']}",
                    f"at least {_CLOSE_ENOUGH:.0%}",
                    share >= _CLOSE_ENOUGH,
                )
            )
        return findings


EXPERIMENT = Sizes()
