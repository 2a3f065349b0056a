"""Every algorithm live: the rows of the oracle, whatever the threads, and punctuations that never lie."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import algorithms_for, expected
from tests.deadlock import no_deadlock
from tests.joins.live_runs import check_punctuations, opened, pairs_of, push_arrival, push_event_time, read_all
from tests.seeds import examples

RELAXED = settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[
        HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture
    ],
)  # fmt: skip


@pytest.fixture(params=["usual", "yielding"])
def switching(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have threads change places as usual, or after every few instructions."""
    before = sys.getswitchinterval()
    if request.param == "yielding":
        sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@RELAXED
@given(case=generate.cases(order="event_time"), seed=st.integers(0, 999), workers=st.sampled_from([1, 2]))
def test_event_time_order_matches_the_oracle(case: generate.JoinCase, seed: int, workers: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with no_deadlock(), opened(case, algorithm, workers) as join:
            push_event_time(join, case, seed, gone=seed % 2 == 0)
            join.close()
            assert read_all(join) == wanted, algorithm


@RELAXED
@given(case=generate.cases(order="event_time"), seed=st.integers(0, 999), workers=st.sampled_from([1, 2]))
def test_rows_as_they_are_found_are_the_same_and_punctuations_hold(
    case: generate.JoinCase, seed: int, workers: int
) -> None:
    wanted = sorted(expected(case))
    for algorithm in algorithms_for(case):
        with no_deadlock(), opened(case, algorithm, workers, ordered=False) as join:
            push_event_time(join, case, seed, gone=False)
            join.close()
            batches = list(join.batches())
        assert sorted(pair for batch in batches for pair in pairs_of(batch.rows)) == wanted, algorithm
        check_punctuations(case, batches)


@RELAXED
@given(case=generate.cases(), seed=st.integers(0, 999), workers=st.sampled_from([1, 2]))
def test_arrival_order_matches_the_oracle(case: generate.JoinCase, seed: int, workers: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with no_deadlock(), opened(case, algorithm, workers) as join:
            push_arrival(join, case, seed)
            join.close()
            assert read_all(join) == wanted, algorithm


@RELAXED
@given(case=generate.cases(self_join=True), seed=st.integers(0, 999))
def test_self_joins_match_the_oracle(case: generate.JoinCase, seed: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with no_deadlock(), opened(case, algorithm) as join:
            push_arrival(join, case, seed)
            join.close()
            assert read_all(join) == wanted, algorithm
