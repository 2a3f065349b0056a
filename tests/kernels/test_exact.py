"""Exact sums beside Python's own: `math.fsum`, whole numbers without end, and fractions where `fsum` gives up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin._arrays import Array
from streamjoin.kernels.exact import (
    Layout,
    accumulate,
    add_floats,
    add_many_floats,
    add_many_wholes,
    add_wholes,
    float_layout,
    merge,
    round_floats,
    slide_floats,
    slide_wholes,
    take_away,
    whole_layout,
    whole_numbers,
    within_words,
)
from streamjoin.kernels.kinds.summary import ASKS, ENTERS, LEAVES
from tests.oracles.summary_oracle import fsum

TINY, LARGEST = 5e-324, 1.7976931348623157e308
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e16,
    -1e16,
    0.1,
    TINY,
    -TINY,
    2.2250738585072014e-308,
    LARGEST,
    -LARGEST,
    2.0**53,
    1e300,
]
FLOATS = st.sampled_from(EDGES) | st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1000, 1000)
ANY_FLOATS = FLOATS | st.sampled_from([math.nan, math.inf, -math.inf])
WHOLES = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 1])


MOST = np.uint64(2**64 - 1)
# At each step: the next value enters, the oldest leaves, or the window is asked for.
WALKS = st.lists(st.sampled_from([ASKS, ENTERS, LEAVES]), max_size=60)


def steps_of(walk: list[int], n: int) -> tuple[tuple[Array, Array, int, int, int, int], list[tuple[int, int]]]:
    """The steps of a walk that can be taken with `n` values, as kernels take them, and the windows that it asks for."""
    kinds, inside, entered, left = [], [], 0, 0
    for kind in walk:
        if (kind == ENTERS and entered == n) or (kind == LEAVES and left == entered):
            continue
        kinds.append(kind)
        entered, left = entered + (kind == ENTERS), left + (kind == LEAVES)
        if kind == ASKS:
            inside.append((left, entered))
    return (np.zeros(len(kinds), np.int32), np.array(kinds, np.uint8), len(kinds), 0, 0, 0), inside


def same(one: float, other: float) -> bool:
    """Whether two floats are the same number; a sum that is zero has no sign."""
    return math.isnan(other) if math.isnan(one) else one == other


def rounded(rows: Array, layout: Layout) -> list[float]:
    out = np.empty(len(rows))
    round_floats(rows.copy(), layout.head, layout.first, out)
    return out.tolist()


def sums(values: list[float], layout: Layout | None = None) -> tuple[Array, Layout]:
    column, present = np.array(values, np.float64), np.ones(len(values), np.bool_)
    layout = layout or float_layout(column, present)
    rows = layout.rows(1)
    add_floats(column, present, np.zeros(len(values), np.int64), rows, layout.head, layout.first)
    return rows, layout


@settings(deadline=None, max_examples=500)
@given(values=st.lists(ANY_FLOATS, max_size=30))
def test_a_sum_is_that_of_fsum(values: list[float]) -> None:
    rows, layout = sums(values)
    assert same(rounded(rows, layout)[0], fsum(values))
    assert rows[0, 0] == len(values)


@settings(deadline=None, max_examples=300)
@given(
    values=st.lists(st.integers(-(2**53), 2**53) | st.sampled_from([0, 1, -1, 2**53]), min_size=1, max_size=12),
    exponent=st.integers(-1074, 960),
    odd=st.sampled_from([[], [math.nan], [math.inf], [TINY, LARGEST], [0.1, 1e16]]),
    walk=WALKS,
    data=st.data(),
)
def test_sums_of_windows_that_slide_are_those_of_fsum(
    values: list[int], exponent: int, odd: list[float], walk: list[int], data: st.DataObject
) -> None:
    """Also numbers of two words, which have a way of their own, wherever their words begin."""
    column = np.array([*(math.ldexp(value, exponent) for value in values), *odd])
    present = np.array(data.draw(st.lists(st.booleans(), min_size=column.size, max_size=column.size)))
    layout = float_layout(column, present).wide_enough(float_layout(column[:1], present[:1]))
    steps, inside = steps_of(walk, column.size)
    out = layout.rows(len(inside) + 1)
    # The row behind the last one is read, but counts for nothing.
    padded = np.append(column, np.nan), np.append(present, True)
    slide_floats(*steps, *padded, layout.rows(1), layout.head, layout.first, out)
    for (begin, end), row in zip(inside, out, strict=False):
        rest = [value for place, value in enumerate(column.tolist()) if begin <= place < end and present[place]]
        assert row[0] == len(rest)
        assert same(rounded(row[np.newaxis], layout)[0], fsum(rest))


def test_a_number_of_two_words_is_rounded_once() -> None:
    """Beside each tie, from every place of the highest bit on, for sums of both signs."""
    highs = [high for k in range(62) for high in (1 << k, (1 << k) + 1, (1 << k) - 1, 3 << k)]
    near = [0, 1, 1 << 10, 1 << 11, *(1 << k for k in range(12, 64, 3)), (1 << 64) - (1 << 11), (1 << 64) - 1]
    numbers = [(high << 64) + low + by for high in highs for low in near for by in (-1, 0, 1)]
    numbers += [-number for number in numbers]
    words = np.array([(1, number % 2**64, (number >> 64) % 2**64) for number in numbers], np.uint64)
    assert rounded(words, Layout(-1, 2)) == [math.ldexp(number, -64) for number in numbers]


@pytest.mark.parametrize(
    "values",
    [
        [1e16, 1.0, -1e16],
        [LARGEST, LARGEST, -LARGEST],
        [LARGEST, LARGEST],
        [-LARGEST, -LARGEST * 2**-54],
        [TINY, LARGEST, -LARGEST],
        [TINY] * 3,
        [2.0**53, 1.0, TINY],
        [2.0**53, 1.0],
        [2.0**54 - 1, 1.0],
        [2.2250738585072009e-308, TINY],
        [1.0, 2.0**-53],
        [1.0, 2.0**-53, 2.0**-106],
        [math.inf, -math.inf],
        [math.inf, 1.0],
        [-0.0],
    ],
)
def test_a_sum_at_the_ends_of_float64(values: list[float]) -> None:
    assert same(rounded(*sums(values))[0], fsum(values))


@settings(deadline=None, max_examples=300)
@given(parts=st.lists(st.lists(ANY_FLOATS, max_size=8), min_size=1, max_size=5), order=st.randoms())
def test_partial_sums_of_any_layouts_merge_in_any_order(parts: list[list[float]], order: object) -> None:
    partial = [sums(values) for values in parts]
    order.shuffle(partial)  # type: ignore[attr-defined]
    layout = partial[0][1]
    for _, own in partial:
        layout = layout.wide_enough(own)
    total = layout.rows(1)
    for rows, own in partial:
        merge(own.widened(rows, layout), np.zeros(1, np.int64), total, layout.head)
    assert same(rounded(total, layout)[0], fsum([value for values in parts for value in values]))


@settings(deadline=None, max_examples=300)
@given(values=st.lists(WHOLES, min_size=1, max_size=30), walk=WALKS, wide=st.booleans())
def test_whole_numbers_have_no_end(values: list[int], walk: list[int], wide: bool) -> None:
    words, present = np.array(values, np.int64).view(np.uint64).reshape(-1, 1), np.ones(len(values), np.bool_)
    if wide:
        words = np.concatenate([words, np.where(words >> np.uint64(63), MOST, np.uint64(0))], axis=1)
    layout = whole_layout(64 * words.shape[1])
    steps, inside = steps_of(walk, len(values))
    out = layout.rows(len(inside) + 1)
    slide_wholes(*steps, np.append(words, words[:1], axis=0), np.append(present, True), layout.rows(1), out)
    out = out[:-1]
    exact = [sum(values[begin:end]) for begin, end in inside]
    assert whole_numbers(out, layout) == exact
    assert out[:, 0].tolist() == [end - begin for begin, end in inside]
    assert within_words(out, layout, True).tolist() == [-(2**63) <= own < 2**63 for own in exact]
    assert within_words(out, layout, False).tolist() == [0 <= own < 2**64 for own in exact]
    assert rounded(out, layout) == list(map(float, exact))
    for (begin, end), row in zip(inside, out, strict=True):
        total = layout.rows(1)
        add_wholes(words[begin:end], present[begin:end], np.zeros(end - begin, np.int64), total)
        assert (total == row).all()
        take_away(row[np.newaxis], np.zeros(1, np.int64), total, layout.head)
        assert not total.any()


def test_unsigned_and_wide_numbers_take_more_words() -> None:
    words = np.array([[2**64 - 1, 0], [2**64 - 1, 2**64 - 1]], np.uint64)
    layout = whole_layout(128)
    rows = layout.rows(1)
    for first, exact in ((0, 2**64 - 1), (1, 2**64 - 2)):
        add_wholes(words[first : first + 1], np.ones(1, np.bool_), np.zeros(1, np.int64), rows)
        assert whole_numbers(rows, layout) == [exact]


def test_prices_and_quantities_take_two_words() -> None:
    prices = np.round(np.random.default_rng(5).uniform(1, 500, 1000), 2)
    present = np.ones(1000, np.bool_)
    assert float_layout(prices, present) == Layout(-1, 2)
    assert float_layout(np.arange(1000.0), present) == Layout(0, 1)
    assert float_layout(np.array([TINY, LARGEST]), np.ones(2, np.bool_)).words == 34


TIMES = st.sampled_from([1, 2, 3, 63, 64, 2**20 + 7, 2**32 - 1, 2**32, 2**38]) | st.integers(1, 1000)


@given(st.lists(st.tuples(ANY_FLOATS, st.booleans(), TIMES), min_size=1, max_size=12))
@settings(deadline=None)
def test_a_float_that_counts_many_times_is_so_much_of_its_sum(rows: list[tuple[float, bool, int]]) -> None:
    values, times = np.array([row[0] for row in rows]), np.array([row[2] for row in rows])
    present = np.array([row[1] for row in rows])
    layout = float_layout(values, present)
    into, found, wanted = np.zeros(len(rows), np.int64), layout.rows(1), layout.rows(1)
    add_many_floats(values, present, times, into, found, layout.head, layout.first)
    for power in range(39):
        often = present & (times >> power & 1 == 1)
        # The same with the sum of each power of two added up by itself.
        own = layout.rows(1)
        add_floats(values, often, into, own, layout.head, layout.first)
        for _ in range(power):
            merge(own.copy(), np.zeros(1, np.int64), own, layout.head)
        merge(own, np.zeros(1, np.int64), wanted, layout.head)
    assert (found == wanted).all()


@given(st.lists(st.tuples(WHOLES, st.booleans(), TIMES), min_size=1, max_size=12), st.sampled_from([1, 2]))
@settings(deadline=None)
def test_a_whole_number_that_counts_many_times_is_so_much_of_its_sum(
    rows: list[tuple[int, bool, int]], words: int
) -> None:
    times, present = np.array([row[2] for row in rows]), np.array([row[1] for row in rows])
    numbers = [row[0] * 3 ** (40 * (words - 1)) for row in rows]
    data = b"".join(number.to_bytes(8 * words, "little", signed=True) for number in numbers)
    values = np.frombuffer(data, np.uint64).reshape(-1, words).copy()
    layout = whole_layout(64 * words)
    found = layout.rows(1)
    add_many_wholes(values, present, times, np.zeros(len(rows), np.int64), found)
    counted = [(number, often) for number, (_, there, often) in zip(numbers, rows, strict=True) if there]
    assert whole_numbers(found, layout) == [sum(number * often for number, often in counted)]
    assert int(found[0, 0]) == sum(often for _, often in counted)


@given(st.lists(WHOLES, min_size=1, max_size=20))
def test_rows_are_accumulated(numbers: list[int]) -> None:
    layout = whole_layout(64)
    rows = layout.rows(len(numbers))
    values = np.array(numbers, np.int64).view(np.uint64).reshape(-1, 1)
    add_wholes(values, np.ones(len(numbers), np.bool_), np.arange(len(numbers)), rows)
    accumulate(rows, layout.head)
    assert whole_numbers(rows, layout) == [sum(numbers[: n + 1]) for n in range(len(numbers))]
    assert rows[:, 0].tolist() == list(range(1, len(numbers) + 1))
