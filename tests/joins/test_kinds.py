"""Outer, semi and anti joins of the embedded engine: every algorithm against the oracle."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.kinds import layers
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.conformance import algorithms_for, run_arrival, run_event_time
from tests.oracles.expected import expected
from tests.oracles.kind_cases import (
    as_of_cases,
    interval_cases,
    kind_cases,
    mixed_window_cases,
    tied_as_of_cases,
)
from tests.seeds import examples

RELAXED = settings(
    deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(0, 6)), max_size=12)


@RELAXED
@given(case=kind_cases(), workers=st.sampled_from([1, 2]), few=st.sampled_from([0, layers._FEW]))
def test_arrival_order_matches_the_oracle(case: JoinCase, workers: int, few: int) -> None:
    """Rows of tuples without a match lie between slices of the pairs, or, if they are more than `few`, all in one."""
    wanted = expected(case)
    with mock.patch.object(layers, "_FEW", few):
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


@settings(RELAXED, max_examples=examples(200))
@given(
    case=mixed_window_cases(),
    steps=st.lists(st.tuples(st.booleans(), st.just("a"), st.sampled_from([0, 0, 1, 9])), max_size=12),
)
def test_advance_gives_unmatched_tuples_out_earlier_and_in_no_other_order(
    case: JoinCase, steps: list[tuple[bool, str, int]]
) -> None:
    """With a count window and a time window, tuples of both sides may leave at one place: the end of the input."""
    assert run_event_time(case, AlgorithmRequest(), steps=steps) == expected(case)


def test_a_tuple_that_the_bound_has_passed_waits_for_an_earlier_one_of_the_other_side() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    windows = (sj.CountWindow(2), sj.TimeWindow(10))
    spec = sj.JoinSpec(on=sj.Equi("k"), window=windows, time="t", how="full", both_keys=True)
    for times in ([], [150]):
        join = sj.open(spec, left_schema=schema, right_schema=schema)
        tables = [join.push(left=[{"k": 1, "t": 100}], right=[{"k": 2, "t": 101}])]
        tables += [join.advance(time) for time in times]
        rows = pa.concat_tables([*tables, join.close()])
        assert list(zip(rows["t_left"].to_pylist(), rows["t_right"].to_pylist(), strict=True)) == [
            (100, None), (None, 101),
        ]  # fmt: skip


@RELAXED
@given(case=as_of_cases(), steps=STEPS)
def test_as_of_in_event_time_order_matches_the_oracle(case: JoinCase, steps: list[tuple[bool, str, int]]) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm


@RELAXED
@given(case=tied_as_of_cases(), steps=STEPS)
def test_as_of_with_many_equal_times_matches_the_oracle(case: JoinCase, steps: list[tuple[bool, str, int]]) -> None:
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
