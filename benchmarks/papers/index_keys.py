"""Key streams of the index experiments: uniform, skewed and drifting keys, and the band for a match rate.

The match rate is the papers' sigma_s: the partners a tuple meets on average in a full window. Two independent keys with
density f lie within d of each other with probability close to (2 d + 1) times the integral of f squared, here
`concentration`; that gives the band. Row i of a side is the same for any cut, as in `benchmarks.workload`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.workload import BandWorkload, Side

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_BLOCK = 1 << 16
_UNIT = 1 << 40  # words for a length of 1 of a distribution: duplicates stay rare in any window
_SIGMA = 0.125


class Keys(Protocol):
    """What a join draws its keys from."""

    @property
    def band(self) -> int:
        """The d of |l.key - r.key| <= d that gives the wanted match rate."""

    def keys(self, side: Side, start: int, count: int) -> I64:
        """Keys of rows `start` to `start + count` of one side."""


@dataclass(frozen=True)
class Shape:
    """A distribution of keys: how to draw it, and the integral of its density squared."""

    draw: Callable[[np.random.Generator, int], F64]
    concentration: float


def gamma(k: float, theta: float) -> Shape:
    """The Gamma distribution of figure 13a."""
    squared = math.gamma(2 * k - 1) / (math.gamma(k) ** 2 * theta * 2 ** (2 * k - 1))
    return Shape(lambda generator, n: generator.gamma(k, theta, n), squared)


def gaussian(sigma: float = _SIGMA) -> Shape:
    """The Gaussian distribution of figure 13a."""
    return Shape(lambda generator, n: generator.normal(0.5, sigma, n), 1 / (2 * sigma * math.sqrt(math.pi)))


SHAPES = {"gaussian": gaussian(), "gamma(3,3)": gamma(3, 3), "gamma(1,5)": gamma(1, 5)}


@dataclass(frozen=True)
class Drift:
    """Rows before `begin` are centred on 0.5; until `end` the centre moves by `distance`, and then it stays."""

    distance: float
    begin: int
    end: int

    def offset(self, rows: I64) -> F64:
        """How far the centre has moved at each row."""
        passed = np.clip((rows - self.begin) / max(1, self.end - self.begin), 0.0, 1.0)
        moved: F64 = self.distance * passed
        return moved


@dataclass(frozen=True)
class ShapedKeys:
    """Keys of any shape, standing still or drifting; the band is that of the shape at rest."""

    window: int
    shape: Shape
    match_rate: float = 2.0
    seed: int = 0
    drift: Drift | None = None

    @property
    def band(self) -> int:
        """The d of |l.key - r.key| <= d."""
        return max(0, round((self.match_rate * _UNIT / (self.window * self.shape.concentration) - 1) / 2))

    def keys(self, side: Side, start: int, count: int) -> I64:
        """Keys of rows `start` to `start + count` of one side."""
        first, last = start // _BLOCK, -(-(start + count) // _BLOCK)
        drawn = np.concatenate([np.empty(0), *(self._block(side, block) for block in range(first, last))])
        values = drawn[start - first * _BLOCK :][:count]
        if self.drift is not None:
            values = values + self.drift.offset(np.arange(start, start + count))
        words: I64 = np.floor(values * _UNIT).astype(np.int64)
        return words

    def _block(self, side: Side, block: int) -> F64:
        generator = np.random.default_rng([self.seed, side == "right", block])
        return self.shape.draw(generator, _BLOCK)


def keys_for(distribution: str, window: int, match_rate: float = 2.0, seed: int = 0) -> Keys:
    """The stream of a named distribution."""
    if distribution == "uniform":
        return BandWorkload(window, match_rate, seed)
    return ShapedKeys(window, SHAPES[distribution], match_rate, seed)
