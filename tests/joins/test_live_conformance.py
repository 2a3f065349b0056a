"""Every algorithm live: the rows of the oracle, whatever the threads, and punctuations that never lie."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.live.consumer import Consumer
from streamjoin.joins.live.driven import DrivenJoin
from streamjoin.joins.live.runner import Call, Setup
from streamjoin.model.binding import bind
from streamjoin.testing import cases as generate
from streamjoin.testing.conformance import algorithms_for, ids, table
from tests.deadlock import no_deadlock
from tests.joins.live_runs import check_punctuations, opened, pairs_of, push_arrival, push_event_time, read_all
from tests.oracles.expected import expected
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


@settings(RELAXED, max_examples=examples(16))
@given(case=generate.cases(order="event_time"), seed=st.integers(0, 999))
def test_slow_and_vanishing_consumers_change_nothing(case: generate.JoinCase, seed: int) -> None:
    wanted = expected(case)
    for algorithm in algorithms_for(case):
        with no_deadlock(), opened(case, algorithm, queue_rows=5, result_rows=3) as join:
            reader, vanishing = join.consumer(), join.consumer()

            def vanish(consumer: Consumer = vanishing) -> None:
                for _ in zip(range(seed % 3), consumer, strict=False):
                    pass
                consumer.close()

            def feed(join: sj.Live = join) -> None:
                push_event_time(join, case, seed)
                join.close()

            threads = [threading.Thread(target=step) for step in (vanish, feed)]
            for thread in threads:
                thread.start()
            assert [pair for rows in reader for pair in pairs_of(rows)] == wanted, algorithm
            for thread in threads:
                thread.join()


INT64 = (next(keys for keys in generate.BANDS if keys.name == "int64"),)


@settings(RELAXED, max_examples=examples(40))
@given(
    case=st.booleans().flatmap(lambda own: generate.cases(self_join=own, kinds=(INT64, INT64))),
    pushes=st.sampled_from([0, 1 << 14]),
)
def test_rows_carry_the_position_of_their_later_tuple(case: generate.JoinCase, pushes: int) -> None:
    """In the general way and by compiled steps."""
    place = {event.row["id"]: number for number, event in enumerate(case.events)}
    setup = Setup(case.spec, bind(case.spec, *case.schemas), AlgorithmRequest(), 1, None, 100, 100_000, 7)
    join = DrivenJoin(setup, case.schemas, pushes)
    pairs, later, arrived = [], [], []
    for begin, end in pairwise((0, *case.cuts, len(case.events))):
        calls = [
            Call("push", int(e.right), "", place[e.row["id"]], table([e.row], case.schemas[int(e.right)]))
            for e in case.events[begin:end]
        ]
        for rows in join.run(calls):
            pairs += ids(rows.rows)
            later += rows.later.tolist()
            arrived += rows.arrived.tolist()
    join.close()
    assert pairs == expected(case)
    assert later == [max(place[a], place[b]) for a, b in pairs]
    late = join.metrics()["late"] or join.metrics()["rejected"]
    assert late or arrived == later


def test_eight_threads_agree_with_a_database() -> None:
    rng = np.random.default_rng(3)
    n = 400
    feeds = [
        pa.table({"id": np.arange(n) + n * s, "t": np.sort(rng.integers(0, 5_000, n)), "k": rng.integers(0, 40, n)})
        for s in range(8)
    ]
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(100), time="t", order="event_time")
    for ordered in (True, False):
        types = feeds[0].schema
        with no_deadlock(), sj.live(spec, ordered=ordered, left_schema=types, right_schema=types) as join:
            sources = [join.source(("left", "right")[s % 2], f"s{s}") for s in range(8)]

            def feed(s: int, sources: list[sj.LiveSource] = sources) -> None:
                with sources[s] as source:
                    for at in range(0, n, 16):
                        source.push(feeds[s].slice(at, 16))

            threads = [threading.Thread(target=feed, args=(s,)) for s in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            join.close()
            pairs = read_all(join)
        left, right = (pa.concat_tables(feeds[side::2]) for side in (0, 1))
        with duckdb.connect() as db:
            db.register("l", left)
            db.register("r", right)
            wanted = db.sql("SELECT l.id, r.id FROM l JOIN r ON l.k = r.k AND abs(l.t - r.t) <= 100").fetchall()
        assert sorted(pairs) == sorted(wanted)
        assert len(pairs) > 1_000


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
