"""The Bw-Tree itself: any order of inserts, deletes and searches, and many threads that change one tree."""

from __future__ import annotations

from bisect import insort

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.bw_tree import memory
from benchmarks.papers.bw_tree.layout import BwTreeSizes, check_bw_tree, settle_pages
from streamjoin.kernels.trees.entries import LARGEST
from tests.benchmarks.papers.bw_tree_runs import Tree, churn, drift
from tests.deadlock import no_deadlock
from tests.seeds import examples
from tests.threads import check_that_runs_hold

SMALLEST = -LARGEST - 1
near = st.integers(-6, 6)
words = st.one_of(near, near, st.sampled_from([SMALLEST, SMALLEST + 1, LARGEST - 1, LARGEST]))
inserts = st.tuples(st.just("insert"), words, st.integers(1, 30))
deletes = st.tuples(st.just("delete"), st.floats(0, 1), st.integers(1, 30))
again = st.tuples(st.just("again"), st.floats(0, 1), st.integers(1, 3))
searches = st.tuples(st.just("search"), words, words)
SHAPES = [BwTreeSizes(4, 2), BwTreeSizes(8, 4), BwTreeSizes(32, 16)]


@settings(deadline=None, max_examples=examples(60))
@given(
    shape=st.sampled_from(SHAPES), steps=st.lists(st.one_of(inserts, inserts, deletes, again, searches), max_size=40)
)
def test_any_order_of_inserts_deletes_and_searches(shape: BwTreeSizes, steps: list[tuple[str, float, int]]) -> None:
    tree, next_seq = Tree(shape), 0
    held: list[tuple[int, int]] = []
    for what, where, count in steps:
        if what == "search":
            lo, hi = sorted((int(where), count))
            assert tree.search(lo, hi) == sorted(seq for word, seq in held if lo <= word <= hi)
        elif what == "insert":
            for _ in range(count):
                tree.insert(int(where), next_seq)
                insort(held, (int(where), next_seq))
                next_seq += 1
        elif held:
            at = min(int(where * len(held)), len(held) - 1)
            for entry in held[at : at + count]:
                tree.delete(*entry)
                if what == "again":
                    tree.insert(*entry)
            if what == "delete":
                del held[at : at + count]
    assert [tuple(entry) for entry in check_bw_tree(tree.mem).tolist()] == held
    assert tree.search(SMALLEST, LARGEST) == sorted(seq for _, seq in held)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_deleting_what_is_not_there_changes_nothing(shape: BwTreeSizes) -> None:
    tree = Tree(shape)
    for word in range(200):
        tree.insert(word, word)
        tree.delete(word, word + 1)
        tree.delete(-word - 1, word)
    assert check_bw_tree(tree.mem).tolist() == [[word, word] for word in range(200)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tree_that_was_emptied_keeps_a_few_pages(shape: BwTreeSizes) -> None:
    tree, n = Tree(shape, pages=2_000), 1_500
    order = np.random.default_rng(1).permutation(n).tolist()
    for k in order:
        tree.insert(k, k)
    full = settle_pages(tree.mem)
    for k in range(n):
        tree.delete(k, k)
    assert check_bw_tree(tree.mem).size == 0
    assert settle_pages(tree.mem) <= 3 * (tree.height + 1) < full
    for k in order:
        tree.insert(k, k)
    assert check_bw_tree(tree.mem)[:, 0].tolist() == list(range(n))


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drifting_keys_use_no_more_pages_than_at_first(shape: BwTreeSizes, rising: bool) -> None:
    window = 300
    pages = drift(shape, window, turns=20, rising=rising)
    assert max(pages[5:]) <= 1.3 * max(pages[:5]) + 8


def test_an_insert_without_pages_says_so_and_changes_nothing() -> None:
    tree, held = Tree(BwTreeSizes(4, 2), pages=100), []
    for k in range(10_000):
        if not tree.try_insert(k * 7919 % 10_007, k):
            break
        held.append([k * 7919 % 10_007, k])
    else:
        pytest.fail("the pages never ran out")
    assert check_bw_tree(tree.mem).tolist() == sorted(held)
    tree.delete(*held.pop())
    assert check_bw_tree(tree.mem).tolist() == sorted(held)


def test_a_page_is_not_free_while_a_thread_may_read_it() -> None:
    tree = Tree(BwTreeSizes(4, 2), threads=2)
    memory.come_online(tree.mem, 1)
    retired = memory.take_page(tree.mem, 0)
    memory.retire(tree.mem, 0, retired, 0)
    for _ in range(3):
        memory.rest(tree.mem, 0)
        memory.reclaim(tree.mem, 0)
    assert tree.retired(0) == 1
    memory.add_epoch(tree.mem)
    memory.come_online(tree.mem, 1)
    memory.come_online(tree.mem, 0)
    memory.reclaim(tree.mem, 0)
    assert tree.retired(0) == 0


@pytest.mark.parametrize("keys", ["uniform", "few", "rising"])
def test_threads_lose_no_entry_and_leave_none_behind(keys: str) -> None:
    with no_deadlock():
        for seed in range(12):
            churn(seed, threads=2 + seed % 7, n=400, keys=keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "runs"),
    [({"STREAMJOIN_FORCED_YIELDS": "3"}, "60"), ({"NUMBA_DISABLE_JIT": "1"}, "3")],
    ids=["yields forced at every shared access", "without the JIT"],
)
@pytest.mark.thorough
def test_it_holds_in_a_test_build_and_as_plain_python(environment: dict[str, str], runs: str) -> None:
    check_that_runs_hold(environment, "tests.benchmarks.papers.bw_tree_runs", runs)
