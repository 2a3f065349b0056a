"""The window of the scanning joins: ascending positions, and unsigned words for up to two terms.

Invariant: places ascend with positions, and only tuples that can match have a place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, SidePart
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Buffer
from streamjoin.windows.repartitioned import ProbeRanges
from streamjoin.windows.words import unsigned_words

_TERMS = 2


class StoredWords:
    """One side's valid tuples: ascending positions, and one array of unsigned words per tested term."""

    def __init__(self, n_terms: int, dtype: Any) -> None:
        self.seqs = Buffer(np.int64)
        self.words = [Buffer(dtype) for _ in range(n_terms)]

    def append(self, part: SidePart, words: list[Array], places: Array | None = None) -> None:
        """Add the tuples of a chunk that can match, or only those at `places`."""
        places = part.valid_places() if places is None else places
        self.seqs.append(places + part.first_seq)
        for buffer, values in zip(self.words, words, strict=True):
            buffer.append(values if places.size == part.n else values[places])

    def forget(self, min_seq: int) -> None:
        """Drop the positions below `min_seq`."""
        n = int(np.searchsorted(self.seqs.values, min_seq))
        for buffer in (self.seqs, *self.words):
            buffer.forget(n)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores these tuples."""
        parts = [buffer.saved() for buffer in (self.seqs, *self.words)]

        def restore() -> None:
            for part in parts:
                part()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.seqs.nbytes + sum(buffer.nbytes for buffer in self.words)


def live_places(chunk: Chunk, part: SidePart, seqs: Array, decides: frozenset[int]) -> tuple[Array, Array]:
    """For each tuple, the first and last place of the other side where it may find matches."""
    first = np.searchsorted(seqs, chunk.min_seq[part.at])
    if chunk.stored_only:
        return first, first
    last = np.searchsorted(seqs, chunk.upto[part.at])
    for t in decides:
        empty = part.encoded.terms[t].lo > part.encoded.terms[t].hi
        last = np.where(empty, first, last)
    if part.encoded.valid is not None:
        last = np.where(part.encoded.valid, last, first)
    return first, np.maximum(first, last)


class TwoTermWindows:
    """Both windows of a join that always compares two words; a missing term is always true."""

    def __init__(self, bound: BoundSpec) -> None:
        self.decides = frozenset(range(min(_TERMS, len(bound.terms))))
        self._narrow = all(bound.terms[t].narrow for t in self.decides)
        self._dtype = np.dtype(np.uint32 if self._narrow else np.uint64)
        self.left = StoredWords(_TERMS, self._dtype)
        # A self-join whose roles have the same words stores a tuple once, for both.
        self._shared = bound.has_equal_roles
        self.right = self.left if self._shared else StoredWords(_TERMS, self._dtype)
        self.compared = 0

    def take(self, chunk: Chunk) -> tuple[ProbeRanges, ProbeRanges]:
        """Store a chunk; returns the ranges that its left and its right tuples compare."""
        terms = [self._terms(part) for part in (chunk.left, chunk.right)]
        self.left.append(chunk.left, [word for word, _, _ in terms[0]])
        if not self._shared:
            self.right.append(chunk.right, [word for word, _, _ in terms[1]])
        return (
            self._probes(chunk, chunk.left, terms[0], self.right),
            self._probes(chunk, chunk.right, terms[1], self.left),
        )

    def _terms(self, part: SidePart) -> list[tuple[Array, Array, Array]]:
        words = [unsigned_words(part.encoded.terms[t], self._narrow) for t in sorted(self.decides)]
        zeros = np.zeros(part.n, self._dtype)
        return words + [(zeros, zeros, ~zeros)] * (_TERMS - len(words))

    def _probes(
        self, chunk: Chunk, part: SidePart, terms: list[tuple[Array, Array, Array]], other: StoredWords
    ) -> ProbeRanges:
        first, last = live_places(chunk, part, other.seqs.values, self.decides)
        self.compared += int((last - first).sum())
        bounds = np.stack([bound for _, lo, span in terms for bound in (lo, span)])
        return ProbeRanges((other.words[0].values, other.words[1].values), bounds, first, last)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self.left.forget(min(left_min, right_min) if self._shared else left_min)
        if not self._shared:
            self.right.forget(right_min)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores both windows."""
        left, right, compared = self.left.saved(), self.right.saved(), self.compared

        def restore() -> None:
            left()
            right()
            self.compared = compared

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self.left.nbytes + (0 if self._shared else self.right.nbytes)
