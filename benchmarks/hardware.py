"""What threads can gain on this machine at most: a loop that shares nothing, run by one thread and by several.

Virtual machines often lend the two hardware threads of one core. There a second worker finds the vector units and
the caches taken, and no algorithm gains what two cores would give. Many busy cores also run at a lower clock than one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from streamjoin.kernels.batch.nested import nested_pairs

_WORDS = 30_000
_PROBES = 8_192
_REPEATS = 5

_recorded: tuple[int, Mapping[str, float]] | None = None
"""The processors of the machine whose stored result is being judged, and what threads gained there; None: this one."""
_gained: dict[int, float] = {}
"""By threads, where somebody asked."""


def gained() -> dict[str, float]:
    """What numbers of threads that share nothing gained in this process, as a result stores it."""
    return {str(threads): round(gain, 2) for threads, gain in _gained.items()}


def apart(threads: int = 2) -> float:
    """The work of several threads over that of one in the same time: 2 for two idle cores, about 1 for one core."""
    if threads not in _gained:
        _gained[threads] = _measured(threads)
    return _gained[threads]


def _measured(threads: int) -> float:
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 10_000, _WORDS).astype(np.uint32) for _ in range(2)]
    lows = [rng.integers(0, 10_000, _PROBES).astype(np.uint32) for _ in range(2)]
    span, first = np.ones(_PROBES, np.uint32), np.zeros(_PROBES, np.int64)
    last = np.full(_PROBES, _WORDS)

    def work() -> None:
        out = np.empty(1 << 16, np.int64), np.empty(1 << 16, np.int64)
        nested_pairs(words[0], words[1], lows[0], span, lows[1], span, first, last, 0, _PROBES, *out)

    def took(n: int) -> float:
        running = [threading.Thread(target=work) for _ in range(n)]
        begin = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return time.perf_counter() - begin

    work()
    return float(np.median([threads * took(1) / took(threads) for _ in range(_REPEATS)]))


def allowed(threads: int = 2) -> str:
    """What the machine allows, in words."""
    if _recorded is None:
        gain = apart(threads)
    elif str(threads) in _recorded[1]:
        gain = _recorded[1][str(threads)]
    else:
        return "what threads that share nothing gain there was not recorded"
    return f"{'two' if threads == 2 else threads} threads that share nothing gain {gain:.2f} times here"


def explained(gained: float, aim: float, threads: int = 2) -> str:
    """Met or missed, and what the machine allows."""
    return f"{'met' if gained >= aim else 'missed'} ({allowed(threads)})"


def cores() -> int:
    """The processors of the machine that measured what is judged now."""
    return _recorded[0] if _recorded else os.cpu_count() or 1


@contextmanager
def stored_result(processors: int, gains: Mapping[str, float]) -> Iterator[None]:
    """Judge rows of another day or machine, which had this many processors, and where threads gained this."""
    global _recorded
    before, _recorded = _recorded, (processors, gains)
    try:
        yield
    finally:
        _recorded = before
