"""Steps that workers share: whatever the cuts, the rows and their order are those of one worker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.indexes import sorted_runs
from streamjoin.indexes.sorted_runs import SortedRuns, settle
from streamjoin.joins.base import Chunk, SidePart
from streamjoin.joins.batch import nested_loop, packed_pairs, sweep
from streamjoin.joins.batch.packed_pairs import PackedPairs, bucket_ranges, ordered_pieces
from streamjoin.joins.engine import operator
from streamjoin.pim_tree import join as pim_parallel
from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import algorithms_for, run_arrival
from streamjoin.windows import buffer, store
from streamjoin.windows.encoding import Encoded
from streamjoin.windows.workers import Workers
from tests.oracles.expected import expected
from tests.seeds import examples

SHARED = ("sweep", "interval", "nested_loop", "scalejoin", "pim_parallel", "low_latency_handshake")


@pytest.fixture(autouse=True)
def share_everything() -> Iterator[None]:
    """Every step is worth a thread, blocks hold a few pairs, and few pairs are many."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (sorted_runs, sweep, packed_pairs, store, buffer, pim_parallel, operator):
            patch.setattr(module, "_LEAST_PART", 1)
        patch.setattr(sweep, "LEAST_PART", 1)
        patch.setattr(nested_loop, "_ROOM", 2)
        patch.setattr(packed_pairs, "_PAIRS_PER_BUCKET", 2)
        patch.setattr(PackedPairs, "CAPACITY", 3)
        yield


@settings(
    deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(case=generate.cases(), workers=st.sampled_from([1, 3, 7]))
def test_shared_steps_match_the_oracle(case: generate.JoinCase, workers: int) -> None:
    wanted = expected(case)
    for request in algorithms_for(case):
        if request.algorithm in SHARED:
            assert run_arrival(case, request, workers) == wanted, request


@settings(
    deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(case=generate.cases(self_join=True), workers=st.sampled_from([3, 7]))
def test_shared_steps_of_self_joins_match_the_oracle(case: generate.JoinCase, workers: int) -> None:
    wanted = expected(case)
    for request in algorithms_for(case):
        if request.algorithm in SHARED:
            assert run_arrival(case, request, workers) == wanted, request


@pytest.mark.parametrize("probes_per_pair", [0.05, 1, 40])
def test_pairs_come_into_result_order(probes_per_pair: float) -> None:
    """Groups of one pair, of a few, and of more than a vector register or an insertion sort takes."""
    rng = np.random.default_rng(int(probes_per_pair * 100))
    n, seqs = 512, 10_000
    pairs = rng.choice(n * seqs, int(n * probes_per_pair) + 5_000 * (probes_per_pair > 1), replace=False)
    probe, seq = pairs // seqs, pairs % seqs + 70
    is_right = rng.random(n) < 0.5
    encoded = Encoded(0, None, (), None)
    sides = [SidePart(encoded, np.flatnonzero(is_right == right), 0) for right in (False, True)]
    chunk = Chunk(is_right, np.arange(n), np.full(n, 2**40), np.full(n, 70), *sides)
    pieces = [(probe[k::5], seq[k::5]) for k in range(5)]
    workers = Workers(3)
    got = ordered_pieces(chunk, pieces, workers)
    workers.close()
    order = np.lexsort((seq, probe))
    assert got.probe.tolist() == probe[order].tolist()
    assert got.seq.tolist() == seq[order].tolist()


def test_buckets_are_cut_into_ranges_that_cover_them() -> None:
    for edges in ([0, 0, 0], [0, 5, 5, 5, 9], [0, 1, 2, 3, 400], [0, 7]):
        for parts in (1, 2, 3, 9):
            ranges = bucket_ranges(np.array(edges), parts)
            assert ranges[0][0] == 0
            assert ranges[-1][1] == len(edges) - 1
            assert all(a[1] == b[0] for a, b in pairwise(ranges))


@pytest.mark.parametrize("workers", [1, 4])
def test_runs_hold_few_entries_that_have_expired(workers: int) -> None:
    rng, window, batch = np.random.default_rng(2), 400, 25
    crew, runs = Workers(workers), SortedRuns()
    words = rng.integers(0, 90, 4_000)
    for begin in range(0, words.size, batch):
        seqs = begin + np.argsort(words[begin : begin + batch], kind="stable")
        runs.add(words[seqs], seqs, begin + batch - 1)
        runs.forget(begin + batch - window)
        settle([runs], crew)
        live = np.arange(max(0, begin + batch - window), begin + batch)
        held = np.concatenate([run.seqs for run in runs.runs])
        assert set(live.tolist()) <= set(held.tolist())
        assert len(held) <= 1.25 * len(live)
        for run in runs.runs:
            assert (words[run.seqs] == run.words).all()
            order = np.lexsort((run.seqs, run.words))
            assert (order == np.arange(order.size)).all()
    crew.close()
