"""Times and lengths of time at the ends of int64: sums and differences that stop there instead of wrapping around.

Two int64 times are up to 2**64 - 1 apart, so a length is an unsigned number, and kernels get it as the int64 of the
same bits (`length_word`). No distance exceeds the largest one, which stands for no limit. Invariant: nothing
here adds or subtracts signed numbers. Numba compiles signed arithmetic as if it never left int64, so the compiler
removes a test for a sum that wrapped around.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.jit.flags import inlined

MIN, MAX = -(1 << 63), (1 << 63) - 1
NO_LIMIT = -1
"""The longest length, as kernels take it."""
_SIGN = np.uint64(1 << 63)
_LEAST, _MOST = np.int64(MIN), np.int64(MAX)


def length_word(length: int | None) -> int:
    """A length from 0 to 2**64 - 1, or None for no limit, as kernels take it."""
    if length is None:
        return NO_LIMIT
    return length if length <= MAX else length - (1 << 64)


@inlined
def distance(later: Any, earlier: Any) -> Any:
    """How far a time is behind one that is not earlier, unsigned."""
    return (np.uint64(np.int64(later)) ^ _SIGN) - (np.uint64(np.int64(earlier)) ^ _SIGN)


@inlined
def is_within(later: Any, earlier: Any, length: Any) -> bool:
    """Whether a time that is not earlier than another is at most `length` behind it."""
    return bool(distance(later, earlier) <= np.uint64(np.int64(length)))


@inlined
def before(tick: Any, length: Any) -> Any:
    """`tick` - `length`, or the smallest int64."""
    rest, reach = np.uint64(np.int64(tick)) ^ _SIGN, np.uint64(np.int64(length))
    return np.int64((rest - reach) ^ _SIGN) if rest > reach else _LEAST


@inlined
def after(tick: Any, length: Any) -> Any:
    """`tick` + `length`, or the largest int64."""
    # What is left above the tick, without a subtraction: its bits turned over.
    room, reach = ~(np.uint64(np.int64(tick)) ^ _SIGN), np.uint64(np.int64(length))
    return np.int64(~(room - reach) ^ _SIGN) if room > reach else _MOST
