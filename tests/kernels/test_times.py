"""Sums and differences of times at the ends of int64, and the build that finds those that leave it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.times import MAX, MIN, after, before, distance, is_within, length_word
from streamjoin.windows.clock import minus, plus

LONGEST = 2**64 - 1
TIMES = st.integers(MIN, MAX) | st.sampled_from([MIN, MIN + 1, MIN + 5, -1, 0, 1, 2**62, MAX - 5, MAX - 1, MAX])
LENGTHS = st.integers(0, LONGEST) | st.sampled_from([0, 1, 5, 2**62, MAX - 1, MAX, MAX + 1, LONGEST - 1, LONGEST])


@kernel
def _all(one: int, other: int, length: int, out: Array) -> None:
    out[0], out[1] = before(one, length), after(one, length)
    later, earlier = max(one, other), min(one, other)
    out[2], out[3] = np.int64(distance(later, earlier)), is_within(later, earlier, length)


@settings(deadline=None)
@given(one=TIMES, other=TIMES, length=LENGTHS)
def test_nothing_wraps_around(one: int, other: int, length: int) -> None:
    out = np.zeros(4, np.int64)
    _all(one, other, length_word(length), out)
    assert out[0] == max(MIN, one - length)
    assert out[1] == min(MAX, one + length)
    assert int(out[2:3].view(np.uint64)[0]) == abs(one - other)
    assert out[3] == (abs(one - other) <= length)


@settings(deadline=None)
@given(times=st.lists(TIMES, max_size=20), length=LENGTHS)
def test_columns_do_not_either(times: list[int], length: int) -> None:
    column = np.array(times, np.int64)
    assert minus(column, length).tolist() == [max(MIN, time - length) for time in times]
    assert plus(column, length).tolist() == [min(MAX, time + length) for time in times]


def test_no_limit_is_the_longest_length() -> None:
    assert length_word(None) == length_word(LONGEST) == -1


PROGRAM = """
import numpy as np
from streamjoin.jit.flags import kernel

@kernel
def add(a, i, b):
    a[i] = a[i] + b

@kernel
def subtract(a, i, b):
    a[i] -= b

@kernel
def multiply(a, i, b):
    a[i] *= b

@kernel
def inner(a, i):
    add(a, i, np.int64(1))

@kernel
def row(a, i, j):
    a[i, j] = 1

most = 2**63 - 1
for call in (
    lambda: add(np.array([most]), 0, 1), lambda: add(np.array([-1]), 0, -most),
    lambda: subtract(np.array([-2]), 0, most), lambda: multiply(np.array([2**32]), 0, 2**31),
    lambda: inner(np.array([most]), 0), lambda: add(np.zeros(3, np.int64), 3, 1),
    lambda: add(np.zeros(3, np.int64), -1, 1),
    lambda: inner(np.zeros(3, np.int64), -3), lambda: row(np.zeros((2, 3), np.int64), 1, -1),
    lambda: row(np.zeros((2, 3), np.int64), 2, 0), lambda: add(np.zeros(3, np.int64), 2, 1),
):
    try:
        call()
        print("nothing")
    except (OverflowError, IndexError) as error:
        print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_checked_build_raises_where_int64_or_an_array_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, timeout=300, check=True, env={**os.environ, "STREAMJOIN_CHECKED": "1"},
    )  # fmt: skip
    wanted = ["OverflowError", "nothing", "OverflowError", "OverflowError", "OverflowError"]
    assert done.stdout.split() == [*wanted, *["IndexError"] * 5, "nothing"]
