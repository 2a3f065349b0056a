"""What an index accepts and refuses, and what it says about itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamjoin.indexes.base import Index, Matches, push_task
from streamjoin.indexes.registry import INDEXES, make_index
from streamjoin.kernels.trees.task import PROBES
from streamjoin.model.errors import CheckpointError, InputError, NotSupportedError, SpecError
from streamjoin.pim_tree.pim_tree import PimTreeIndex
from tests.indexes.reference import SHAPES


def test_the_registry_knows_every_kind_by_its_own_name() -> None:
    assert all(name == kind.name and issubclass(kind, Index) for name, kind in INDEXES.items())
    assert SHAPES.keys() == INDEXES.keys()


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("bplus", {}, "bplus"),
        ("btree", {"fanout": 2}, "fanout=2"),
        ("btree", {"depth": 2}, "depth"),
        ("im_tree", {"merge_ratio": 0}, "merge_ratio=0"),
        ("im_tree", {"leaf_size": 12}, "leaf_size=12"),
        ("ib_chain", {"immutable_fanout": 24}, "fanout=24"),
        ("b_chain", {"length": 1}, "length=1"),
        ("b_chain", {"fanout": 31}, "fanout=31"),
        ("bw_tree", {"leaf_size": 2}, "leaf_size=2"),
        ("bw_tree", {"leaf_size": 8, "chain": 5}, "chain=5"),
        ("bw_tree", {"chain": 17}, "chain=17"),
        ("pim_tree", {"insertion_depth": 0}, "insertion_depth=0"),
        ("pim_tree", {"width": 9}, "width=9"),
    ],
)
def test_impossible_settings_are_named(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make_index(name, **settings)


def test_the_hash_index_refuses_ranges() -> None:
    with pytest.raises(NotSupportedError, match="equality"):
        make_index("hashed").probe([1], [2])


def test_columns_must_agree() -> None:
    with pytest.raises(InputError, match="2 values"):
        make_index("scan").insert([1, 2], [1])
    with pytest.raises(InputError, match="one dimension"):
        make_index("scan").insert([[1, 2]], [[1, 2]])


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_damaged_snapshots_are_refused_and_change_nothing(name: str) -> None:
    index = make_index(name)
    index.insert([5, 6], [0, 1])
    for snapshot in ({}, {"words": np.arange(2), "seqs": np.array([3, 3]), "min_seq": np.zeros(1)}):
        with pytest.raises(CheckpointError):
            index.restore(snapshot)
    assert index.snapshot()["words"].tolist() == [5, 6]


def test_the_insertion_depth_sets_the_number_of_sub_indexes() -> None:
    counts = []
    for depth in (1, 2, 3):
        index = PimTreeIndex(leaf_size=8, fanout=8, insertion_depth=depth)
        index.load(np.arange(4000), np.arange(4000))
        assert index.settings()["insertion_depth"] == depth
        counts.append(index.settings()["sub_indexes"])
    assert counts == [8, 63, 500]
    assert PimTreeIndex(leaf_size=8, fanout=8, insertion_depth=9).depth == 1


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_steps_are_counted_and_timed_on_request(name: str) -> None:
    index = make_index(name, window=100)
    assert index.counters() == dict.fromkeys(("search", "scan", "insert", "delete", "merge"), 0) | {
        "merge": index.counters()["merge"]
    }
    index.time_steps()
    index.insert(np.arange(1000), np.arange(1000))
    index.probe(np.arange(1000), np.arange(1000))
    counted = index.counters()
    assert counted["scan"] > 0
    assert counted["scan_ns"] > 0
    assert counted["insert"] + counted["merge"] > 0
    assert counted["insert_ns"] + counted["merge_ns"] > 0
    index.time_steps(False)
    assert "scan_ns" not in index.counters()


@pytest.mark.parametrize("name", ["im_tree", "pim_tree"])
@pytest.mark.parametrize("merge_ratio", [1 / 64, 1 / 4, 1.0])
def test_a_merge_comes_when_the_share_of_the_window_is_reached(name: str, merge_ratio: float) -> None:
    window = 4096
    index = make_index(name, window=window, merge_ratio=merge_ratio, smallest_run=16)
    index.restore({"words": np.arange(window), "seqs": np.arange(window), "min_seq": np.zeros(1, dtype=np.int64)})
    merges, entries = 0, 2 * window
    for seq in range(window, window + entries, 16):
        before = index.counters()["merge"]
        index.expire(seq - window)
        index.insert(np.arange(16) * 250, np.arange(seq, seq + 16))
        merges += index.counters()["merge"] > before
    assert abs(merges - entries / (merge_ratio * window)) <= 2 + 0.1 * merges


@pytest.mark.parametrize("name", ["btree", "ib_chain", "im_tree", "pim_tree"])
def test_a_search_is_charged_to_the_side_it_was_done_on(name: str) -> None:
    left, right = make_index(name), make_index(name)
    right.insert(np.arange(500), np.arange(500))
    for index in (left, right):
        index.time_steps()
    n = 200
    words, zeros = np.arange(n), np.zeros(n, np.int64)
    push_task(left, right, (np.full(n, PROBES), words, words, words, zeros, zeros, zeros), Matches())
    assert left.counters()["search_ns"] == 0
    assert right.counters()["search_ns"] > 0


def test_merges_count_the_entries_they_move() -> None:
    moved = 64 * 10
    counted = {}
    shapes: list[tuple[str, dict[str, float]]] = [
        ("ib_chain", {"length": 2}),
        ("im_tree", {"smallest_run": moved, "merge_ratio": 1.0}),
    ]
    for name, shape in shapes:
        index = make_index(name, moved, **shape)
        index.insert(np.arange(moved + 1), np.arange(moved + 1))
        counted[name] = index.counters()["merge"]
    leaves = moved // 32
    assert counted["ib_chain"] == moved + leaves
    assert counted["im_tree"] - counted["ib_chain"] <= 1  # an empty tree has one leaf


@pytest.mark.parametrize("known", [True, False], ids=["window known", "window unknown"])
def test_a_merged_index_has_room_for_what_is_live(known: bool) -> None:
    """At merge ratio 1 as many entries expire as come between two merges: they need no room in the output."""
    window, chunk = 1 << 15, 1 << 11
    random = np.random.default_rng(3)
    words = random.integers(0, 1 << 40, 5 * window)
    index = make_index("pim_tree", window if known else None, merge_ratio=1.0)
    for end in range(chunk, words.size + 1, chunk):
        index.expire(end - window)
        index.insert(words[end - chunk : end], np.arange(end - chunk, end))
    index.check()
    parts = index.nbytes()
    # 16 bytes an entry, and some more; without what expires by then it would be twice as much.
    assert max(parts["T_S"], parts["merge buffer"]) < (20 if known else 25) * window
    found, seqs = index.probe(words[-window:], words[-window:], words.size - window)
    assert np.array_equal(np.sort(seqs), np.arange(words.size - window, words.size)) and found.size == window
