"""Looking up marks, and counting split points, against sets and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from streamjoin.kernels.kinds.marks import find_marks
from streamjoin.kernels.searching import count_upto

ENDS = -(2**63), 2**63 - 1


@pytest.mark.parametrize("seed", range(30))
def test_the_rows_that_have_a_mark_and_no_other(seed: int) -> None:
    """Few and many words, one with most rows, and numbers in any order."""
    rng = np.random.default_rng(seed)
    n, n_marks = (int(rng.choice([0, 1, 30, 3_000])) for _ in range(2))
    spread = int(rng.choice([1, 5, 10_000]))
    words, marked = (np.sort(rng.integers(0, spread, size)) for size in (n, n_marks))
    if n and n_marks and rng.random() < 0.5:
        words[: n // 2], marked[: n_marks // 2] = ENDS[0], ENDS[0]
        words[-1], marked[-1] = ENDS[1], ENDS[1]
    seqs, marked_seqs = rng.permutation(2 * n)[:n], rng.permutation(2 * n_marks)[:n_marks]
    found = rng.random(n) < 0.1
    pairs = set(zip(marked.tolist(), marked_seqs.tolist(), strict=True))
    wanted = [(word, seq) in pairs for word, seq in zip(words.tolist(), seqs.tolist(), strict=True)]
    expected = found | np.array(wanted, np.bool_)
    find_marks(words, seqs, marked, marked_seqs, found)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 15, 300])
def test_split_points_up_to_a_word(n: int) -> None:
    rng = np.random.default_rng(n)
    points = np.sort(rng.integers(-20, 20, n))
    words = np.concatenate([rng.integers(-22, 22, 5_000), ENDS])
    out = np.full(words.size, -1)
    count_upto(points, words, out)
    assert out.tolist() == np.searchsorted(points, words, side="right").tolist()
