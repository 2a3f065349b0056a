"""Conditions on intervals, `l.t BETWEEN r.lo AND r.hi`, beside the nested loop and DuckDB.

The lengths of intervals are spread over three orders of magnitude, log-uniform; each tuple has about three partners.
The nested loop joins a few tuples with a full window, which is all that its time allows. DuckDB joins each batch anew
with the window of the other side.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met

_BATCH, _MEASURED, _SCANNED = 1 << 16, 4, 1 << 10
_SHORTEST, _DECADES, _MATCHES = 10, 3, 3
_OURS, _LOOP, _DUCKDB = "interval", "nested_loop", "duckdb"
_AIMS = {_LOOP: 100, _DUCKDB: 5}


class IntervalExperiment(Experiment):
    """Tuples per second by system."""

    title = "conditions on intervals: classes by length, the nested loop and DuckDB"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"system": _LOOP}
    across, lines, log = "window", ("system",), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each system at one window."""
        return [{"window": 1 << (17 if quick else 20), "system": system} for system in (_LOOP, _DUCKDB, _OURS)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push a few batches."""
        rng = np.random.default_rng(context.seed)
        window = cell["window"]
        mean = _SHORTEST * (10**_DECADES - 1) / (_DECADES * np.log(10))
        spread = int(window * mean / _MATCHES)

        def points(n: int) -> pa.Table:
            return pa.table({"t": rng.integers(0, spread, n), "a": np.arange(n)})

        def intervals(n: int) -> pa.Table:
            low = rng.integers(0, spread, n)
            return pa.table({"lo": low, "hi": low + (_SHORTEST * 10 ** rng.uniform(0, _DECADES, n)).astype(np.int64)})

        stored = points(window), intervals(window)
        n = _SCANNED if cell["system"] == _LOOP else _BATCH
        pushes = [(points(n), intervals(n)) for _ in range(_MEASURED + 1)]
        took, rows = (_rejoin if cell["system"] == _DUCKDB else _join)(cell, stored, pushes)
        return {"tuples_per_s": 2 * _MEASURED * n / took, "rows_per_tuple": rows / (2 * _MEASURED * n)}

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How many times faster than its rivals the index is."""
        speeds = {row["system"]: row[self.measure] for row in rows}
        return [
            f"{(ratio := speeds[_OURS] / speeds[rival]):.0f} times {rival}; aim {aim}: {met(ratio >= aim)}"
            for rival, aim in _AIMS.items()
        ]


Push = tuple[pa.Table, pa.Table]


def _join(cell: Cell, stored: Push, pushes: Sequence[Push]) -> tuple[float, int]:
    system, window = cell["system"], cell["window"]
    spec = sj.JoinSpec(on="l.t BETWEEN r.lo AND r.hi", window=sj.CountWindow(window))
    schemas = {"left_schema": stored[0].schema, "right_schema": stored[1].schema}
    join = sj.open(spec, system, max_rows=None, **schemas)
    if system == _LOOP:
        # Only one side: filling both would compare all pairs.
        join.push(left=stored[0])
        pushes = [(left.slice(0, 0), pa.concat_tables([right, right])) for left, right in pushes]
    else:
        for first in range(0, window, _BATCH):
            join.push(*(table.slice(first, _BATCH) for table in stored))
    join.push(*pushes[0])
    begin, rows = time.perf_counter(), 0
    for left, right in pushes[1:]:
        rows += join.push(left, right).num_rows
    took = time.perf_counter() - begin
    join.close()
    return took, rows


def _rejoin(_: Cell, stored: Push, pushes: Sequence[Push]) -> tuple[float, int]:
    import duckdb

    left, right = stored
    sql = "SELECT l.a, l.t, r.lo, r.hi FROM {} l JOIN {} r ON l.t BETWEEN r.lo AND r.hi"
    with duckdb.connect() as connection:
        begin, rows = time.perf_counter(), 0
        for one, other in pushes[1:]:
            tables = {"old_l": left, "old_r": right, "new_l": one, "new_r": other}
            for name, table in tables.items():
                connection.register(name, table)
            for names in (("new_l", "old_r"), ("old_l", "new_r"), ("new_l", "new_r")):
                rows += connection.sql(sql.format(*names)).to_arrow_table().num_rows
            left, right = (pa.concat_tables(both).slice(_BATCH) for both in ((left, one), (right, other)))
        return time.perf_counter() - begin, rows


EXPERIMENT = IntervalExperiment()
