"""What two threads can gain on this machine at most: a loop that shares nothing, run by one thread and by two.

Virtual machines often lend the two hardware threads of one core. There a second worker finds the vector units and
the caches taken, and no algorithm gains what two cores would give.
"""

from __future__ import annotations

import threading
import time
from functools import cache

import numpy as np

from streamjoin.kernels.nested import nested_two

_WORDS = 30_000
_PROBES = 8_192
_REPEATS = 5


@cache
def two_threads() -> float:
    """The work of two threads over that of one in the same time: 2 for two idle cores, about 1 for one core."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 10_000, _WORDS).astype(np.uint32) for _ in range(2)]
    lows = [rng.integers(0, 10_000, _PROBES).astype(np.uint32) for _ in range(2)]
    span, first = np.ones(_PROBES, np.uint32), np.zeros(_PROBES, np.int64)
    last = np.full(_PROBES, _WORDS)

    def work() -> None:
        out = np.empty(1 << 16, np.int64), np.empty(1 << 16, np.int64)
        nested_two(words[0], words[1], lows[0], span, lows[1], span, first, last, 0, _PROBES, *out)

    def took(threads: int) -> float:
        running = [threading.Thread(target=work) for _ in range(threads)]
        begin = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return time.perf_counter() - begin

    work()
    return float(np.median([2 * took(1) / took(2) for _ in range(_REPEATS)]))


def explained(gained: float, aim: float) -> str:
    """Met or missed, and what the machine allows."""
    verdict = "met" if gained >= aim else "missed"
    return f"{verdict} (two threads that share nothing gain {two_threads():.2f} times here)"
