"""ScaleJoin, figure 8a: work of the threads when sources send at constant, distinct rates."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.scalejoin_skew import Rate, Skew, constant


class ConstantRates(Skew):
    """One R and four S sources."""

    title = "ScaleJoin, figure 8a: constant distinct rates, 1 R and 4 S sources"
    claim = "figure 8a: the comparisons of 10 threads spread by about 0.05 %"
    threads = 10
    paper_std = 0.05

    def rates(self) -> tuple[Sequence[Rate], Sequence[Rate]]:
        """1,200 tuples/s of R, 900 of S."""
        return (constant(1200),), tuple(constant(rate) for rate in (90, 180, 270, 360))


EXPERIMENT = ConstantRates()
