"""NEXMark's queries in our SQL, in Flink's and in Spark's, on the same events.

q4, q7, q8, q9 and q20 without their aggregations (`benchmarks.rivals.nexmark`), each alone and all five together, with
a time bound at every join: the results are the same rows, and are compared one by one. Spark runs one streaming query
per statement, Flink one job, streamjoin one engine that shares what the queries have in common. Whether a system takes
the benchmark's whole query, with its aggregations, is asked of each planner (`whole_query`).

q5, q7, q8, q9 and q20 are also run whole, Flink's in the published text (`benchmarks.rivals.nexmark_whole`). Flink's q9
changes its rows; the last ones count.

Flink and Spark run in processes of their own; start-up is not counted, as in `rivals`.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human
from benchmarks.rivals import nexmark
from benchmarks.rivals.nexmark_whole import WHOLE
from benchmarks.rivals.rival_runs import Programs, RivalRun, Stream

_OURS = "streamjoin"
_SYSTEMS = (_OURS, "flink", "spark")
QUERIES = ("q4", "q7", "q8", "q9", "q20")
_ALL = "all five"
_WHOLE: Mapping[str, str] = {f"whole {query}": query for query in WHOLE}
AIMS, AIM = ("whole q5", "whole q7", "whole q8"), 5.0
_EVENTS, _QUICK_EVENTS, _EVENTS_PER_S = 500_000, 5_000, 1_000
_FEWER_EVENTS: Mapping[str, int] = {_OURS: 200_000, "flink": 100_000, "spark": 50_000}
"""Events of q7 and of all five: q7 has about 80 rows per bid, so that all would take minutes."""
_BATCH, _SPARK_BATCH = 5_000, 25_000
"""Events per push, and per micro-batch on Spark."""
_WORKERS = 2
_MOMENT = pa.timestamp("ms")
SETTINGS: Mapping[str, str] = {
    _OURS: f"the ad-hoc engine in this process, pushes of {_BATCH:,} events",
    "flink": f"parallelism {_WORKERS}, heap state, no checkpoints, CSV in and out",
    "spark": f"local[{_WORKERS}], micro-batches of {_SPARK_BATCH:,} events, HDFS-backed state, Parquet in and out",
}


def _near(left: str, right: str, seconds: int) -> str:
    """The times of two rows are at most so far apart: what `WITHIN` says in our SQL."""
    span = f"INTERVAL '0:{seconds}' MINUTE TO SECOND"
    return f"{left}.date_time_at BETWEEN {right}.date_time_at - {span} AND {right}.date_time_at + {span}"


STATEMENTS: Mapping[str, str] = {
    "q4": f"""
        SELECT a.id AS auction, a.category, b.price FROM auction a JOIN bid b
        ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires AND {_near("b", "a", 20)}
    """,
    "q7": f"""
        SELECT b.auction, b.price, b.bidder, m.bidder AS rival, m.date_time AS until FROM bid b JOIN bid m
        ON b.price = m.price AND b.date_time BETWEEN m.date_time - 10000 AND m.date_time AND {_near("b", "m", 10)}
        AND b.date_time <> m.date_time
    """,
    "q8": f"""
        SELECT p.id, p.name, a.id AS auction FROM person p JOIN auction a ON p.id = a.seller AND {_near("p", "a", 10)}
    """,
    "q9": f"""
        SELECT a.id AS auction, a.item, a.reserve, a.seller, b.bidder, b.price, b.date_time AS bid_time
        FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time >= a.date_time AND b.date_time <= a.expires
        AND b.price >= 10 AND {_near("b", "a", 20)}
    """,
    "q20": f"""
        SELECT b.auction, b.bidder, b.price, b.channel, a.item, a.initial_bid, a.expires, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id AND a.category = 10 AND {_near("b", "a", 20)}
    """,
}
"""The joins in the SQL of Flink and Spark: `date_time` counts milliseconds, `date_time_at` is the event time.

In our SQL no event of q7 meets itself; here no two events have one time, so the last condition says the same.
"""

_Q4 = """
    SELECT q.category, AVG(q.final) AS average FROM (
        SELECT a.id, a.category, MAX(b.price) AS final FROM auction a JOIN bid b
        ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category
    ) q GROUP BY q.category
"""
_SPARK: Mapping[str, str] = {
    "q4": _Q4,
    "q7": """
        SELECT b.auction, b.price, b.bidder FROM bid b JOIN (
            SELECT MAX(price) AS peak, window.end AS until_at FROM bid GROUP BY window(date_time_at, '10 seconds')
        ) m ON b.price = m.peak AND b.date_time_at BETWEEN m.until_at - INTERVAL '10' SECOND AND m.until_at
    """,
    "q8": """
        SELECT p.who, p.since FROM (
            SELECT id AS who, window.start AS since FROM person GROUP BY id, window(date_time_at, '10 seconds')
        ) p JOIN (
            SELECT seller AS who, window.start AS since FROM auction GROUP BY seller, window(date_time_at, '10 seconds')
        ) a ON p.who = a.who AND p.since = a.since
    """,
    "q9": """
        SELECT id, bidder, price FROM (
            SELECT a.id, b.bidder, b.price, ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC) AS place
            FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
        ) t WHERE place = 1
    """,
    "q20": "SELECT b.auction, b.price, a.item FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
}


def whole_queries(system: str) -> Mapping[str, str]:
    """The benchmark's queries with their aggregations, as a system spells them."""
    if system == "spark":
        return _SPARK
    texts = {query: whole.ours if system == _OURS else whole.published for query, whole in WHOLE.items()}
    return {"q4": _Q4, **texts}


def _events(system: str, query: str) -> int:
    return _FEWER_EVENTS[system] if query in ("q7", _ALL) else _EVENTS


def batches(count: int, seed: int, size: int) -> Iterator[dict[str, pa.Table]]:
    """The events of all three streams, `size` of them at a time."""
    for first in range(0, count, size):
        yield nexmark.events(min(size, count - first), seed, first=first, rate=_EVENTS_PER_S)


def run_streamjoin(queries: Sequence[str], count: int, seed: int) -> RivalRun:
    """The ad-hoc engine in this process."""
    pushes = list(batches(count, seed, _BATCH))
    engine = sj.adhoc.Engine()
    for name, schema in nexmark.SCHEMAS.items():
        engine.register(name, schema=schema, time=nexmark.TIME)
    rows: dict[str, list[pa.Table]] = {query: [] for query in queries}
    with engine:
        for query in queries:
            text = WHOLE[_WHOLE[query]].ours if query in _WHOLE else nexmark.QUERIES[query]
            engine.create(text, name=query, sink=sj.adhoc.CallbackSink(_appending(rows[query])))
        began = time.perf_counter()
        for push in pushes:
            engine.push_all(push)
        # The end of input: Flink closes its last windows then.
        engine.advance(dt.datetime(2025, 1, 1))
        seconds = time.perf_counter() - began
    tables = [pa.concat_tables(rows[query]) for query in queries]
    return RivalRun(seconds, 0.0, importlib.metadata.version(_OURS), tables)


def _appending(tables: list[pa.Table]) -> Callable[[int, pa.Table], object]:
    return lambda _, table: tables.append(table)


def run_program(programs: Programs, system: str, queries: Sequence[str], count: int, seed: int) -> RivalRun:
    """Flink or Spark."""
    parts = list(batches(count, seed, _SPARK_BATCH if system == "spark" else _BATCH))
    streams = [Stream(name, nexmark.TIME, [_plain(part[name]) for part in parts]) for name in nexmark.SCHEMAS]
    described, schemas = [], []
    for query in queries:
        schemas.append(result_schema(query))
        columns = [(field.name, _sql_type(field.type)) for field in schemas[-1]]
        sql = WHOLE[_WHOLE[query]].published if query in _WHOLE else STATEMENTS[query]
        described.append({"sql": sql, "columns": columns})
    run = programs.run(system, {"queries": described, "workers": _WORKERS}, streams, schemas)
    keys = [WHOLE[_WHOLE[query]].replaces if query in _WHOLE else None for query in queries]
    tables = [table if key is None else last_of_each(table, key) for table, key in zip(run.tables, keys, strict=True)]
    return replace(run, tables=tables)


def last_of_each(table: pa.Table, column: str) -> pa.Table:
    """Of the rows with one value of a column the last."""
    places = {value: place for place, value in enumerate(table[column].to_pylist())}
    return table.take(pa.array(places.values(), pa.int64()))


def result_schema(query: str) -> pa.Schema:
    """The columns of a query's rows, times as milliseconds: of a whole query as times, else as numbers."""
    (table,) = run_streamjoin([query], 200, 0).tables
    if query not in _WHOLE:
        return _plain(table).schema
    types = [_MOMENT if pa.types.is_timestamp(type_) else type_ for type_ in table.schema.types]
    return pa.schema(list(zip(table.schema.names, types, strict=True)))


def refusals(programs: Programs, system: str) -> dict[str, str | None]:
    """What a system says to each whole query; None where it takes it."""
    queries = whole_queries(system)
    if system != _OURS:
        tables = [
            Stream(name, nexmark.TIME, [_plain(schema.empty_table())]) for name, schema in nexmark.SCHEMAS.items()
        ]
        streams = [
            {
                "name": s.name,
                "time": s.time,
                "key": None,
                "columns": [(f.name, _sql_type(f.type)) for f in s.table.schema],
            }
            for s in tables
        ]
        answer = programs.ask(system, {"refusals": queries, "streams": streams, "workers": _WORKERS})
        said: dict[str, str | None] = answer["refusals"]
        return said
    engine, said = sj.adhoc.Engine(), {}
    for name, schema in nexmark.SCHEMAS.items():
        engine.register(name, schema=schema, time=nexmark.TIME)
    with engine:
        for query, text in queries.items():
            try:
                engine.create(text, name=query)
                said[query] = None
            except sj.StreamJoinError as error:
                said[query] = str(error).splitlines()[0]
    return said


def _sql_type(kind: pa.DataType) -> str:
    if kind == _MOMENT:
        return "TIMESTAMP(3)"
    return "STRING" if pa.types.is_string(kind) else "BIGINT"


def _plain(table: pa.Table) -> pa.Table:
    """Times as milliseconds since 1970."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            moments = pc.cast(table[field.name], _MOMENT).cast(pa.int64())
            table = table.set_column(number, field.name, moments)
    return table


def _sorted(table: pa.Table) -> pa.Table:
    plain = _plain(table).replace_schema_metadata(None)
    return plain.sort_by([(name, "ascending") for name in plain.column_names]).combine_chunks()


def aims(rows: Sequence[Row]) -> list[str]:
    """Of the whole queries with groups how many times Flink's rate ours is; less than said where Flink's is a bound."""
    lines = []
    for query in AIMS:
        own = {row["system"]: row for row in rows if row["query"] == query and not row["failed"]}
        if own.keys() >= {_OURS, "flink"}:
            times = own[_OURS]["events_per_s"] / own["flink"]["events_per_s"]
            judged = "missed" if times < AIM else "not tested" if own["flink"]["at_least"] else "met"
            bound = "at most " if own["flink"]["at_least"] else ""
            lines.append(f"{query}: {bound}{times:.1f} times Flink's rate; aim {AIM:g}: {judged}")
    return lines


class NexmarkRivals(Experiment):
    """Events per second of all three streams together; the rows are compared with those of streamjoin."""

    title = "NEXMark's queries in the SQL of streamjoin, Flink and Spark"
    measure = "events_per_s"
    unit = "events/s"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._programs = Programs()
        self._expected: dict[tuple[str, int, int], list[pa.Table]] = {}
        self._refusals: dict[str, dict[str, str | None]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each join and all five in each system, the whole queries in streamjoin and Flink; quick: in streamjoin."""
        return [
            {
                "query": query,
                "system": system,
                "events": _QUICK_EVENTS if quick else _events(system, query),
            }
            for system in ((_OURS,) if quick else _SYSTEMS)
            for query in (*QUERIES, _ALL, *(_WHOLE if system != "spark" else ()))
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """Our SQL."""
        return None if cell["system"] == _OURS else {**cell, "system": _OURS, "events": _events(_OURS, cell["query"])}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One query, or all, in one system."""
        query, system, count = cell["query"], cell["system"], cell["events"]
        queries = QUERIES if query == _ALL else (query,)
        key = (query, count, context.seed)
        if key not in self._expected:
            # The first time compiles or loads what streamjoin runs.
            self._expected[key] = [_sorted(table) for table in run_streamjoin(queries, count, context.seed).tables]
        answer = {
            "events_per_s": 0.0,
            "seconds": 0.0,
            "start_up_s": 0.0,
            "rows": 0,
            "same_rows": False,
            "version": "",
            "at_least": False,
            "failed": "",
            "whole_query": [],
            "settings": [SETTINGS[system]],
        }
        try:
            run = (
                run_streamjoin(queries, count, context.seed)
                if system == _OURS
                else run_program(self._programs, system, queries, count, context.seed)
            )
            if system not in self._refusals:
                self._refusals[system] = refusals(self._programs, system)
        except Exception as error:
            if system == _OURS:
                raise
            return {**answer, "failed": f"failed: {error}"}
        same = [_sorted(table).equals(rows) for table, rows in zip(run.tables, self._expected[key], strict=True)]
        return {
            **answer,
            "events_per_s": count / run.seconds,
            "seconds": run.seconds,
            "start_up_s": run.start_up,
            "rows": sum(table.num_rows for table in run.tables),
            "same_rows": all(same),
            "version": run.version,
            "at_least": run.at_least,
            "whole_query": [self._refusals[system][query]] if query in QUERIES else [],
        }

    def close(self) -> None:
        """End the program that still runs."""
        self._programs.close()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The rates of each query, other rows, failures, and which whole queries each system takes."""
        lines = []
        for query in dict.fromkeys(row["query"] for row in rows):
            chosen = [row for row in rows if row["query"] == query and not row["failed"]]
            parts = [f"{row['system']} {human(row[self.measure])}" for row in chosen]
            lines.append(f"{query}, events/s: {', '.join(parts)}")
        lines += aims(rows)
        lines += [f"{row['system']}, {row['query']}: {row['failed']}" for row in rows if row["failed"]]
        lines += [
            f"{row['system']}, {row['query']}: other rows than streamjoin's"
            for row in rows
            if not row["failed"] and not row["same_rows"]
        ]
        for system in dict.fromkeys(row["system"] for row in rows if not row["failed"]):
            rates = {row["query"]: row[self.measure] for row in rows if row["system"] == system}
            if set(QUERIES) < rates.keys() and all(rates.values()):
                apart = 1 / sum(1 / rates[query] for query in QUERIES)
                lines.append(f"{system}, all five: {rates[_ALL] / apart:.2f} times the rate of one after the other")
            said = {
                row["query"]: row["whole_query"][0] for row in rows if row["system"] == system and row["whole_query"]
            }
            taken = ", ".join(query for query, refusal in said.items() if refusal is None) or "none"
            lines.append(f"{system} takes the whole query of: {taken}")
            lines += [f"{system} refuses {query}: {refusal}" for query, refusal in said.items() if refusal is not None]
        return lines

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Groups of bars by query, on a logarithmic axis."""
        axis = figure.subplots()
        systems = list(dict.fromkeys(row["system"] for row in rows))
        queries = list(dict.fromkeys(row["query"] for row in rows))
        for number, system in enumerate(systems):
            rates = {row["query"]: row[self.measure] for row in rows if row["system"] == system and not row["failed"]}
            places = [queries.index(query) + (number - (len(systems) - 1) / 2) * 0.27 for query in rates]
            axis.bar(places, list(rates.values()), 0.25, label=system)
        axis.set_xticks(range(len(queries)), queries)
        axis.set(yscale="log", ylabel=self.unit)
        axis.legend()


EXPERIMENT = NexmarkRivals()
