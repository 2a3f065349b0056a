"""One run of the engine for the experiment on catching up: `prepare` makes a checkpoint, `restart` goes on from it.

A clock that is ahead makes the pause: the sources then have all that would have come meanwhile.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence

from benchmarks.product.catch_up import BOUNDED, KEYS, SQL
from streamjoin.adhoc import Engine
from streamjoin.queries.engine.inbox import Pace
from streamjoin.queries.sources import rate
from streamjoin.queries.sources.described import RowSelection, SelectedSource
from streamjoin.queries.sources.rate import RateSource


class Everything(Pace):
    """A batch takes all that there is."""

    def rows_of(self, rows: int, nbytes: int) -> int:  # noqa: ARG002
        """All of them."""
        return max(1, rows)


def opened(checkpoint: str, rows: int, ahead: float) -> Engine:
    """An engine over two streams, whose clock is ahead by some seconds."""
    engine = Engine(checkpoint=checkpoint)
    raw = RateSource(rows, clock=lambda: time.time_ns() + int(ahead * 1e9))
    for name, step in (("a", 7), ("b", 11)):
        select = ("timestamp AS ts", f"(value * {step}) % {KEYS} AS k", "value AS v")
        engine.register(name, source=SelectedSource(raw, RowSelection(raw.schema, select)))
    return engine


def prepare(checkpoint: str, rows: int, queries: int) -> None:
    """A checkpoint with some seconds of both streams."""
    with opened(checkpoint, rows, 0) as engine:
        for number in range(queries):
            engine.create(SQL.format(v=number), f"q{number}", wait=False)
        engine.create(SQL.format(v=queries), "last", timeout=600)
        begin = engine.metrics().rows_in
        while engine.metrics().rows_in < begin + 2 * rows:
            time.sleep(0.1)


def restart(checkpoint: str, rows: int, pause: float, mode: str) -> dict[str, float]:
    """How long until a create is in force, until all is caught up, and the longest batch; memory at its most."""
    began = time.perf_counter()
    if mode != BOUNDED:
        rate.MOST_ROWS = 1 << 40  # type: ignore[misc]
    engine = opened(checkpoint, rows, pause)
    if mode != BOUNDED:
        engine._inbox.pace = Everything()
    seconds: list[float] = []
    engine.on_batch(lambda event: seconds.append(event.seconds))
    with engine:
        started = time.perf_counter() - began
        # The first batch has begun when a create comes.
        while engine.activity() is None and not seconds:
            time.sleep(0.01)
        engine.create(SQL.format(v=0), "new", timeout=3600)
        answered = time.perf_counter() - began
        target = 2 * rows * pause
        while engine.metrics().rows_in < target:
            time.sleep(0.1)
        done = time.perf_counter() - began
    return {
        "started_s": started,
        "answered_s": answered,
        "caught_up_s": done,
        "longest_batch_s": max(seconds),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "paused": sum(query.state == "failed" for query in engine.queries()),
    }


def main(arguments: Sequence[str]) -> None:
    """Run what is asked for."""
    what, checkpoint, rows, number, *mode = arguments
    if what == "prepare":
        prepare(checkpoint, int(rows), int(number))
    else:
        sys.stdout.write(json.dumps(restart(checkpoint, int(rows), float(number), *mode)))


if __name__ == "__main__":
    main(sys.argv[1:])
