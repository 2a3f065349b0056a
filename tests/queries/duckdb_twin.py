"""A query run by DuckDB over whole streams: each window becomes a condition on times or on counts of tuples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.model.window import CountWindow
from streamjoin.queries.language.plan import Query
from tests.oracles.row_evaluator import rows_of

_DRESSED = "_gate _own _batch _ts"


def duckdb_rows(
    query: Query,
    batches: Sequence[Mapping[str, pa.Table]],
    created: int = 0,
    dropped: int | None = None,
    *,
    wide: tuple[str, ...] = (),
) -> Counter[tuple[Any, ...]]:
    """The rows of `query`; columns in `wide` become 128-bit integers, because DuckDB's arithmetic checks overflow."""
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        times = {source.stream.name: source.stream.time for source in query.sources}
        for stream, table in _dressed(batches, times).items():
            db.register("arriving", table)
            changed = ", ".join(f"CAST({name} AS HUGEINT) AS {name}" for name in wide)
            db.execute(f'CREATE TABLE "{stream}" AS SELECT *{f" REPLACE ({changed})" if wide else ""} FROM arriving')
        text = _translated(query, created, dropped)
        found = db.sql(text).to_arrow_table()
    return Counter(tuple(row.values()) for row in rows_of(found.cast(query.schema)))


def _dressed(batches: Sequence[Mapping[str, pa.Table]], times: Mapping[str, str]) -> dict[str, pa.Table]:
    """Each stream's rows of all batches, with their place at the gate and what each stream had sent by then."""
    order = []
    for batch, tables in enumerate(batches):
        for stream in sorted(times):
            ticks = _ticks(tables[stream][times[stream]])
            order += [(batch, ts, stream, position) for position, ts in enumerate(ticks)]
    order.sort()
    seen = dict.fromkeys(times, 0)
    marks: dict[tuple[int, str, int], dict[str, int]] = {}
    for gate, (batch, ts, stream, position) in enumerate(order):
        seen[stream] += 1
        counts = {f"_seen_{name}": count for name, count in seen.items()}
        marks[batch, stream, position] = {"_gate": gate, "_batch": batch, "_ts": ts, "_own": seen[stream], **counts}
    dressed = {}
    for stream in times:
        rows = [marks[b, stream, p] for b, tables in enumerate(batches) for p in range(len(tables[stream]))]
        whole = pa.concat_tables([tables[stream] for tables in batches])
        for name in (*_DRESSED.split(), *(f"_seen_{other}" for other in times)):
            whole = whole.append_column(name, pa.array([row[name] for row in rows], pa.int64()))
        dressed[stream] = _without_nan(whole)
    return dressed


def _ticks(column: pa.ChunkedArray) -> list[int]:
    if pa.types.is_integer(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [value * 1_000 for value in column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()]


def _without_nan(table: pa.Table) -> pa.Table:
    """NaN is NULL here, and a number above all others in DuckDB."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table[field.name]
            table = table.set_column(place, field, pc.if_else(pc.is_nan(column), None, column))
    return table


def _translated(query: Query, created: int, dropped: int | None) -> str:
    text = re.sub(r"WITHIN\s+[\d.]+\s+\w+\s+ON", "ON", query.text.rstrip("; \n"))
    conditions = []
    for pair in query.pairs:
        left, right = (query.source(alias).stream.name for alias in (pair.left, pair.right))
        if left == right:
            conditions.append(f"{pair.left}._gate <> {pair.right}._gate")
        if isinstance(pair.window, CountWindow):
            conditions.append(
                f"CASE WHEN {pair.left}._gate < {pair.right}._gate "
                f'THEN {pair.right}."_seen_{left}" - {pair.left}._own '
                f'ELSE {pair.left}."_seen_{right}" - {pair.right}._own END < {pair.window.n}'
            )
        else:
            conditions.append(f"ABS({pair.left}._ts - {pair.right}._ts) <= {pair.window.length}")
    for alias in query.aliases:
        conditions.append(f"{alias}._batch >= {created}")
        if dropped is not None:
            conditions.append(f"{alias}._batch < {dropped}")
    head, _, where = text.partition("WHERE")
    return f"{head} WHERE {' AND '.join(conditions)}" + (f" AND ({where})" if where else "")


def duckdb_kind_rows(query: Query, tables: Mapping[str, pa.Table]) -> Counter[tuple[Any, ...]]:
    """The rows of a query with time windows and one join of any kind, over finite input that came in one batch.

    A window becomes a condition of its ON; an as-of join DuckDB's own, without those beyond the tolerance.
    """
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        for stream, table in tables.items():
            db.register("arriving", table)
            db.execute(f'CREATE TABLE "{stream}" AS SELECT * FROM arriving')
        text = query.text
        for step in query.steps:
            if isinstance(step.window, CountWindow):
                raise AssertionError("DuckDB has no windows of rows")
            time = query.source(step.right).stream.time
            related = [f"{alias}.{query.source(alias).stream.time}" for alias in step.related]
            within = " AND ".join(f"ABS({left} - {step.right}.{time}) <= {step.window.length}" for left in related)
            text = re.sub(r"WITHIN\s+\d+\s+UNITS\s+ON", f"ON {within} AND", text, count=1)
        nearest = re.search(r"MATCH_CONDITION \((.*?)\) ON (.*?) TOLERANCE (\d+) UNITS", text)
        if nearest is not None:
            comparison, on, tolerance = nearest.groups()
            text = text.replace(nearest.group(0), f"ON {on} AND {comparison}")
            left, right = re.split(r"\s*[<>]=?\s*", comparison)
            # DuckDB's as-of join has no tolerance: the nearest of all is the nearest within it, or there is none.
            head, _, rest = text.partition(" FROM ")
            last = query.steps[-1].right
            near = f"ABS({left} - {right}) <= {tolerance}"
            outputs = re.sub(rf"({last}\.\w+)", rf"CASE WHEN {near} THEN \1 END", head)
            text = f"{outputs} FROM {rest}" + (f" WHERE {near}" if query.steps[-1].kind == "inner" else "")
        # What is left has no tolerance, as in DuckDB.
        text = re.sub(r"MATCH_CONDITION \((.*?)\) ON", r"ON \1 AND", text)
        found = db.sql(text).to_arrow_table()
    return Counter(tuple(row.values()) for row in rows_of(found.cast(query.schema)))
