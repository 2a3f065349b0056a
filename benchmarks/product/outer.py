"""Outer, semi and anti joins beside the inner join, at match rates of 0.1, 1 and 10 partners per tuple.

Both windows hold 2^20 tuples; the keys are uniform over a range that gives each tuple that many partners. DuckDB joins
the tuples that leave with each batch anew with the other window, as a program without a stream join would.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met

_BATCH, _MEASURED = 1 << 16, 6
_KINDS = ("inner", "left", "semi", "anti")
_REJOIN = "duckdb left"
_AIMS = {"left": 1.25, "semi": 1.0, "anti": 1.0}


class OuterExperiment(Experiment):
    """Tuples per second by kind and match rate."""

    title = "outer, semi and anti joins beside the inner join"
    measure = "tuples_per_s"
    unit = "tuples/s"
    against: ClassVar = {"kind": "inner"}
    across, lines, log = "matches", ("kind",), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each kind at each match rate."""
        window = 1 << (17 if quick else 20)
        return [
            {"window": window, "matches": matches, "kind": kind}
            for matches in (0.1, 1.0, 10.0)
            for kind in (*_KINDS, _REJOIN)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push a few batches, each in turn to the kind and to an inner join."""
        rng = np.random.default_rng(context.seed)
        window = cell["window"]
        keys = max(1, int(window / cell["matches"]))

        def batch(name: str) -> pa.Table:
            return pa.table({"k": rng.integers(0, keys, _BATCH), name: rng.random(_BATCH)})

        pushes = [(batch("a"), batch("b")) for _ in range(window // _BATCH + _MEASURED)]
        if cell["kind"] == _REJOIN:
            took, rows = _rejoin(pushes)
            return {"tuples_per_s": 2 * _MEASURED * _BATCH / took, "rows_per_tuple": rows / (2 * _MEASURED * _BATCH)}
        times, rows = _join(window, (cell["kind"], "inner"), pushes)
        ratio = statistics.median(own / inner for own, inner in times)
        return {
            "tuples_per_s": 2 * _MEASURED * _BATCH / sum(own for own, _ in times),
            "rows_per_tuple": rows / (2 * _MEASURED * _BATCH),
            "times_inner": ratio,
        }

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How much longer each kind takes than the inner join that ran beside it."""
        return [
            f"{row['kind']} at {row['matches']:g} matches: {row['times_inner']:.2f} times the time of inner; "
            f"aim {(aim := _AIMS[row['kind']])}: {met(row['times_inner'] <= aim)}"
            for row in rows
            if row["kind"] in _AIMS
        ]


Push = tuple[pa.Table, pa.Table]


def _join(window: int, kinds: Sequence[str], pushes: Sequence[Push]) -> tuple[list[tuple[float, ...]], int]:
    """The seconds of each measured push by kind, and the rows of the first kind."""
    joins = []
    for kind in kinds:
        spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(window), how=kind)  # type: ignore[arg-type]
        joins.append(sj.open(spec, "sweep", max_rows=None))
        for left, right in pushes[:-_MEASURED]:
            joins[-1].push(left, right)
    times, rows = [], 0
    for left, right in pushes[-_MEASURED:]:
        seconds = []
        for join in joins:
            begin = time.perf_counter()
            result = join.push(left, right)
            seconds.append(time.perf_counter() - begin)
            rows += result.num_rows if join is joins[0] else 0
        times.append(tuple(seconds))
    for join in joins:
        join.close()
    return times, rows


def _rejoin(pushes: Sequence[Push]) -> tuple[float, int]:
    import duckdb

    left, right = (pa.concat_tables([push[side] for push in pushes[:-_MEASURED]]) for side in (0, 1))
    with duckdb.connect() as connection:
        begin, rows = time.perf_counter(), 0
        for batch in pushes[-_MEASURED:]:
            left, right = (pa.concat_tables(both).slice(_BATCH) for both in ((left, batch[0]), (right, batch[1])))
            # The tuples that leave with the next batch, with their partners.
            connection.register("l", left.slice(0, _BATCH))
            connection.register("r", right)
            rows += connection.sql("SELECT l.k, l.a, r.b FROM l LEFT JOIN r ON l.k = r.k").to_arrow_table().num_rows
        return time.perf_counter() - begin, rows


EXPERIMENT = OuterExperiment()
