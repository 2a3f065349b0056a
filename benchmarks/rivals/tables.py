"""Two complete tables joined by one call, frames in and out: `sj.join`, and what users of pandas, Polars, DuckDB call.

Trades look up the newest quote of their symbol at or before them, symbols as texts and as numbers; and two tables are
joined by a key that each row of either has once, a number or a text. Everything is measured: reading the frames, the
join, and the frame that comes out, with all columns. Each system's partners are compared with those of streamjoin.
Polars and DuckDB use all cores, pandas and streamjoin one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, judge_aim

_OURS = "streamjoin"
_RIVALS = (("pandas", "pandas"), ("pandas", "duckdb"), ("polars", "polars"), ("arrow", "duckdb"))
"""What comes in and out, and who joins it besides streamjoin."""
_WORKS = ("as-of by text", "as-of by number", "key", "key by text")
_SYMBOLS = 1_000
_TRADES, _QUICK = 1_000_000, 5_000
_PRICES = ("bid", "ask")


class Tables(Experiment):
    """Left rows per second, of twice as many right ones in as-of joins and as many in joins by key."""

    title = "two tables joined by one call, frames in and out"
    measure = "rows_per_s"
    unit = "left rows/s"
    repeats = 5
    against: ClassVar = {"system": _OURS}

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], tuple[pa.Table, pa.Table]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each work from each kind of frame, by streamjoin and by its rivals."""
        rows = _QUICK if quick else _TRADES
        systems = [(frames, _OURS) for frames in dict.fromkeys(frames for frames, _ in _RIVALS)]
        return [
            {"work": work, "frames": frames, "system": system, "rows": rows}
            for work in _WORKS
            for frames, system in [*systems, *_RIVALS]
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One join; reading the result for the comparison is not counted."""
        key = cell["work"], cell["rows"], context.seed
        if key not in self._made:
            self._made[key] = make_tables(*key)
        left, right = (_FRAMES[cell["frames"]](table) for table in self._made[key])
        join = joins(cell["work"])[cell["system"], cell["frames"]]
        begin, spent = time.perf_counter(), time.process_time()
        found = join(left, right)
        took, spent = time.perf_counter() - begin, time.process_time() - spent
        return {"rows_per_s": cell["rows"] / took, "cpu_s": spent, "partners": partners(found)}

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Ahead of each rival, with the same partners."""
        ours = {(row["work"], row["frames"]): row for row in rows if row["system"] == _OURS}
        judged = []
        for row in rows:
            own = ours[row["work"], row["frames"]]
            if row is own:
                continue
            share = 1 / row["ratio"] if row["ratio"] else float("inf")
            judged.append(
                judge_aim(
                    f"{row['work']}, {row['frames']} in and out: faster than {row['system']}, same partners",
                    f"{row['ratio']:.2f} times streamjoin's speed, which spends {own['cpu_s'] / row['cpu_s']:.2f} of "
                    f"its processor time{'' if own['partners'] == row['partners'] else '; other partners'}",
                    "below 1",
                    share > 1 and own["partners"] == row["partners"],
                )
            )
        return judged

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A panel per work: each system's speed by kind of frame."""
        for axis, work in zip(figure.subplots(1, len(_WORKS)), _WORKS, strict=True):
            own = [row for row in rows if row["work"] == work]
            axis.barh([f"{row['system']}, {row['frames']}" for row in own], [row[self.measure] for row in own])
            axis.set_title(f"{work}, {self.unit}", fontsize="medium")


def make_tables(work: str, rows: int, seed: int) -> tuple[pa.Table, pa.Table]:
    """The input of a work; the times of a side differ from each other and from the other's, so that nothing ties."""
    rng = np.random.default_rng(seed)
    if work.startswith("key"):
        keys: list[Any] = [rng.permutation(rows) for _ in range(2)]
        if work == "key by text":
            keys = [[f"ORDER{number:08d}" for number in own] for own in keys]
        sides = [pa.table({"sym": own, "px": rng.random(rows)}) for own in keys]
        return sides[0], sides[1].rename_columns(["sym", _PRICES[0]])
    names = np.array([f"SYM{number:04d}" for number in range(_SYMBOLS)], object)
    sides = []
    for offset, n in enumerate((rows, 2 * rows)):
        symbols: Any = rng.integers(0, _SYMBOLS, n)
        symbols = pa.array(names[symbols]) if work == "as-of by text" else symbols
        times = np.sort(rng.choice(8 * rows, n, replace=False)) * 2 + offset
        sides.append(pa.table({"ts": pa.array(times, pa.timestamp("us")), "sym": symbols}))
    trades = sides[0].append_column("px", pa.array(rng.random(rows)))
    for name in _PRICES:
        sides[1] = sides[1].append_column(name, pa.array(rng.random(2 * rows)))
    return trades.append_column("qty", pa.array(rng.integers(1, 1000, rows))), sides[1]


def partners(found: Any) -> float:
    """The sum of the right prices that were found, whatever kind of frame they are in."""
    column = found["bid"]
    values = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    return round(float(np.nansum(values.astype(float))), 3)


def joins(work: str) -> Mapping[tuple[str, str], Callable[[Any, Any], Any]]:
    """Each system's call for a work, by system and kind of frame."""
    by_key = work.startswith("key")
    arguments: dict[str, Any] = {"on": "sym"}
    if not by_key:
        arguments |= {"time": "ts", "match": "backward", "how": "left"}

    def ours(left: Any, right: Any) -> Any:
        return sj.join(left, right, **arguments)

    def in_pandas(left: Any, right: Any) -> Any:
        import pandas as pd

        return pd.merge(left, right, on="sym") if by_key else pd.merge_asof(left, right, on="ts", by="sym")

    def in_polars(left: Any, right: Any) -> Any:
        with warnings.catch_warnings():
            # It can't check the order within symbols, and says so.
            warnings.simplefilter("ignore")
            return left.join(right, on="sym") if by_key else left.join_asof(right, on="ts", by="sym")

    def in_duckdb(left: Any, right: Any) -> Any:
        import duckdb

        condition = "l.sym = r.sym" if by_key else "l.sym = r.sym AND l.ts >= r.ts"
        kind = "JOIN" if by_key else "ASOF LEFT JOIN"
        with duckdb.connect() as connection:
            connection.register("l", left)
            connection.register("r", right)
            found = connection.sql(f"SELECT l.*, r.* EXCLUDE (sym) FROM l {kind} r ON {condition}")
            return found.to_arrow_table() if isinstance(left, pa.Table) else found.df()

    return {(_OURS, frames): ours for frames in _FRAMES} | {
        ("pandas", "pandas"): in_pandas,
        ("polars", "polars"): in_polars,
        ("duckdb", "pandas"): in_duckdb,
        ("duckdb", "arrow"): in_duckdb,
    }


def _polars(table: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(table)


_FRAMES: Mapping[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "polars": _polars,
    "arrow": lambda table: table,
}

EXPERIMENT = Tables()
