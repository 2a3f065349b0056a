"""Latency of the low-latency handshake join over time, driver's batches of 4 (LLHJ paper, figure 20)."""

from __future__ import annotations

from benchmarks.papers.llhj_fig19 import OverTime


class Figure20(OverTime):
    """Batches of 4."""

    title = "low_latency_handshake: latency over time, batch 4"
    claim = "LLHJ, figure 20: about 1 ms on average, 3 to 4 ms at most but for spikes of the scheduler"
    batch = 4
    factor = 1000.0
    paper_mean, paper_most = 1.0, 4.0


EXPERIMENT = Figure20()
