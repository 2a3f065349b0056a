"""Partitions as ranges of index words, split at the quantiles of the log.

A split point is a word and a share: the smaller words, and that share of the word's own rows, come before it. Almost
every split point has the share 0 and falls between words. A heavy word has more rows than one partition should hold,
for example half of the stream. It is split: its rows are divided by position, and a tuple that can match it probes
every part, as in ScaleJoin. In a join without a key all rows have one such word.

Every row is stored in exactly one range. If the interval of a row overlaps several ranges, a copy of the row probes
each of them. Ranges are computed again for every batch. They own no files, so a change of their number or of the
quantiles moves no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.searching import count_upto
from streamjoin.windows.encoding import read_only

Sample = Sequence[tuple[int, int]]
"""Words, each with the number of rows it represents."""

LEAST, MOST = -(1 << 63), (1 << 63) - 1
MOST_PARTITIONS = 100_000

WHOLE = 1 << 16
"""The unit of a share: this many make up all rows of a word."""

# Multiples of this number, modulo WHOLE, are spread evenly, for any number of them.
_SPREAD = 40_503
_FEW_POINTS = 256


@dataclass(frozen=True)
class WordRange:
    """A range: from one split point to the next. It owns part of the rows of a word that is split."""

    first: tuple[int, int]
    last: tuple[int, int] | None

    def touched(self, least: Array, most: Array) -> Array:
        """Whether words from each of `least` to each of `most` overlap the range."""
        overlap: Array = most >= self.first[0]
        if self.last is not None:
            word, share = self.last
            overlap &= least <= word if share else least < word
        return overlap

    def exceeded(self, lo: Array, hi: Array) -> Array:
        """Whether words from each of `lo` to each of `hi`, of which there are some, may belong to other ranges."""
        word, share = self.first
        outside: Array = lo <= word if share else lo < word
        return outside if self.last is None else outside | (hi >= self.last[0])

    def beside(self, least: int, most: int) -> list[WordRange]:
        """The ranges of the words from `least` to `most` before and after this one."""
        end = None if most == MOST else (most + 1, 0)
        before = WordRange((least, 0), self.first)
        after = [] if self.last is None else [WordRange(self.last, end)]
        return [part for part in (before, *after) if part.last is None or part.first < part.last]

    @property
    def whole_words(self) -> WordRange:
        """The range with all rows of its words, also of those that are split."""
        last = self.last
        if last is not None and last[1]:
            last = None if last[0] == MOST else (last[0] + 1, 0)
        return WordRange((self.first[0], 0), last)

    def part(self, words: Array) -> tuple[int, int]:
        """The first and the end position of its rows in sorted words; each position belongs to exactly one range."""
        begin = _place(words, *self.first)
        return begin, max(begin, words.size if self.last is None else _place(words, *self.last))


def _place(words: Array, word: int, share: int) -> int:
    begin = int(np.searchsorted(words, word, "left"))
    if share == 0:
        return begin
    return begin + -(-(int(np.searchsorted(words, word, "right")) - begin) * share // WHOLE)


@dataclass(frozen=True)
class SplitPoints:
    """The boundaries between ranges: sorted words, each with a share of its rows."""

    words: Array
    shares: Array

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return int(self.words.size) + 1

    @property
    def between_words(self) -> SplitPoints:
        """The same points without shares: no word is split."""
        return SplitPoints(self.words, np.zeros_like(self.shares))

    def word_range(self, partition: int) -> WordRange:
        """The range with the number `partition`."""
        first = (LEAST, 0) if partition == 0 else self._at(partition - 1)
        return WordRange(first, None if partition == self.words.size else self._at(partition))

    def _at(self, i: int) -> tuple[int, int]:
        return int(self.words[i]), int(self.shares[i])

    def range_of(self, word: Array, share: Array | int) -> Array:
        """The range of each (word, share)."""
        ranges = _points_before(self.words, word)
        for heavy in np.unique(self.words[self.shares > 0]):
            begin, end = (int(np.searchsorted(self.words, heavy, side)) for side in ("left", "right"))
            rows = np.flatnonzero(word == heavy)
            own = share if isinstance(share, int) else share[rows]
            ranges[rows] = begin + np.searchsorted(self.shares[begin:end], own, side="right")
        return ranges

    def owners(self, word: Array, first: int) -> Array:
        """The range that stores each row; `first` is the number of the first row and spreads heavy words evenly."""
        numbers = np.arange(first, first + word.size, dtype=np.int64)
        return self.range_of(word, numbers * _SPREAD % WHOLE)

    def copies(self, owner: Array, lo: Array, hi: Array) -> tuple[Array, Array]:
        """(row, range) for each range where a row can have matches, except its owner."""
        from_, to = self.range_of(lo, 0), self.range_of(hi, WHOLE - 1)
        apart = np.flatnonzero(((from_ != owner) | (to != owner)) & (lo <= hi))
        counts = to[apart] - from_[apart] + 1
        rows = np.repeat(apart, counts)
        within = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        target = np.repeat(from_[apart], counts) + within
        foreign = target != owner[rows]
        return rows[foreign], target[foreign]

    def to_json(self) -> list[list[int]]:
        """The points as JSON data."""
        return [self.words.tolist(), self.shares.tolist()]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[int]]) -> SplitPoints:
        """The points from the data that `to_json` returned."""
        words, shares = (np.array(column, np.int64) for column in data)
        return cls(words, shares)


def _points_before(points: Array, word: Array) -> Array:
    """How many of the sorted `points` are not greater than each word."""
    if points.size > _FEW_POINTS:
        return np.searchsorted(points, word, side="right").astype(np.int64)
    before = np.empty(word.size, np.int64)
    count_upto(read_only(points), read_only(word), before)
    return before


def sample(words: Array, size: int) -> list[tuple[int, int]]:
    """About `size` evenly spaced words of the sorted `words`, each with the number of rows it represents."""
    n = words.size
    if n == 0:
        return []
    edges = np.unique(np.linspace(0, n, min(size, n) + 1).astype(np.int64))
    middles = (edges[:-1] + edges[1:]) // 2
    return [(int(word), int(rows)) for word, rows in zip(words[middles], np.diff(edges), strict=True)]


def thinned(samples: Sample, size: int) -> list[tuple[int, int]]:
    """The same distribution, with at most `size` words."""
    ordered = sorted(samples)
    if len(ordered) <= size:
        return ordered
    total = sum(rows for _, rows in ordered)
    out: list[tuple[int, int]] = []
    total_rows = used_rows = 0
    for word, rows in ordered:
        total_rows += rows
        if total_rows * size >= (len(out) + 1) * total:
            out.append((word, total_rows - used_rows))
            used_rows = total_rows
    return out


def even_split_points(partitions: int) -> SplitPoints:
    """Ranges of equal width over all words, which suits hashes."""
    width = (1 << 64) // partitions
    words = np.array([LEAST + width * i for i in range(1, partitions)], np.int64)
    return SplitPoints(words, np.zeros(words.size, np.int64))


def shared_split_points(partitions: int) -> SplitPoints:
    """Ranges that divide the rows of one word by position, for a join without a key."""
    shares = WHOLE * np.arange(1, partitions, dtype=np.int64) // partitions
    return SplitPoints(np.zeros(shares.size, np.int64), shares)


def split_points(samples: Sample, partitions: int) -> SplitPoints:
    """Split points of `partitions` ranges with about equally many rows; ranges of equal width without samples."""
    if not samples:
        return even_split_points(partitions)
    ordered = np.array(sorted(samples), np.int64)
    words, at, entries = np.unique(ordered[:, 0], return_index=True, return_counts=True)
    rows = np.add.reduceat(ordered[:, 1], at)
    total, ends = int(rows.sum()), np.cumsum(rows)
    targets = total * np.arange(1, partitions, dtype=np.int64) // partitions
    inside = np.minimum(np.searchsorted(ends, targets, side="right"), words.size - 1)
    # A word that was sampled once may represent its neighbours; only one that was sampled repeatedly is heavy.
    heavy = (entries[inside] > 1) & (rows[inside] * 2 * partitions >= total)
    # The word of a sample that is not heavy lies in the middle of the rows it represents.
    places = np.minimum(np.searchsorted(2 * ends - rows, 2 * targets), words.size - 1)
    shares = (targets - ends[inside] + rows[inside]) * WHOLE // rows[inside]
    return SplitPoints(words[np.where(heavy, inside, places)], np.where(heavy, np.minimum(shares, WHOLE - 1), 0))
