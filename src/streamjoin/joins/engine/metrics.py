"""The counters and timings of a join."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from streamjoin.kernels.compiling import WATCH


@dataclass
class Counts:
    """Counters of one join; `seconds` per step."""

    tuples_left: int = 0
    tuples_right: int = 0
    compared: int = 0
    results: int = 0
    expired: int = 0
    late: int = 0
    rejected: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the counters; times are not restored."""
        counters = vars(self).copy()
        del counters["seconds"]

        def restore() -> None:
            vars(self).update(counters)

        return restore

    @staticmethod
    def now() -> float:
        """A clock in seconds that stands still while kernels are compiled."""
        return time.perf_counter() - WATCH.seconds

    def add_steps(self, names: Sequence[str], times: Sequence[float]) -> None:
        """Add the time of consecutive steps, which began at `times`; the last one is the end."""
        seconds = self.seconds
        for name, (begin, end) in zip(names, pairwise(times), strict=True):
            seconds[name] = seconds.get(name, 0.0) + end - begin

    def step(self, name: str) -> _Step:
        """Add the time spent in the block to step `name`, without the time for compiling kernels."""
        return _Step(self.seconds, name)


class _Step:
    """A block whose time is added up; a class, because a generator costs more than some steps."""

    __slots__ = ("_begin", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter() - WATCH.seconds

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - WATCH.seconds - self._begin
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent
