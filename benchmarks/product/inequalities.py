"""Two comparisons of columns, `l.x < r.a AND l.y > r.b`, beside DuckDB's IEJoin and Polars' `join_where`.

Every system joins two complete tables, Arrow in and Arrow out, on one thread. The comparisons are independent, so the
share of pairs that match is the product of theirs. streamjoin keeps both sides for later pushes, the others nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met

_ROWS, _SHARES = 20_000, (0.1, 0.01, 0.001)
_OURS, _DUCKDB, _POLARS = "streamjoin", "duckdb", "polars"
_AIM = 2.0


class InequalitiesExperiment(Experiment):
    """Seconds of processor by system and share of pairs."""

    title = "two comparisons of columns: streamjoin, DuckDB's IEJoin and Polars' join_where"
    measure = "seconds"
    unit = "s of processor"
    against: ClassVar = {"system": _DUCKDB}
    across, lines, log = "share", ("system",), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each system at each share of matching pairs."""
        shares = _SHARES[-1:] if quick else _SHARES
        return [{"share": share, "system": system} for share in shares for system in (_DUCKDB, _POLARS, _OURS)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Join once to compile and to warm caches, then measure the best of three."""
        rng = np.random.default_rng(context.seed)
        reach = 2 * np.sqrt(cell["share"])
        left = pa.table({"x": rng.random(_ROWS), "y": rng.random(_ROWS), "i": np.arange(_ROWS)})
        right = pa.table({"a": rng.random(_ROWS) * reach, "b": 1 - rng.random(_ROWS) * reach, "j": np.arange(_ROWS)})
        join = {_OURS: _ours, _DUCKDB: _duckdb, _POLARS: _polars}[cell["system"]]
        rows, took = join(left, right), []
        for _ in range(3):
            begin = time.process_time()
            rows = join(left, right)
            took.append(time.process_time() - begin)
        return {"seconds": min(took), "matches": rows}

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How much longer than its rivals streamjoin takes at the smallest share."""
        share = min(row["share"] for row in rows)
        seconds = {row["system"]: row[self.measure] for row in rows if row["share"] == share}
        ratio = seconds[_OURS] / seconds[_DUCKDB]
        judged = met(ratio <= _AIM)
        return [
            f"{100 * share:g}% of pairs: {ratio:.2g} times DuckDB's processor time; aim {_AIM:g}: {judged}",
            f"{100 * share:g}% of pairs: {seconds[_OURS] / seconds[_POLARS]:.2g} times Polars' processor time",
        ]


def _ours(left: pa.Table, right: pa.Table) -> int:
    spec = sj.JoinSpec(on="l.x < r.a AND l.y > r.b", window=sj.CountWindow(_ROWS))
    with sj.open(spec, workers=1, max_rows=None) as join:
        return int(join.push(left, right).num_rows)


def _duckdb(left: pa.Table, right: pa.Table) -> int:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("l", left)
        connection.register("r", right)
        return int(connection.sql("SELECT * FROM l JOIN r ON l.x < r.a AND l.y > r.b").to_arrow_table().num_rows)


def _polars(left: pa.Table, right: pa.Table) -> int:
    import polars as pl

    one, other = pl.DataFrame(left), pl.DataFrame(right)
    return one.join_where(other, pl.col("x") < pl.col("a"), pl.col("y") > pl.col("b")).height


EXPERIMENT = InequalitiesExperiment()
