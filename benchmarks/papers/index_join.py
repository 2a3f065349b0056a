"""A single-threaded band join over two indexes of one kind, driven through `push_task`, brought to its steady state.

Steady means: both windows are full, every entry of them came in after another had left, and every page of the arenas
was touched, as after hours of running. From there on a sample of whole periods is measured: a period is what lies
between two merges of the rarer merging side (between two conversions of a chain), so a sample holds as many
merges as its tuples have to pay for, wherever it starts.

Time is the CPU time of the one thread, which never waits: on a quiet machine that is the time on the clock, and on a
busy one what other processes take is left out. `on_cpu` is its share of the clock: how quiet the machine was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.papers.compiled_caller import count_in_tasks
from benchmarks.papers.index_keys import I64, Keys
from streamjoin.indexes.base import Index, Matches, push_task
from streamjoin.indexes.registry import make_index
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES

TASK = 64
"""Tuples a task where an experiment does not say otherwise: the interpreter's share is small there."""

_BATCH = 1 << 17  # tuples whose columns are made at a time, outside the measured time
_LEAST_WARMUP = 1 << 12
_SETTLING_PERIODS = 2
_PAGE = 512  # words


@dataclass
class Measured:
    """What a sample of the join took and gave."""

    tuples: int = 0
    matches: int = 0
    cpu_ns: int = 0
    clock_ns: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    def add(self, part: Measured) -> None:
        """Add another sample."""
        self.tuples += part.tuples
        self.matches += part.matches
        self.cpu_ns += part.cpu_ns
        self.clock_ns += part.clock_ns
        for name, amount in part.steps.items():
            self.steps[name] = self.steps.get(name, 0) + amount

    def answer(self) -> dict[str, float]:
        """The figures as a row of a table."""
        return {
            "tuples_per_s": self.tuples / self.cpu_ns * 1e9,
            "match_rate": self.matches / self.tuples,
            "on_cpu": min(1.0, self.cpu_ns / self.clock_ns),
        }


class IndexJoin:
    """Two streams, two windows, two indexes; a self-join has one of each."""

    def __init__(
        self,
        index: str,
        windows: tuple[int, int],
        keys: Keys,
        settings: Mapping[str, float] | None = None,
        rates: tuple[int, int] = (1, 1),
        self_join: bool = False,
    ) -> None:
        self.windows = windows
        self.keys = keys
        self.rates = (1, 0) if self_join else rates
        self.self_join = self_join
        self.left = make_index(index, windows[0], **(settings or {}))
        self.right = self.left if self_join else make_index(index, windows[1], **(settings or {}))
        self.arrived = 0  # tuples of both sides since the windows were filled

    @property
    def sides(self) -> tuple[Index, ...]:
        """The indexes, one for a self-join."""
        return (self.left,) if self.self_join else (self.left, self.right)

    @property
    def nbytes(self) -> int:
        """Bytes of the indexes."""
        return sum(sum(index.nbytes().values()) for index in self.sides)

    def period(self) -> int:
        """Tuples of both sides until each index has done its rare work at least once; 1 where there is none."""
        return max(self._period_of(side) for side in range(len(self.sides)))

    def _period_of(self, side: int) -> int:
        settings = self.sides[side].settings()
        own = settings.get("span", settings.get("merge_ratio", 0) * self.windows[side])
        return max(1, round(own * sum(self.rates) / self.rates[side]))

    def whole_periods(self, least: int) -> int:
        """The smallest number of whole periods, in tuples, that is at least `least`."""
        period = self.period()
        return -(-least // period) * period

    def settle(self) -> None:
        """Fill both windows and turn them over; the steady state begins here."""
        for side, index in enumerate(self.sides):
            if index.capabilities.merges:
                index.load(self._keys(side, 0, self.windows[side]), np.arange(self.windows[side]))
            else:
                self._fill(index, side)
            # A buffer that the first merge would be the first to write to makes that merge pay for its pages.
            index.mem[::_PAGE] += 0
        merging = self.left.capabilities.merges
        self.advance(_SETTLING_PERIODS * self.period() if merging else self._turnover())
        self.run(_LEAST_WARMUP)

    def _turnover(self) -> int:
        return max(
            -(-window * sum(self.rates) // rate) for window, rate in zip(self.windows, self.rates, strict=True) if rate
        )

    def _fill(self, index: Index, side: int) -> None:
        for start in range(0, self.windows[side], _BATCH):
            stop = min(self.windows[side], start + _BATCH)
            index.insert(self._keys(side, start, stop - start), np.arange(start, stop))

    def advance(self, tuples: int) -> None:
        """Let tuples arrive that are indexed and expire others, but look nothing up."""
        out = Matches()
        for count in batches(tuples):
            push_task(self.left, self.right, self.columns(count, INSERTS), out)

    def run(
        self, tuples: int, task: int = TASK, band: int | None = None, timed: bool = False, compiled: bool = False
    ) -> Measured:
        """Join the next `tuples` in tasks of `task` tuples; `timed` also takes the time of each step.

        The tasks are called from Python, or by a `compiled` caller.
        """
        measured = Measured()
        out = Matches(1 << 12)
        for index in self.sides:
            index.time_steps(timed)
        before = self._steps()
        for count in batches(tuples):
            columns = self.columns(count, PROBES | INSERTS, band)
            call = _count_all if compiled else _push_all
            call(self.left, self.right, columns, out, task, measured)
        measured.steps = {name: amount - before[name] for name, amount in self._steps().items()}
        for index in self.sides:
            index.time_steps(False)
        return measured

    def sample(self, tuples: int, slices: int, band: int) -> Measured:
        """Join `tuples` in slices spread evenly over a period, for joins too slow to run through it.

        Between the slices tuples are only indexed, so the merges fall outside: they must cost little beside a lookup.
        """
        measured = Measured()
        gap = self.period() // slices
        for _ in range(slices):
            part = self.run(tuples // slices, band=band)
            measured.add(part)
            self.advance(max(0, gap - part.tuples))
        return measured

    def _steps(self) -> dict[str, int]:
        parts = [index.counters() for index in self.sides]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def columns(self, count: int, op: int, band: int | None = None) -> tuple[I64, ...]:
        """The task columns of the next `count` arrivals, which come as regularly as the rates allow."""
        arrivals = np.arange(self.arrived, self.arrived + count + 1)
        self.arrived += count
        rights = arrivals * self.rates[1] // sum(self.rates)
        lefts = arrivals - rights
        is_right = np.diff(rights) == 1
        word = np.empty(count, np.int64)
        for side, (chosen, came) in enumerate(((~is_right, lefts), (is_right, rights))):
            number = int(came[-1] - came[0])
            word[chosen] = self._keys(side, self.windows[side] + int(came[0]), number) if number else 0
        # Position of the next tuple of each side: the window was filled with the rows before 0 arrivals.
        left, right = lefts[:-1] + self.windows[0], rights[:-1] + self.windows[1]
        seq = np.where(is_right, right, left)
        oldest_left, oldest_right = lefts[:-1], rights[:-1]
        other = np.where(is_right | self.self_join, oldest_left, oldest_right)
        own = np.where(is_right, oldest_right, oldest_left) + 1
        reach = self.keys.band if band is None else band
        ops = is_right * np.int64(ON_RIGHT) | op
        return ops, word, word - reach, word + reach, seq, other, own

    def _keys(self, side: int, start: int, count: int) -> I64:
        return self.keys.keys("right" if side else "left", start, count)


def _push_all(left: Index, right: Index, columns: tuple[I64, ...], out: Matches, task: int, measured: Measured) -> None:
    n, matches = columns[0].size, 0
    clock, cpu = time.perf_counter_ns(), time.thread_time_ns()
    for start in range(0, n, task):
        matches += push_task(left, right, columns, out, start, min(start + task, n))[0].size
    measured.cpu_ns += time.thread_time_ns() - cpu
    measured.clock_ns += time.perf_counter_ns() - clock
    measured.tuples += n
    measured.matches += matches


def _count_all(
    left: Index, right: Index, columns: tuple[I64, ...], out: Matches, task: int, measured: Measured
) -> None:
    clock, cpu = time.perf_counter_ns(), time.thread_time_ns()
    measured.matches += count_in_tasks(left, right, columns, out, task)
    measured.cpu_ns += time.thread_time_ns() - cpu
    measured.clock_ns += time.perf_counter_ns() - clock
    measured.tuples += columns[0].size


def batches(tuples: int) -> list[int]:
    """A number of tuples cut into what is made at a time."""
    whole, rest = divmod(tuples, _BATCH)
    return [_BATCH] * whole + ([rest] if rest else [])
