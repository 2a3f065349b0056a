"""The order of a lookup's matches in a block of the pool, whatever their number and the room behind them."""

from __future__ import annotations

import numpy as np
import pytest

from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.pim_tree.kernels.task import order_matches

GAP = 8


@kernel
def order(pool: I64, apart: int, begin: int, end: int, limit: int) -> None:
    order_matches(pool, apart, begin, end, limit)


def shapes(size: int, rng: np.random.Generator) -> list[I64]:
    """Permutations, runs, far-off positions, and a few old ones before many that are new."""
    few = size // 8
    return [
        rng.permutation(size),
        np.arange(size),
        np.arange(size)[::-1].copy(),
        rng.choice(1 << 40, size, replace=False) if size else np.empty(0, np.int64),
        np.concatenate([rng.permutation(few), (1 << 33) + rng.permutation(size - few)]),
    ]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 95, 96, 97, 256, 1000])
@pytest.mark.parametrize("behind", [0, 1, 7, 255, 256, 300])
def test_matches_come_in_order_and_other_blocks_stay(size: int, behind: int) -> None:
    capacity = size + behind
    apart = capacity + GAP
    rng = np.random.default_rng(1000 * size + behind)
    for matches in shapes(size, rng):
        pool = np.arange(4 * apart) - 10_000
        before = pool.copy()
        pool[apart : apart + size] = matches
        order(pool, apart, apart, apart + size, apart + capacity)
        assert pool[apart : apart + size].tolist() == np.sort(matches).tolist()
        # The block before, what follows the positions, what follows the tuples that met them.
        for begin, end in ((0, apart), (apart + size, 2 * apart), (2 * apart + capacity, 4 * apart)):
            assert pool[begin:end].tolist() == before[begin:end].tolist()
