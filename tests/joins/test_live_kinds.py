"""Outer, semi, anti and as-of joins, and conditions on intervals, live: the rows of the oracle, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.live.driven import DrivenJoin
from streamjoin.joins.live.runner import Call, Setup
from streamjoin.joins.registry import KINDS
from streamjoin.model.binding import bind
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.clock import ManualClock
from streamjoin.testing.conformance import algorithms_for, ids, table
from tests.joins.live_runs import check_punctuations, ending, opened, pairs_of, push_arrival, push_event_time, read_all
from tests.oracles.expected import expected, placed
from tests.oracles.kind_cases import as_of_cases, interval_cases, kind_cases
from tests.seeds import examples

RELAXED = settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[
        HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture
    ],
)  # fmt: skip
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SCHEMAS: dict[str, Any] = {"left_schema": TYPES, "right_schema": TYPES}


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Every test ends, and leaves no thread of a live join."""
    with ending():
        yield


def some_algorithms(case: JoinCase, seed: int) -> list[AlgorithmRequest]:
    """`auto`, and two of the others."""
    requests = algorithms_for(case)
    others = requests[1:]
    return [requests[0], *(others[(seed + n) % len(others)] for n in (0, len(others) // 2) if others)]


@RELAXED
@given(case=kind_cases("event_time") | as_of_cases(), seed=st.integers(0, 999), workers=st.sampled_from([1, 2]))
def test_event_time_order_matches_the_oracle(case: JoinCase, seed: int, workers: int) -> None:
    wanted = expected(case)
    for algorithm in some_algorithms(case, seed):
        with opened(case, algorithm, workers, ordered=seed % 3 > 0, batch_rows=1 + seed % 9) as join:
            push_event_time(join, case, seed, gone=seed % 2 == 0)
            join.close()
            batches = list(join.batches())
        assert [pair for batch in batches for pair in pairs_of(batch.rows)] == wanted, algorithm
        assert all(batch.rows.num_rows <= 1 + seed % 9 for batch in batches)
        check_punctuations(case, batches)


@RELAXED
@given(
    case=kind_cases() | kind_cases(self_join=True) | as_of_cases("arrival") | interval_cases(),
    seed=st.integers(0, 999),
)
def test_arrival_order_matches_the_oracle(case: JoinCase, seed: int) -> None:
    wanted = expected(case)
    for algorithm in some_algorithms(case, seed):
        with opened(case, algorithm, queue_rows=1 + seed % 50) as join:
            push_arrival(join, case, seed)
            join.close()
            assert read_all(join) == wanted, algorithm


@settings(RELAXED, max_examples=examples(60))
@given(case=kind_cases() | kind_cases(self_join=True), batch_rows=st.sampled_from([2, 100]))
def test_rows_carry_the_position_at_which_they_come_out(case: JoinCase, batch_rows: int) -> None:
    setup = Setup(case.spec, bind(case.spec, *case.schemas), AlgorithmRequest(), 1, None, 100, 100_000, batch_rows)
    join = DrivenJoin(setup, case.schemas)
    rows, reached = [], 0
    for begin, end in pairwise((0, *case.cuts, len(case.events), len(case.events))):
        calls = [
            Call("push", int(e.right), "", 0, table([e.row], case.schemas[int(e.right)]))
            for e in case.events[begin:end]
        ]
        for step in join.run(calls) if calls else join.end() if begin == len(case.events) else ():
            assert all(place >= reached for place in step.later)
            rows += list(zip(step.later.tolist(), ids(step.rows), strict=True))
            reached = step.reached
    join.close()
    assert rows == placed(case)


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    """Tuples of (key, time)."""
    return pa.record_batch([[k for k, _ in rows], [t for _, t in rows]], schema=TYPES)


def lefts(rows: pa.RecordBatch) -> list[int]:
    """The times of the left tuples."""
    return list(rows["t_left" if "t_left" in rows.schema.names else "t"].to_pylist())


QUIET = [
    pytest.param({"how": "left", "window": sj.TimeWindow(10)}, id="left"),
    pytest.param({"how": "anti", "window": sj.TimeWindow(10)}, id="anti"),
    pytest.param({"how": "left", "match": sj.AsOf("forward", 10)}, id="as-of"),
]


@pytest.mark.parametrize("kind", QUIET)
@pytest.mark.parametrize("quiet", ["advance", "finish", "idle"])
def test_unmatched_tuples_come_out_without_further_tuples(kind: dict[str, Any], quiet: str) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), time="t", order="event_time", **kind)
    clock = ManualClock()
    with sj.live(spec, clock=clock, idle="2 seconds" if quiet == "idle" else None, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        left.push(batch((1, 0), (2, 5), (3, 40)))
        batches = join.batches()
        if quiet == "advance":
            right.advance(30)
        elif quiet == "finish":
            right.finish()
        else:
            right.push(batch((9, 30)))
            clock.turn(2)
        rows: list[int] = []
        reached = None
        while len(rows) < 2 or reached is None or reached < 20:
            read = next(batches)
            assert reached is None or all(t >= reached for t in lefts(read.rows))
            rows, reached = rows + lefts(read.rows), read.time
        assert rows[:2] == [0, 5]
        # Tuples of a time between the two bounds may still come out.
        assert reached <= 40
        join.stop()


def test_semi_joins_say_how_far_they_reach_in_a_quiet_stream() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="event_time", how="semi")
    with sj.live(spec, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        batches = join.batches()
        left.push(batch((1, 0), (2, 5)))
        right.push(batch((1, 3)))
        left.advance(8)
        right.advance(8)
        rows: list[int] = []
        while not rows:
            read = next(batches)
            rows = lefts(read.rows)
        assert rows == [0]
        while read.time != 0:
            read = next(batches)
        left.advance(100)
        right.advance(100)
        # A left tuple of time 90 could still match; none of those that came can.
        while read.time != 90:
            read = next(batches)
            assert not read.rows.num_rows
        join.stop()


def test_unmatched_tuples_without_columns_are_an_error_and_not_lost() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5), how="left")
    join = sj.live(spec)
    join.source("left").push(batch((1, 0)))
    join.close()
    with pytest.raises(sj.StateError, match="has failed") as caught:
        list(join)
    assert "the columns of the right side are not known" in str(caught.value.__cause__)
    join.stop()


@pytest.mark.parametrize("algorithm", sorted(name for name, kind in KINDS.items() if kind.live))
def test_algorithms_with_threads_of_their_own_run_other_kinds_behind_the_driver(algorithm: str) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5), how="full")
    with sj.live(spec, algorithm, 2, **SCHEMAS) as join:
        join.source("left").push(batch((1, 0), (2, 1)))
        join.source("right").push(batch((2, 2), (3, 3)))
        assert "behind one driver thread" in join.explain()
        join.close()
        rows = [row for rows in join for row in rows.to_pylist()]
        assert [(row["t_left"], row["t_right"]) for row in rows] == [(1, 2), (0, None), (None, 3)]
        assert join.metrics()["results"] == 3


def test_conditions_on_intervals_are_looked_up() -> None:
    spec = sj.JoinSpec(on=sj.Within("p", "lo", "hi"), window=sj.CountWindow(100))
    with sj.live(spec, "interval") as join:
        join.source("left").push([{"p": 3}, {"p": 9}])
        join.source("right").push([{"lo": 1, "hi": 4}, {"lo": 2, "hi": 3}])
        join.close()
        assert [row["lo"] for rows in join for row in rows.to_pylist()] == [1, 2]
