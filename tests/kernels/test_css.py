"""The immutable tree's kernels against NumPy's binary search."""

from __future__ import annotations

import numpy as np
import pytest

from streamjoin.kernels.trees import css
from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ

LARGEST = 2**63 - 1


def built(words: np.ndarray, leaf_size: int, fanout: int) -> tuple[np.ndarray, int, int]:
    head = np.zeros(HEAD_WORDS, dtype=np.int64)
    head[css.LEAF_SIZE], head[css.CSS_FANOUT] = leaf_size, fanout
    inner = int(css.lay_levels(head, words.size))
    room = words.size + leaf_size + css.LANES
    mem = np.full(HEAD_WORDS + inner + 2 * room, -1, dtype=np.int64)
    mem[:HEAD_WORDS] = head
    first = HEAD_WORDS + inner
    mem[first : first + words.size] = words
    mem[first + room : first + room + words.size] = np.arange(words.size)
    css.build_levels(mem, first, words.size, HEAD_WORDS, first)
    return mem, first, room


@pytest.mark.parametrize(("leaf_size", "fanout"), [(8, 8), (32, 16), (32, 32), (24, 8)])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 65, 511, 513, 5000])
def test_places_are_those_of_a_binary_search(size: int, leaf_size: int, fanout: int) -> None:
    rng = np.random.default_rng(size)
    words = np.sort(rng.integers(-size // 2 - 1, size // 2 + 1, size))
    words[: size // 50] = -(2**63)
    words[size - size // 50 :] = LARGEST
    mem, first, _ = built(words, leaf_size, fanout)
    for key in [*rng.integers(-size, size + 1, 50).tolist(), -(2**63), LARGEST, LARGEST - 1]:
        assert css.find_place(mem, first, HEAD_WORDS, key) - first == np.searchsorted(words, key)


def test_scans_stop_at_the_interval_and_at_the_end() -> None:
    words = np.sort(np.random.default_rng(1).integers(0, 50, 300))
    words[-20:] = LARGEST
    mem, first, room = built(words, 8, 8)
    out = np.empty(300, dtype=np.int64)
    for lo, hi in [(0, LARGEST), (5, 9), (9, 9), (49, LARGEST), (LARGEST, LARGEST)]:
        place = css.find_place(mem, first, HEAD_WORDS, lo)
        count = css.scan_run(mem, place, first + words.size, room, hi, 100, out, 0)
        expected = [seq for seq in range(300) if lo <= words[seq] <= hi and seq >= 100]
        assert out[:count].tolist() == expected
    assert css.scan_run(mem, first, first + words.size, room, LARGEST, 0, out[:10], 0) == -1


@pytest.mark.parametrize("seed", range(5))
def test_merging_keeps_the_live_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 200, 2).tolist()
    runs = []
    for begin, size in zip((0, sizes[0]), sizes, strict=True):
        words = rng.integers(0, 20, size)
        order = np.argsort(words, kind="stable")
        runs.append((words[order], begin + order))
    room = sum(sizes) + css.LANES
    mem = np.zeros(HEAD_WORDS + 4 * room, dtype=np.int64)
    mem[MIN_SEQ] = bound = int(rng.integers(0, sum(sizes) + 1))
    source, target = HEAD_WORDS, HEAD_WORDS + 2 * room
    mem[source : source + sizes[0]], mem[source + room : source + room + sizes[0]] = runs[0]
    # The younger run lies at the far end of the output, as an index lays it.
    tail = target + room - sizes[1]
    mem[tail : tail + sizes[1]], mem[tail + room : tail + room + sizes[1]] = runs[1]
    live = css.merge_runs(mem, source, sizes[0], room, tail, sizes[1], room, target, room)
    expected = sorted((w, s) for words, seqs in runs for w, s in zip(words, seqs, strict=True) if s >= bound)
    merged = list(zip(mem[target : target + live], mem[target + room : target + room + live], strict=True))
    assert merged == expected
