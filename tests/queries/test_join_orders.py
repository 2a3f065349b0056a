"""A plan has all an engine needs: a naive one walks it in any order of aliases and finds the oracle's rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Column, Expression, conjunction
from streamjoin.model.window import CountWindow
from streamjoin.queries.language.plan import ROW, Query
from streamjoin.queries.language.sql import parse
from tests.oracles import adhoc_cases
from tests.oracles.adhoc_oracle import Arrival, rows
from tests.oracles.row_evaluator import rows_of

Picked = dict[str, Any]


def walk(query: Query, arrivals: list[Arrival], tables: dict[str, pa.Table], order: list[str]) -> pa.Table:
    """The result over tuples in gate order; `tables` holds each stream's, and `_gate`, their places."""
    source = {alias: tables[query.source(alias).stream.name] for alias in query.aliases}
    picked: Picked = {}
    for alias in order:
        values = {Column(ROW, name): from_arrow(source[alias][name]) for name in query.schemas[alias].names}
        condition = conjunction(tuple(predicate.condition for predicate in query.selection(alias)))
        passed = truth(evaluate(condition, values), (len(source[alias]),)).nonzero()[0]
        if picked:
            old, new = (grid.ravel() for grid in np.indices((len(next(iter(picked.values()))), len(passed))))
            picked = {earlier: places[old] for earlier, places in picked.items()} | {alias: passed[new]}
        else:
            picked = {alias: passed}
        keep = windows_hold(query, arrivals, source, picked, alias)
        everything = (*(c for step in query.steps for c in step.conditions), *query.residual)
        due = [c for c in everything if alias in used(c) <= picked.keys()]
        keep &= truth(evaluate(conjunction(tuple(due)), columns(source, picked)), keep.shape)
        picked = {earlier: places[keep] for earlier, places in picked.items()}
    values = columns(source, picked)
    count = len(picked[order[0]])
    return pa.table([to_arrow(evaluate(o.expression, values), o.type, count) for o in query.outputs], query.schema)


def windows_hold(
    query: Query, arrivals: list[Arrival], source: dict[str, pa.Table], picked: Picked, alias: str
) -> np.ndarray:
    keep = np.ones(len(picked[alias]), np.bool_)
    for pair in query.pairs:
        if alias not in (pair.left, pair.right) or not {pair.left, pair.right} <= picked.keys():
            continue
        gates = [source[a]["_gate"].to_numpy()[picked[a]] for a in (pair.left, pair.right)]
        for row, (first, second) in enumerate(zip(np.minimum(*gates), np.maximum(*gates), strict=True)):
            if isinstance(pair.window, CountWindow):
                after = sum(a.stream == arrivals[first].stream for a in arrivals[first + 1 : second + 1])
                keep[row] &= first != second and after < pair.window.n
            else:
                keep[row] &= first != second and abs(arrivals[second].ts - arrivals[first].ts) <= pair.window.length
    return keep


def used(condition: Expression) -> set[str]:
    return {column.qualifier for column in condition.columns}


def columns(source: dict[str, pa.Table], picked: Picked) -> dict[Column, Any]:
    return {
        Column(alias, name): from_arrow(source[alias][name].take(pa.array(places)))
        for alias, places in picked.items()
        for name in source[alias].column_names
    }


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(adhoc_cases.cases(most_queries=2, most_sources=3, most_batches=3, most_rows=4), st.randoms())
def test_any_order_of_joins_gives_the_rows_of_the_oracle(case: adhoc_cases.AdhocCase, random: Any) -> None:
    for query in case.queries:
        plan = parse(query.text, [Stream(name, schema, adhoc_cases.TIME) for name, schema in case.schemas.items()])
        arrivals = [a for a in case.arrivals if query.life.sees(a.batch)]
        tables = {}
        for name, schema in case.schemas.items():
            gates = [gate for gate, arrival in enumerate(arrivals) if arrival.stream == name]
            table = pa.Table.from_pylist([dict(arrivals[gate].row) for gate in gates], schema)
            tables[name] = table.append_column("_gate", pa.array(gates, pa.int64()))
        order = list(plan.aliases)
        random.shuffle(order)
        found = Counter(tuple(row.values()) for row in rows_of(walk(plan, arrivals, tables, order)))
        assert found == rows(arrivals, query.meaning), (query.text, order)
