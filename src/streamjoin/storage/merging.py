"""Which runs of the log are folded into the next one.

Decided from the manifest alone, so that the tasks of a batch decide alike without speaking to each other. Going
back from the newest, a run is folded while it is not much larger than all that is newer: sizes fall
geometrically, their number is logarithmic, and a row is rewritten a logarithmic number of times (PIM-Tree
merges T_I into T_S; here in steps). No run grows beyond a share of the window: a large one is never rewritten, it
is dropped whole when its last row expires, and until then holds at most that share of expired rows.
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
        floor: runs of fewer rows than this are not worth a file and are folded always.
        runs: a run holds at most one part in this many of all live rows, unless a batch alone holds more.
        inline: merges of more rows than this are left to the background (`background.py`).
        crowd: with more runs than this the background has fallen behind, and batches merge all that is due.
    """

    slack: int = 125
    floor: int = 8192
    runs: int = 5
    inline: int = 1 << 16
    crowd: int = 32


@dataclass(frozen=True)
class RunStatistics:
    """How many rows one side of a run has, from when to when, and about when half of them are older.

    Without the `middle` they count as evenly spread.
    """

    rows: int
    oldest: int
    newest: int
    middle: int | None = None

    @property
    def facts(self) -> list[int]:
        """The numbers, as files have them."""
        return [self.rows, self.oldest, self.newest, *([] if self.middle is None else [self.middle])]


def horizons(clocks: Sequence[int | None], windows: tuple[int, int], lateness: int) -> tuple[int, int]:
    """For each side the oldest ticks that a row still to come can match: older rows are expired.

    The next row of the other side has at least clock - lateness, and reaches back one window from there.
    """
    left, right = (
        NEVER if clock is None else max(NEVER, clock - lateness - window)
        for clock, window in zip(reversed(clocks), windows, strict=True)
    )
    return left, right


def alive(extent: RunStatistics, horizon: int) -> int:
    """About how many rows of `extent` are not expired, taking them as evenly spread over each half of its time.

    In two halves, as a few rows that moved on from an older run say nothing about the others.
    """
    if extent.rows == 0 or extent.newest < horizon:
        return 0
    if extent.oldest >= horizon:
        return extent.rows
    middle = (extent.oldest + extent.newest) // 2 if extent.middle is None else extent.middle
    half = extent.rows // 2
    if horizon > middle:
        return max(1, half * (extent.newest - horizon + 1) // (extent.newest - middle))
    return extent.rows - half + half * (middle - horizon) // (middle - extent.oldest)


def first_folded(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """The index in `runs`, oldest first, from which on all are folded into the next run.

    Args:
        runs: the extents of both sides of each run.
        horizon: see `horizons`.
        fresh: the rows that the next batch will bring, as far as anyone knows.
        policy: how eagerly to fold.
    """
    newer, held = max(fresh, policy.floor), fresh
    first = len(runs)
    sizes = _sizes(runs, horizon)
    most = _most(sizes, fresh, policy)
    if len(runs) <= policy.crowd:
        most = min(most, max(policy.inline, policy.floor))
    while first:
        size = sizes[first - 1]
        if size * 100 > newer * policy.slack or held + size > most:
            break
        newer += size
        held += size
        first -= 1
    return first


def spent(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """How many of `runs`, from the oldest, will hold hardly a live row when the next batch is done.

    `horizon` is where it will be then, as far as anyone knows. The few rows move on to the next run, so that no file
    stays for the sake of a few. Should more be alive after all, at most twice as many as a batch brings are moved.
    """
    for i, (run, alive_) in enumerate(zip(runs, _sizes(runs, horizon), strict=True)):
        rows = sum(extent.rows for extent in run)
        if alive_ > min(policy.floor, rows // 8) or rows > 2 * max(fresh, policy.inline):
            return i
    return len(runs)


def due(
    runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int], policy: MergePolicy
) -> tuple[int, int] | None:
    """Which neighbours among `runs`, from one index to before another, should become one; the newest first.

    If none, a single run of which so many rows are expired that writing it anew is worth it.
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
        if sum(extent.rows for extent in run) - sizes[i] > most + sizes[i] // 4:
            return i, i + 1
    return None


def _sizes(runs: Sequence[tuple[RunStatistics, RunStatistics]], horizon: tuple[int, int]) -> list[int]:
    return [sum(alive(extent, bound) for extent, bound in zip(run, horizon, strict=True)) for run in runs]


def _most(sizes: Sequence[int], fresh: int, policy: MergePolicy) -> int:
    return max(policy.floor, (sum(sizes) + fresh) // policy.runs)
