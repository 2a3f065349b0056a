"""SIGMOD paper, figure 9c: `pim_tree` against the merge ratio m, one thread."""

from __future__ import annotations

from benchmarks.papers.index_merge_ratio import MergeRatio


class PimMergeRatio(MergeRatio):
    """`pim_tree` at every merge ratio."""

    title = "figure 9c: pim_tree against merge ratio, match rate 2"
    claim = (
        "figure 9c: PIM-Tree loses at both ends, to merges when m is small and to slow inserts and searches when it is "
        "large; m = 2^-3 is best at w = 2^16 and 2^-4 at 2^23, and the choice matters more in small windows"
    )
    index = "pim_tree"


EXPERIMENT = PimMergeRatio()
