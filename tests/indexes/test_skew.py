"""Duplicates, skew and drift, judged by step counters and bytes: no time is measured here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamjoin.indexes.base import Index, Matches, push_task
from streamjoin.indexes.registry import INDEXES, make_index
from streamjoin.kernels.trees.task import INSERTS
from streamjoin.pim_tree.pim_tree import PimTreeIndex
from tests.indexes.reference import CASES, case_id

each_kind = pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)


def slide(index: Index, words: np.ndarray, window: int) -> None:
    """Run a stream through a count window without probing it."""
    size = words.size
    seq = np.arange(size)
    own_min = np.maximum(0, seq - window + 1)
    ops = np.full(size, INSERTS)
    push_task(index, index, (ops, words, words, words, seq, own_min, own_min), Matches())


@each_kind
def test_all_keys_equal_stays_linear(name: str, shape: dict[str, Any]) -> None:
    window, size = 1000, 8000
    index = INDEXES[name](**shape)
    slide(index, np.full(size, 7), window)
    index.check()
    steps = index.counters()
    assert steps["insert"] <= 20 * size
    assert steps["delete"] <= 20 * size
    probe, seqs = index.probe([7, 8, 6], [7, 8, 6])
    assert probe.tolist() == [0] * window
    assert seqs.tolist() == list(range(size - window, size))


@each_kind
def test_memory_does_not_grow_with_the_stream(name: str, shape: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    window = 2000
    for words in (rng.integers(0, 10**9, 30_000), np.zeros(30_000, dtype=np.int64), np.arange(30_000)):
        index = INDEXES[name](window=window, **shape)  # type: ignore[call-arg]
        slide(index, words[: 3 * window], window)
        settled = sum(index.nbytes().values())
        index.restore(index.snapshot())
        slide_on(index, words, 3 * window, window)
        assert sum(index.nbytes().values()) <= 2 * settled


def slide_on(index: Index, words: np.ndarray, start: int, window: int) -> None:
    seq = np.arange(words.size)
    own_min = np.maximum(0, seq - window + 1)
    ops = np.full(words.size, INSERTS)
    push_task(index, index, (ops, words, words, words, seq, own_min, own_min), Matches(), start)


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_bytes_by_component_add_up_and_are_bounded(name: str) -> None:
    window = 1 << 16
    index = make_index(name, window=window)
    sizes = index.nbytes()
    assert sum(sizes.values()) == index.mem.nbytes
    assert min(sizes.values()) >= 0
    assert index.mem.nbytes <= 140 * window


def test_a_hot_word_does_not_slow_its_bucket_mates() -> None:
    index = make_index("hashed", window=4096)
    words = np.where(np.arange(4096) % 2 == 0, 12345, np.arange(4096))
    index.insert(words, np.arange(4096))
    before = index.counters()["search"]
    rare = np.arange(1, 4096, 2)
    found, _ = index.probe(rare, rare)
    assert found.size == rare.size
    assert index.counters()["search"] - before < 4 * rare.size


def test_pim_searches_stay_logarithmic_while_the_distribution_drifts_away() -> None:
    """Every insert is beyond T_S's last key: all of them meet in one sub-index (figure 13b at its worst)."""
    window = 1 << 15
    index = PimTreeIndex(window=window)
    index.load(np.arange(window), np.arange(window))
    before = index.counters()
    fresh = window // 8 - 1
    words = np.random.default_rng(4).permutation(fresh) + window
    index.insert(words, np.arange(window, window + fresh))
    inserts = index.counters()["insert"] - before["insert"]
    assert inserts <= 12 * fresh
    sizes = index.sub_index_sizes()
    assert sizes[-1] == sum(sizes) == fresh
    before = index.counters()
    index.probe(words, words)
    after = index.counters()
    assert after["scan"] - before["scan"] <= 8 * fresh
    assert after["search"] - before["search"] <= 16 * fresh
    index.check()


def test_pim_ranges_follow_the_window_at_every_merge() -> None:
    rng = np.random.default_rng(8)
    window = 1 << 14
    index = PimTreeIndex(window=window)
    slide(index, rng.normal(0, 1000, 2 * window).astype(np.int64), window)
    slide_on(index, rng.normal(50_000, 1000, 6 * window).astype(np.int64), 2 * window, window)
    sizes = np.array(index.sub_index_sizes())
    assert sizes.sum() > 0
    assert sizes.max() <= 32
    index.check()


def test_pim_widens_its_chunks_when_too_many_spill() -> None:
    rng = np.random.default_rng(8)
    window = 1 << 13
    index = PimTreeIndex(window=window, merge_ratio=0.125)
    narrow = index.settings()["width"]
    crowded = np.repeat(rng.integers(0, 10**9, 2 * window // 16), 16)  # each word comes in bursts of sixteen
    slide(index, crowded, window)
    assert index.settings()["width"] > narrow
    index.check()


def test_deleting_among_duplicates_is_not_a_search() -> None:
    index = make_index("btree")
    size = 20_000
    index.insert(np.zeros(size), np.arange(size))
    before = index.counters()["delete"]
    index.expire(size // 2)
    assert index.counters()["delete"] - before <= 10 * size // 2
    index.check()
