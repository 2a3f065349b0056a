"""The counters and timings of a join."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
        counters = {name: value for name, value in vars(self).items() if name != "seconds"}

        def restore() -> None:
            vars(self).update(counters)

        return restore

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to step `name`, without the time for compiling kernels."""
        begin = time.perf_counter() - WATCH.seconds
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - WATCH.seconds - begin
