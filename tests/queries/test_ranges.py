"""Sums and best values of ranges beside plain loops: any ranges, with and without a row that does not count."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.joins.kinds.exact_columns import numbers_of, sum_column
from streamjoin.kernels.kinds.summary import NONE
from streamjoin.queries.core.groups.ranges import RangeBests, RangeCounts, Ranges, RangeSums
from tests.seeds import FRESH, examples


def _ranges(rng: np.random.Generator, n: int, ascending: bool) -> Ranges:
    ends = np.sort(rng.integers(0, n, (rng.integers(0, 40), 2)), axis=1)
    if ascending:
        ends = np.sort(ends, axis=0)
    first, last = ends[:, 0].copy(), ends[:, 1].copy()
    inside = (last - first > 1) & (rng.random(first.size) < 0.3)
    return Ranges(first, last, np.where(inside, (first + last) // 2, NONE))


def _rows(ranges: Ranges) -> list[list[int]]:
    found = zip(ranges.first.tolist(), ranges.last.tolist(), ranges.hole.tolist(), strict=True)
    return [[row for row in range(first, last + 1) if row != hole] for first, last, hole in found]


@pytest.mark.parametrize("seed", range(examples(60)))
def test_ranges_answer_as_a_loop_does(seed: int) -> None:
    rng = np.random.default_rng([FRESH, seed])
    n = int(rng.integers(1, 60))
    words, present = rng.integers(-3, 30, n), rng.random(n) < 0.8
    ranges = _ranges(rng, n, ascending=bool(seed % 2))
    rows = _rows(ranges)
    assert ranges.sizes.tolist() == [len(own) for own in rows]
    assert RangeCounts(words).of(ranges).tolist() == [sum(words[own].tolist()) for own in rows]
    bests = RangeBests(words, present).of(ranges).tolist()
    for place, own in zip(bests, rows, strict=True):
        known = [row for row in own if present[row]]
        assert (place in known and words[place] == words[known].min()) if known else place == NONE

    values = rng.choice([1e16, 1.0, -1e16, 0.1, 5e-324, 1e300], n)
    sums = RangeSums(*numbers_of(pa.array(values, mask=~present)).by_group(np.arange(n), n))
    wanted = [math.fsum(values[[row for row in own if present[row]]]) if present[own].any() else None for own in rows]
    assert sum_column(sums.of(ranges), sums.layout, pa.float64())[0].to_pylist() == wanted
