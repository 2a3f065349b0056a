"""Which runs of the log are folded into the next one.

The decision depends on the manifest alone, so all tasks of a batch decide alike without communication. From the newest
run backwards, a run is folded while it is not much larger than all newer runs together. Sizes then decrease
geometrically, the number of runs is logarithmic, and a row is rewritten a logarithmic number of times (PIM-Tree merges
T_I into T_S; here in steps). No run grows beyond a share of the window. A large run is never rewritten: it is dropped
when its last row expires, and until then holds at most that share of expired rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEVER = -(1 << 63)


@dataclass(frozen=True)
class MergePolicy:
    """How eagerly runs are folded.

    Args:
        slack: in percent, how much larger than all newer rows together a run may be and still be folded.
        floor: runs with fewer rows than this are always folded.
        runs: a run holds at most one part in this many of all live rows, unless a batch alone holds more.
        inline: merges of more rows than this are left to the background (`background.py`).
        crowd: with more runs than this the background has fallen behind, and batches do the merges themselves.
        whole: every batch folds all runs into its own: for a state that is small and not bounded by age.
    """

    slack: int = 125
    floor: int = 8192
    runs: int = 5
    inline: int = 1 << 16
    crowd: int = 32
    whole: bool = False


@dataclass(frozen=True)
class RunStatistics:
    """The number of rows of one side of a run, their oldest and newest age, and about their median age.

    Without `middle` the ages are assumed to be evenly spread.
    """

    rows: int
    oldest: int
    newest: int
    middle: int | None = None

    @property
    def facts(self) -> list[int]:
        """The numbers in the order in which files store them."""
        return [self.rows, self.oldest, self.newest, *([] if self.middle is None else [self.middle])]


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
    """An estimate of the rows that are not expired; it takes ages as evenly spread on each side of the median.

    The two halves are separate because a few rows of an older run would distort one estimate for all.
    """
    if statistics.rows == 0 or statistics.newest < horizon:
        return 0
    if statistics.oldest >= horizon:
        return statistics.rows
    middle = (statistics.oldest + statistics.newest) // 2 if statistics.middle is None else statistics.middle
    half = statistics.rows // 2
    if horizon > middle:
        return max(1, half * (statistics.newest - horizon + 1) // (statistics.newest - middle))
    return statistics.rows - half + half * (middle - horizon) // (middle - statistics.oldest)


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
    newer, total = max(fresh, policy.floor), fresh
    first = len(runs)
    sizes = _sizes(runs, horizon)
    most = _most(sizes, fresh, policy)
    if len(runs) <= policy.crowd:
        most = min(most, max(policy.inline, policy.floor))
    while first:
        size = sizes[first - 1]
        if size * 100 > newer * policy.slack or total + size > most:
            break
        newer += size
        total += size
        first -= 1
    return first


def spent(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """How many of `runs`, from the oldest, will have almost no live rows after the next batch.

    `horizon` is the expected one after that batch. The few live rows move to the next run, so that no file is kept for
    a few rows. If the estimate is wrong, at most twice as many rows as a batch has are moved.
    """
    for i, (run, alive_) in enumerate(zip(runs, _sizes(runs, horizon), strict=True)):
        rows = sum(side.rows for side in run)
        if alive_ > min(policy.floor, rows // 8) or rows > 2 * max(fresh, policy.inline):
            return i
    return len(runs)


def due(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], policy: MergePolicy
) -> tuple[int, int] | None:
    """The begin and end of the neighbouring `runs` that should be merged; newer runs first.

    If there are none, a single run with so many expired rows that rewriting it pays off.
    """
    sizes = _sizes(runs, horizon)
    most = _most(sizes, 0, policy)
    for end in range(len(runs), 1, -1):
        begin, newer = end - 1, sizes[end - 1]
        while begin and sizes[begin - 1] * 100 <= newer * policy.slack and newer + sizes[begin - 1] <= most:
            begin -= 1
            newer += sizes[begin]
        if end - begin > 1:
            return begin, end
    for i, run in enumerate(runs):
        if sum(side.rows for side in run) - sizes[i] > most + sizes[i] // 4:
            return i, i + 1
    return None


def _sizes(runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int]) -> list[int]:
    return [sum(alive(side, bound) for side, bound in zip(run, horizon, strict=True)) for run in runs]


def _most(sizes: Sequence[int], fresh: int, policy: MergePolicy) -> int:
    return max(policy.floor, (sum(sizes) + fresh) // policy.runs)
