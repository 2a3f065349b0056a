"""The words of one term, and the form in which they are scanned. NumPy alone: experiments use it without Arrow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array

_INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class TermWords:
    """One term of a batch: each tuple's word, and the interval of the other side's words that it matches."""

    word: Array
    lo: Array
    hi: Array

    @property
    def matches_itself(self) -> bool:
        """Whether each interval holds the tuple's own word alone, as in an equality of columns of one type."""
        return self.lo is self.word and self.hi is self.word

    def take(self, order: Array) -> TermWords:
        """The same for the tuples in `order`."""
        return TermWords(self.word[order], self.lo[order], self.hi[order])

    def part(self, cut: slice) -> TermWords:
        """The same for the tuples of `cut`."""
        return TermWords(self.word[cut], self.lo[cut], self.hi[cut])


def unsigned_words(term: TermWords, narrow: bool) -> tuple[Array, Array, Array]:
    """Words, low ends and widths as unsigned numbers of the same order; an empty interval has lo > every word."""
    if narrow:
        lo, hi = (np.clip(bound, *_INT32) for bound in (term.lo, term.hi))
        word, low = ((a.astype(np.int32).view(np.uint32)) ^ np.uint32(1 << 31) for a in (term.word, lo))
        return word, low, (hi - lo).astype(np.uint32)
    word, low = (a.view(np.uint64) ^ np.uint64(1 << 63) for a in (term.word, term.lo))
    return word, low, (term.hi - term.lo).view(np.uint64)


def signed(words: Array) -> Array:
    """Unsigned words, as above, as signed numbers of the same order."""
    return words.astype(np.int64) if words.dtype == np.uint32 else (words ^ np.uint64(1 << 63)).view(np.int64)
