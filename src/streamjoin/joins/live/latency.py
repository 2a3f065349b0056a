"""Latencies as histograms: some kilobytes for any number of rows, and percentiles to within some percent.

They are samples: counting every row would take longer than joining a few.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import numpy as np

from streamjoin._arrays import Array

# A bucket is a power of two nanoseconds and four bits after it.
_SHIFT: Final = 48
_FIRST: Final = 1023 << 4
_BUCKETS: Final = 44 << 4
# Of a batch with more rows, this many are sampled at even distances.
_SAMPLES: Final = 1024
# Small batches are counted together. After the first ones, one of `_EVERY` stands for all; not a power of two, since
# sources often take turns.
_BATCHES: Final = 64
_EVERY: Final = 7
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Histogram:
    """Counts of latencies. Threads may share it."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        # By how many batches each of them stands for.
        self._uncounted: dict[int, list[Array]] = {1: [], _EVERY: []}
        self._weight, self._skipped = 1, 0
        self._lock = threading.Lock()

    def since(self, arrived: Array) -> None:
        """Count how long ago the tuples of a batch of rows or tuples arrived, by `time.monotonic_ns`."""
        if self._skipped < self._weight - 1 and arrived.size <= _SAMPLES:
            self._skipped += 1
            return
        self._skipped = 0
        self.add(time.monotonic_ns() - arrived, self._weight)

    def add(self, nanoseconds: Array, weight: int = 1) -> None:
        """Count the latencies of a batch of rows or tuples, for `weight` such batches if it is small."""
        n = nanoseconds.size
        if not n:
            return
        with self._lock:
            if n <= _SAMPLES:
                self._uncounted[weight].append(nanoseconds)
                if len(self._uncounted[weight]) >= _BATCHES:
                    self._count_waiting()
                    self._weight = _EVERY
            else:
                stride = -(-n // _SAMPLES)
                self._count(nanoseconds[::stride], stride)

    def _count_waiting(self) -> None:
        for weight, batches in self._uncounted.items():
            if batches:
                self._count(np.concatenate(batches), weight)
                self._uncounted[weight] = []

    def _count(self, nanoseconds: Array, weight: int) -> None:
        values = np.maximum(nanoseconds, 1).astype(np.float64)
        buckets = np.minimum((values.view(np.int64) >> _SHIFT) - _FIRST, _BUCKETS - 1)
        self._counts += np.bincount(buckets, minlength=_BUCKETS) * weight

    def figures(self) -> dict[str, float]:
        """The percentiles in milliseconds, and how many were counted; empty before the first.

        >>> histogram = Histogram()
        >>> histogram.add(np.array([1_000_000] * 99 + [64_000_000]))
        >>> histogram.figures()
        {'p50': 0.9994, 'p90': 0.9994, 'p99': 0.9994, 'max': 63.96, 'count': 100}
        """
        with self._lock:
            self._count_waiting()
            counts = self._counts.copy()
        total = int(counts.sum())
        if not total:
            return {}
        upto = np.cumsum(counts)
        places = {name: int(np.searchsorted(upto, share * total)) for name, share in PERCENTILES.items()}
        return {**{name: float(f"{_value(place) / 1e6:.4g}") for name, place in places.items()}, "count": total}


def _value(bucket: int) -> float:
    """The middle of a bucket, in nanoseconds."""
    ends = np.array([bucket + _FIRST, bucket + 1 + _FIRST], np.int64) << _SHIFT
    return float(ends.view(np.float64).mean())
