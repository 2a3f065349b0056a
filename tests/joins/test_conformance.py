"""Every algorithm against the oracle and against every other, over generated joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import benchmarks.papers.bw_tree.index
import benchmarks.papers.cell_join
import benchmarks.papers.chain.index
import benchmarks.papers.round_robin
import benchmarks.papers.three_step  # noqa: F401 - the rivals register themselves
from streamjoin.joins import auto
from streamjoin.joins.batch import nested_loop
from streamjoin.model.window import TimeWindow
from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import algorithms_for, run_arrival, run_event_time
from tests.oracles.expected import expected
from tests.seeds import examples

RELAXED = settings(
    deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module", autouse=True)
def compiles_at_once() -> Iterator[None]:
    """Residuals are tested by their kernel from the first pair on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nested_loop, "COMPILING_PAYS", 0)
        yield


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
        assert run_arrival(case, algorithm, workers, general_pushes=general) == wanted, algorithm


@RELAXED
@given(case=generate.cases(self_join=True), workers=st.sampled_from([1, 2]), general=GENERAL_PUSHES)
def test_self_joins_match_the_oracle(case: generate.JoinCase, workers: int, general: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm, workers, general_pushes=general) == wanted, algorithm


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
        assert run_event_time(case, algorithm, steps=steps, general_pushes=general) == wanted, algorithm


@settings(RELAXED, max_examples=examples(60))
@given(case=generate.real_cases(), workers=st.sampled_from([1, 2]), general=GENERAL_PUSHES)
def test_a_key_and_a_band_of_real_size_match_the_oracle(case: generate.JoinCase, workers: int, general: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm, workers, general_pushes=general) == wanted, algorithm


@pytest.mark.parametrize("keys", generate.BANDS + generate.REAL, ids=lambda k: k.name)
@settings(RELAXED, max_examples=examples(20))
@given(data=st.data())
def test_every_key_type_in_a_band(keys: generate.KeyDomain, data: st.DataObject) -> None:
    """One term of one type, so that no type goes untested for lack of luck."""
    case, general = data.draw(generate.cases(kinds=((keys,), (keys,)))), data.draw(GENERAL_PUSHES)
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm, general_pushes=general) == wanted, algorithm


EXTREMES = [sign * (2**63 - 1) + step for sign, steps in ((-1, (-1, 0, 3)), (1, (-3, -1, 0))) for step in steps]


@settings(RELAXED, max_examples=examples(80))
@given(
    case=generate.cases(kinds=((generate.EQUIS[0],), ())),
    times=st.lists(st.sampled_from([*EXTREMES, -4, 0, 2]), min_size=40, max_size=40),
    length=st.sampled_from([0, 4, 2**40, 2**62 - 1]),
    ascending=st.booleans(),
    general=GENERAL_PUSHES,
)
def test_windows_at_the_ends_of_time_match_the_oracle(
    case: generate.JoinCase, times: list[int], length: int, ascending: bool, general: int
) -> None:
    """Sums and differences of times there are beyond 64 bits."""
    events = [
        replace(event, ts=time, row={**event.row, "t": time}) for event, time in zip(case.events, times, strict=False)
    ]
    events = generate.each_side_ascending(events) if ascending else events
    case = replace(case, spec=replace(case.spec, window=TimeWindow(length)), events=tuple(events))
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        assert run_arrival(case, algorithm, general_pushes=general) == wanted, algorithm
