"""Partitions as ranges of index words, cut at the quantiles of the log.

A range is an inclusive interval of words. Every word lies in exactly one range, which owns the rows stored under
it; a row's interval of matches may touch several, and a copy of it probes each of them. Ranges are computed
anew for every batch from the manifest before it: they own no files, so another number of partitions or other
quantiles move no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Sample = Sequence[tuple[int, int]]
"""Words, each with the number of rows it stands for."""

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def sample(words: Array, size: int) -> list[tuple[int, int]]:
    """About `size` evenly spaced words out of sorted ones, with the rows that each stands for."""
    n = words.size
    if n == 0:
        return []
    edges = np.unique(np.linspace(0, n, min(size, n) + 1).astype(np.int64))
    middles = (edges[:-1] + edges[1:]) // 2
    return [(int(word), int(rows)) for word, rows in zip(words[middles], np.diff(edges), strict=True)]


def thinned(samples: Sample, size: int) -> list[tuple[int, int]]:
    """The same distribution in at most `size` words."""
    ordered = sorted(samples)
    if len(ordered) <= size:
        return ordered
    total = sum(rows for _, rows in ordered)
    out: list[tuple[int, int]] = []
    seen = given = 0
    for word, rows in ordered:
        seen += rows
        if seen * size >= (len(out) + 1) * total:
            out.append((word, seen - given))
            given = seen
    return out


def cuts(samples: Sample, partitions: int) -> Array:
    """The `partitions` - 1 words at which ranges after the first begin, so that each holds as many rows.

    With nothing known the whole domain is cut evenly, which is right for hashes.
    """
    if not samples:
        width = (1 << 64) // partitions
        return np.array([LEAST + width * i for i in range(1, partitions)], np.int64)
    ordered = sorted(samples)
    words = np.array([word for word, _ in ordered], np.int64)
    # The word of a sample stands in the middle of its rows.
    rows = np.array([rows for _, rows in ordered], np.int64)
    middles = 2 * np.cumsum(rows) - rows
    targets = 2 * int(rows.sum()) * np.arange(1, partitions, dtype=np.int64) // partitions
    places = np.minimum(np.searchsorted(middles, targets), words.size - 1)
    found: Array = words[places]
    return found


def range_of(cut: Array, partition: int) -> tuple[int, int]:
    """The first and last word of a partition; the last is smaller than the first where it is empty."""
    first = LEAST if partition == 0 else int(cut[partition - 1])
    last = MOST if partition == cut.size else int(cut[partition]) - 1
    return first, last


def destinations(cut: Array, word: Array, lo: Array, hi: Array) -> tuple[Array, Array]:
    """Where rows go: (row, partition) pairs, every row to its owner and a copy to each other range it can match in."""
    owner = np.searchsorted(cut, word, side="right")
    rows = np.arange(word.size, dtype=np.int64)
    from_ = np.searchsorted(cut, lo, side="right")
    to = np.searchsorted(cut, hi, side="right")
    apart = np.flatnonzero(((from_ != owner) | (to != owner)) & (lo <= hi))
    if apart.size == 0:
        return rows, owner.astype(np.int64)
    counts = to[apart] - from_[apart] + 1
    copied = np.repeat(apart, counts)
    within = np.arange(copied.size) - np.repeat(np.cumsum(counts) - counts, counts)
    target = np.repeat(from_[apart], counts) + within
    foreign = target != owner[copied]
    return (
        np.concatenate([rows, copied[foreign]]),
        np.concatenate([owner, target[foreign]]).astype(np.int64),
    )
