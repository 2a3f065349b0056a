"""The order of a probe's matches, whatever their number, their order and the room behind them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.bw_tree.join import order_group
from streamjoin.jit import machine
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.trees.entries import order_matches


@kernel
def order(seqs: I64, spare: I64, begin: int, end: int) -> None:
    order_matches(seqs, spare, begin, end)


@kernel
def sort_few(words: I64, base: int, count: int) -> None:
    machine.sort_8(words, base, count)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 100, 128, 129, 1000])
@pytest.mark.parametrize("behind", [0, 3, 7, 8, 50])
def test_matches_come_in_order_and_nothing_else_moves(size: int, behind: int) -> None:
    rng = np.random.default_rng(size * 100 + behind)
    shapes = [rng.permutation(size), np.arange(size), np.arange(size)[::-1], np.arange(size)[::-1] // 2]
    for shape in shapes:
        seqs = np.concatenate([np.arange(5)[::-1], shape + 1000, np.arange(behind)[::-1]])
        expected = np.concatenate([seqs[:5], np.sort(shape) + 1000, seqs[5 + size :]])
        order(seqs, np.empty(seqs.size, np.int64), 5, 5 + size)
        assert seqs.tolist() == expected.tolist()
        seqs[5 : 5 + size] = shape + 1000
        order_group(seqs, 5, 5 + size)
        assert seqs.tolist() == expected.tolist()


@pytest.mark.parametrize("count", range(9))
def test_the_network_sorts_every_pattern_of_zeros_and_ones(count: int) -> None:
    """What sorts all of these sorts everything (Knuth's zero-one principle); extremes are not set apart."""
    for pattern in range(1 << count):
        for low, high in [(0, 1), (-(2**63), 2**63 - 1)]:
            words = np.full(12, -7)
            words[2 : 2 + count] = [high if pattern >> lane & 1 else low for lane in range(count)]
            expected = words.copy()
            expected[2 : 2 + count].sort()
            sort_few(words, 2, count)
            assert words.tolist() == expected.tolist()
