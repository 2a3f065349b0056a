"""Query-sets from tables of values against the evaluation of each condition on its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.model.expression.canonical import canonical
from streamjoin.model.expression.evaluation import evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.selection_tables import DENSE, Bits, JointSelections, Selected, SelectionTables
from tests.seeds import examples

SCHEMA = pa.schema({"i": pa.int64(), "s": pa.int16(), "u": pa.uint64(), "f": pa.float64(), "t": pa.string()})
Row = tuple[object, ...]
NUMBERS = st.sampled_from([-3, 0, 1, 2, 5, 40, DENSE + 7, -(2**63), 2**63 - 1, 2**62])
CONDITIONS = st.one_of(
    st.tuples(st.sampled_from("isuf"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NUMBERS).map(
        lambda part: f"row.{part[0]} {part[1]} {part[2]}"
    ),
    st.sampled_from(["row.t LIKE 'a%'", "row.i IN (1, 2)", "row.i + row.s > 3", "row.t IS NULL", "row.i < 2.5"]),
)


def bucket(rows: list[Row], batch: int) -> Bucket:
    columns = list(zip(*rows, strict=True)) or [() for _ in SCHEMA]
    table = pa.table([pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    places = np.arange(len(rows))
    return Bucket("s", batch, table, places, places, 0, {})


def some(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), values)


ROWS = st.tuples(
    some(NUMBERS),
    some(st.sampled_from([-3, 0, 2, 5, 32767])),
    some(st.sampled_from([0, 2, 5, 2**63, 2**64 - 1])),
    some(st.sampled_from([0.0, 2.5, 40.0, float("nan"), float("inf")])),
    some(st.sampled_from(["a", "ab", "b", ""])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, max_size=12), st.lists(st.lists(CONDITIONS, max_size=3), max_size=6), st.integers(0, 70))
def test_a_bit_is_set_iff_the_selection_holds(
    rows: list[tuple[int | None, ...]], texts: list[list[str]], skip: int
) -> None:
    selections = [tuple(canonical(parse_condition(text, ("row",))) for text in selection) for selection in texts]
    # Some bits in front are nobody's, so that words beyond the first are used; every third query came later.
    bits: Bits = (None,) * skip + tuple(Selected(n, "x", n % 3, chosen) for n, chosen in enumerate(selections))
    tables = SelectionTables(bits, SCHEMA)
    held = bucket(rows, batch=1)
    found = np.empty((held.n, tables.width), np.uint64)
    tables.fill(held, found)
    for place, selected in enumerate(bits):
        has = (found[:, place // 64] >> np.uint64(place % 64)) & np.uint64(1)
        if selected is None or selected.created > 1:
            assert not has.any()
        else:
            assert has.astype(bool).tolist() == passing(held, selected.conditions).tolist()


def passing(held: Bucket, conditions: tuple[Expression, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found = np.ones(held.n, np.bool_)
    for condition in conditions:
        columns = {column: from_arrow(held.column(column.name)) for column in condition.columns}
        found &= truth(evaluate(condition, columns), (held.n,))
    return found


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(ROWS, max_size=12),
    st.lists(st.lists(st.lists(CONDITIONS, max_size=3), max_size=5), min_size=1, max_size=4),
    st.integers(0, 70),
)
def test_sets_that_are_made_together_are_what_each_is_alone(
    rows: list[Row], groups: list[list[list[str]]], skip: int
) -> None:
    parts = []
    for number, texts in enumerate(groups):
        selections = [tuple(canonical(parse_condition(text, ("row",))) for text in selection) for selection in texts]
        own = tuple(Selected(n, "x", n % 3, chosen) for n, chosen in enumerate(selections))
        parts.append(SelectionTables((None,) * (skip if number % 2 else 0) + own, SCHEMA))
    held = bucket(rows, batch=1)
    alone, together = ([np.empty((held.n, part.width), np.uint64) for part in parts] for _ in range(2))
    for part, out in zip(parts, alone, strict=True):
        part.fill(held, out)
    JointSelections(parts).fill(held, together)
    for one, other in zip(alone, together, strict=True):
        assert one.tolist() == other.tolist()
