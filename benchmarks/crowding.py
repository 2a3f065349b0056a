"""Whether the threads of a join had a core each: with more threads than cores the scheduler decides how fast it is."""

from __future__ import annotations

from benchmarks.llhj_latency import crowded

_FEW = 2
"""So many threads are judged on any machine; more of them where each has a core, beside those that do not compare."""


def crowding(threads: int) -> str:
    """Why the speed of so many comparing threads says nothing here, in words; nothing if it does."""
    return crowded({"nodes": threads}) if threads > _FEW else ""
