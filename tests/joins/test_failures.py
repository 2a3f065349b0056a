"""A call that fails leaves the join as it was, wherever and by whatever it fails; or the join is broken and says so."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.engine.driver import Join
from streamjoin.testing import oracle
from streamjoin.windows.workers import Workers
from tests.deadlock import no_deadlock
from tests.failing import failed_at, failed_everywhere
from tests.joins.opened import opened
from tests.seeds import THOROUGH, crossed

pytestmark = pytest.mark.slow

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
    general = 0 if request_.algorithm in ("indexed", "nested_loop") else 1_000
    with (
        no_deadlock(300),
        opened(general, spec, request_.algorithm, 2, request_.index) as join,
        sj.open(spec, "nested_loop") as twin,
    ):
        for seed in (1, 2):
            join.push(rows(30, seed), rows(30, seed + 10))
            twin.push(rows(30, seed), rows(30, seed + 10))
        # Some lines: the failures walk through the push as well as all of its lines would, in less time.
        result, failures = failed_everywhere(lambda: join.push(rows(25, 3), rows(25, 13)), 23 if THOROUGH else 61)
        assert failures > 5
        assert result.equals(twin.push(rows(25, 3), rows(25, 13)))
        assert figures(join) == figures(twin)
        assert join.push(rows(30, 4), rows(30, 14)).equals(twin.push(rows(30, 4), rows(30, 14)))


def test_a_small_push_that_fails_at_any_line_changes_nothing() -> None:
    """The short way of `Operator.join_at_once`."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    with opened(0, spec, "indexed") as join, sj.open(spec, "nested_loop") as twin:
        for seed in (1, 2):
            join.push(rows(30, seed), rows(30, seed + 10))
            twin.push(rows(30, seed), rows(30, seed + 10))
        assert join._at_once is not None
        result, failures = failed_everywhere(lambda: join.push(rows(25, 3), rows(25, 13)), 1)
        assert failures > 60
        assert result.equals(twin.push(rows(25, 3), rows(25, 13)))
        assert figures(join) == figures(twin)
        assert join.push(rows(30, 4), rows(30, 14)).equals(twin.push(rows(30, 4), rows(30, 14)))


Push = Callable[[Join, pa.Table, pa.Table], pa.Table]


def as_arrays(table: pa.Table) -> dict[str, Any]:
    return {name: table[name].to_numpy() for name in ("k", "t", "b", "id")}


def fail_with_another_size(join: Join, twin: Join, push: Push, stride: int) -> list[oracle.Event]:
    """Let pushes of one size fail further on each time, with one of another size behind each; all that was joined.

    What a push keeps for the next one of its size is thus made, left behind by a failure, and used.
    """
    events: list[oracle.Event] = []
    seed, at, failures, done = 3, 1, 0, False

    def both(sizes: tuple[int, int]) -> tuple[pa.Table, pa.Table]:
        nonlocal seed
        seed += 1
        return rows(sizes[0], 2 * seed), rows(sizes[1], 2 * seed + 1)

    def took(pushed: tuple[pa.Table, pa.Table]) -> None:
        for right, table in enumerate(pushed[: 1 if join.spec.self_join else 2]):
            events.extend(oracle.Event(bool(right), row, row["t"]) for row in table.to_pylist())

    while not done:
        # A push that is larger, one that is smaller, and one with the same number of tuples on other sides.
        sizes = ((9, 8), (3, 2), (6, 5), (5, 6))[failures % 4]
        pushed = both(sizes)
        results = failed_at(lambda pushed=pushed: push(join, *pushed), at, failures)  # type: ignore[misc]
        done = bool(results)
        if results:
            assert results[0].equals(push(twin, *pushed)), at
            took(pushed)
        pushed = both((6, 5) if failures % 3 else sizes)
        assert push(join, *pushed).equals(push(twin, *pushed)), at
        took(pushed)
        assert figures(join) == figures(twin), at
        failures += not done
        at += stride
    assert failures > 5
    return events


PATHS: dict[str, tuple[sj.JoinSpec, str, int, int]] = {
    "direct": (sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW)), "indexed", 0, 1),
    "compiled": (
        sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(40), time="t", order="arrival", lateness=2), "indexed", 0, 3,
    ),
    "compiled, with a test": (
        sj.JoinSpec(on=sj.Equi("k") & sj.Theta("l.b <> 7 OR r.b <> 7"), window=sj.CountWindow(WINDOW)), "indexed", 0, 3,
    ),
    "compiled, without an index": (
        sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(WINDOW)), "sweep", 0, 3,
    ),
    "compiled, in event time": (
        sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(40), time="t", order="event_time"), "indexed", 0, 7,
    ),
    "compiled self-join": (
        sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW), self_join=True), "indexed", 0, 3
    ),
    "general": (sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW)), "indexed", 1_000_000, 7),
    "general, several workers": (sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW)), "sweep", 1_000_000, 11),
}  # fmt: skip


@pytest.mark.parametrize(("path", "arrays"), crossed([(path,) for path in PATHS], [False, True]))
def test_a_push_that_fails_leaves_nothing_for_those_of_other_sizes(path: str, arrays: bool) -> None:
    spec, algorithm, pushes, stride = PATHS[path]

    def push(join: Join, left: pa.Table, right: pa.Table) -> pa.Table:
        if arrays:
            left, right = (as_arrays(table.drop_null()) for table in (left, right))
        return join.push(left) if spec.self_join else join.push(left, right)

    with no_deadlock(300), sj.open(spec, "nested_loop") as twin:
        join = opened(pushes, spec, algorithm, 2 if "several" in path else 1)
        for each in (join, twin):
            push(each, rows(20, 6), rows(20, 7))
        assert (join._at_once is not None) == (path == "direct")
        fail_with_another_size(join, twin, push, stride)
        assert join.close().equals(twin.close())


def test_rows_behind_a_failure_are_those_of_a_plain_loop() -> None:
    """A push that failed where its memory was made once left rows out of all that followed."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    pairs: list[tuple[int, int]] = []

    def push(join: Join, left: pa.Table, right: pa.Table) -> pa.Table:
        result = join.push(left, right)
        if join is tested:
            pairs.extend(zip(result["id_left"].to_pylist(), result["id_right"].to_pylist(), strict=True))
        return result

    with opened(0, spec, "indexed") as tested, sj.open(spec, "nested_loop") as twin:
        for each in (tested, twin):
            each.push(rows(1, 6).slice(0, 0), rows(1, 7).slice(0, 0))
        events = fail_with_another_size(tested, twin, push, 2)
    wanted: list[tuple[int, int]] = []
    seen: tuple[list[oracle.Event], list[oracle.Event]] = ([], [])
    for event in events:
        for other in seen[not event.right][-WINDOW:]:
            if oracle.equal(event.row["k"], other.row["k"]):
                left, right = (other, event) if event.right else (event, other)
                wanted.append((left.row["id"], right.row["id"]))
        seen[event.right].append(event)
    assert len(wanted) > 500
    assert pairs == wanted


EVENT_TIME = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(20), time="t", order="event_time", lateness=2)
UNGATED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(20), time="t", order="arrival", lateness=2)
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
    general = 0 if algorithm == "indexed" else 1_000
    fail_every_call(opened(general, spec, algorithm), opened(general, spec, algorithm), spec)


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
    "summary by key": sj.JoinSpec(
        **BY_KEY,  # type: ignore[arg-type]
        how="left",
        match=sj.Summary(
            {"many": "count(*)", "x": "sum(r.k)", "y": "min(r.t)", "z": "last(r.k)"}, between=(-4, 2), prevailing=True
        ),
    ),
    "summary of a condition": sj.JoinSpec(
        on="l.k <= r.k", time="t", lateness=2, match=sj.Summary({"x": "median(r.k)", "y": "avg(r.k)"}, between=(1, 3))
    ),
    "summary of a self-join": sj.JoinSpec(
        **BY_KEY,  # type: ignore[arg-type]
        self_join=True,
        match=sj.Summary({"many": "count(*)", "x": "avg(r.k * 0.1)", "y": "max(r.t)"}, between=(-3, 3)),
    ),
    "intervals": replace(EVENT_TIME, on=sj.Overlaps(("k", "t"), ("k", "t"))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_any_kind_of_join_that_fails_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows that nothing needs are dropped in the middle of calls too.
    for operator in ("asof_operator", "summary_operator"):
        monkeypatch.setattr(f"streamjoin.joins.kinds.{operator}._LEAST_STORED", 8)
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


@pytest.mark.parametrize("algorithm", ["indexed", "scalejoin"])
def test_an_interrupt_while_a_step_is_undone_comes_after_it(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with too many rows is undone and cut, so that even the first Ctrl-C may come there."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(WINDOW))
    settle = Workers.settle
    with sj.open(spec, algorithm) as join, sj.open(spec, "nested_loop") as twin:
        for each in (join, twin):
            each.push(rows(30, 1), rows(30, 11))
        tables = join.push_iter(rows(30, 2), rows(30, 12), batch_rows=7)
        with monkeypatch.context() as patch:
            patch.setattr(Workers, "settle", lambda self: (settle(self), signal.raise_signal(signal.SIGINT)))
            with pytest.raises(KeyboardInterrupt):
                next(tables)
        assert pa.concat_tables(tables).equals(twin.push(rows(30, 2), rows(30, 12)))
        assert join.push(rows(30, 3), rows(30, 13)).equals(twin.push(rows(30, 3), rows(30, 13)))


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
