"""Window joins beside Polars, DuckDB and our own as-of join: a stream in batches, and finite sorted input in one call.

In the stream, left and right batches of 65,536 rows with 500 keys arrive in turn, and every left row is summarised over
the right rows of its key in a window behind it, as long as brings 10 or 1,000 of them. Polars and DuckDB do that in
their best form: cumulative counts and sums of the right rows that windows reach, and two as-of joins that look up both
ends of each window. That form has no extremes. Their join that is then grouped is beside it where it ends in seconds.
The same operator with plain float sums shows what exact ones cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Finding, Row, judge_aim
from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.joins.kinds import summary_state
from streamjoin.joins.kinds.summary_slides import SlideSteps, Sums

_KEYS, _BATCH = 500, 1 << 16
# Microseconds that a batch covers.
_SPAN = 1_000_000
_FEW, _MANY = 10, 1_000
_STREAM, _FINITE = "stream", "finite"
_OURS, _PLAIN, _AS_OF, _FOUR = "streamjoin", "with plain floats", "as-of join", "with min and max"
_POLARS, _DUCKDB = "polars, two as-of joins", "duckdb, two as-of joins"
_POLARS_PAIRS, _DUCKDB_PAIRS = "polars, join and group", "duckdb, join and group"
_TWO = {"n": "count(*)", "s": "sum(r.q)"}
_ALL = {**_TWO, "low": "min(r.q)", "high": "max(r.q)"}
_RIVALS, _CONSTANT, _OF_AS_OF, _EXACT = 3.0, 0.7, 0.5, 0.8

Batches = Sequence[tuple[pa.Table, pa.Table]]


def _rows(rng: np.random.Generator, n: int, begin: int, end: int, name: str) -> pa.Table:
    times = np.sort(rng.integers(begin, end, n))
    return pa.table({"k": rng.integers(0, _KEYS, n), "t": pa.array(times, pa.timestamp("us")), name: rng.random(n)})


class WindowJoinExperiment(Experiment):
    """Rows per second of both sides together."""

    title = "window joins: streamjoin, Polars and DuckDB"
    measure = "rows_per_s"
    unit = "rows/s"
    against: ClassVar = {"system": _AS_OF}
    across, lines, log = "matches", ("input", "system"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The stream and finite input, few and many matches."""
        size = 200_000 if quick else 2_000_000
        systems = (_AS_OF, _OURS, _FOUR, _PLAIN, _POLARS, _DUCKDB)
        few = (*systems, _POLARS_PAIRS, _DUCKDB_PAIRS)
        return [
            {"input": _STREAM, "rows": _BATCH, "matches": matches, "system": system}
            for matches, own in ((_FEW, few), (_MANY, systems))
            for system in own
        ] + [
            {"input": _FINITE, "rows": size, "matches": _FEW, "system": system}
            for system in (_AS_OF, _OURS, _FOUR, _POLARS, _DUCKDB)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One stream, or one finite join."""
        rng = np.random.default_rng(context.seed)
        system, rows = cell["system"], cell["rows"]
        if cell["input"] == _STREAM:
            length = _SPAN * cell["matches"] * _KEYS // rows
            # Until windows are full, and what is stored has the size that it keeps.
            warm = -(-length // _SPAN) + (2 if context.quick else 40)
            batches = [
                (_rows(rng, rows, i * _SPAN, (i + 1) * _SPAN, "v"), _rows(rng, rows, i * _SPAN, (i + 1) * _SPAN, "q"))
                for i in range(warm + (2 if context.quick else 6))
            ]
        else:
            length, warm = 10 * cell["matches"] * _KEYS, 0
            batches = [(_rows(rng, rows, 0, 10 * rows, "v"), _rows(rng, rows, 0, 10 * rows, "q"))]
        with _as_asked(system):
            took, spent, matched = _SYSTEMS[system](batches, warm, length, cell["input"] == _FINITE)
        n = 2 * rows * (len(batches) - warm)
        return {"rows_per_s": n / took, "rows_per_cpu_s": n / spent, "matched": matched}

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims, each a ratio within the run."""
        speeds, of_processor = (
            {(row["input"], row["matches"], row["system"]): row[measure] for row in rows}
            for measure in (self.measure, "rows_per_cpu_s")
        )

        def aim(text: str, one: tuple[str, int, str], other: tuple[str, int, str], least: float) -> Finding:
            ratio = speeds[one] / speeds[other]
            value = f"{ratio:.2f}; {of_processor[one] / of_processor[other]:.2f} by processor time"
            return judge_aim(text, value, f"rows/s over rows/s, at least {least}", met=ratio >= least)

        found = [
            aim(
                f"{name}: {_MANY:,} matches a row at {_CONSTANT:.0%} of the rate with {_FEW}",
                (_STREAM, _MANY, system), (_STREAM, _FEW, system), _CONSTANT,
            )
            for system, name in ((_OURS, "count and sum"), (_FOUR, "and min and max"))
        ]  # fmt: skip
        for input_, matches in ((_STREAM, _FEW), (_STREAM, _MANY), (_FINITE, _FEW)):
            where = f"{input_}, {matches:,} matches"
            four, ours = (input_, matches, _FOUR), (input_, matches, _OURS)
            text = f"{where}: count, sum, min and max at {_OF_AS_OF:.0%} of our as-of join's rate"
            found.append(aim(text, four, (input_, matches, _AS_OF), _OF_AS_OF))
            found += [
                aim(f"{where}: count and sum at {_RIVALS:g} times {rival}", ours, (input_, matches, rival), _RIVALS)
                for rival in (_POLARS, _DUCKDB)
            ]
            if input_ == _STREAM:
                text = f"{where}: exact sums at {_EXACT:.0%} of plain floats"
                found.append(aim(text, ours, (input_, matches, _PLAIN), _EXACT))
        for input_, matches in ((_STREAM, _FEW), (_STREAM, _MANY), (_FINITE, _FEW)):
            counts = {
                row["matched"]
                for row in rows
                if (row["input"], row["matches"]) == (input_, matches) and row["system"] != _AS_OF
            }
            text = f"{input_}, {matches:,} matches: all systems count as many matches"
            found.append(judge_aim(text, str(sorted(counts)), "the same number", met=len(counts) == 1))
        return found


class _Timer:
    """Seconds and seconds of processors since `begin`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start anew."""
        self._started = time.perf_counter(), time.process_time()

    def took(self) -> tuple[float, float]:
        """Both figures."""
        return time.perf_counter() - self._started[0], time.process_time() - self._started[1]


Figures = tuple[float, float, int]


def _spec(summaries: Mapping[str, str] | None, length: int) -> sj.JoinSpec:
    match: sj.AsOf | sj.Summary = sj.AsOf(tolerance=f"{length} us")
    if summaries is not None:
        match = sj.Summary(summaries, between=(f"-{length} us", "0 us"))
    return sj.JoinSpec(on=sj.Equi("k"), match=match, time="t", order="event_time", how="left")


def _ours(summaries: Mapping[str, str] | None, batches: Batches, warm: int, length: int, finite: bool) -> Figures:
    spec, timer = _spec(summaries, length), _Timer()
    if finite:
        left, right = batches[0]
        table = sj.join(left, right, "k", time="t", how="left", match=spec.match)
        return *timer.took(), _matched(table, summaries is None)
    tables: list[pa.Table] = []
    with sj.open(spec) as join:
        for number, (left, right) in enumerate(batches):
            if number == warm:
                timer.begin()
            tables.append(join.push(left, right))
            if number < warm:
                tables.clear()
        took = timer.took()
        table = pa.concat_tables([*tables, join.close()])
    return *took, _matched(table.filter(pc.field("t") >= batches[warm][0].column("t")[0]), summaries is None)


def _matched(table: pa.Table, as_of: bool) -> int:
    """How many matches there are of the left rows."""
    if as_of:
        return int(table.num_rows - table["q"].null_count)
    return int(table["n"].to_numpy().sum())


def _windows(batches: Batches, length: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The left rows of each batch, and the right ones that their windows reach."""
    reached: list[pa.Table] = []
    for left, right in batches:
        begin = left["t"].to_numpy()[:1].view(np.int64)[0] - length if left.num_rows else 0
        reached = [part for part in (*reached, right) if part["t"].to_numpy()[-1].view(np.int64) >= begin]
        yield left, pa.concat_tables(reached)


def _batch_by_batch(
    join: Callable[[pa.Table, pa.Table, int], Any], batches: Batches, warm: int, length: int
) -> Figures:
    matched, timer = 0, _Timer()
    for number, (left, right) in enumerate(_windows(batches, length)):
        if number == warm:
            timer.begin()
        if number >= warm:
            matched += int(join(left, right, length))
    return *timer.took(), matched


def _polars(left: pa.Table, right: pa.Table, length: int) -> int:
    import polars as pl

    one, other = pl.DataFrame(left).set_sorted("t"), pl.DataFrame(right).set_sorted("t")
    so_far = other.select(
        "k", "t", n=pl.int_range(1, pl.len() + 1).over("k"), s=pl.col("q").cum_sum().over("k")
    ).set_sorted("t")
    one = one.with_columns(begin=pl.col("t") - pl.duration(microseconds=length)).set_sorted("begin")
    how: dict[str, Any] = {"by": "k", "strategy": "backward", "check_sortedness": False}
    one = one.join_asof(so_far, on="t", **how)
    one = one.join_asof(so_far, left_on="begin", right_on="t", suffix="_before", allow_exact_matches=False, **how)
    rows = one.select(
        "k", "t", "v", n=pl.col("n").fill_null(0) - pl.col("n_before").fill_null(0),
        s=pl.col("s").fill_null(0) - pl.col("s_before").fill_null(0),
    )  # fmt: skip
    return int(rows["n"].sum())


def _polars_pairs(left: pa.Table, right: pa.Table, length: int) -> int:
    import polars as pl

    one = pl.DataFrame(left).with_row_index("row").lazy()
    one = one.with_columns(begin=pl.col("t") - pl.duration(microseconds=length))
    pairs = one.join_where(
        pl.DataFrame(right).lazy(), pl.col("k") == pl.col("k_right"), pl.col("t_right") <= pl.col("t"),
        pl.col("t_right") >= pl.col("begin"),
    )  # fmt: skip
    groups = pairs.group_by("row").agg(n=pl.len(), s=pl.col("q").sum())
    rows = one.join(groups, on="row", how="left").with_columns(pl.col("n").fill_null(0)).collect()
    return int(rows["n"].sum())


_SO_FAR = (
    "SELECT k, t, count(*) OVER so_far n, sum(q) OVER so_far s FROM r WINDOW so_far AS (PARTITION BY k ORDER BY t)"
)
_TWO_AS_OF_JOINS = f"""
    WITH so_far AS MATERIALIZED ({_SO_FAR}),
    one AS (SELECT l.k, l.t, l.v, l.t - to_microseconds($length) AS b, e.n, e.s
            FROM l ASOF LEFT JOIN so_far e ON l.k = e.k AND l.t >= e.t)
    SELECT one.k, one.t, one.v, coalesce(one.n, 0) - coalesce(e.n, 0) AS n, coalesce(one.s, 0) - coalesce(e.s, 0) AS s
    FROM one ASOF LEFT JOIN so_far e ON one.k = e.k AND one.b > e.t"""
_PAIRS = """
    WITH one AS (SELECT row_number() OVER () AS row, * FROM l)
    SELECT any_value(one.k) k, any_value(one.t) t, any_value(one.v) v, count(r.q) n, sum(r.q) s
    FROM one LEFT JOIN r ON one.k = r.k AND r.t <= one.t AND r.t >= one.t - to_microseconds($length) GROUP BY row"""


def _duckdb(text: str, left: pa.Table, right: pa.Table, length: int) -> int:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        rows = connection.sql(text.replace("$length", str(length))).to_arrow_table()
    return int(rows["n"].to_numpy().sum())


def _rival(join: Callable[[pa.Table, pa.Table, int], int]) -> Callable[[Batches, int, int, bool], Figures]:
    return lambda batches, warm, length, _: _batch_by_batch(join, batches, warm, length)


def _own(summaries: Mapping[str, str] | None) -> Callable[[Batches, int, int, bool], Figures]:
    return lambda *arguments: _ours(summaries, *arguments)


_SYSTEMS: dict[str, Callable[[Batches, int, int, bool], Figures]] = {
    _AS_OF: _own(None),
    _OURS: _own(_TWO),
    _PLAIN: _own(_TWO),
    _FOUR: _own(_ALL),
    _POLARS: _rival(_polars),
    _POLARS_PAIRS: _rival(_polars_pairs),
    _DUCKDB: _rival(lambda *arguments: _duckdb(_TWO_AS_OF_JOINS, *arguments)),
    _DUCKDB_PAIRS: _rival(lambda *arguments: _duckdb(_PAIRS, *arguments)),
}


# -- the same operator with plain floats ---------------------------------------------------------------------------


@kernel
def _slide_plain(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, values: Array, present: Array, table: Array,
    out: Array,
) -> None:  # fmt: skip
    hi, lo, j, one = np.uint64(entered), np.uint64(left), np.uint64(asked), np.uint64(1)
    for step in range(n):
        row, kind = np.uint64(rows[np.uint64(step)]), np.uint64(kinds[np.uint64(step)])
        enters, leaves = kind & one, kind >> one
        place = hi if enters != 0 else lo
        counted = np.float64(present[place]) * (np.float64(enters) - np.float64(leaves))
        count, total = table[row, 0] + counted, table[row, 1] + counted * values[place]
        table[row, 0], table[row, 1], out[j, 0], out[j, 1] = count, total, count, total
        hi, lo, j = hi + enters, lo + leaves, j + (one - enters - leaves)


class _PlainSums(Sums):
    """Sums of float64 that are rounded at every step, in the place of exact ones."""

    def start(self, n_rows: int) -> None:
        """Begin with an empty window."""
        self._plain = np.zeros((n_rows, 2))

    def grow(self, n_rows: int) -> None:
        """More rows of the table."""
        self._plain = np.concatenate([self._plain, np.zeros((n_rows - len(self._plain), 2))])

    def ask(self, n: int) -> None:
        """Have room for answers."""
        self._found = np.empty((n + 1, 2))

    def move(self, steps: SlideSteps, keys: Array) -> None:  # noqa: ARG002
        """Follow some steps."""
        _slide_plain(*steps.plain, self.numbers.values, self.numbers.present, self._plain, self._found)

    def floats(self) -> tuple[Array, Array]:
        """The count and the sum of each window."""
        return self._found[:-1, 0].astype(np.int64), self._found[:-1, 1].copy()


def _as_asked(system: str) -> AbstractContextManager[Any]:
    """The operator with plain floats where that is the system."""
    return mock.patch.object(summary_state, "Sums", _PlainSums) if system == _PLAIN else nullcontext()


EXPERIMENT = WindowJoinExperiment()
