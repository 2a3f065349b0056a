"""The counters and timings of a join."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from streamjoin.jit.compiling import WATCH


class StepSeconds(defaultdict[str, float]):
    """Seconds by step, without those of compiling kernels."""

    _last = 0.0

    def start(self) -> None:
        """Begin the first of some steps that follow each other."""
        self._last = perf_counter() - WATCH.seconds

    def lap(self, name: str) -> None:
        """End a step: add the time since the one before it."""
        now = perf_counter() - WATCH.seconds
        self[name] += now - self._last
        self._last = now


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
    seconds: StepSeconds = field(default_factory=lambda: StepSeconds(float))

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the counters; times are not restored."""
        counters = vars(self).copy()
        del counters["seconds"]

        def restore() -> None:
            vars(self).update(counters)

        return restore

    def step(self, name: str) -> _Step:
        """Add the time spent in the block to step `name`, without the time for compiling kernels."""
        return _Step(self.seconds, name)


class _Step:
    """A block whose time is added up; a class, because a generator costs more than some steps."""

    __slots__ = ("_begin", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = perf_counter() - WATCH.seconds

    def __exit__(self, *_: object) -> None:
        spent = perf_counter() - WATCH.seconds - self._begin
        self._seconds[self._name] += spent
