"""Every index of the registry against a sorted list: any order of operations, structure checked after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from streamjoin.indexes.registry import INDEXES
from tests.indexes.reference import CASES, LARGEST, SMALLEST, Reference, case_id
from tests.seeds import examples

near = st.integers(-20, 20)
anywhere = st.integers(SMALLEST, LARGEST)
edges = st.sampled_from([SMALLEST, SMALLEST + 1, LARGEST - 1, LARGEST])
words = st.one_of(near, near, near, anywhere, edges)


class IndexMachine(RuleBasedStateMachine):
    """One index and its slow twin."""

    name: str
    shape: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.index = INDEXES[self.name](**self.shape)
        self.twin = Reference()
        self.next_seq = 0

    @rule(batch=st.lists(words, max_size=40), gap=st.integers(0, 3))
    def insert(self, batch: list[int], gap: int) -> None:
        self.next_seq += gap
        seqs = list(range(self.next_seq, self.next_seq + len(batch)))
        self.next_seq += len(batch)
        self.index.insert(np.array(batch, dtype=np.int64), np.array(seqs, dtype=np.int64))
        self.twin.insert(batch, seqs)

    @rule(word=words, count=st.integers(30, 90))
    def insert_equal(self, word: int, count: int) -> None:
        self.insert([word] * count, 0)

    @rule(first=near, count=st.integers(30, 90), step=st.sampled_from([-7, -1, 1, 3]))
    def insert_slope(self, first: int, count: int, step: int) -> None:
        self.insert([first + step * k for k in range(count)], 0)

    @rule(intervals=st.lists(st.tuples(words, words, st.integers(0, 400)), max_size=8))
    def probe(self, intervals: list[tuple[int, int, int]]) -> None:
        lo = [low for low, _, _ in intervals]
        hi = [high if self.index.capabilities.ranges else low for low, high, _ in intervals]
        bound = [seq for _, _, seq in intervals]
        columns = (np.array(column, dtype=np.int64) for column in (lo, hi, bound))
        found, seqs = self.index.probe(*columns)
        assert list(zip(found.tolist(), seqs.tolist(), strict=True)) == self.twin.probe(lo, hi, bound)

    @rule(word=words)
    def probe_point(self, word: int) -> None:
        self.probe([(word, word, 0)])

    @rule(share=st.floats(0, 1))
    def expire(self, share: float) -> None:
        bound = self.twin.min_seq + round(share * (self.next_seq - self.twin.min_seq))
        self.index.expire(bound)
        self.twin.expire(bound)

    @rule()
    def merge(self) -> None:
        self.index.merge()

    @rule(into=st.sampled_from(sorted(INDEXES)))
    def move(self, into: str) -> None:
        """Through a snapshot, into a fresh index of this kind by way of another kind."""
        other = INDEXES[into]()
        other.restore(self.index.snapshot())
        self.index = INDEXES[self.name](**self.shape)
        self.index.restore(other.snapshot())

    @invariant()
    def sound(self) -> None:
        self.index.check()
        snapshot = self.index.snapshot()
        entries = sorted(zip(snapshot["words"].tolist(), snapshot["seqs"].tolist(), strict=True))
        assert entries == self.twin.entries
        assert len(self.index) >= len(entries)


@pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)
def test_any_order_of_operations(name: str, shape: dict[str, Any]) -> None:
    machine = type(f"{name}_machine", (IndexMachine,), {"name": name, "shape": shape})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples(30),
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)
def test_an_empty_index_finds_nothing(name: str, shape: dict[str, Any]) -> None:
    index = INDEXES[name](**shape)
    index.insert([], [])
    index.expire(10)
    index.merge()
    found, seqs = index.probe([SMALLEST, 0, LARGEST], [SMALLEST, 0, LARGEST])
    assert found.size == seqs.size == 0
    assert index.probe([], [])[0].size == 0
    index.check()


@pytest.mark.parametrize(("name", "shape"), CASES, ids=case_id)
def test_a_large_window_in_random_order(name: str, shape: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    index = INDEXES[name](**shape)
    size = 4000
    stored = rng.integers(-500, 500, size)
    for begin in range(0, size, 500):
        index.insert(stored[begin : begin + 500], np.arange(begin, begin + 500))
        index.expire(max(0, begin - 1000))
    index.check()
    lo = rng.integers(-510, 510, 200)
    hi = lo + rng.integers(-2, 30, 200) if index.capabilities.ranges else lo
    found, seqs = index.probe(lo, hi, 2000)
    order = np.arange(size)
    expected = [
        (i, seq)
        for i in range(200)
        for seq in order[(stored >= lo[i]) & (stored <= hi[i]) & (order >= max(2000, index.min_seq))].tolist()
    ]
    assert list(zip(found.tolist(), seqs.tolist(), strict=True)) == expected
