"""What a small push costs through the public API, beside making its tables and beside a B+-tree join in C++.

Rows are (k, v, id): a key that a band joins, and two payload columns. Both windows are filled from history in large
pushes; then come small ones, with `auto`. A push has two Arrow tables, record batches or dicts of NumPy arrays. The
tables of a few pushes are made, then pushed, so that both are measured under the same conditions. The C++ program
(`btree_window_join.cpp`, compiled with -O3 where there is a compiler) does the same join over B+-trees of its own in
one thread, payload columns of the result included. Times are CPU times, so that what other processes take is left out;
index merges are in them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row, met
from benchmarks.rivals.btree_rival import RIVAL, compiler, run_rival
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.settings import OpenSettings

TABLES, BATCHES, ARRAYS = "push of tables", "push of record batches", "push of NumPy arrays"
SIZES = (1, 32, 1024)
_BAND, _MATCHES = 500, 2
_HISTORY = 1 << 16
# Reading the clock of the CPU costs microseconds: pushes are measured in groups.
_GROUP = 16
_TUPLES, _LEAST_PUSHES, _MOST_PUSHES = 1 << 18, 100, 1 << 14
# Rows a side and push: the most times the cost of making its tables; the least times the tuples per second in C++.
_COST_AIMS = {1: 3.0, 32: 4.0}
_SPEED_AIMS = {32: 2.0, 1024: 6.0}


class PushCost(Experiment):
    """Tuples per second of small pushes."""

    title = "push_cost: small pushes through sj.open"
    measure = "tuples_per_s"
    unit = "tuples/s"
    across, lines, log = "rows", ("system",), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each system at each size of push; without a compiler there is no rival."""
        window = 1 << (16 if quick else 20)
        systems = (TABLES, BATCHES, ARRAYS, *((RIVAL,) if compiler() else ()))
        return [{"window": window, "rows": rows, "system": name} for rows in SIZES for name in systems]

    def baseline(self, cell: Cell) -> Cell | None:
        """The rival, where there is one."""
        rival = {**cell, "system": RIVAL if compiler() else TABLES}
        return None if rival == cell else rival

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push."""
        spread = cell["window"] * 2 * _BAND // _MATCHES
        tuples = _TUPLES // (8 if context.quick else 1)
        pushes = min(_MOST_PUSHES, max(_LEAST_PUSHES, tuples // (2 * cell["rows"])))
        if cell["system"] == RIVAL:
            return self._run_rival(cell, context, pushes, spread)
        rng = np.random.default_rng(context.seed)

        def columns(n: int) -> dict[str, Any]:
            return {"k": rng.integers(0, spread, n), "v": rng.random(n), "id": np.arange(n)}

        make: Callable[[dict[str, Any]], Any] = {TABLES: pa.table, BATCHES: pa.record_batch, ARRAYS: dict}[
            cell["system"]
        ]
        spec = sj.JoinSpec(on=sj.Band("k", "k", _BAND), window=sj.CountWindow(cell["window"]))
        # The kernels of small pushes are compiled at once, as after `streamjoin warmup`.
        with Join(spec, OpenSettings(general_pushes=0)) as join:
            for _ in range(-(-cell["window"] // _HISTORY)):
                join.push(pa.table(columns(_HISTORY)), pa.table(columns(_HISTORY)))
            while "algorithm   indexed" not in join.explain():
                for _ in range(100):
                    join.push(make(columns(32)), make(columns(32)))
            # A quarter of the window: both indexes have merged, and have the memory for the next merge.
            for _ in range(cell["window"] // 4 // 1024):
                join.push(make(columns(1024)), make(columns(1024)))
            batches = [(columns(cell["rows"]), columns(cell["rows"])) for _ in range(pushes)]
            making, pushing, results = 0, 0, 0
            gc.collect()
            for first in range(0, pushes, _GROUP):
                group = batches[first : first + _GROUP]
                begin = time.thread_time_ns()
                tables = [(pa.table(left), pa.table(right)) for left, right in group]
                made = time.thread_time_ns()
                data = tables if make is pa.table else [(make(left), make(right)) for left, right in group]
                ready = time.thread_time_ns()
                for left, right in data:
                    results += join.push(left, right).num_rows
                pushing += time.thread_time_ns() - ready
                making += made - begin
        return {
            "tuples_per_s": 2 * cell["rows"] * pushes / pushing * 1e9,
            "push_us": pushing / pushes / 1e3,
            "tables_us": making / pushes / 1e3,
            "times_tables": pushing / making,
            "rows_per_tuple": results / (2 * cell["rows"] * pushes),
        }

    def _run_rival(self, cell: Cell, context: Context, pushes: int, spread: int) -> Mapping[str, Any]:
        seconds, results = run_rival(
            context.scratch, cell["window"], cell["rows"], pushes, band=_BAND, spread=spread, seed=context.seed
        )
        return {
            "tuples_per_s": 2 * cell["rows"] * pushes / seconds,
            "push_us": seconds / pushes * 1e6,
            "rows_per_tuple": results / (2 * cell["rows"] * pushes),
        }

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The cost beside making tables, and the speed beside the C++ join."""
        at = {(row["system"], row["rows"]): row for row in rows}
        lines = []
        for n, aim in _COST_AIMS.items():
            if (TABLES, n) in at:
                ratio = at[TABLES, n]["times_tables"]
                judged = met(ratio <= aim)
                lines.append(f"{n} + {n} rows cost {ratio:.1f} times what their tables cost; aim {aim:g}: {judged}")
        for n, aim in _SPEED_AIMS.items():
            if (RIVAL, n) in at and (TABLES, n) in at:
                ratio = at[TABLES, n][self.measure] / at[RIVAL, n][self.measure]
                judged = met(ratio >= aim)
                lines.append(f"{n} + {n} rows: {ratio:.2f} times the tuples/s of C++; aim {aim:g}: {judged}")
        if not any(system == RIVAL for system, _ in at):
            lines.append("no C++ compiler on this machine: nothing to compare the speed with")
        return lines


EXPERIMENT = PushCost()
