"""Two comparisons by sorted blocks with bitmaps: the rows of the plain loop, whatever blocks, pushes and windows."""

from __future__ import annotations

import operator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.batch import nested_loop
from streamjoin.kernels.batch.bitmaps import BLOCK, BLOCK_WORDS, build_block, scan_block
from streamjoin.testing.oracle import Event, join
from tests.failing import failed_everywhere
from tests.seeds import FRESH, THOROUGH, examples

LEAST, MOST = -(1 << 63), (1 << 63) - 1
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
WHOLE = st.sampled_from([None, LEAST, -3, -1, 0, 1, 2, 3, 7, MOST - 1, MOST])
REAL = st.sampled_from([None, float("nan"), float("-inf"), -1.5, -0.0, 0.0, 0.5, 2.0, float("inf")])
ENDS = st.sampled_from([LEAST, LEAST + 1, -2, -1, 0, 1, 2, 3, MOST - 1, MOST])


@settings(deadline=None, max_examples=examples(400))
@given(data=st.data())
def test_rows_are_those_of_the_plain_definition(data: st.DataObject) -> None:
    types = data.draw(st.sampled_from([(pa.int64(), WHOLE), (pa.float64(), REAL), (pa.int8(), st.integers(-3, 3))]))
    other = data.draw(st.sampled_from([(pa.int64(), WHOLE), (pa.float32(), REAL)]))
    n = data.draw(st.integers(1, 60))
    rights = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    values = [(data.draw(types[1]), data.draw(other[1])) for _ in range(n)]
    first, second = data.draw(st.sampled_from([*COMPARE])), data.draw(st.sampled_from([*COMPARE]))
    windows = data.draw(st.tuples(*[st.integers(1, 40)] * 2))
    block, looks = data.draw(st.sampled_from([1, 3, 16, BLOCK])), data.draw(st.sampled_from([1, 4, 1000]))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    spec = sj.JoinSpec(
        on=f"l.x {first} r.a AND l.y {second} r.b", window=(sj.CountWindow(windows[0]), sj.CountWindow(windows[1]))
    )
    schemas = (
        pa.schema({"x": types[0], "y": other[0], "i": pa.int64()}),
        pa.schema({"a": types[0], "b": other[0], "j": pa.int64()}),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nested_loop, "BLOCK", block)
        patch.setattr(nested_loop, "LEAST_LOOKS", looks)
        found = []
        with sj.open(spec, algorithm="nested_loop", workers=data.draw(st.sampled_from([1, 2]))) as running:
            numbers = [0, 0]
            for begin, end in zip([0, *cuts], [*cuts, n], strict=True):
                rows: tuple[list[Any], list[Any]] = ([], [])
                for right, value in zip(rights[begin:end], values[begin:end], strict=True):
                    rows[right].append((*value, numbers[right]))
                    numbers[right] += 1
                sides = [
                    pa.Table.from_arrays(
                        [pa.array(c, f.type) for c, f in zip(zip(*side, strict=True), schema, strict=True)],
                        schema=schema,
                    )
                    if side
                    else schema.empty_table()
                    for side, schema in zip(rows, schemas, strict=True)
                ]
                found += (
                    running.push(*sides, interleave=np.array(rights[begin:end], np.bool_))
                    .select(["i", "j"])
                    .to_pylist()
                )

    def matches(left: Any, right: Any) -> bool:
        pairs = [(COMPARE[first], left["x"], right["a"]), (COMPARE[second], left["y"], right["b"])]
        return all(a is not None and b is not None and compare(a, b) for compare, a, b in pairs)

    names = ("x", "y"), ("a", "b")
    events = [
        Event(right, dict(zip(names[right], value, strict=True))) for right, value in zip(rights, values, strict=True)
    ]
    expected = join(events, matches, ("count", windows[0]), ("count", windows[1]))
    assert [(row["i"], row["j"]) for row in found] == expected


@settings(deadline=None, max_examples=examples(200))
@given(
    words=st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=300),
    probes=st.lists(
        st.tuples(ENDS, ENDS, ENDS, ENDS, st.integers(-5, 320), st.integers(-5, 320)), min_size=1, max_size=20
    ),
    room=st.sampled_from([1, 7, 300, 5000]),
)
def test_a_block_finds_what_lies_in_both_intervals(
    words: list[tuple[int, int]], probes: list[tuple[int, int, int, int, int, int]], room: int
) -> None:
    columns = [np.array(column, np.int64) for column in zip(*words, strict=True)]
    blocks = [np.empty(BLOCK_WORDS, np.int64) for _ in columns]
    for column, block in zip(columns, blocks, strict=True):
        build_block(column, np.argsort(column), block)
    seqs = np.arange(len(words)) + 10
    lo, hi, lo2, hi2 = (np.array(column, np.int64) for column in list(zip(*probes, strict=True))[:4])
    lo, hi, lo2, hi2 = np.minimum(lo, hi), np.maximum(lo, hi), np.minimum(lo2, hi2), np.maximum(lo2, hi2)
    begins, ends = (np.array(column) + 10 for column in list(zip(*probes, strict=True))[4:])
    state, found = np.array([0, len(probes), 0]), []
    while state[0] < len(probes):
        out = np.empty((2, room), np.int64)
        before = int(state[0])
        everyone, places = np.empty(0, np.bool_), np.arange(len(probes))
        n = scan_block(
            blocks[0], blocks[1], seqs, lo, hi, lo2, hi2, everyone, places, begins, ends, state, out[0], out[1]
        )
        found += list(zip(*(column[:n].tolist() for column in out), strict=True))
        if state[0] == before:
            room *= 2
    expected = [
        (p, int(seq))
        for p in range(len(probes))
        for place, seq in enumerate(seqs)
        if lo[p] <= columns[0][place] <= hi[p] and lo2[p] <= columns[1][place] <= hi2[p] and begins[p] <= seq < ends[p]
    ]
    assert found == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_many_tuples_find_what_duckdb_finds(workers: int) -> None:
    rng = np.random.default_rng(FRESH + workers)
    n = 3 * BLOCK + 1234
    left = pa.table({"x": rng.integers(0, 1000, n), "y": rng.normal(size=n), "i": np.arange(n)})
    right = pa.table({"a": rng.integers(0, 20, n), "b": rng.normal(size=n) + 3, "j": np.arange(n)})
    window = 2 * BLOCK + 77
    spec = sj.JoinSpec(on="l.x < r.a AND l.y > r.b", window=sj.CountWindow(window))
    with sj.open(spec, algorithm="nested_loop", workers=workers) as join:
        pieces, at = [], 0
        for size in (5000, 300, 12000, 1, 9000, n):
            pieces.append(join.push(left[at : at + size], right[at : at + size]))
            at += size
    found = pa.concat_tables(pieces).select(["i", "j"])
    # In each push all left tuples come first.
    sizes = np.diff(np.minimum(np.cumsum([0, 5000, 300, 12000, 1, 9000, n]), n))
    push = np.repeat(np.arange(sizes.size), sizes)
    starts = np.cumsum([0, *sizes])[:-1]
    left_after = (starts + sizes)[push]  # left tuples there were when a right one of this push came
    sides = (
        left.append_column("p", pa.array(push)),
        right.append_column("p", pa.array(push)).append_column("la", pa.array(left_after)),
    )
    sides = sides[0].append_column("ra", pa.array(starts[push])), sides[1]
    with duckdb.connect() as connection:
        connection.register("l", sides[0])
        connection.register("r", sides[1])
        expected = connection.sql(
            f"SELECT i, j FROM l, r WHERE l.x < r.a AND l.y > r.b AND ((r.p >= l.p AND i >= la - {window}) OR "
            f"(r.p < l.p AND j >= ra - {window})) ORDER BY i, j"
        ).to_arrow_table()
    assert found.num_rows > 10_000
    assert found.sort_by([("i", "ascending"), ("j", "ascending")]).equals(expected.cast(found.schema))


def test_a_push_that_fails_leaves_the_blocks_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_loop, "BLOCK", 8)
    monkeypatch.setattr(nested_loop, "LEAST_LOOKS", 3)
    rng = np.random.default_rng(5)
    spec = sj.JoinSpec(on="l.x < r.a AND l.y > r.b", window=sj.CountWindow(20))
    pushes = [
        (
            pa.table({"x": rng.integers(0, 9, k), "y": rng.integers(0, 9, k)}),
            pa.table({"a": rng.integers(0, 9, k), "b": rng.integers(0, 9, k)}),
        )
        for k in (9, 2, 12, 1, 30, 5)
    ]
    with sj.open(spec, algorithm="nested_loop") as plain, sj.open(spec, algorithm="nested_loop") as failing:
        for push in pushes:
            found, failures = failed_everywhere(lambda push=push: failing.push(*push), 3 if THOROUGH else 7)  # type: ignore[misc]
            assert failures > 10
            assert found.equals(plain.push(*push))
