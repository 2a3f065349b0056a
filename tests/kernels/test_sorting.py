"""Sorting and merging of entries, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.kernels.batch.sorting import lower_bound, merged_entries, sort_entries

RNG = np.random.default_rng(0)
N = 3_000
SHAPES = {
    "uniform": RNG.integers(-(2**62), 2**62, N),
    "extremes": RNG.choice(np.array([-(2**63), -1, 0, 1, 2**63 - 1]), N),
    "small domain": RNG.integers(0, 50, N),
    "equal": np.full(N, -7),
    "crowded": np.concatenate([RNG.integers(0, 1_000, N - 1), [2**63 - 1]]),
    "falling": np.arange(N)[::-1].copy(),
    "one step apart": 2**40 + np.arange(N) % 2,
}


@pytest.mark.parametrize("words", SHAPES.values(), ids=SHAPES)
def test_entries_are_sorted_and_stable(words: np.ndarray) -> None:
    before = words.copy()
    got_words, got_tags = sort_entries(words, np.arange(words.size))
    order = np.argsort(words, kind="stable")
    assert (got_words == words[order]).all()
    assert (got_tags == order).all()
    assert (words == before).all()


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=120))
def test_entries_of_any_words_are_sorted(values: list[int]) -> None:
    words = np.array(values, np.int64)
    got_words, got_tags = sort_entries(words, np.arange(words.size))
    order = np.argsort(words, kind="stable")
    assert got_words.tolist() == words[order].tolist()
    assert got_tags.tolist() == order.tolist()


@settings(deadline=None)
@given(
    a=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=40),
    b=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=40),
    bound=st.integers(0, 60),
)
def test_merging_keeps_the_live_ones_in_order(a: list[tuple[int, int]], b: list[tuple[int, int]], bound: int) -> None:
    a, b = sorted(a, key=lambda e: e[0]), sorted(b, key=lambda e: e[0])
    (a_words, a_seqs), (b_words, b_seqs) = (np.array(run, np.int64).reshape(-1, 2).T.copy() for run in (a, b))
    wanted = [e for e in sorted([*a, *b], key=lambda e: e[0]) if e[1] >= bound]
    words, seqs = merged_entries((a_words, a_seqs), (b_words, b_seqs), bound)
    assert list(zip(words.tolist(), seqs.tolist(), strict=True)) == wanted


def test_lower_bound() -> None:
    words = np.array([1, 3, 3, 7])
    assert [lower_bound(words, w) for w in range(9)] == np.searchsorted(words, np.arange(9)).tolist()
