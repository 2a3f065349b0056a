"""Whether the threads of a join had a core each: with more threads than cores the scheduler decides how fast it is."""

from __future__ import annotations

from benchmarks.hardware import cores
from benchmarks.papers.llhj_latency import crowded, node_counts

_FEW = 2
"""This many threads are judged on any machine; more of them where each has a core, beside those that do not compare."""


def uncrowded(quick: bool, others: int) -> list[int]:
    """Numbers of comparing threads that have a core each beside `others`: powers of two, and the most."""
    most = max(_FEW, cores() - others)
    return sorted({*(n for n in node_counts(quick) if n <= most), *([] if quick else [most])})


def crowding(threads: int) -> str:
    """Why the speed of this many comparing threads says nothing here, in words; nothing if it does."""
    return crowded({"nodes": threads}) if threads > _FEW else ""
