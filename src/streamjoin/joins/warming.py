"""Compiles or loads kernels before the first join: the parts shared by every warm-up, and the engine's own.

Small joins over `sample` rows reach the kernels. The embedded engine's are here; `spark/runtime/warming.py` and
`queries/executors/warming.py` add the stages of a Spark batch and the ad-hoc core. `streamjoin warmup` runs them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from streamjoin import _cache
from streamjoin.model.asof import AsOf
from streamjoin.model.predicates import Band, Equi, Theta, Within
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary
from streamjoin.model.window import CountWindow, TimeWindow, Window

_ROWS = 64


def sample(batch: int = 0, rows: int = _ROWS) -> pa.Table:
    """Rows of every kind of key whose times `t` and `at` rise from batch to batch."""
    numbers = range(rows * batch, rows * (batch + 1))
    keys = [n % 8 for n in numbers]
    columns = {name: pa.array(keys, type_) for name, type_ in _KEYS.items()}
    times = {"t": pa.array(numbers, pa.int64()), "at": pa.array([n * 100_000 for n in numbers], pa.timestamp("us"))}
    return pa.table({**times, **columns, "s": pa.array([f"key {key}" for key in keys])})


_KEYS = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "d": pa.decimal128(9, 2),
}


def alone() -> contextlib.AbstractContextManager[None]:
    """Compile while other processes wait, which then load what this one compiled."""
    return _cache.alone(_cache.cache_dir() / "compiling.lock")


def warm() -> Iterator[str]:
    """Run every algorithm of the embedded engine over every kind of key; yields each name when it is done."""
    # Spark's workers share this module and need no engine.
    from streamjoin.joins.auto import AlgorithmRequest, choose, requests
    from streamjoin.joins.batch.nested_loop import LEAST_LOOKS
    from streamjoin.joins.engine.driver import Join, open  # noqa: A004
    from streamjoin.joins.engine.settings import OpenSettings
    from streamjoin.joins.live.live import live
    from streamjoin.joins.registry import KINDS
    from streamjoin.model.binding import bind
    from streamjoin.model.comparisons import with_comparisons
    from streamjoin.model.errors import NotSupportedError

    table = sample()
    shuffled = table.take(pa.array([(7 * i) % _ROWS for i in range(_ROWS)]))
    for request in requests():
        for spec in _specs():
            try:
                choose(with_comparisons(bind(spec, table.schema, table.schema)), request)
            except NotSupportedError:
                continue
            with alone(), open(spec, request.algorithm, index=request.index) as join:
                join.push(table, table)
                join.push(shuffled, shuffled)
        yield str(request)
    compiled = OpenSettings(AlgorithmRequest("nested_loop"), general_pushes=0)
    for spec in (*_specs(), JoinSpec(on=Equi("i64"), window=CountWindow(40), self_join=True)):
        with alone(), Join(spec, compiled) as join:
            for _ in range(2):
                join.push(table, None if spec.self_join else table)
    yield "small pushes"
    many = sample(rows=LEAST_LOOKS)
    with alone(), open(JoinSpec(Theta("l.i64 < r.i64 AND l.t > r.t"), CountWindow(40)), "nested_loop") as join:
        join.push(many, many)
    yield "two comparisons"
    spec = JoinSpec(on=Equi("i64"), window=TimeWindow(5), time="t", order="event_time")
    with alone(), open(spec) as join:
        join.push(table, table)
        join.close()
    yield "event-time order"
    for name in (name for name, kind in KINDS.items() if kind.live is not None):
        with alone(), live(next(_specs()), name, 2, left_schema=table.schema, right_schema=table.schema) as running:
            for side in ("left", "right"):
                running.source(side).push(table)
            running.close()
            for _ in running:
                pass
        yield f"{name}, live"
    for spec in _kinds():
        with alone(), open(spec) as join:
            join.push(table, table)
            join.close()
    yield "kinds of join"


_SUMMARIES = {"n": "count(*)", "x": "sum(r.f64)", "y": "sum(r.i64)", "z": "max(r.f64)", "last": "last(r.f64)"}


def _kinds() -> Iterator[JoinSpec]:
    for window in (CountWindow(40), (TimeWindow(5), TimeWindow(9))):
        for how in ("full", "semi", "anti"):
            yield JoinSpec(Equi("i64"), window, "t", "event_time", how)
    yield JoinSpec(Equi("i64"), TimeWindow(5), "t", "arrival", "left", lateness=3)
    for on in (Equi("i64") & Equi("s"), Theta("l.i64 < r.i64")):
        yield JoinSpec(on, time="t", order="event_time", how="left", match=AsOf("nearest", tolerance=5))
        yield JoinSpec(on, time="t", order="event_time", how="left", match=Summary(_SUMMARIES, between=(-5, 5)))


def _specs() -> Iterator[JoinSpec]:
    window: Window
    for window in (CountWindow(40), TimeWindow(5)):
        for on in (
            Band("i64", "i64", 1),
            Equi("i64"),
            Band("i32", "i32", 1) & Band("f32", "f32", 1.0),
            Band("f64", "f64", 0.5) & Band("i64", "i64", 1) & Band("i8", "i8", 1),
            Equi("s") & Band("f64", "f64", 0.5),
            Band("d", "i64", 1),
            Theta("l.i64 < r.i64"),
            Within("i64", "i64", "t"),
        ):
            yield JoinSpec(on=on, window=window, time="t", order="arrival")
