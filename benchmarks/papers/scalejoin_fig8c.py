"""ScaleJoin, figure 8c: work of the threads when sources send constant rates with sudden peaks."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.scalejoin_skew import Rate, Skew, peaks


class PeakingRates(Skew):
    """Four R and two S sources."""

    title = "ScaleJoin, figure 8c: rates with peaks, 4 R and 2 S sources"
    claim = "figure 8c: the comparisons of 14 threads spread by about 0.1 %"
    threads = 14
    paper_std = 0.1

    def rates(self) -> tuple[Sequence[Rate], Sequence[Rate]]:
        """Peaks of three to eight times the rate, at different moments."""
        return (
            (peaks(200, 5, 13, 1), peaks(150, 8, 19, 1), peaks(300, 3, 11, 2), peaks(250, 4, 31, 1)),
            (peaks(500, 4, 17, 1), peaks(300, 6, 23, 2)),
        )


EXPERIMENT = PeakingRates()
