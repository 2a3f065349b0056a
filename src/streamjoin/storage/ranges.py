"""Partitions as ranges of index words, cut at the quantiles of the log.

A cut is a word and a share: what lies before it are the smaller words and that share of the word's own rows. Almost
every cut has the share 0 and so falls between words. A word that alone holds more rows than a partition should, half
of the stream on one key, is cut within: its rows are divided by position and whoever can match it probes every
part, as ScaleJoin does for all tuples. A join without any key is one such word.

Every row is stored in exactly one range; a row's interval of matches may touch several, and a copy of it probes each of
them. Ranges are computed anew for every batch: they own no files, so another number of partitions or other quantiles
move no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array

Sample = Sequence[tuple[int, int]]
"""Words, each with the number of rows it stands for."""

LEAST, MOST = -(1 << 63), (1 << 63) - 1
MOST_PARTITIONS = 100_000

WHOLE = 1 << 16
"""A share is counted in these parts of a word's rows."""

# Multiples of it, modulo WHOLE, fill the shares evenly however many are taken.
_SPREAD = 40_503


@dataclass(frozen=True)
class Span:
    """A range: from a cut to the next one. Rows of a cut word belong to it in part."""

    first: tuple[int, int]
    last: tuple[int, int] | None

    def touches(self, least: int, most: int) -> bool:
        """Whether words from `least` to `most` can lie in it."""
        return most >= self.first[0] and (self.last is None or (least, 0) < self.last)

    def part(self, words: Array) -> tuple[int, int]:
        """The places of its rows among sorted words: every place belongs to one of the spans between the same cuts."""
        begin = _place(words, *self.first)
        return begin, max(begin, words.size if self.last is None else _place(words, *self.last))


def _place(words: Array, word: int, share: int) -> int:
    begin = int(np.searchsorted(words, word, "left"))
    if share == 0:
        return begin
    return begin + -(-(int(np.searchsorted(words, word, "right")) - begin) * share // WHOLE)


@dataclass(frozen=True)
class Cuts:
    """The cuts between ranges: sorted words, each with a share of its rows."""

    words: Array
    shares: Array

    @property
    def ranges(self) -> int:
        """How many ranges they make."""
        return int(self.words.size) + 1

    def span(self, partition: int) -> Span:
        """One of the ranges."""
        first = (LEAST, 0) if partition == 0 else self._at(partition - 1)
        return Span(first, None if partition == self.words.size else self._at(partition))

    def _at(self, i: int) -> tuple[int, int]:
        return int(self.words[i]), int(self.shares[i])

    def range_of(self, word: Array, share: Array | int) -> Array:
        """In which range each (word, share) lies."""
        found: Array = np.searchsorted(self.words, word, side="right").astype(np.int64)
        for heavy in np.unique(self.words[self.shares > 0]):
            begin, end = (int(np.searchsorted(self.words, heavy, side)) for side in ("left", "right"))
            rows = np.flatnonzero(word == heavy)
            own = share if isinstance(share, int) else share[rows]
            found[rows] = begin + np.searchsorted(self.shares[begin:end], own, side="right")
        return found

    def owners(self, word: Array, first: int) -> Array:
        """The range that stores each row; `first` numbers the rows, so that heavy words are dealt out evenly."""
        numbers = np.arange(first, first + word.size, dtype=np.int64)
        return self.range_of(word, numbers * _SPREAD % WHOLE)

    def copies(self, owner: Array, lo: Array, hi: Array) -> tuple[Array, Array]:
        """(row, range) for each range other than its owner in which a row can find a match."""
        from_, to = self.range_of(lo, 0), self.range_of(hi, WHOLE - 1)
        apart = np.flatnonzero(((from_ != owner) | (to != owner)) & (lo <= hi))
        counts = to[apart] - from_[apart] + 1
        copied = np.repeat(apart, counts)
        within = np.arange(copied.size) - np.repeat(np.cumsum(counts) - counts, counts)
        target = np.repeat(from_[apart], counts) + within
        foreign = target != owner[copied]
        return copied[foreign], target[foreign]

    def to_json(self) -> list[list[int]]:
        """As plain data."""
        return [self.words.tolist(), self.shares.tolist()]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[int]]) -> Cuts:
        """Read back what `to_json` gave."""
        words, shares = (np.array(column, np.int64) for column in data)
        return cls(words, shares)


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


def even_cuts(partitions: int) -> Cuts:
    """The whole domain cut evenly, which is right for hashes."""
    width = (1 << 64) // partitions
    words = np.array([LEAST + width * i for i in range(1, partitions)], np.int64)
    return Cuts(words, np.zeros(words.size, np.int64))


def shared_cuts(partitions: int) -> Cuts:
    """One word for all rows, divided by position: what a join without a key has."""
    shares = WHOLE * np.arange(1, partitions, dtype=np.int64) // partitions
    return Cuts(np.zeros(shares.size, np.int64), shares)


def cuts(samples: Sample, partitions: int) -> Cuts:
    """The cuts of `partitions` ranges that hold about as many rows each; with nothing known, even ones."""
    if not samples:
        return even_cuts(partitions)
    ordered = np.array(sorted(samples), np.int64)
    words, at, entries = np.unique(ordered[:, 0], return_index=True, return_counts=True)
    rows = np.add.reduceat(ordered[:, 1], at)
    total, ends = int(rows.sum()), np.cumsum(rows)
    targets = total * np.arange(1, partitions, dtype=np.int64) // partitions
    inside = np.minimum(np.searchsorted(ends, targets, side="right"), words.size - 1)
    # A word that was drawn once may stand for its neighbours: only one that keeps coming back is known to be heavy.
    heavy = (entries[inside] > 1) & (rows[inside] * 2 * partitions >= total)
    # The word of a light sample stands in the middle of its rows.
    places = np.minimum(np.searchsorted(2 * ends - rows, 2 * targets), words.size - 1)
    shares = (targets - ends[inside] + rows[inside]) * WHOLE // rows[inside]
    return Cuts(words[np.where(heavy, inside, places)], np.where(heavy, np.minimum(shares, WHOLE - 1), 0))
