"""A spec without `order=` means the same at every door: `open` with every algorithm, and `live`.

Spark is the third door: `tests/spark/test_combinations.py` runs its joins without `order=` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.testing import cases as generate
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.conformance import algorithms_for, run_arrival, run_event_time
from tests.deadlock import no_deadlock
from tests.joins.live_runs import opened, push_arrival, push_event_time, read_all
from tests.oracles.expected import expected
from tests.oracles.kind_cases import as_of_cases, interval_kind_cases, kind_cases
from tests.oracles.market import market_frames
from tests.seeds import examples

pytestmark = pytest.mark.filterwarnings("ignore:with time= the default order:FutureWarning")
RELAXED = settings(
    deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(0, 6)), max_size=8)
AUTO = AlgorithmRequest()
LIVE = (AUTO, AlgorithmRequest("scalejoin"), AlgorithmRequest("pim_parallel"), AlgorithmRequest("handshake"))


def _without_order(case: JoinCase) -> JoinCase:
    return replace(case, spec=replace(case.spec, order=None))


def _without_time(case: JoinCase) -> JoinCase:
    """The case over count windows, without a time column."""
    windows = tuple(sj.CountWindow(5) if isinstance(w, sj.TimeWindow) else w for w in case.spec.windows)
    spec = replace(case.spec, window=windows, time=None, order=None, lateness=None)  # type: ignore[arg-type]
    return replace(case, spec=spec)


def _check_every_door(case: JoinCase, steps: list[tuple[bool, str, int]], seed: int) -> None:
    assert case.spec.order is None
    wanted, able = expected(case), algorithms_for(case)
    for algorithm in able:
        assert run_event_time(case, algorithm, steps=steps) == wanted, algorithm
    for algorithm in LIVE:
        if algorithm in able:
            with no_deadlock(), opened(case, algorithm, 2) as join:
                push_event_time(join, case, seed)
                join.close()
                assert read_all(join) == wanted, algorithm


@RELAXED
@given(case=generate.cases(order="event_time").map(_without_order), steps=STEPS, seed=st.integers(0, 99))
def test_inner_joins(case: JoinCase, steps: list[tuple[bool, str, int]], seed: int) -> None:
    _check_every_door(case, steps, seed)


@RELAXED
@given(
    case=(kind_cases(order="event_time") | as_of_cases() | interval_kind_cases()).map(_without_order),
    steps=STEPS,
    seed=st.integers(0, 99),
)
def test_other_kinds(case: JoinCase, steps: list[tuple[bool, str, int]], seed: int) -> None:
    _check_every_door(case, steps, seed)


@RELAXED
@given(case=generate.cases().map(_without_time), seed=st.integers(0, 99))
def test_without_a_time_column_it_is_the_order_of_arrival(case: JoinCase, seed: int) -> None:
    assert case.spec.runs_in == "arrival"
    wanted, able = expected(case), algorithms_for(case)
    for algorithm in able:
        assert run_arrival(case, algorithm) == wanted, algorithm
    for algorithm in LIVE:
        if algorithm in able:
            with no_deadlock(), opened(case, algorithm, 2) as join:
                push_arrival(join, case, seed)
                join.close()
                assert read_all(join) == wanted, algorithm


def _open(cut: int, algorithm: str, spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    join = sj.open(spec, algorithm, left_schema=left.schema, right_schema=right.schema)
    pushes = [join.push(left.slice(at, cut), right.slice(at, cut)) for at in range(0, left.num_rows, cut)]
    return pa.concat_tables([*pushes, join.close()])


def _one_side_first(spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    join = sj.open(spec, left_schema=left.schema, right_schema=right.schema)
    return pa.concat_tables([join.push(right=right), join.push(left=left), join.close()])


def _live(spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> pa.Table:
    with sj.live(spec, left_schema=left.schema, right_schema=right.schema) as join:
        join.source("left").push(left)
        join.source("right").push(right)
        join.close()
        return pa.Table.from_batches(list(join))


Door = Callable[[sj.JoinSpec, pa.Table, pa.Table], pa.Table]
DOORS: dict[str, Door] = {
    "one push": partial(_open, 5_000, "auto"),
    "pushes of 100": partial(_open, 100, "auto"),
    "pushes of 7": partial(_open, 7, "auto"),
    "one side first": _one_side_first,
    "by a scan": partial(_open, 1_000, "nested_loop"),
    "by an index": partial(_open, 100, "indexed"),
    "live": _live,
}


@pytest.mark.parametrize("order", [None, "event_time", "arrival"])
@pytest.mark.parametrize("door", DOORS)
def test_no_pair_is_further_apart_than_its_window_says(
    door: str, order: Literal["arrival", "event_time"] | None
) -> None:
    """In arrival order one window for both sides gives the same pairs, as long as nothing is late."""
    left, right, wanted = market_frames()
    spec = sj.JoinSpec(on=sj.Equi("sym"), window=sj.TimeWindow("5 seconds"), time="ts", order=order)
    if order == "arrival":
        spec = replace(spec, lateness="2 hours")
    rows = DOORS[door](spec, left, right)
    found = np.stack([rows["id_left"].to_numpy(), rows["id_right"].to_numpy()], 1)
    if order != "arrival":
        assert found.tolist() == wanted
    assert sorted(found.tolist()) == sorted(wanted)
