"""ScaleJoin, figure 8b: work of the threads when rates rise and fall, each source's in its own rhythm."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.scalejoin_skew import Rate, Skew, wave


class WavingRates(Skew):
    """Three R and two S sources."""

    title = "ScaleJoin, figure 8b: sinusoidal rates, 3 R and 2 S sources"
    claim = "figure 8b: the comparisons of 12 threads go up and down together and spread by about 0.1 %"
    threads = 12
    paper_std = 0.1

    def rates(self) -> tuple[Sequence[Rate], Sequence[Rate]]:
        """Means, swings and periods all differ."""
        return (
            (wave(400, 300, 11), wave(300, 250, 17), wave(500, 450, 29)),
            (wave(600, 500, 13), wave(450, 400, 23)),
        )


EXPERIMENT = WavingRates()
