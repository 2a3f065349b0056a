"""SIGMOD paper, figure 12c: self-joins, one thread and many, blocking and non-blocking merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.papers.parallel_merging import Merging


class SelfJoin(Merging):
    """One stream, joined with itself."""

    title = "figure 12c: self-join against window, blocking and non-blocking merge, match rate 2"
    claim = (
        "figure 12c: from w = 2^16 on 16 threads are 7 times one thread over a B+-tree and 4 times over a PIM-Tree; "
        "in smaller windows threads do not pay"
    )
    self_join = True
    paper_from = 1 << 16
    paper_gains: ClassVar[Mapping[str, float]] = {"btree": 7.0, "pim_tree": 4.0}


EXPERIMENT = SelfJoin()
