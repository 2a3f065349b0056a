"""A call that fails leaves the join as it was, wherever and by whatever it fails; or the join is broken and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.engine.compiled_step import patience
from streamjoin.joins.engine.driver import Join
from tests.deadlock import no_deadlock
from tests.failing import failed_everywhere

REQUESTS = [
    request
    for request in auto.requests()
    if request.index in (None, "btree", "pim_tree", "hashed") and request.algorithm != "interval"
]
WINDOW = 40


def rows(n: int, seed: int) -> pa.Table:
    """Columns of every kind of storage, NULL keys among them, and one whose type is not known at first."""
    rng = np.random.default_rng(seed)
    keys = [None if i % 11 == 5 else int(k) for i, k in enumerate(rng.integers(0, 12, n))]
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "t": pa.array(np.sort(rng.integers(10 * seed, 10 * seed + 15, n)), pa.int64()),
            "s": pa.array([f"s{i % 5}" for i in range(n)]),
            "b": pa.array([None if i % 7 == 3 else i % 100 for i in range(n)], pa.int8()),
            "id": np.arange(n) + 1000 * seed,
            "n": pa.nulls(n) if seed < 3 else pa.array([str(i) for i in range(n)]),
        }
    )


def figures(join: Join) -> dict[str, Any]:
    names = ("tuples_left", "tuples_right", "results", "late", "rejected", "expired", "waiting")
    return {name: value for name, value in join.metrics().items() if name in (*names, "window_left", "window_right")}


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_push_that_fails_at_any_step_changes_nothing(request_: auto.AlgorithmRequest) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k") & sj.Theta("l.b <> 7 OR r.b <> 7"), window=sj.CountWindow(WINDOW))
    with (
        no_deadlock(300),
        patience(0 if request_.algorithm in ("indexed", "nested_loop") else 1_000),
        sj.open(spec, request_.algorithm, 2, index=request_.index) as join,
        sj.open(spec, "nested_loop") as twin,
    ):
        for seed in (1, 2):
            join.push(rows(30, seed), rows(30, seed + 10))
            twin.push(rows(30, seed), rows(30, seed + 10))
        # Every 23rd line: the failures walk through the push as well as all of its lines would, in less time.
        result, failures = failed_everywhere(lambda: join.push(rows(25, 3), rows(25, 13)), 23)
        assert failures > 5
        assert result.equals(twin.push(rows(25, 3), rows(25, 13)))
        assert figures(join) == figures(twin)
        assert join.push(rows(30, 4), rows(30, 14)).equals(twin.push(rows(30, 4), rows(30, 14)))


def test_a_small_push_that_fails_at_any_line_changes_nothing() -> None:
    """The short way of `joins/engine/direct_push.py`."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    with patience(0), sj.open(spec, "indexed") as join, sj.open(spec, "nested_loop") as twin:
        for seed in (1, 2):
            join.push(rows(30, seed), rows(30, seed + 10))
            twin.push(rows(30, seed), rows(30, seed + 10))
        assert join._direct is not None
        result, failures = failed_everywhere(lambda: join.push(rows(25, 3), rows(25, 13)), 1)
        assert failures > 60
        assert result.equals(twin.push(rows(25, 3), rows(25, 13)))
        assert figures(join) == figures(twin)
        assert join.push(rows(30, 4), rows(30, 14)).equals(twin.push(rows(30, 4), rows(30, 14)))


EVENT_TIME = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(20), time="t", order="event_time", lateness=2)
UNGATED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(20), time="t", lateness=2)
SELF = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(30), self_join=True)


def calls(spec: sj.JoinSpec) -> list[Callable[[Join], pa.Table]]:
    """A join's life: one side before the other, late rows, rows without a time, new sources, all that ends it."""
    if spec.self_join:
        return [lambda join, seed=seed: join.push(rows(40, seed)) for seed in (1, 2)] + [Join.close]
    late = rows(12, 4).take(pa.array(range(11, -1, -1)))
    without = pa.table({name: pa.nulls(5, column.type) for name, column in zip(late.schema.names, late, strict=True)})
    first: list[Callable[[Join], pa.Table]] = [
        lambda join: join.push(left=rows(20, 1)),
        lambda join: join.push(left=rows(20, 2)),
        lambda join: join.push(right=rows(20, 2)),
        lambda join: join.push(pa.concat_tables([without, late]), rows(20, 4)),
    ]
    if spec.order != "event_time":
        return [*first, Join.close]
    return [
        *first,
        *(lambda join, n=n: join.push(left=rows(10, 5), source=f"s{n}") for n in range(3)),
        lambda join: join.advance(80),
        lambda join: join.finish("s1", side="left"),
        Join.close,
    ]


@pytest.mark.parametrize("algorithm", ["sweep", "indexed"])
@pytest.mark.parametrize("spec", [EVENT_TIME, UNGATED, SELF], ids=["event_time", "arrival", "self_join"])
def test_any_call_that_fails_at_any_step_changes_nothing(spec: sj.JoinSpec, algorithm: str) -> None:
    with patience(0 if algorithm == "indexed" else 1_000):
        fail_every_call(sj.open(spec, algorithm), sj.open(spec, algorithm), spec)


def fail_every_call(join: Join, twin: Join, spec: sj.JoinSpec) -> None:
    for number, call in enumerate(calls(spec)):
        wanted = call(twin)
        result, failures = failed_everywhere(lambda call=call: call(join), 31 + number)  # type: ignore[misc]
        assert failures > 0
        assert result.equals(wanted), number
        assert figures(join) == figures(twin), number
        assert join.late().equals(twin.late()), number


BY_KEY = {"on": sj.Equi("k"), "time": "t", "order": "event_time", "lateness": 2}
KINDS = {
    "full": sj.JoinSpec(**BY_KEY, window=(sj.TimeWindow(20), sj.TimeWindow(5)), how="full"),  # type: ignore[arg-type]
    "anti in arrival order": replace(UNGATED, how="anti"),
    "semi self-join": replace(SELF, how="semi"),
    "as-of by key": sj.JoinSpec(**BY_KEY, match=sj.AsOf("nearest", tolerance=9), how="left"),  # type: ignore[arg-type]
    "as-of by key, looking back": sj.JoinSpec(**BY_KEY, match=sj.AsOf(tolerance=9), how="left"),  # type: ignore[arg-type]
    "as-of by a condition": sj.JoinSpec(
        on="l.k <= r.k", time="t", order="event_time", lateness=2, match=sj.AsOf("nearest", tolerance=9), how="left"
    ),
    "intervals": replace(EVENT_TIME, on=sj.Overlaps(("k", "t"), ("k", "t"))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_any_kind_of_join_that_fails_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows that nothing needs are dropped in the middle of calls too.
    monkeypatch.setattr("streamjoin.joins.kinds.asof_operator._LEAST_STORED", 8)
    algorithm = "interval" if kind == "intervals" else "auto"
    join, twin = sj.open(KINDS[kind], algorithm), sj.open(KINDS[kind], algorithm)
    for number, call in enumerate(calls(KINDS[kind])):
        wanted = call(twin)
        result, failures = failed_everywhere(lambda call=call: call(join), 79 + number)  # type: ignore[misc]
        assert failures > 0
        assert result.equals(wanted), number
        assert figures(join) == figures(twin), number


def fails_in_threads(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: object) -> None:
        raise error

    for test in ("Refinement.__call__", "Refinement.count", "Tally.__call__", "Tally.count"):
        patch.setattr(f"streamjoin.joins.engine.refine.{test}", fails)
    patch.setattr("streamjoin.joins.indexed.Indexed.pair", fails)


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_failure_in_a_thread_changes_nothing(
    request_: auto.AlgorithmRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    with no_deadlock(300), sj.open(spec, request_.algorithm, 2, index=request_.index) as join:
        join.push(rows(30, 1), rows(30, 11))
        with monkeypatch.context() as patch:
            fails_in_threads(patch, MemoryError("no room"))
            with pytest.raises(MemoryError, match="no room"):
                join.push(rows(30, 2), rows(30, 12))
        with sj.open(spec, "nested_loop") as twin:
            twin.push(rows(30, 1), rows(30, 11))
            assert join.push(rows(30, 2), rows(30, 12)).equals(twin.push(rows(30, 2), rows(30, 12)))


def test_what_cannot_be_undone_breaks_the_join_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    join = sj.open(spec, "pim_parallel", 2)
    join.push(rows(30, 1), rows(30, 11))
    with monkeypatch.context() as patch:
        fails_in_threads(patch, MemoryError("no room"))
        patch.setattr("streamjoin.joins.engine.operator.Operator.build_anew", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            join.push(rows(30, 2), rows(30, 12))
    assert raised.value.__notes__ == ["The call before it could not be undone: the join is broken."]
    uses: list[Callable[[], object]] = [
        lambda: join.push(rows(1, 2)), lambda: join.push_iter(rows(1, 2)), lambda: join.set_workers(3),
        join.metrics, join.late, join.explain, join.close,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(sj.StateError, match="broken by MemoryError: no room") as refused:
            use()
        assert isinstance(refused.value.__cause__, MemoryError)
    assert join.close().num_rows == 0
