"""Outer, semi and anti joins of the embedded engine: every algorithm against the oracle."""

from __future__ import annotations

from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.joins.kinds import outer
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.conformance import algorithms_for, expected, run_arrival, run_event_time
from streamjoin.testing.kind_cases import as_of_cases, interval_cases, kind_cases
from tests.seeds import examples

RELAXED = settings(
    deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(0, 6)), max_size=12)


@RELAXED
@given(case=kind_cases(), workers=st.sampled_from([1, 2]), few=st.sampled_from([0, outer._FEW]))
def test_arrival_order_matches_the_oracle(case: JoinCase, workers: int, few: int) -> None:
    """Rows of tuples without a match lie between slices of the pairs, or, if they are more than `few`, all in one."""
    wanted = expected(case)
    with mock.patch.object(outer, "_FEW", few):
        for algorithm in algorithms_for(case):
            assert run_arrival(case, algorithm, workers) == wanted, algorithm


@RELAXED
@given(case=kind_cases(self_join=True))
def test_self_joins_match_the_oracle(case: JoinCase) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm) == wanted, algorithm


@RELAXED
@given(case=kind_cases(order="event_time"), steps=STEPS)
def test_event_time_order_depends_on_the_input_alone(case: JoinCase, steps: list[tuple[bool, str, int]]) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm


@RELAXED
@given(case=as_of_cases(), steps=STEPS)
def test_as_of_in_event_time_order_matches_the_oracle(case: JoinCase, steps: list[tuple[bool, str, int]]) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm


@RELAXED
@given(case=as_of_cases("arrival"))
def test_as_of_in_arrival_order_matches_the_oracle(case: JoinCase) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm) == wanted, algorithm


@RELAXED
@given(case=interval_cases(), workers=st.sampled_from([1, 2]))
def test_conditions_on_intervals_match_the_oracle(case: JoinCase, workers: int) -> None:
    wanted = expected(case)
    requests = algorithms_for(case)
    assert any(request.algorithm == "interval" for request in requests)
    for algorithm in requests:
        assert run_arrival(case, algorithm, workers) == wanted, algorithm
