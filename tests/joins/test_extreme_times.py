"""Times at the ends of int64 and lengths up to beyond all distances: every kind, order and door against the oracle.

The checked build runs the same comparisons: there an overflow, or a place outside an array, raises where it happens.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.testing.cases import JoinCase, cases
from streamjoin.testing.conformance import algorithms_for, run_arrival, run_event_time
from tests.joins.live_runs import check_punctuations, ending, opened, pairs_of, push_arrival, push_event_time, read_all
from tests.oracles.expected import expected
from tests.oracles.kind_cases import as_of_cases, extreme_cases, interval_cases, kind_cases
from tests.seeds import examples

RELAXED = settings(
    deadline=None,
    max_examples=examples(90),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
CHECKED = "STREAMJOIN_CHECKED" in os.environ
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(0, 6)), max_size=12)
IN_EVENT_TIME = extreme_cases(cases("event_time", most=15) | kind_cases("event_time", most=15) | as_of_cases(most=15))
IN_ARRIVAL_ORDER = extreme_cases(
    cases(most=15)
    | cases(self_join=True, most=15)
    | kind_cases(most=15)
    | kind_cases(self_join=True, most=15)
    | as_of_cases("arrival", most=15)
    | interval_cases(most=15)
)


def algorithms_of(case: JoinCase) -> list[AlgorithmRequest]:
    """All algorithms; in a checked build, whose kernels are compiled anew, those with the most kernels in common."""
    requests = algorithms_for(case)
    return (
        [one for one in requests if one.algorithm in ("nested_loop", "sweep")] or requests[:1] if CHECKED else requests
    )


@RELAXED
@given(case=IN_EVENT_TIME, steps=STEPS)
def test_event_time_order(case: JoinCase, steps: list[tuple[bool, str, int]]) -> None:
    wanted = expected(case)
    for algorithm in algorithms_of(case):
        assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm


@RELAXED
@given(case=IN_ARRIVAL_ORDER)
def test_arrival_order(case: JoinCase) -> None:
    wanted = expected(case)
    for algorithm in algorithms_of(case):
        assert run_arrival(case, algorithm) == wanted, algorithm


@RELAXED
@given(case=IN_EVENT_TIME, seed=st.integers(0, 999), workers=st.sampled_from([1, 2]))
def test_event_time_order_live(case: JoinCase, seed: int, workers: int) -> None:
    wanted = expected(case)
    requests = algorithms_of(case)
    for algorithm in (requests[0], requests[seed % len(requests)]):
        with ending(), opened(case, algorithm, workers, batch_rows=1 + seed % 9) as join:
            push_event_time(join, case, seed, gone=seed % 2 == 0)
            join.close()
            batches = list(join.batches())
        assert [pair for batch in batches for pair in pairs_of(batch.rows)] == wanted, algorithm
        check_punctuations(case, batches)


@RELAXED
@given(case=IN_ARRIVAL_ORDER, seed=st.integers(0, 999))
def test_arrival_order_live(case: JoinCase, seed: int) -> None:
    wanted = expected(case)
    requests = algorithms_of(case)
    for algorithm in (requests[0], requests[seed % len(requests)]):
        with ending(), opened(case, algorithm, queue_rows=1 + seed % 50) as join:
            push_arrival(join, case, seed)
            join.close()
            assert read_all(join) == wanted, algorithm


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(CHECKED, reason="this is the checked build")
def test_the_checked_build_finds_no_overflow_and_no_place_outside_an_array() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", __file__],
        capture_output=True, text=True, timeout=580, env={**os.environ, "STREAMJOIN_CHECKED": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
