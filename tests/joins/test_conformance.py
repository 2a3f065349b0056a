"""Every algorithm against the oracle and against every other, over generated joins."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.joins import auto
from streamjoin.joins.engine.compiled_step import patience
from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import algorithms_for, expected, run_arrival, run_event_time
from tests.seeds import examples

RELAXED = settings(
    deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


# Compiled steps from the first push on, from the second one, or never: stored words come from either way.
GENERAL_PUSHES = st.sampled_from([0, 1, 1_000])


def test_every_algorithm_is_checked() -> None:
    requests = auto.requests()
    assert {request.algorithm for request in requests} == set(auto.names())
    assert {"btree", "b_chain", "ib_chain", "im_tree", "pim_tree", "hashed", "scan"} <= {r.index for r in requests}


@RELAXED
@given(case=generate.cases(), workers=st.sampled_from([1, 2, 4]), general=GENERAL_PUSHES)
def test_arrival_order_matches_the_oracle(case: generate.JoinCase, workers: int, general: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with patience(general):
            assert run_arrival(case, algorithm, workers) == wanted, algorithm


@RELAXED
@given(case=generate.cases(self_join=True), workers=st.sampled_from([1, 2]), general=GENERAL_PUSHES)
def test_self_joins_match_the_oracle(case: generate.JoinCase, workers: int, general: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with patience(general):
            assert run_arrival(case, algorithm, workers) == wanted, algorithm


@RELAXED
@given(
    case=generate.cases(order="event_time"),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(1, 6)), max_size=12),
    general=GENERAL_PUSHES,
)
def test_event_time_order_does_not_depend_on_the_interleaving(
    case: generate.JoinCase, steps: list[tuple[bool, str, int]], general: int
) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with patience(general):
            assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm


@settings(RELAXED, max_examples=examples(60))
@given(case=generate.real_cases(), workers=st.sampled_from([1, 2]), general=GENERAL_PUSHES)
def test_a_key_and_a_band_of_real_size_match_the_oracle(case: generate.JoinCase, workers: int, general: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with patience(general):
            assert run_arrival(case, algorithm, workers) == wanted, algorithm


@pytest.mark.parametrize("keys", generate.BANDS + generate.REAL, ids=lambda k: k.name)
@settings(RELAXED, max_examples=examples(20))
@given(data=st.data())
def test_every_key_type_in_a_band(keys: generate.KeyDomain, data: st.DataObject) -> None:
    """One term of one type, so that no type goes untested for lack of luck."""
    case, general = data.draw(generate.cases(kinds=((keys,), (keys,)))), data.draw(GENERAL_PUSHES)
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with patience(general):
            assert run_arrival(case, algorithm) == wanted, algorithm
