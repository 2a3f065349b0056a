"""Which runs of the log are folded into the next one.

The decision depends on the manifest alone, so all tasks of a batch decide alike without communication. From the newest
run backwards, a run is folded while it is not much larger than all newer runs together. Sizes then decrease
geometrically, the number of runs is logarithmic, and a row is rewritten a logarithmic number of times (PIM-Tree merges
T_I into T_S; here in steps). No run grows beyond a share of the window, unless a batch alone is larger. Such a run is
dropped when its last row expires, and until then holds at most that share of expired rows. Where batches are a large
part of the window, expired rows would be more than that: the live rows of the oldest run then move to the next one.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from streamjoin.indexes.sorted_runs import first_merged

NEVER = -(1 << 63)


@dataclass(frozen=True)
class MergePolicy:
    """How eagerly runs are folded.

    Args:
        slack: in percent, how much larger than all newer rows together a run may be and still be folded.
        floor: runs with fewer rows than this are always folded.
        runs: a run holds at most one part in this many of all live rows, unless a batch alone holds more.
        inline: merges of more rows than this are left to the background (`background.py`).
        background: merges of more rows than this are too large for one thread of the driver: all tasks of a batch do
            them together, each the part of its range.
        crowd: with more runs than this the background has fallen behind, and batches do the merges themselves.
        expired: in percent of the live rows, how many expired rows may stay before live rows are moved away from them.
        whole: every batch folds all runs into its own: for a state that is small and not bounded by age.
    """

    slack: int = 125
    floor: int = 8192
    runs: int = 8
    inline: int = 1 << 16
    background: int = 1 << 24
    crowd: int = 32
    expired: int = 20
    whole: bool = False


@dataclass(frozen=True)
class RunStatistics:
    """The number of rows of one side of a run, their oldest and newest age, and ages between them.

    `ages` divides the rows into parts of about equal size. Without it the ages are assumed to be evenly spread.
    """

    rows: int
    oldest: int
    newest: int
    ages: tuple[int, ...] = ()

    @classmethod
    def of(cls, facts: Sequence[int]) -> RunStatistics:
        """The statistics from what `facts` returned."""
        rows, oldest, newest, *ages = facts
        return cls(rows, oldest, newest, tuple(ages))

    @property
    def facts(self) -> list[int]:
        """The numbers in the order in which files store them."""
        return [self.rows, self.oldest, self.newest, *self.ages]


def horizons(clocks: Sequence[int | None], windows: tuple[int, int], lateness: int) -> tuple[int, int]:
    """For each side the oldest ticks that a future row can match; older rows are expired.

    The next row of the other side is at least at clock - lateness, and its window reaches back from there.
    """
    left, right = (
        NEVER if clock is None else max(NEVER, clock - lateness - window)
        for clock, window in zip(reversed(clocks), windows, strict=True)
    )
    return left, right


def alive(statistics: RunStatistics, horizon: int) -> int:
    """An estimate of the rows that are not expired; it takes ages as evenly spread within each part of the rows.

    One estimate for all rows would be distorted by a few that moved on from an older run.
    """
    rows, oldest, newest = statistics.rows, statistics.oldest, statistics.newest
    if rows == 0 or newest < horizon:
        return 0
    if oldest >= horizon:
        return rows
    edges = [oldest, *(statistics.ages or [(oldest + newest) // 2]), newest]
    parts, part = len(edges) - 1, bisect.bisect_left(edges, horizon)
    before, after = rows * (part - 1) // parts, rows * part // parts
    younger = edges[part] - horizon + (part == parts)
    return int(max(1, rows - after + (after - before) * younger // (edges[part] - edges[part - 1])))


def first_folded(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """The index in `runs`, oldest first, from which on all are folded into the next run.

    Args:
        runs: the statistics of both sides of each run.
        horizon: see `horizons`.
        fresh: the expected number of rows of the next batch.
        policy: how eagerly to fold.
    """
    sizes = _sizes(runs, horizon)
    most = _most(sizes, fresh, policy)
    first = first_merged([*sizes, fresh], policy.slack, most, policy.floor)
    if len(runs) > policy.crowd or sum(sizes[first:]) > policy.background:
        return first
    return first_merged([*sizes, fresh], policy.slack, min(most, max(policy.inline, policy.floor)), policy.floor)


def spent(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """How many of `runs`, from the oldest, the next batch replaces: it moves their live rows to its own run.

    `horizon` is the expected one after that batch. A run goes if it will have almost no live rows, or if all runs
    together would hold too many expired ones. If the estimate is wrong, at most four times as many rows as a batch has
    are moved for each run.
    """
    sizes, rows = _sizes(runs, horizon), [sum(side.rows for side in run) for run in runs]
    live, expired = sum(sizes) + fresh, sum(rows) - sum(sizes)
    for i, (size, row_count) in enumerate(zip(sizes, rows, strict=True)):
        few = size <= min(policy.floor, row_count // 8) and row_count <= 2 * max(fresh, policy.inline)
        # Moved rows expire soon and leave gaps in their new run: it pays off for large runs that are mostly expired.
        large = live // 4 < row_count <= 4 * fresh and size * 5 <= row_count * 3
        if not few and not (large and expired * 100 > live * policy.expired):
            return i
        expired -= row_count - size
    return len(runs)


def due(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], policy: MergePolicy
) -> tuple[int, int] | None:
    """The begin and end of the neighbouring `runs` that should be merged; newer runs first.

    If there are none, a single run with enough expired rows for a rewrite to pay off.
    """
    sizes = _sizes(runs, horizon)
    most = _most(sizes, 0, policy)
    for end in range(len(runs), 1, -1):
        begin = first_merged(sizes[:end], policy.slack, min(most, policy.background))
        if end - begin > 1:
            return begin, end
    for i, run in enumerate(runs):
        if sizes[i] <= policy.background and sum(side.rows for side in run) - sizes[i] > most + sizes[i] // 2:
            return i, i + 1
    return None


def _sizes(runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int]) -> list[int]:
    return [sum(alive(side, bound) for side, bound in zip(run, horizon, strict=True)) for run in runs]


def _most(sizes: Sequence[int], fresh: int, policy: MergePolicy) -> int:
    return max(policy.floor, (sum(sizes) + fresh) // policy.runs)
