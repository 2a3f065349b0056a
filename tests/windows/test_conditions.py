"""Conditions as programs for kernels: the same pairs as evaluation column by column, and as SQL's rules row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.kernels import conditions as kernels
from streamjoin.model.binding import BoundSpec, bind
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.model.expression.evaluation import from_arrow, grid_holds
from streamjoin.windows.conditions import Condition
from tests.model import expression_trees as trees

NUMBERS = pa.schema(
    {
        "k": pa.int64(),
        "i": pa.int64(),
        "h": pa.int8(),
        "f": pa.float64(),
        "e": pa.float32(),
        "b": pa.bool_(),
        "t": pa.timestamp("us"),
        "n": pa.timestamp("ns"),
        "v": pa.duration("ms"),
        "z": pa.date32(),
        "s": pa.string(),
        "u": pa.uint64(),
        "d": pa.decimal128(9, 3),
    }
)


def bound_to(condition: str, schema: pa.Schema = NUMBERS) -> BoundSpec:
    return bind(sj.JoinSpec(on=sj.Theta(condition), window=sj.CountWindow(10)), schema, schema)


def scanned(condition: Condition, tables: tuple[pa.Table, pa.Table], side: int, room: int) -> tuple[set[Any], int]:
    """All pairs by the kernel, in result order, and how many blocks were undecided."""
    rows = []
    for number, table in enumerate(tables):
        values = {column: from_arrow(table[column.name]) for column in condition.columns(number)}
        rows.append(condition.rows(number, values, table.num_rows))
    own, stored = rows[side], rows[1 - side]
    n, m = len(own), len(stored)
    state = np.array([0, n, 0, 0])
    pairs: list[tuple[int, int]] = []
    none = np.empty(0, np.bool_)
    while state[0] < n:
        probes, seqs, before = np.empty(room, np.int64), np.empty(room, np.int64), state[0]
        found = kernels.scan_condition(
            condition.programs[side], own, stored, np.arange(m), none, np.arange(n), np.zeros(n, np.int64),
            np.full(n, m), state, probes, seqs,
        )  # fmt: skip
        pairs += zip(probes[:found].tolist(), seqs[:found].tolist(), strict=True)
        room = room * 2 if state[0] == before else room
    assert pairs == sorted(pairs)
    assert state[2] == n * m
    return {pair if side == 0 else pair[::-1] for pair in pairs}, int(state[3])


def wanted(bound: BoundSpec, tables: tuple[pa.Table, pa.Table]) -> set[tuple[int, int]]:
    assert bound.residual is not None

    def read(column: Any) -> Any:
        return from_arrow(tables[column.qualifier == "r"][column.name])

    holds = grid_holds(bound.residual, read, "l", (tables[0].num_rows, tables[1].num_rows))
    return set(zip(*(places.tolist() for places in np.nonzero(holds)), strict=True))


@given(st.data())
def test_random_conditions_hold_for_the_same_pairs(data: st.DataObject) -> None:
    tree = data.draw(trees.trees())
    schema = pa.schema(list(trees.SCHEMA))
    try:
        bound = bind(sj.JoinSpec(on=sj.Theta(str(tree)), window=sj.CountWindow(10)), schema, schema)
    except (SpecError, SchemaError):
        return
    condition = Condition.of(bound)
    if condition is None:
        return
    names = schema.names
    tables = data.draw(trees.tables(3, names)), data.draw(trees.tables(4, names))
    expected = wanted(bound, tables)
    for side in (0, 1):
        found, undecided = scanned(condition, tables, side, 16)
        assert found == expected if not undecided else found >= expected


COMPILED = (
    "abs(l.i - r.i) + l.f * 2 < r.e and not (l.h > 3 or r.b)",
    "l.f <> r.f or l.h is null",
    "not (l.i between r.h and r.i + 1)",
    "l.h in (1, 2, NULL) and r.h not in (3, 4)",
    "l.h not in (1, NULL) or r.f is not null",
    "l.t - r.t between interval '-1' second and l.v",
    "l.n < r.t + r.v and l.z <= r.t",
    "l.f / r.f > 1 and r.h / 2 < 3",
    "-l.i < r.h * 1.5 and (l.b = r.b) is true",
    "(l.i < r.i) is false and true",
    "l.h > 0",
)


@pytest.mark.parametrize("text", COMPILED)
def test_numbers_times_and_booleans_have_a_program(text: str) -> None:
    bound = bound_to(text)
    condition = Condition.of(bound)
    assert condition is not None
    rng = np.random.default_rng(len(text))
    tables = random_rows(rng, 70), random_rows(rng, 600)
    expected = wanted(bound, tables)
    for side in (0, 1):
        found, undecided = scanned(condition, tables, side, 1 << 12)
        assert (found, undecided) == (expected, 0)


def random_rows(rng: np.random.Generator, n: int) -> pa.Table:
    """Small numbers, a tenth of them NULL, times within two seconds."""
    steps = {"t": 250_000, "n": 10**8, "v": 300}
    columns = []
    for field in NUMBERS:
        values: Any = rng.integers(-3, 7, n) * steps.get(field.name, 1)
        if field.name in "fe":
            values = np.where(rng.random(n) < 0.1, np.nan, values / 2)
        cells = [value if rng.random() < 0.9 else None for value in values.tolist()]
        if field.name in "sbud":
            cells = [None if cell is None else {"s": "a", "b": cell > 0, "u": 1, "d": 1}[field.name] for cell in cells]
        columns.append(pa.array(cells, field.type if field.name not in "z" else pa.int32()).cast(field.type))
    return pa.table(columns, schema=NUMBERS)


@pytest.mark.parametrize(
    "text",
    [
        "l.s = r.s", "l.u < r.u", "l.d < r.d", "l.i % 2 = r.i", "l.s like 'a%'", "(l.i + r.i) is null",
        "l.i is distinct from r.i", "(l.i < r.i) is true or not ((l.i < r.h) is true)",
        "case when l.b then 1 else 2 end < r.i", "sqrt(l.f) < r.f", "l.i < 99999999999999999999", "l.i < r.i + NULL",
    ],
)  # fmt: skip
def test_what_has_no_program(text: str) -> None:
    assert Condition.of(bound_to(text)) is None


@pytest.mark.parametrize(
    "text", ["l.i + r.i > 0", "l.i * r.i > 0", "abs(l.i) + r.h > 0", "l.i - r.i > 0", "l.n < r.v + r.n"]
)
def test_a_result_beyond_int64_is_left_undecided(text: str) -> None:
    bound = bound_to(text)
    condition = Condition.of(bound)
    assert condition is not None
    cells = {"i": [2**63 - 1, -(2**63)], "h": [3, 3], "n": [2**62, 2**62], "v": [2**60, 2**60]}
    columns = [
        pa.array(cells[f.name]).cast(f.type, safe=False) if f.name in cells else pa.nulls(2, f.type) for f in NUMBERS
    ]
    table = pa.table(columns, schema=NUMBERS)
    found, undecided = scanned(condition, (table, table), 0, 16)
    assert undecided
    assert found >= wanted(bound, (table, table))


def test_a_condition_with_too_many_registers_has_no_program() -> None:
    text = " + ".join(f"l.i * {n}" for n in range(2, kernels.MOST_REGISTERS))
    assert Condition.of(bound_to(f"{text} < r.i")) is None


def test_nothing_to_test() -> None:
    spec = sj.JoinSpec(on=sj.Equi("k", "k"), window=sj.CountWindow(10))
    assert Condition.of(bind(spec, NUMBERS, NUMBERS)) is None
