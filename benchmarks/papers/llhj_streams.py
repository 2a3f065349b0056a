"""The streams of the handshake experiments, as logs of a chain: both sides alternate at one rate, windows are times.

The benchmark of the papers: tuples carry an int32 and a float32, uniform over 1 to `values`, and match when both differ
by at most 10; with 10,000 values one comparison in 250,000. Or one int64 key, for the nodes with an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamjoin._arrays import Array
from streamjoin.handshake.chain import SideLog, facts_of
from streamjoin.handshake.kernels.links import DUE, EXPIRES
from streamjoin.handshake.kernels.meet import WORD_ROWS
from streamjoin.kernels import encode
from streamjoin.windows.words import TermWords, unsigned_words

I64 = npt.NDArray[np.int64]

BAND = 10
VALUES = 10_000


@dataclass(frozen=True)
class Stream:
    """`count` tuples a side; a tuple is live for the other side's next `windows` tuples of its own side's rate.

    `spacing` is the time between two tuples of one side, in cycles; `filled` tuples a side are in the windows before
    anything moves.
    """

    count: int
    windows: tuple[int, int]
    spacing: int = 1
    filled: int = 0
    values: int = VALUES
    keyed: bool = False
    seed: int = 0

    @property
    def dtype(self) -> Any:
        """The words' type."""
        return np.uint64 if self.keyed else np.uint32

    @property
    def terms(self) -> int:
        """How many terms the nodes test."""
        return 1 if self.keyed else 2

    @property
    def is_right(self) -> npt.NDArray[np.bool_]:
        """The sides of the tuples that move, in gate order."""
        return np.tile(np.array([False, True]), self.count - self.filled)

    def fill(self, logs: tuple[SideLog, SideLog]) -> None:
        """Write both logs."""
        rng = np.random.default_rng(self.seed)
        for side, log in enumerate(logs):
            log.append(self._words(rng), self._facts(side))

    def _facts(self, side: int) -> I64:
        places = np.arange(self.count)
        # Tuple i of the left stands at 2 i, of the right at 2 i + 1: the left has seen i rights, the right i + 1 lefts.
        upto = places + side
        least = np.maximum(upto - self.windows[1 - side], 0)
        facts = facts_of(places, least, upto, 2 * places + side)
        facts[:, EXPIRES] = least
        facts[:, DUE] = (2 * (places - self.filled) + side) * self.spacing // 2
        return facts

    def _words(self, rng: np.random.Generator) -> Array:
        words = np.zeros((WORD_ROWS, self.count), self.dtype)
        if self.keyed:
            keys = rng.integers(1, self.values + 1, self.count)
            words[0::2] = unsigned_words(TermWords(keys, keys, keys), narrow=False)
            return words
        x = rng.integers(1, self.values + 1, self.count)
        words[0::2] = unsigned_words(TermWords(x, x - BAND, x + BAND), narrow=True)
        y = rng.uniform(1, self.values, self.count).astype(np.float32)
        word, lo, hi = (np.empty(self.count, np.int64) for _ in range(3))
        encode.float32_words(y, word, np.ones(self.count, np.bool_))
        encode.float32_intervals(word, np.float32(BAND), np.float32(BAND), False, lo, hi)
        words[1::2] = unsigned_words(TermWords(word, lo, hi), narrow=True)
        return words
