"""As-of joins by key beside Polars and DuckDB: a stream in batches, and finite sorted input in one push.

In the stream, left and right batches of 65,536 rows with 500 keys arrive in turn. Every left row gets the newest right
row of its key, at most 16 batches older, a window of 2^20 rows, or at most half a batch older. Polars joins each batch
anew with the right rows that the tolerance can reach. The finite input is joined once, without a tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEYS, _BATCH, _WINDOW, _MEASURED = 500, 1 << 16, 16, 8
# Microseconds that a batch covers.
_SPAN = 1_000_000
_OURS, _POLARS, _DUCKDB = "streamjoin", "polars", "duckdb"
_STREAM, _FINITE = "stream", "finite"
_RATE, _FINITE_RATIO = 3e6, 0.5
# Batches of tolerance, and how many times as fast as Polars: with the smaller one, Polars has no window to join anew.
_STREAM_RATIOS = {float(_WINDOW): 5.0, 0.5: 1.0}
_NO_TOLERANCE = 0.0


def _rows(rng: np.random.Generator, n: int, begin: int, end: int, name: str) -> pa.Table:
    times = np.sort(rng.integers(begin, end, n))
    return pa.table({"k": rng.integers(0, _KEYS, n), "t": pa.array(times, pa.timestamp("us")), name: rng.random(n)})


class AsOfExperiment(Experiment):
    """Rows per second of both sides together."""

    title = "as-of joins by key: streamjoin, Polars and DuckDB"
    measure = "rows_per_s"
    unit = "rows/s"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The stream, and finite inputs."""
        size = 200_000 if quick else 10_000_000
        stream = [
            {"input": _STREAM, "rows": _BATCH, "tolerance": batches, "system": system}
            for batches in _STREAM_RATIOS
            for system in (_POLARS, _OURS)
        ]
        return stream + [
            {"input": _FINITE, "rows": size, "tolerance": _NO_TOLERANCE, "system": system}
            for system in (_POLARS, _DUCKDB, _OURS)
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """Polars on the same input."""
        return None if cell["system"] == _POLARS else {**cell, "system": _POLARS}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One stream, or one finite join."""
        rng = np.random.default_rng(context.seed)
        if cell["input"] == _STREAM:
            batches = [
                tuple(_rows(rng, _BATCH, i * _SPAN, (i + 1) * _SPAN, name) for name in ("v", "q"))
                for i in range(_WINDOW + (2 if context.quick else _MEASURED))
            ]
            run = _stream if cell["system"] == _OURS else _stream_polars
            took, matched = run(batches, int(cell["tolerance"] * _SPAN))
            n = 2 * _BATCH * (len(batches) - _WINDOW)
        else:
            left, right = (_rows(rng, cell["rows"], 0, 10 * cell["rows"], name) for name in ("v", "q"))
            took, matched = {_OURS: _finite, _POLARS: _finite_polars, _DUCKDB: _finite_duckdb}[cell["system"]](
                left, right
            )
            n = 2 * cell["rows"]
        return {"rows_per_s": n / took, "matched": matched}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Rows per second by system and input."""
        plot_lines(figure, rows, x="rows", y=self.measure, by=["input", "tolerance", "system"], ylabel=self.unit)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims of both inputs, and whether all systems find the same number of partners."""
        speeds = {(row["tolerance"], row["system"]): row[self.measure] for row in rows}
        finite = speeds[_NO_TOLERANCE, _OURS]
        rivals = []
        for batches, aim in _STREAM_RATIOS.items():
            ours, which = speeds[batches, _OURS], f"batches of 2 x 65,536, tolerance of {batches:g} batches"
            rivals.append((f"{which}, rows per second", ours, _RATE))
            rivals.append((f"{which}, times Polars", ours / speeds[batches, _POLARS], aim))
        rivals.append(("finite input, times Polars", finite / speeds[_NO_TOLERANCE, _POLARS], _FINITE_RATIO))
        rivals.append(("finite input, times DuckDB", finite / speeds[_NO_TOLERANCE, _DUCKDB], 1.0))
        lines = [
            f"{what}: {value:,.2f}; aim {aim:,}: {'met' if value >= aim else 'missed'}" for what, value, aim in rivals
        ]
        for batches in (*_STREAM_RATIOS, _NO_TOLERANCE):
            counts = {row["matched"] for row in rows if row["tolerance"] == batches}
            input_ = f"stream, tolerance of {batches:g} batches" if batches else _FINITE
            same = "yes" if len(counts) == 1 else "no"
            lines.append(f"{input_}: all systems find the same number of partners: {same}")
        return lines


def _stream(batches: Sequence[tuple[pa.Table, ...]], tolerance: int) -> tuple[float, int]:
    spec = sj.JoinSpec(
        on=sj.Equi("k"), match=sj.AsOf(tolerance=f"{tolerance} us"), time="t", order="event_time", how="left"
    )
    matched, begin = 0, 0.0
    with sj.open(spec) as join:
        for number, (left, right) in enumerate(batches):
            if number == _WINDOW:
                begin = time.perf_counter()
            result = join.push(left, right)
            matched += result.num_rows - result["q"].null_count
        took = time.perf_counter() - begin
        rest = join.close()
    return took, matched + rest.num_rows - rest["q"].null_count


def _stream_polars(batches: Sequence[tuple[pa.Table, ...]], tolerance: int) -> tuple[float, int]:
    import polars as pl

    matched, begin, window = 0, 0.0, None
    for number, (left, right) in enumerate(batches):
        if number == _WINDOW:
            begin = time.perf_counter()
        one, other = pl.DataFrame(left).set_sorted("t"), pl.DataFrame(right)
        window = (other if window is None else pl.concat([window, other])).set_sorted("t")
        result = one.join_asof(
            window, on="t", by="k", strategy="backward", tolerance=f"{tolerance}us", check_sortedness=False
        )
        matched += result.height - result["q"].null_count()
        newest = window["t"][-1]
        window = window.filter(pl.col("t") >= newest - pl.duration(microseconds=tolerance))
    return time.perf_counter() - begin, matched


def _finite(left: pa.Table, right: pa.Table) -> tuple[float, int]:
    spec = sj.JoinSpec(on=sj.Equi("k"), match=sj.AsOf(), time="t", order="event_time", how="left")
    begin = time.perf_counter()
    with sj.open(spec) as join:
        tables = [join.push(left, right), join.close()]
    took = time.perf_counter() - begin
    return took, sum(table.num_rows - table["q"].null_count for table in tables)


def _finite_polars(left: pa.Table, right: pa.Table) -> tuple[float, int]:
    import polars as pl

    begin = time.perf_counter()
    one, other = (pl.DataFrame(table).set_sorted("t") for table in (left, right))
    result = one.join_asof(other, on="t", by="k", strategy="backward", check_sortedness=False)
    return time.perf_counter() - begin, result.height - result["q"].null_count()


def _finite_duckdb(left: pa.Table, right: pa.Table) -> tuple[float, int]:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        begin = time.perf_counter()
        result = connection.sql("SELECT l.*, r.q FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.t >= r.t").to_arrow_table()
        took = time.perf_counter() - begin
    return took, result.num_rows - result["q"].null_count


EXPERIMENT = AsOfExperiment()
