"""The AJoin workload over the core in this process: its runs, and the highest rate that a system keeps up with.

A batch has the tuples of a part of a second. The load of a run is seconds of work a second of stream; a system keeps up
with a rate if the load is at most one (the paper's sustainable throughput, section 7). Time is that of the
tuples: nothing waits, so a rate far below the limit costs next to nothing to try.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from benchmarks.harness import Context
from streamjoin.adhoc import Settings, Stream
from streamjoin.adhoc.apart import Apart, open_core
from streamjoin.adhoc.changes import Change, Create, Drop
from streamjoin.adhoc.core import Shared
from streamjoin.testing import ajoin_workload as ajoin

SHARED, ALL, APART = "shared by cost", "share everything", "no sharing"
SYSTEMS: Final = {SHARED: Settings(), ALL: Settings(sharing="everything"), APART: Settings(sharing="nothing")}
WINDOW: Final = 3.0
"""The longest window of the workload, in seconds."""
_ENOUGH: Final = 1.15
_OVERLOAD: Final = 3.0
_HOPELESS: Final = 100
"""A rate so far below the first is not looked for: then it is the batches that take too long, not the tuples."""
Maker = Callable[[int, int, int, float, int], pa.Table]
"""A stream's number, how many tuples, the seed, the rate, and the number of the first: the tuples."""


def uniform(stream: int, count: int, seed: int, rate: float, first: int) -> pa.Table:
    """The paper's tuples."""
    return ajoin.tuples(stream, count, seed, rate=rate, first=first)


@dataclass(frozen=True)
class Workload:
    """Queries by name over streams, and changes `at` seconds after the windows are filled."""

    streams: Sequence[str]
    queries: Mapping[str, str]
    changes: Sequence[ajoin.Change] = ()
    tuples: Maker = uniform


@dataclass
class Outcome:
    """What a run took: seconds of work for `seconds` of stream."""

    rate: float
    seconds: float = 0.0
    worked: float = 0.0
    tuples: int = 0
    rows: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    """Seconds by component; not measured without sharing."""
    nbytes: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    """Tuples that the windows keep, at most."""
    slowest: float = 0.0
    """The seconds of the slowest batch, with the changes before it."""

    @property
    def load(self) -> float:
        """Seconds of work a second of stream."""
        return self.worked / self.seconds if self.seconds else 0.0


def template(ways: int, percent: int, count: int, seed: int, **options: float) -> Workload:
    """Queries of figure 14 at a similarity."""
    generator = ajoin.QueryGenerator(ways, percent, seed=seed, **options)
    queries = generator.queries(count)
    used = sorted({stream for query in queries for stream in query.streams})
    return Workload(used, {f"q{n}": query.text for n, query in enumerate(queries)})


def run(
    workload: Workload,
    settings: Settings,
    rate: float,
    context: Context,
    *,
    seconds: float,
    interval: float,
    planned: bool = False,
) -> Outcome:
    """Fill the windows, then run `seconds` of stream in batches of `interval`; stop early if it is hopeless.

    `planned` lets the optimizer look before it counts, as it would have after a while.
    """
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in workload.streams]
    core = open_core(streams, settings)
    core.apply([Create(name, text) for name, text in workload.queries.items()])
    done = max(1, round(WINDOW * rate))
    _timed(core, workload, context, 0, 0, done, rate)
    if planned and isinstance(core, Shared):
        core.replan()
    outcome = Outcome(rate)
    waiting = list(workload.changes)
    number = 1
    while outcome.seconds < seconds and (outcome.load < _OVERLOAD or number < 3):
        due = [change for change in waiting if change.at <= outcome.seconds]
        waiting = waiting[len(due) :]
        begin = time.perf_counter()
        if due:
            core.apply([_change(change) for change in due])
        changed = time.perf_counter() - begin
        count = max(1, round((outcome.seconds + interval) * rate) + round(WINDOW * rate) - done)
        rows, took = _timed(core, workload, context, number, done, count, rate)
        done += count
        outcome.seconds += interval
        outcome.worked += took + changed
        outcome.slowest = max(outcome.slowest, took + changed)
        outcome.tuples += count * len(streams)
        outcome.rows += rows
        outcome.parts.update(core.report.seconds)
        number += 1
    outcome.nbytes = core.nbytes
    outcome.held = round(WINDOW * rate) * len(streams)
    return outcome


def _change(change: ajoin.Change) -> Change:
    return Create(change.name, change.query.text) if change.action == "create" else Drop(change.name)


def _timed(
    core: Shared | Apart, workload: Workload, context: Context, number: int, first: int, count: int, rate: float
) -> tuple[int, float]:
    """The rows of a batch and the seconds it took, the making of its tuples not counted."""
    tables = {name: workload.tuples(n, count, context.seed, rate, first) for n, name in enumerate(workload.streams)}
    begin = time.perf_counter()
    found = core.process(number, tables)
    return sum(table.num_rows for table in found.values()), time.perf_counter() - begin


def sustained(at: Callable[[float], Outcome], start: float, tries: int) -> Outcome:
    """The run at the highest rate that was kept up with, as closely as `tries` runs find it.

    Rates double until one is too much, then halve the distance in logarithms. If none is kept up with, that with the
    lowest rate.
    """
    best: Outcome | None = None
    lowest: Outcome | None = None
    low, high, rate = 0.0, float("inf"), start
    for _ in range(tries):
        found = at(rate)
        if found.load <= 1.0:
            best, low = found, rate
        else:
            high = rate
            lowest = found if lowest is None or found.rate < lowest.rate else lowest
        if (low and high / low < _ENOUGH) or rate < start / _HOPELESS:
            break
        rate = 2 * low if high == float("inf") else (low * high) ** 0.5 if low else high / 4
    found_any = best or lowest
    if found_any is None:
        raise ValueError(f"at least one try is needed, not {tries}")
    return found_any


def by_name(rows: Iterable[Mapping[str, object]], *keys: str) -> dict[tuple[object, ...], Mapping[str, object]]:
    """Rows by some of their columns."""
    return {tuple(row[key] for key in keys): row for row in rows}
