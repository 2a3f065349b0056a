"""The AJoin workload over the core or an engine in this process: runs, and the highest rate that is kept up with.

A batch has the tuples of a part of a second. The load of a run is seconds of work a second of stream; a system keeps up
with a rate if the load is at most one (the paper's sustainable throughput, section 7). Time is that of the
tuples: nothing waits, so a rate far below the limit costs next to nothing to try. Rows stay lists of tuples, as nothing
reads them; what reading all of them would take besides is measured with the last batch. An engine takes tuples by
`push_all`, which returns once they are in its journal and the rows are handed out: its queries keep their newest rows.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness import Context
from benchmarks.papers import ajoin_workload as ajoin
from streamjoin.adhoc import Engine, Settings, Stream
from streamjoin.queries.core.budgets import UNLIMITED
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core

SHARED, ALL, APART = "shared by cost", "share everything", "no sharing"
SYSTEMS: Final = {SHARED: Settings(), ALL: Settings(sharing="everything"), APART: Settings(sharing="nothing")}
WINDOW: Final = 3.0
"""The longest window of the workload, in seconds."""
_ENOUGH: Final = 1.15
_NEAR, _OVERLOAD = 1.2, 3.0
_LEAP: Final = 8.0
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
    changes: Sequence[ajoin.TimedChange] = ()
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
    reading: float = 0.0
    """The seconds that it takes to gather all rows of the last batch, beside those of the batch."""

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
    by_batches: bool = False,
    patient: bool = False,
    engine: bool = False,
) -> Outcome:
    """Fill the windows, then run `seconds` of stream in batches of `interval`; stop early if it is hopeless.

    `planned` lets the optimizer look before it counts, as it would have after a while. Windows are filled in ten parts,
    or `by_batches` like those that count; who is `patient` fills them however long that takes.
    """
    system = (_WholeEngine if engine else _Core)(workload, settings, context)
    with closing(system):
        playing = _Playing(system, workload, rate, context)
        part = interval if by_batches else WINDOW / 10
        # A look after the first part: with an order that is bad enough, a whole window in one go fills the memory.
        for length in (part, WINDOW - part):
            filled = playing.batches(length, part, (), patient=patient)
            if filled.load >= _OVERLOAD and length > part and not patient:
                return filled
            if planned:
                system.look()
        outcome = playing.batches(seconds, interval, workload.changes)
        outcome.nbytes = system.nbytes
        outcome.held = round(WINDOW * rate) * len(workload.streams)
        return outcome


class _Core:
    """The core alone."""

    def __init__(self, workload: Workload, settings: Settings, context: Context) -> None:  # noqa: ARG002
        self._core = open_core([Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in workload.streams], settings)
        self._core.apply([Create(name, text) for name, text in workload.queries.items()])
        self._found: Mapping[str, ListedRows] = {}

    def change(self, changes: Sequence[ajoin.TimedChange]) -> None:
        """Create and drop queries."""
        self._core.apply([Create(c.name, c.query.text) if c.action == "create" else Drop(c.name) for c in changes])

    def take(self, number: int, tables: Mapping[str, pa.Table]) -> int:
        """One batch; returns how many rows it gives."""
        arrived = self._core.arrive(number, tables)
        self._found, failures = self._core.results(arrived)
        self._core.finish(arrived, failures)
        return sum(rows.num_rows for rows in self._found.values())

    def read(self) -> None:
        """Gather all rows of the last batch."""
        for rows in self._found.values():
            read(rows)

    def look(self) -> None:
        """Have the optimizer look at the plan."""
        if isinstance(self._core, Shared):
            self._core.replan()

    @property
    def parts(self) -> Mapping[str, float]:
        """The seconds of the last batch by component."""
        return self._core.report.seconds

    @property
    def nbytes(self) -> Mapping[str, int]:
        """What is held."""
        return self._core.nbytes

    def close(self) -> None:
        """Nothing is to be ended."""


class _WholeEngine:
    """An engine with a checkpoint, and queries that keep their newest rows."""

    def __init__(self, workload: Workload, settings: Settings, context: Context) -> None:
        self._directory = TemporaryDirectory(dir=context.scratch)
        self._engine = Engine(checkpoint=self._directory.name, settings=settings, budget=UNLIMITED)
        for name in workload.streams:
            self._engine.register(name, schema=ajoin.SCHEMA, time=ajoin.TIME)
        self._engine.start()
        for name, text in workload.queries.items():
            self._engine.create(text, name, wait=False)
        self._engine.process_all_available()
        self._rows = 0

    def change(self, changes: Sequence[ajoin.TimedChange]) -> None:
        """Create and drop queries: they are in force with the next batch."""
        for change in changes:
            if change.action == "create":
                self._engine.create(change.query.text, change.name, wait=False)
            else:
                self._engine.drop(change.name, wait=False)

    def take(self, number: int, tables: Mapping[str, pa.Table]) -> int:  # noqa: ARG002 - it numbers batches itself
        """One batch; returns how many rows it gives."""
        self._engine.push_all(tables)
        before, self._rows = self._rows, self._engine.metrics().rows_out
        return self._rows - before

    def read(self) -> None:
        """Nothing: the newest rows are gathered in the batch."""

    def look(self) -> None:
        """Have the optimizer look at the plan."""
        core = self._engine._loop.core
        if isinstance(core, Shared):
            self._engine._between_batches(core.replan)

    @property
    def parts(self) -> Mapping[str, float]:
        """The seconds of the last batch by component."""
        core: Any = self._engine._loop.core
        return dict(core.report.seconds)

    @property
    def nbytes(self) -> Mapping[str, int]:
        """What is held."""
        return self._engine.metrics().state_bytes

    def close(self) -> None:
        """Stop it, and forget its checkpoint."""
        failed = [query.error for query in self._engine.queries() if query.state == "failed"]
        self._engine.stop()
        self._directory.cleanup()
        if failed:
            raise AssertionError(f"queries are paused, so that the rate is not theirs: {failed[0]}")


class _Playing:
    """A system that is given a workload's stream at a rate, batch by batch."""

    def __init__(self, system: _Core | _WholeEngine, workload: Workload, rate: float, context: Context) -> None:
        self._system, self._workload, self._rate, self._context = system, workload, rate, context
        self._played, self._done, self._number = 0.0, 0, 0

    def batches(
        self, seconds: float, interval: float, changes: Sequence[ajoin.TimedChange], *, patient: bool = False
    ) -> Outcome:
        """Seconds of stream with changes made at their times; fewer if it is hopeless, but for the patient."""
        outcome, waiting, run, took = Outcome(self._rate), list(changes), 0, 0.0
        # Sums of intervals are off by a little.
        while outcome.seconds < seconds - interval / 1e6 and (patient or outcome.load < _OVERLOAD or run < 2):
            due = [change for change in waiting if change.at <= outcome.seconds]
            waiting = waiting[len(due) :]
            begin = time.perf_counter()
            if due:
                self._system.change(due)
            changed = time.perf_counter() - begin
            count, rows, took = self.batch(interval)
            outcome.seconds += interval
            outcome.worked += took + changed
            outcome.slowest = max(outcome.slowest, took + changed)
            outcome.tuples += count * len(self._workload.streams)
            outcome.rows += rows
            outcome.parts.update(self._system.parts)
            run += 1
        if took:
            begin = time.perf_counter()
            self._system.read()
            outcome.reading = (time.perf_counter() - begin) / took
        return outcome

    def batch(self, interval: float) -> tuple[int, int, float]:
        """One batch: tuples of each stream, result rows, and seconds, the making of the tuples not counted."""
        self._played += interval
        count = max(1, round(self._played * self._rate) - self._done)
        tables = {
            name: self._workload.tuples(n, count, self._context.seed, self._rate, self._done)
            for n, name in enumerate(self._workload.streams)
        }
        begin = time.perf_counter()
        rows = self._system.take(self._number, tables)
        took = time.perf_counter() - begin
        self._done += count
        self._number += 1
        return count, rows, took


def sustained(at: Callable[[float], Outcome], start: float, tries: int) -> Outcome:
    """The run at the highest rate that was kept up with, as closely as `tries` runs find it.

    Rates grow until one is too much; between two the next is where their loads say that it is one, as if load were a
    power of the rate. Runs near the limit take longest, so few of them are made. If none is kept up with, that
    with the lowest rate.
    """
    low: Outcome | None = None
    high: Outcome | None = None
    rate = start
    for _ in range(tries):
        found = at(rate)
        if found.load <= 1.0:
            low = found
        elif high is None or found.rate < high.rate:
            high = found
        closed = low is not None and high is not None and high.rate / low.rate < _ENOUGH
        if closed or rate < start / _HOPELESS:
            break
        rate = _next_rate(low, high)
    best = low or high
    if best is None:
        raise ValueError(f"at least one try is needed, not {tries}")
    return best


def _next_rate(low: Outcome | None, high: Outcome | None) -> float:
    if low is None:
        return high.rate / (math.sqrt(_ENOUGH) if high.load < _NEAR else 4) if high is not None else 0.0
    load = max(low.load, 1e-3)
    if high is None:
        return low.rate * min(_LEAP, max(_ENOUGH, 1.1 * math.pow(load, -0.7)))
    reached = math.log(1 / load) / math.log(high.load / load)
    rate = low.rate * float((high.rate / low.rate) ** reached)
    # Not so near to either that nothing is learnt.
    return min(max(rate, low.rate * math.sqrt(_ENOUGH)), high.rate / math.sqrt(_ENOUGH))


def by_name(rows: Iterable[Mapping[str, object]], *keys: str) -> dict[tuple[object, ...], Mapping[str, object]]:
    """Rows by some of their columns."""
    return {tuple(row[key] for key in keys): row for row in rows}
