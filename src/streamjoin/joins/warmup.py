"""Compiling every kernel ahead: small joins that together reach all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from streamjoin.joins.auto import choose, requests
from streamjoin.joins.engine.opening import open  # noqa: A004
from streamjoin.kernels.compiling import WATCH
from streamjoin.model.binding import bind
from streamjoin.model.errors import NotSupportedError
from streamjoin.model.predicates import Band, Equi, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow, TimeWindow, Window

_ROWS = 64
_TABLE = pa.table(
    {
        "t": pa.array(range(_ROWS), pa.int64()),
        "i8": pa.array([i % 8 for i in range(_ROWS)], pa.int8()),
        "i16": pa.array([i % 8 for i in range(_ROWS)], pa.int16()),
        "i32": pa.array([i % 8 for i in range(_ROWS)], pa.int32()),
        "i64": pa.array([i % 8 for i in range(_ROWS)], pa.int64()),
        "f32": pa.array([i % 8 for i in range(_ROWS)], pa.float32()),
        "f64": pa.array([i % 8 for i in range(_ROWS)], pa.float64()),
        "s": pa.array([f"s{i % 8}" for i in range(_ROWS)]),
        "d": pa.array([i % 8 for i in range(_ROWS)], pa.decimal128(9, 2)),
    }
)


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
        ):
            yield JoinSpec(on=on, window=window, time="t")


def warmup() -> Iterator[str]:
    """Run every algorithm over every kind of key; says what it did after each step."""
    shuffled = _TABLE.take(pa.array([(7 * i) % _ROWS for i in range(_ROWS)]))
    for request in requests():
        before = WATCH.seconds
        for spec in _specs():
            try:
                choose(bind(spec, _TABLE.schema, _TABLE.schema), request)
            except NotSupportedError:
                continue
            with open(spec, request.algorithm, index=request.index) as join:
                join.push(_TABLE, _TABLE)
                join.push(shuffled, shuffled)
        yield f"{request}: {WATCH.seconds - before:.1f} s of compiling"
