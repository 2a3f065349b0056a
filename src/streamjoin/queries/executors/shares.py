"""How a batch's fresh tuples are cut into shares, and how many shares there are: pure functions of what was measured.

Every result has one last tuple, so shares that are disjoint and cover the batch give each row once, whatever the cuts.
Cuts are places from 0 to 1 along each stream's tuples in time. They move towards equal work, measured by share; the
number of shares follows a latency threshold, with a distance between going up and down so that it does not flap.
(AJoin, section 4: vertical and horizontal scaling, split of an overloaded partition.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.shared_join import Share

UNEVEN: Final = 1.3
"""Cuts move when the busiest share works this many times the average."""
_UP_AFTER: Final = 3
_DOWN_AFTER: Final = 8
_IDLE: Final = 0.25
_FLOOR: Final = 0.01


def even_cuts(shares: int) -> tuple[float, ...]:
    """The ends of equal shares, 0 and 1 included."""
    return tuple(number / shares for number in range(shares + 1))


def shares_of(buckets: Mapping[str, Bucket], cuts: Sequence[float]) -> list[Share]:
    """The rows of each share by stream."""
    edges = {
        name: [round(cut * bucket.n) for cut in cuts[:-1]] + [bucket.n] for name, bucket in buckets.items() if bucket.n
    }
    return [
        {name: (found[number], found[number + 1]) for name, found in edges.items()} for number in range(len(cuts) - 1)
    ]


def balanced(cuts: Sequence[float], work: Sequence[float]) -> tuple[float, ...]:
    """Cuts half way to those at which each share would have had the same work, taken as even within a share.

    >>> balanced((0.0, 0.5, 1.0), (0.0, 2.0))
    (0.0, 0.625, 1.0)
    """
    total = sum(work)
    if total <= 0:
        return tuple(cuts)
    reached = np.concatenate([[0.0], np.cumsum(work)]) / total
    wanted = np.interp(np.linspace(0, 1, len(cuts)), reached, cuts)
    moved = (np.asarray(cuts) + wanted) / 2
    return (0.0, *(float(cut) for cut in moved[1:-1]), 1.0)


@dataclass(frozen=True)
class Scaling:
    """How batches are shared out; `shares` of 0 means that the driver does it all. Each call gives a new one."""

    shares: int
    least: int
    most: int
    threshold: float
    cuts: tuple[float, ...] = ()
    seconds: tuple[float, ...] = field(default=())
    """The joining time of the batches since the number last changed."""

    @property
    def auto(self) -> bool:
        """Whether the number may change."""
        return self.least < self.most

    def after(self, seconds: float, work: Sequence[float], rows: int) -> tuple[Scaling, tuple[str, ...]]:
        """With a batch measured: its joining time, the work of each share, its tuples; and what was decided, why."""
        scaling = replace(self, seconds=(*self.seconds, seconds)[-_DOWN_AFTER:])
        reasons: list[str] = []
        if scaling.auto:
            scaling, reasons = scaling._scaled(rows)
        if len(work) == scaling.shares > 1 and max(work) > UNEVEN * sum(work) / len(work) and max(work) > _FLOOR:
            busiest = int(np.argmax(work))
            moved = balanced(scaling.cuts, work)
            reasons.append(
                f"the busiest of {len(work)} shares, number {busiest}, did {max(work) / sum(work):.0%} of the work "
                f"({max(work):.3g} of {sum(work):.3g} s): cut at {', '.join(f'{cut:.3f}' for cut in moved[1:-1])} now"
            )
            scaling = replace(scaling, cuts=moved)
        return scaling, tuple(reasons)

    def _scaled(self, rows: int) -> tuple[Scaling, list[str]]:
        newest = self.seconds[-_UP_AFTER:]
        if len(newest) == _UP_AFTER and median(newest) > self.threshold and self.shares < self.most:
            wanted = min(self.most, max(2, 2 * self.shares))
            took = f"joining took {median(newest):.3g} s a batch of {rows:,} tuples"
            return self._with(wanted), [self._why(wanted, f"{took}, over the {self.threshold:.3g} s allowed")]
        calm = len(self.seconds) == _DOWN_AFTER and max(self.seconds) < _IDLE * self.threshold
        if calm and self.shares > self.least:
            wanted = max(self.least, self.shares // 2 if self.shares > 2 else 0)
            took = f"joining took at most {max(self.seconds):.3g} s in {_DOWN_AFTER} batches"
            return self._with(wanted), [self._why(wanted, f"{took}, far below the {self.threshold:.3g} s allowed")]
        return self, []

    def _why(self, wanted: int, reason: str) -> str:
        return f"{self.shares or 'no'} to {wanted or 'no'} shares: {reason}"

    def _with(self, shares: int) -> Scaling:
        return replace(self, shares=shares, cuts=even_cuts(shares) if shares else (), seconds=())


def fixed(shares: int) -> Scaling:
    """Always this many shares."""
    return Scaling(shares, shares, shares, 0.0, even_cuts(shares) if shares else ())


def following_load(most: int, threshold: float) -> Scaling:
    """From the driver alone up to `most` shares, by the joining time allowed in seconds."""
    return Scaling(0, 0, max(2, most), threshold)
