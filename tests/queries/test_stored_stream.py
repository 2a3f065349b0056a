"""What is kept by number against plain lists, and runs that are merged against one sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.keys import fit
from streamjoin.model.predicates import Equi
from streamjoin.queries.core.buckets import Bucket, KeyAttribute
from streamjoin.queries.core.stored_stream import SMALL, StoredStream, TupleArray, TupleColumn

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
STREAM = Stream("s", SCHEMA, "t")
KEY = KeyAttribute(fit(Equi("k", "k"), pa.int64(), pa.int64()), "right")
STEPS = st.lists(st.tuples(st.sampled_from(["append", "cut", "drop"]), st.integers(0, 40)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 5))
def test_a_growing_array_is_a_list_with_two_ends(steps: list[tuple[str, int]], start: int) -> None:
    grown, held, first = TupleArray(start, np.int64), list[int](), start
    for number, (what, size) in enumerate(steps):
        end = first + len(held)
        if what == "append":
            values = [100 * number + n for n in range(size)]
            grown.append(end, np.array(values, np.int64))
            held += values
        elif what == "cut":
            kept = max(0, len(held) - size)
            grown.cut(first + kept)
            held = held[:kept]
        else:
            gone = min(size, len(held))
            grown.drop(first + gone)
            held, first = held[gone:], first + gone
        assert grown.view().tolist() == held and (grown.first, grown.end) == (first, first + len(held))
    if held:
        assert grown.at(np.array([first, first + len(held) - 1])).tolist() == [held[0], held[-1]]


def test_rows_of_words_grow_wider() -> None:
    grown = TupleArray(3, np.uint64, 1)
    grown.append(3, np.array([[1], [2]], np.uint64))
    grown.widen(2)
    grown.append(5, np.array([[3, 4]], np.uint64))
    assert grown.view().tolist() == [[1, 0], [2, 0], [3, 4]]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int32(), [1, 2, 3]),
        (pa.float64(), [0.5, None]),
        (pa.timestamp("us"), [1, 2]),
        (pa.string(), ["a", None, "bcd"]),
        (pa.bool_(), [True, False]),
        (pa.dictionary(pa.int32(), pa.string()), ["x", "y"]),
        (pa.list_(pa.int64()), [[1], None, [2, 3]]),
    ],
)
def test_columns_of_any_type_are_taken_by_number(type_: pa.DataType, values: list[Any]) -> None:
    def append(column: TupleColumn, first: int, part: pa.Array) -> TupleColumn:
        if column.append(first, part):
            return column
        whole = TupleColumn.in_chunks(0, type_)
        assert whole.append(0, pa.array((values * 9)[: first + len(part)], type_))
        return whole

    column = TupleColumn(0, type_)
    for first in range(9):
        column = append(column, first * len(values), pa.array(values, type_))
    numbers = np.array([5, 0, 5, 9 * len(values) - 1])
    wanted = pa.array([(values * 9)[n] for n in numbers], type_)
    assert column.take(numbers).to_pylist() == wanted.to_pylist()
    column.drop(len(values))
    column.cut(8 * len(values))
    assert column.append(8 * len(values), pa.array(values[:1], type_))
    assert column.take(numbers[:1]).to_pylist() == wanted[:1].to_pylist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(0, 2**20), st.integers(0, 30))
def test_small_runs_are_merged_and_lose_nothing(sizes: list[int], seed: int, gone: int) -> None:
    random = np.random.default_rng(seed)
    stream, keys, first = StoredStream(STREAM), np.empty(0, np.int64), 0
    for number, size in enumerate(sizes):
        words = random.integers(0, 9, size)
        times = np.sort(random.integers(0, 20, size)) + 10 * number
        table = pa.table({"k": words, "t": times}, SCHEMA)
        run = stream.append(Bucket("s", number, table, times, np.arange(first, first + size), first, {}))
        if number % 3:
            run.index(KEY)
        stream.merge()
        keys, first = np.concatenate([keys, words]), first + size
    assert len(stream.runs) <= 2 + np.log2(len(keys))
    stream.drop(gone)
    assert stream.first <= max(0, min(gone, len(keys)))
    assert [run.first for run in stream.runs[1:]] == [run.end for run in stream.runs[:-1]]
    for run in stream.runs:
        index = run.index(KEY)
        assert index.words.tolist() == sorted(keys[run.first : run.end])
        assert keys[run.first + index.rows].tolist() == index.words.tolist()
        same = np.diff(index.words) == 0
        assert (np.diff(index.rows)[same] > 0).all(), "tuples of one word stay in the order of arrival"
        assert run.ascending == bool((np.diff(run.ticks) >= 0).all()) or len(run.buckets) > 1
    assert stream.take("k", np.arange(stream.first, len(keys))).to_numpy().tolist() == keys[stream.first :].tolist()


def test_large_runs_are_left_alone() -> None:
    stream = StoredStream(STREAM)
    for number in range(4):
        times = np.full(SMALL, number)
        table = pa.table({"k": times, "t": times}, SCHEMA)
        stream.append(Bucket("s", number, table, times, times, number * SMALL, {}))
        stream.merge()
    assert len(stream.runs) == 4
