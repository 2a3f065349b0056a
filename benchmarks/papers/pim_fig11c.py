"""SIGMOD paper, figure 11c: memory of `btree` and `pim_tree` by component, merge ratio 1.

Bytes are those of the arena after the window has turned over: what is reserved, not only what is in use. The window
itself is counted with the paper's 16 bytes a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import IndexExperiment, pick, power, values
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import keys_for

_TUPLE_BYTES = 16
_MIB = 1 << 20
_COMPONENTS = {
    "T_S": ("T_S", "separators"),
    "T_I": ("sub-indexes",),
    "merge_buffer": ("merge buffer",),
    "nodes": ("nodes",),
    "ring": ("ring",),
}


class Memory(IndexExperiment):
    """Bytes by component against the window."""

    title = "figure 11c: memory by component, MiB, merge ratio 1"
    claim = (
        "figure 11c, merge ratio 1: PIM-Tree (T_S, T_I and the merge buffer) takes about twice the memory of the "
        "B+-tree at every window size, and so does the whole join, as the sliding window has to be kept twice as long "
        "too"
    )
    measure = "tuples_per_mib"
    unit = "tuples/MiB"
    repeats = 1  # bytes do not vary

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every fourfold window."""
        windows = (12, 16) if quick else (16, 18, 20, 22)
        return [{"window": 1 << w, "index": index} for w in windows for index in ("btree", "pim_tree")]

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """One index of one side: the other's is the same."""
        window, index = cell["window"], cell["index"]
        ratio = {"merge_ratio": 1.0} if index == "pim_tree" else {}
        return IndexJoin(index, (window, window), keys_for("uniform", window, seed=seed), ratio, self_join=True)

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill, turn over, ask for the bytes."""
        parts = self.settled(cell, context).left.nbytes()
        mib = {name: sum(parts.get(part, 0) for part in own) / _MIB for name, own in _COMPONENTS.items()}
        arena = sum(parts.values()) / _MIB
        window = cell["window"] * _TUPLE_BYTES / _MIB
        total = {"arena": arena, "window_tuples": window, "total": arena + window}
        return {"tuples_per_mib": cell["window"] / arena, **mib, **total}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bytes a tuple, stacked by component."""
        axes = figure.subplots()
        names = [f"{row['index']}\n{power(row['window'])}" for row in rows]
        below = [0.0] * len(rows)
        for part in (*_COMPONENTS, "window_tuples"):
            heights = [row[part] * _MIB / row["window"] for row in rows]
            axes.bar(names, heights, bottom=below, label=part)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.set_ylabel("bytes a tuple of the window")
        axes.legend(fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The index alone, the whole, and whether the window matters."""
        index_only, whole = [], []
        for window in values(rows, "window"):
            (base,), (pim,) = (pick(rows, window=window, index=index) for index in ("btree", "pim_tree"))
            # The ring holds what the paper's B+-tree takes from the sliding window: the keys to delete.
            index_only.append(pim["arena"] / (base["arena"] - base["ring"]))
            whole.append(pim["total"] / base["total"])
        spread = max(index_only) / min(index_only)
        buffers = "T_S, the buffer it is merged into and the chunks of T_I"
        return [
            judge_claim(
                "the index takes almost twice the memory of a B+-tree",
                f"{min(index_only):.1f} to {max(index_only):.1f} times",
                "as much or less: at most 2.4 times",
                max(index_only) <= 2.4,
                buffers,
            ),
            judge_claim(
                "the whole join, with the window, takes nearly twice the memory",
                f"{min(whole):.1f} to {max(whole):.1f} times",
                "as much or less: at most 2.4 times",
                max(whole) <= 2.4,
                buffers,
            ),
            judge_claim(
                "the factor is the same at every window",
                f"largest over smallest {spread:.2f}",
                "at most 1.25",
                spread <= 1.25,
            ),
        ]


EXPERIMENT = Memory()
