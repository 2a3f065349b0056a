"""What a join holds in memory: bytes per tuple of its windows and of its index, by algorithm, window and push size.

Both figures are those of `metrics()`, sampled after every push once the windows are full; the worst one counts, so
entries that have expired and are not dropped yet are included. A key and a position are 16 bytes. The PIM-Tree is
compared with the B+-tree beside it, as in the paper, which counts about twice the B+-tree at merge ratio 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met

_ENTRY = 16
_ROW = 16
_RUNS, _BTREE, _PIM = "sweep", "indexed over btree", "indexed over pim_tree"
# The largest T_I, as in the paper's figure.
_PIM_1 = f"{_PIM}, merge ratio 1"
_MOST_OF_RUNS, _MOST_OF_PIM = 1.25, 2.0


class MemoryExperiment(Experiment):
    """Bytes per tuple against window and push size."""

    title = "memory: bytes per tuple of index and window, through metrics()"
    claim = "SIGMOD paper, figure 11c: the PIM-Tree takes about twice the memory of the B+-tree at merge ratio 1"
    measure = "tuples_per_mib"
    unit = "tuples/MiB"
    repeats = 1  # bytes do not vary
    warmups = 0
    against: ClassVar = {"algorithm": _BTREE}
    across, lines, log, drawn = "window", ("algorithm", "push"), True, "index_bytes"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each algorithm, with pushes of a 64th and of a quarter of the window."""
        windows = (14, 16) if quick else (16, 18, 20)
        return [
            {"window": 1 << window, "push": 1 << push, "algorithm": algorithm}
            for window in windows
            for push in (window - 6, window - 2)
            for algorithm in (_BTREE, _PIM_1, _PIM, _RUNS)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, turn them over, and take the worst figures of that time."""
        rng = np.random.default_rng(context.seed)
        window, push = cell["window"], cell["push"]
        name, _, index = cell["algorithm"].partition(",")[0].partition(" over ")
        options = {"merge_ratio": 1.0} if cell["algorithm"] == _PIM_1 else None

        def batch() -> pa.Table:
            return pa.table({"k": rng.integers(0, window, push), "v": rng.random(push)})

        spec = sj.JoinSpec(on=sj.Band("k", "k", 0), window=sj.CountWindow(window))
        held = []
        with sj.open(spec, name, index=index or None, index_options=options, max_rows=None) as join:
            for number in range(2 * window // push + 2):
                join.push(batch(), batch())
                if number * push >= window:
                    figures = join.metrics()
                    held.append((figures["index_bytes_per_tuple"], figures["window_bytes_per_tuple"]))
        index_bytes, window_bytes = (max(column) for column in zip(*held, strict=True))
        return {
            "tuples_per_mib": (1 << 20) / (index_bytes + window_bytes),
            "index_bytes": index_bytes,
            "index_times_entries": index_bytes / _ENTRY,
            "window_bytes": window_bytes,
            "window_times_rows": window_bytes / _ROW,
        }

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The worst cell of the sorted runs, and of the PIM-Tree beside the B+-tree."""
        by_cell = {(row["window"], row["push"], row["algorithm"]): row["index_bytes"] for row in rows}
        runs = max(row["index_times_entries"] for row in rows if row["algorithm"] == _RUNS)
        pim, largest = (
            max(by_cell[window, push, own] / held for (window, push, name), held in by_cell.items() if name == _BTREE)
            for own in (_PIM, _PIM_1)
        )
        window = max(row["window_times_rows"] for row in rows)
        aims = [
            ("sorted runs, times keys and positions at worst", runs, _MOST_OF_RUNS),
            ("PIM-Tree at merge ratio 1, times the B+-tree at worst (the paper: about twice)", largest, _MOST_OF_PIM),
        ]
        return [
            *(f"{what}: {held:.2f}; aim {aim}: {met(held <= aim)}" for what, held, aim in aims),
            f"PIM-Tree as it is by default, times the B+-tree at worst: {pim:.2f}",
            f"windows, times their rows of {_ROW} bytes at worst: {window:.2f}",
        ]


EXPERIMENT = MemoryExperiment()
