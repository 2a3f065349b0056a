"""A band join by several threads over shared Bw-Trees, brought to its steady state, for figures 8a and 12b.

It draws the same tuples as `ParallelJoin` and `IndexJoin` and takes them from the same queue, in the same batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import Row
from benchmarks.papers.bw_tree.crew import BwTreeJoin
from benchmarks.papers.bw_tree.side import SharedBwTree
from benchmarks.papers.index_experiment import pick
from benchmarks.papers.index_join import TASK, IndexJoin
from benchmarks.papers.index_keys import Keys, keys_for
from benchmarks.papers.parallel_join import ParallelJoin
from streamjoin.kernels.trees.task import INSERTS
from streamjoin.pim_tree.crew import Tuples

BW_TREE = "bw_tree"
OLDER = "the result is older than the join over a Bw-Tree"
_OUT = 1 << 14
_PAGE = 512


class BwTreeBandJoin(ParallelJoin):
    """Two streams, two windows, two shared Bw-Trees; a self-join has one of each."""

    def __init__(
        self,
        windows: tuple[int, int],
        keys: Keys,
        threads: int,
        settings: Mapping[str, int] | None = None,
        *,
        task: int = TASK,
        self_join: bool = False,
    ) -> None:
        self.threads, self.task, self.merge = threads, task, "none"
        self._stream = IndexJoin("scan", windows, keys, self_join=self_join)
        self.windows, self.self_join = windows, self_join
        self.trees = [SharedBwTree(window, threads, **(settings or {})) for window in windows]
        if self_join:
            self.trees[1] = self.trees[0]
        self._tuples = Tuples()
        self.join: Any = self._joined()

    def _joined(self) -> Any:
        return BwTreeJoin(self.trees[0], self.trees[1], self.threads, task=self.task, out=_OUT)

    def period(self) -> int:
        """Nothing here comes once in many tuples."""
        return 1

    def settle(self) -> None:
        """Fill both windows, touch every page, and turn the windows over; the steady state begins here."""
        for side, tree in enumerate(self.trees[: 1 if self.self_join else 2]):
            keys = self._stream.keys.keys("right" if side else "left", 0, self.windows[side])
            tree.load(keys, np.arange(self.windows[side]))
            tree.mem[::_PAGE] += 0
        self.run(sum(self.windows), op=INSERTS)
        self.run(min(1 << 14, self.windows[0]))


def settled(
    kept: MutableMapping[Any, Any], state: Hashable, window: int, seed: int, threads: int, task: int = TASK
) -> BwTreeBandJoin:
    """The settled join of a window, which `kept` holds under `state`, with this many threads from here on."""
    found = kept.get(state)
    if not isinstance(found, BwTreeBandJoin):
        found = kept[state] = BwTreeBandJoin((window, window), keys_for("uniform", window, seed=seed), threads)
        found.settle()
    found.use(threads, task)
    return found


def ratio(rows: Sequence[Row], window: int, one: str, other: str, threads: int) -> float | None:
    """The throughput of one system, times that of another with as many threads; None where a row is missing."""
    pair = [pick(rows, window=window, system=system, threads=threads) for system in (one, other)]
    if not all(pair):
        return None
    return float(pair[0][0]["tuples_per_s"] / pair[1][0]["tuples_per_s"])
