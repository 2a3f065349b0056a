"""The sweep over a run whose entries have an age, against a test of every pair."""

from __future__ import annotations

import numpy as np
import pytest

from streamjoin.kernels.batch.sweep import age_blocks, sweep_within

ENDS = -(2**63), 2**63 - 1


@pytest.mark.parametrize("seed", range(40))
def test_every_pair_in_the_window_and_no_other(seed: int) -> None:
    """Few words, so that one word has many entries, and ages that rise, nearly rise, or do not."""
    rng = np.random.default_rng(seed)
    n, n_probes = int(rng.choice([0, 1, 63, 64, 65, 700, 4_096, 20_000])), int(rng.choice([1, 40, 300]))
    spread = int(rng.choice([1, 3, 50, 10_000]))
    words = np.sort(rng.integers(0, spread, n))
    ticks = np.arange(n) + rng.integers(0, int(rng.choice([1, 100, 10 * n + 1])), n)
    seqs = rng.permutation(n) if rng.random() < 0.3 else np.arange(n)
    if n and rng.random() < 0.3:
        ticks[rng.integers(0, n, 3)] = rng.choice(ENDS, 3)
    lo = np.sort(rng.integers(-1, spread, n_probes))
    hi = lo + rng.integers(-1, 3)
    middle, reach = rng.integers(0, n + 1, n_probes), int(rng.choice([0, 5, 200, 2 * n]))
    since, until = middle - reach, middle + reach
    first, last = (since, until) if rng.random() < 0.3 else (np.full(n_probes, ENDS[0]), np.full(n_probes, ENDS[1]))
    room = int(rng.choice([1, 7, 1 << 16]))
    out_probe, out_place = np.empty(room, np.int64), np.empty(room, np.int64)
    cursor, known = np.array([0, 0, -1], np.int64), age_blocks(n)
    found: list[tuple[int, int]] = []
    while cursor[0] < n_probes:
        held = sweep_within(lo, hi, since, until, first, last, words, ticks, seqs, *known, cursor, out_probe, out_place)
        assert held or cursor[0] == n_probes
        found += zip(out_probe[:held].tolist(), out_place[:held].tolist(), strict=True)
    expected = [
        (i, int(place))
        for i in range(n_probes)
        for place in np.flatnonzero(
            (words >= lo[i]) & (words <= hi[i]) & (ticks >= since[i]) & (ticks <= until[i])
            & (seqs >= first[i]) & (seqs <= last[i])
        )
    ]  # fmt: skip
    assert found == expected
