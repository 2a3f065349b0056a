"""Kernels of the ad-hoc core ready before the first task, in the process that workers are forked from.

A few queries over a few tuples, by shares as in a task, reach the kernels that joins by numbers and texts use. Only the
tasks of an engine ask for it (`spark_tasks.py`): whoever runs no ad-hoc queries does not wait for it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from streamjoin.adhoc.core.changes import Create
from streamjoin.adhoc.core.shared import Shared
from streamjoin.adhoc.executors.replica import Replica
from streamjoin.adhoc.language.plan import Stream
from streamjoin.spark.runtime.warming import alone

_SCHEMA: Final = pa.schema({"i": pa.int64(), "s": pa.string(), "t": pa.timestamp("us")})
_JOINS: Final = (
    "SELECT x.i AS a, y.i AS b, x.t AS u FROM l x JOIN r y WITHIN 3 SECONDS ON x.i = y.i WHERE x.i > 0",
    "SELECT x.i AS a, y.s AS b FROM l x JOIN r y WITHIN 3 SECONDS ON x.s = y.s WHERE x.s LIKE 'k%'",
    "SELECT x.i AS a FROM l x JOIN r y WITHIN 3 ROWS ON ABS(x.i - y.i) <= 1 JOIN l z WITHIN 3 SECONDS ON y.i = z.i",
)
_BATCHES, _ROWS = 3, 16


def warm() -> None:
    """Run the queries; what a copy of the core needs besides is loaded with it."""
    with alone():
        core = Shared([Stream(name, _SCHEMA, "t") for name in "lr"], Replica.SETTINGS)
        core.apply([Create(f"q{number}", text) for number, text in enumerate(_JOINS)])
        for batch in range(_BATCHES):
            arrived = core.arrive(batch, {name: _table(batch) for name in "lr"})
            half = _ROWS // 2
            for share in ((0, half), (half, _ROWS)):
                core.results(arrived, dict.fromkeys("lr", share))
            core.finish(arrived, {})


def _table(batch: int) -> pa.Table:
    numbers = range(_ROWS * batch, _ROWS * (batch + 1))
    columns = {
        "i": pa.array([n % 5 for n in numbers], pa.int64()),
        "s": pa.array([f"key {n % 5}" for n in numbers]),
        "t": pa.array([n * 100_000 for n in numbers], pa.timestamp("us")),
    }
    return pa.table(columns, _SCHEMA)
