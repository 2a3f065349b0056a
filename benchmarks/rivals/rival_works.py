"""The works of `rivals` in each system: the input, and a join of it by streamjoin, Polars, DuckDB or a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj
from benchmarks.rivals.rival_runs import Programs, RivalRun, Stream

if TYPE_CHECKING:
    from streamjoin._arrays import Array

OURS_ON_SPARK = "streamjoin on Spark"
WORKERS = 2
SPARK_ROWS = 50_000
"""Rows per side of a micro-batch on Spark: small ones measure Spark's start of a batch."""
_QUERIES, _KEYS, _PRICES = 20, 50_000, 1_000_000
_PAIRS = pa.schema({"lid": pa.int64(), "rid": pa.int64()})
# The time that one micro-batch covers: 5,000 events per side, of which a window holds 50,000.
_BATCH_MS, _EVENT_MS = 20_000, 4
# The time before the first event. Spark's watermark begins with 1970, and what is not later is late.
_BEGIN_MS = 1_000_000_000


@dataclass(frozen=True)
class Work:
    """One kind of work: its input, window and distance; `least` has the bound of each query, None for all rows."""

    name: str
    left: pa.Table
    right: pa.Table
    window: int
    band: int
    least: tuple[int | None, ...]

    @property
    def cell(self) -> int:
        """The width of a cell of prices."""
        return 4 * self.band

    def batches(self, span: int = 0) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Both streams, cut by time into parts of `span` milliseconds, else of a micro-batch."""
        if self.name == "once":
            yield self.left, self.right
            return
        span = span or _BATCH_MS
        ends = [np.asarray(table[name]) for table, name in ((self.left, "ts"), (self.right, "rts"))]
        last = int(max(end[-1] for end in ends))
        for begin in range(_BEGIN_MS, last + 1, span):
            cuts = [np.searchsorted(end, (begin, begin + span)) for end in ends]
            left, right = (
                table.slice(int(a), int(b - a)) for table, (a, b) in zip((self.left, self.right), cuts, strict=True)
            )
            yield left, right


def make_work(name: str, rows: int, seed: int) -> Work:
    """The input: no two events of a side have one time, and no time is on both sides, so that no as-of is a tie."""
    rng = np.random.default_rng(seed)
    moments = rows * _EVENT_MS // 2
    left, right = (np.sort(rng.choice(moments, rows, replace=False)) * 2 + _BEGIN_MS + offset for offset in (0, 1))
    keys, prices = (rng.integers(0, limit, (2, rows)) for limit in (_KEYS, _PRICES))
    # A system that sees no end of its streams can't decide the newest: a right event, and a left one without a match.
    right[-1], keys[0][-1] = moments * 2 - 1 + _BEGIN_MS, _KEYS
    # About two matches per event: a window of 50,000 to either side, 50,000 keys, and 0.002 % of all prices in reach.
    window = 10 * _BATCH_MS
    tables = [
        pa.table(dict(zip(names, (np.arange(rows), times, keys[side], prices[side]), strict=True)))
        for side, (names, times) in enumerate(
            ((("lid", "ts", "sym", "px"), left), (("rid", "rts", "rsym", "rpx"), right))
        )
    ]
    least = tuple(range(0, _PRICES, _PRICES // _QUERIES)) if name == "queries" else (None,)
    return Work(name, tables[0], tables[1], window, 10, least)


def run_streamjoin(work: Work) -> list[pa.Table]:
    """The embedded engine; twenty queries: the ad-hoc engine in this process."""
    if work.name == "queries":
        return _run_engine(work)
    spec = {
        "band": lambda: sj.JoinSpec(on=sj.Band("px", "rpx", work.band), window=sj.TimeWindow(work.window), **_EVENTS),
        "key": lambda: sj.JoinSpec(on=sj.Equi("sym", "rsym"), window=sj.TimeWindow(work.window), **_EVENTS),
        "once": lambda: sj.JoinSpec(on=sj.Equi("sym", "rsym"), window=sj.TimeWindow(work.window), **_EVENTS),
        "asof": lambda: sj.JoinSpec(
            on=sj.Equi("sym", "rsym"), match=sj.AsOf("backward", tolerance=work.window), **_EVENTS
        ),
    }[work.name]()
    with sj.open(spec, columns=["lid", "rid"]) as join:
        rows = [join.push(left=left, right=right) for left, right in work.batches()]
        rows.append(join.close())
    return [pa.concat_tables(rows)]


_EVENTS: Mapping[str, Any] = {"time": ("ts", "rts"), "order": "event_time"}


def _run_engine(work: Work) -> list[pa.Table]:
    engine = sj.adhoc.Engine()
    engine.register("l", schema=work.left.schema, time="ts")
    engine.register("r", schema=work.right.schema, time="rts")
    rows: list[list[pa.Table]] = [[] for _ in work.least]
    with engine:
        for number, least in enumerate(work.least):
            engine.create(
                f"SELECT l.lid, r.rid FROM l JOIN r WITHIN {work.window} UNITS ON l.sym = r.rsym WHERE l.px >= {least}",
                name=f"q{number}",
                sink=sj.adhoc.CallbackSink(_appending(rows[number])),
            )
        for left, right in work.batches():
            engine.push_all({"l": left, "r": right})
    empty = pa.table({"lid": pa.array([], pa.int64()), "rid": pa.array([], pa.int64())})
    return [pa.concat_tables([empty, *(table.select(["lid", "rid"]) for table in part)]) for part in rows]


def _appending(tables: list[pa.Table]) -> Callable[[int, pa.Table], object]:
    return lambda _, table: tables.append(table)


def _micro_batches(work: Work, join: Callable[[pa.Table, pa.Table], list[pa.Table]]) -> list[pa.Table]:
    """New events with those that the window holds: new left with all right, old left with new right."""
    rows: list[list[pa.Table]] = [[] for _ in work.least]
    held = [work.left.slice(0, 0), work.right.slice(0, 0)]
    for left, right in work.batches():
        begin = min((pc.min(t[n]).as_py() for t, n in ((left, "ts"), (right, "rts")) if t.num_rows), default=0)
        held = [
            table.filter(pc.greater_equal(table[name], begin - work.window))
            for table, name in zip(held, ("ts", "rts"), strict=True)
        ]
        all_right = pa.concat_tables([held[1], right])
        parts = [join(left, all_right)]
        if work.name != "asof":
            parts.append(join(held[0], right))
        for tables in parts:
            for number, table in enumerate(tables):
                rows[number].append(table)
        held = [pa.concat_tables([held[0], left]), all_right]
    return [pa.concat_tables(tables).combine_chunks() for tables in rows]


def run_polars(work: Work, cells: bool = False) -> list[pa.Table]:
    """`join_where`, `join` and `join_asof` for each micro-batch."""
    import polars as pl

    near = (pl.col("ts") - pl.col("rts")).abs() <= work.window
    close = (pl.col("px") - pl.col("rpx")).abs() <= work.band

    def join(left: pa.Table, right: pa.Table) -> list[pa.Table]:
        lf, rf = (pl.DataFrame(table).lazy() for table in (left, right))
        tables = []
        for least in work.least:
            chosen = lf if least is None else lf.filter(pl.col("px") >= least)
            if work.name == "band" and cells:
                first, last = ((pl.col("px") + reach) // work.cell for reach in (-work.band, work.band))
                both = chosen.with_columns(cell=first), chosen.filter(first != last).with_columns(cell=last)
                celled = rf.with_columns(cell=pl.col("rpx") // work.cell)
                joined = pl.concat(both).join(celled, on="cell").filter(close & near)
            elif work.name == "band":
                joined = chosen.join_where(
                    rf,
                    pl.col("px") >= pl.col("rpx") - work.band,
                    pl.col("px") <= pl.col("rpx") + work.band,
                    pl.col("ts") >= pl.col("rts") - work.window,
                    pl.col("ts") <= pl.col("rts") + work.window,
                )
            elif work.name == "asof":
                joined = chosen.sort("ts").join_asof(
                    rf.sort("rts"),
                    left_on="ts",
                    right_on="rts",
                    by_left="sym",
                    by_right="rsym",
                    tolerance=work.window,
                    check_sortedness=False,
                )
                joined = joined.filter(pl.col("rid").is_not_null())
            else:
                joined = chosen.join(rf, left_on="sym", right_on="rsym").filter(near)
            tables.append(joined.select("lid", "rid").collect().to_arrow())
        return tables

    return _micro_batches(work, join)


def run_duckdb(work: Work, cells: bool = False) -> list[pa.Table]:
    """SQL for each micro-batch."""
    import duckdb

    with duckdb.connect() as db:
        db.execute(f"SET threads = {WORKERS}")
        near = f"l.ts BETWEEN r.rts - {work.window} AND r.rts + {work.window}"
        close = f"l.px BETWEEN r.rpx - {work.band} AND r.rpx + {work.band}"
        left, condition = "l", f"JOIN r ON l.sym = r.rsym AND {near}"
        if work.name == "asof":
            condition = "ASOF JOIN r ON l.sym = r.rsym AND l.ts >= r.rts"
        elif work.name == "band":
            condition = f"JOIN r ON {close} AND {near}"
            if cells:
                first, last = _cell_numbers(work, "//")
                left = _in_cells("l", first, last)
                condition = f"JOIN r ON l.cell = r.rpx // {work.cell} AND {close} AND {near}"

        def join(left_table: pa.Table, right_table: pa.Table) -> list[pa.Table]:
            db.register("l", left_table)
            db.register("r", right_table)
            tables = []
            for least in work.least:
                where = "TRUE" if least is None else f"l.px >= {least}"
                where += f" AND l.ts - r.rts <= {work.window}" if work.name == "asof" else ""
                tables.append(db.sql(f"SELECT l.lid, r.rid FROM {left} l {condition} WHERE {where}").to_arrow_table())
            return tables

        return _micro_batches(work, join)


def _cell_numbers(work: Work, division: str) -> tuple[str, str]:
    """The cells of the lowest and the highest price in reach; no price is below zero."""
    first, last = (f"greatest(px + {reach}, 0) {division} {work.cell}" for reach in (-work.band, work.band))
    return first, last


def _in_cells(left: str, first: str, last: str) -> str:
    """Left rows in each cell in reach. A band reaches over two at most, and a right row is in one: no pair twice."""
    return (
        f"(SELECT *, {first} AS cell FROM {left} "
        f"UNION ALL SELECT *, {last} AS cell FROM {left} WHERE {first} <> {last})"
    )


def run_program(programs: Programs, system: str, work: Work) -> RivalRun:
    """A system in a process of its own."""
    batches = list(work.batches())
    if system in ("spark", OURS_ON_SPARK):
        batches = list(work.batches(SPARK_ROWS * _EVENT_MS))
    streams = [
        Stream("l", "ts", [left for left, _ in batches]),
        Stream("r", "rts", [right for _, right in batches], key="rsym" if work.name == "asof" else None),
    ]
    task: dict[str, Any] = {
        "work": work.name,
        "window": work.window,
        "band": work.band,
        "least": work.least,
        "workers": WORKERS,
    }
    if system == OURS_ON_SPARK:
        task["queries"] = [{"join": dict(task)}]
    elif system in ("flink", "spark"):
        columns = [("lid", "BIGINT"), ("rid", "BIGINT")]
        task["queries"] = [{"sql": statement(system, work, least), "columns": columns} for least in work.least]
    process = "spark" if system == OURS_ON_SPARK else system
    return programs.run(process, task, streams, [_PAIRS] * len(work.least))


def statement(system: str, work: Work, least: int | None) -> str:
    """The SQL of Flink and Spark: an interval join, and as of: Flink's temporal join with a versioned table."""
    left = "l" if least is None else f"(SELECT * FROM l WHERE px >= {least})"
    minutes, seconds = divmod(work.window // 1000, 60)
    span = f"INTERVAL '{minutes}:{seconds:02}' MINUTE TO SECOND"
    near = f"l.ts_at BETWEEN r.rts_at - {span} AND r.rts_at + {span}"
    if work.name == "asof":
        return (
            f"SELECT l.lid, r.rid FROM {left} l JOIN r FOR SYSTEM_TIME AS OF l.ts_at AS r ON l.sym = r.rsym "
            f"WHERE l.ts - r.rts <= {work.window}"
        )
    if work.name != "band":
        return f"SELECT l.lid, r.rid FROM {left} l JOIN r ON l.sym = r.rsym AND {near}"
    # Flink divides integers without a remainder, and Spark has an operator for it.
    division = "/" if system == "flink" else "DIV"
    first, last = _cell_numbers(work, division)
    celled = _in_cells(left, first, last)
    if system == "spark":
        # A union would read the stream twice.
        celled = f"(SELECT *, explode(sequence({first}, {last})) AS cell FROM {left})"
    right = f"(SELECT *, rpx {division} {work.cell} AS rcell FROM r)"
    return (
        f"SELECT l.lid, r.rid FROM {celled} l JOIN {right} r "
        f"ON l.cell = r.rcell AND {near} AND ABS(l.px - r.rpx) <= {work.band}"
    )


def sorted_pairs(tables: Sequence[pa.Table]) -> list[Array]:
    """Pairs as one sorted number each."""
    return [np.sort(np.asarray(table["lid"]) * (1 << 32) + np.asarray(table["rid"])) for table in tables]
