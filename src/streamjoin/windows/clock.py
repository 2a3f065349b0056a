"""Times as whole ticks of one clock, and which tuples come too late in arrival order.

A time window contains every earlier tuple with |later.ts - earlier.ts| <= d, in any order of arrival. To drop tuples
at all, the engine has to trust a side's clock: a tuple behind the horizon of its own side is late. The horizon depends
only on the preceding tuples, never on how they were cut into batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.windows.encoding import flat, for_kernels, integer_values

NEVER, FOREVER = -(1 << 63), (1 << 63) - 1
_WORDS = frozenset(type_.id for type_ in (pa.int64(), pa.timestamp("us"), pa.duration("us")))
# Without a lateness setting, the newest tuples of a side, this many, are never late, whatever their times are.
GRACE = 4096


def to_ticks(column: pa.ChunkedArray | pa.Array, multiplier: int) -> tuple[Array, Array | None]:
    """The times in ticks, and a mask of those that have none: NULL, or beyond what ticks can count.

    The ticks of uint64 times have the top bit flipped: they keep order and distances, and fit an int64.
    """
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1 else column
    if (
        multiplier == 1
        and array.type.id in _WORDS
        and isinstance(array, pa.Array)
        and not array.null_count
        and len(array)
    ):
        # Nothing to convert: the copy is aligned and writable, as kernels want it.
        return np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset).copy(), None
    array = flat(column)
    values = for_kernels(integer_values(array))
    if array.type == pa.uint64():
        values = values ^ NEVER
    bad = None
    if array.null_count:
        bad = ~array.is_valid().to_numpy(zero_copy_only=False)
    if multiplier > 1:
        limit = ((1 << 63) - 1) // multiplier
        out_of_range = (values > limit) | (values < -limit)
        if out_of_range.any():
            bad = out_of_range if bad is None else bad | out_of_range
        with np.errstate(over="ignore"):
            values = values * multiplier
    return values, bad


def minus(ticks: Array, length: int) -> Array:
    """`ticks` - `length`, saturated at the smallest int64; lengths are up to 2**64 - 1."""
    if length > FOREVER:
        # What does not fit an int64 goes in two steps: saturated ones add up.
        return minus(minus(ticks, FOREVER), length - FOREVER)
    return np.where(ticks < NEVER + length, NEVER, ticks - length)


def plus(ticks: Array, length: int) -> Array:
    """`ticks` + `length`, saturated at the largest int64."""
    # Turning all bits over reverses the order of int64.
    return ~minus(~ticks, length)


def less(tick: int, length: int) -> int:
    """`minus` of one time."""
    return max(NEVER, tick - length)


def apart(one: Array, other: Array | np.int64) -> Array:
    """How far times are from others, unsigned: two int64 may be further apart than an int64 can say."""
    # Where the smaller one is taken from the larger one, what wraps around is right as an unsigned number.
    distance: Array = np.maximum(one, other).view(np.uint64) - np.minimum(one, other).view(np.uint64)
    return distance


class Horizon:
    """The oldest time that a side still accepts, in arrival order."""

    def __init__(self, lateness: int | None, window: int) -> None:
        self._lateness = lateness
        self._window = window
        self._count = 0
        self._clock = NEVER
        # The clock at each of the last two multiples of GRACE.
        self._marks = (NEVER, NEVER)

    @classmethod
    def resumed(cls, lateness: int, clock: int) -> Horizon:
        """A horizon at `clock` with an explicit lateness."""
        horizon = cls(lateness, 0)
        horizon._clock = clock
        return horizon

    def raised(self, clock: int) -> Horizon:
        """A copy whose clock is at least `clock`."""
        horizon = copy.copy(self)
        horizon._clock = max(self._clock, clock)
        return horizon

    def reaching(self, time: int) -> Horizon:
        """The horizon after its side, which has an explicit lateness, declares that nothing before `time` follows."""
        lateness = self._lateness or 0
        return Horizon.resumed(lateness, max(self._clock, min(time + lateness, FOREVER)))

    def with_lateness(self, lateness: int) -> Horizon:
        """The horizon with another explicit lateness; its bound never falls, as what lies behind it may be gone."""
        if self._clock == NEVER:
            return Horizon(lateness, 0)
        return Horizon.resumed(lateness, max(self._clock, self.bound + lateness))

    @property
    def lateness(self) -> int:
        """The explicit lateness; 0 without one."""
        return self._lateness or 0

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the current state."""
        state = self._count, self._clock, self._marks

        def restore() -> None:
            self._count, self._clock, self._marks = state

        return restore

    @property
    def clock(self) -> int:
        """The newest time so far."""
        return self._clock

    def passes(self, ticks: Array) -> bool:
        """Take the next tuples if they are in order, so that none is late; otherwise `late` has to tell."""
        n = ticks.size
        if not n or ticks[0] < self._clock or self._count // GRACE != (self._count + n) // GRACE:
            return False
        if n > 1 and not (ticks[1:] >= ticks[:-1]).all():
            return False
        self._clock = int(ticks[-1])
        self._count += n
        return True

    def late(self, ticks: Array) -> Array:
        """Which of the next tuples are late."""
        clocks = np.maximum.accumulate(np.concatenate([np.array([self._clock], np.int64), ticks]))
        before = clocks[:-1]
        if self._lateness is not None:
            horizon = minus(before, self._lateness)
        else:
            horizon = np.minimum(minus(before, self._window), self._marked(clocks))
        self._clock = int(clocks[-1])
        self._count += ticks.size
        return ticks < horizon

    def _marked(self, clocks: Array) -> Array:
        """For each of the next tuples, the clock at the second-to-last multiple of GRACE."""
        n = clocks.size - 1
        first = self._count // GRACE
        last = (self._count + n) // GRACE
        newer_marks = [int(clocks[mark * GRACE - self._count]) for mark in range(first + 1, last + 1)]
        marks = [*self._marks, *newer_marks]
        # marks[k] is the clock at multiple first - 1 + k.
        numbers = (self._count + np.arange(n)) // GRACE - first
        self._marks = (marks[-2], marks[-1])
        return np.array(marks, np.int64)[numbers]

    @property
    def bound(self) -> int:
        """Tuples before this time are rejected from now on."""
        if self._lateness is not None:
            return max(NEVER, self._clock - self._lateness)
        return min(max(NEVER, self._clock - self._window), self._marks[0])
