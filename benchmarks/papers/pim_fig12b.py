"""SIGMOD paper, figure 12b: two-way joins, one thread and many, by the way to merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.papers.parallel_merging import Merging


class TwoWay(Merging):
    """Two streams."""

    title = "figure 12b: two-way join against window, blocking and non-blocking merge, match rate 2"
    claim = (
        "figure 12b: from w = 2^15 on 16 threads are 7.5 times one thread over a B+-tree and 3.7 times one over a "
        "PIM-Tree on average (12 and 5.3 at 2^25), and 2.2 times a Bw-Tree from 2^14 on; blocking merges are slightly "
        "faster, others keep latency low"
    )
    paper_from = 1 << 15
    paper_gains: ClassVar[Mapping[str, float]] = {"btree": 7.5, "pim_tree": 3.7}
    largest_gains: ClassVar[Mapping[str, float]] = {"btree": 12.0, "pim_tree": 5.3}


EXPERIMENT = TwoWay()
