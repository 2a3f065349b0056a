"""Merging sorted runs: the order in which the values of several sorted arrays come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.batch.sorting import merged_entries
from streamjoin.windows.encoding import read_only


def merged_order(runs: Sequence[Array]) -> Array:
    """The places in the concatenation of sorted runs, in the order of their values; equal ones by run."""
    parts: list[tuple[Array, Array]] = []
    end = 0
    for run in runs:
        parts.append((read_only(run), np.arange(end, end + run.size)))
        end += run.size
    # Start with the newest runs: they are small, so that a large run is copied only once.
    while len(parts) > 1:
        words, places = merged_entries(parts[-2], parts[-1])
        parts[-2:] = [(read_only(words), places)]
    return parts[0][1]
