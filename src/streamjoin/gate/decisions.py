"""The event-time gate's decisions: which rows are late, which are ready, and in which order they are released.

The order is (time, side with left first, source name, position in the source). The bound is the place in that order up
to which all rows have been released: no source that the gate waits for can still send a row before it (ScaleJoin,
definition 2). A row is late if it is behind its own source's newest time by more than the lateness, or before the
bound. The embedded engine and Spark both use these functions; docs/late-data.md explains them.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.windows.clock import NEVER, minus

Key = tuple[int, str]
"""A source: its side and its name."""
Bound = tuple[int, int, str]
"""A time, and the last source whose rows of that time may come out."""

START: Bound = (NEVER, 0, "")
END: Bound = ((1 << 63) - 1, 2, "")


def late_mask(key: Key, ticks: Array, clock: int, lateness: int, bound: Bound, *, in_order: bool = True) -> Array:
    """Which rows of a source are late; `clock` is its newest time before them.

    Rows that are `in_order` move the clock for the rows after them; otherwise only the clock before them counts.
    """
    if not ticks.size:
        return np.zeros(0, np.bool_)
    if int(ticks.min()) > max(clock - lateness, bound[0]) and not (in_order and bool(np.any(ticks[1:] < ticks[:-1]))):
        # The usual case: all rows are in order.
        return np.zeros(ticks.size, np.bool_)
    if in_order:
        late = ticks < minus(np.maximum.accumulate(np.concatenate([[clock], ticks]))[:-1], lateness)
    else:
        late = ticks < max(NEVER, clock - lateness)
    late |= ticks < bound[0]
    if key < bound[1:]:
        late |= ticks == bound[0]
    return late


def passed(key: Key, clock: int, lateness: int, floor: int = NEVER) -> Bound:
    """The place before which a source sends no more rows; the gate's bound is the minimum over its sources."""
    return max(floor, clock - lateness), *key


def floor_of(key: Key, bound: Bound) -> int:
    """The earliest time that a new source can send without being late."""
    tick = bound[0]
    return tick + (NEVER < tick < END[0] and key < bound[1:])


def ties_are_ready(key: Key, bound: Bound) -> bool:
    """Whether a source's rows at the bound's own time are ready."""
    return key <= bound[1:]
