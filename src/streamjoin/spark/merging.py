"""Which runs of the log are folded into the next one.

Decided from the manifest alone, so that the tasks of a batch decide alike without speaking to each other. Going
back from the newest, a run is folded while it is not much larger than all that is newer: sizes fall
geometrically, their number is logarithmic, and a row is rewritten a logarithmic number of times (PIM-Tree
merges T_I into T_S; here in steps). A run counts with the rows that are still in their window, so one that is
mostly expired goes early.
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
    """

    slack: int = 125
    floor: int = 8192


@dataclass(frozen=True)
class Extent:
    """How many rows one side of a run has, and from when to when."""

    rows: int
    oldest: int
    newest: int


def horizons(clocks: Sequence[int | None], windows: tuple[int, int], lateness: int) -> tuple[int, int]:
    """For each side the oldest ticks that a row still to come can match: older rows are expired.

    The next row of the other side has at least clock - lateness, and reaches back one window from there.
    """
    left, right = (
        NEVER if clock is None else max(NEVER, clock - lateness - window)
        for clock, window in zip(reversed(clocks), windows, strict=True)
    )
    return left, right


def alive(extent: Extent, horizon: int) -> int:
    """About how many rows of `extent` are not expired, taking them as evenly spread over its time."""
    if extent.rows == 0 or extent.newest < horizon:
        return 0
    if extent.oldest >= horizon:
        return extent.rows
    return max(1, extent.rows * (extent.newest - horizon + 1) // (extent.newest - extent.oldest + 1))


def first_folded(
    runs: Sequence[tuple[Extent, Extent]], horizon: tuple[int, int], fresh: int, policy: MergePolicy
) -> int:
    """The index in `runs`, oldest first, from which on all are folded into the next run.

    Args:
        runs: the extents of both sides of each run.
        horizon: see `horizons`.
        fresh: the rows that the next batch will bring, as far as anyone knows.
        policy: how eagerly to fold.
    """
    newer = max(fresh, policy.floor)
    first = len(runs)
    while first:
        size = sum(alive(extent, bound) for extent, bound in zip(runs[first - 1], horizon, strict=True))
        if size * 100 > newer * policy.slack:
            break
        newer += size
        first -= 1
    return first
