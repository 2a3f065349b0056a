"""Columns with more than 2 GiB of text: the limits are made small here, because 2 GiB take too long."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model import large_columns
from streamjoin.model.errors import InputError, TooManyRowsError
from streamjoin.storage import segments
from streamjoin.windows.encoding import flat
from tests.spark.joining import CASES, blueprint, expected, in_process, pairs, stream, tables

OVERFLOW = "offset overflow while concatenating arrays"


def _overflow(column: object, places: object, missing: object = None) -> None:
    raise pa.ArrowInvalid(OVERFLOW)


def test_rows_are_taken_chunk_by_chunk_where_arrow_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    words = [rng.choice([None, "a" * rng.randrange(40)]) for _ in range(100)]
    table = pa.table({"s": pa.chunked_array([words[:30], [], words[30:31], words[31:]], pa.string()), "n": range(100)})
    places = np.array([rng.randrange(100) for _ in range(250)])
    plain = table.take(pa.array(places))
    missing = np.where(places % 3 == 0, -1, places)
    sparse = large_columns.take_or_null(table.column(0), missing)
    assert sparse.null_count > plain.column(0).null_count
    monkeypatch.setattr(large_columns, "_take", _overflow)
    for most in (1, 100, 1 << 30):
        monkeypatch.setattr(large_columns, "CHUNK_BYTES", most)
        assert large_columns.take_rows(table, places).equals(plain)
        assert large_columns.take_values(table.column(0), places).equals(plain.column(0))
        assert large_columns.take_or_null(table.column(0), missing).equals(sparse)
        assert large_columns.take_or_null(table.column(0), places).equals(plain.column(0))
    assert large_columns.take_rows(table, places[:0]).num_rows == 0


def test_a_piece_that_overflows_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"s": pa.chunked_array([["a", "b"], ["c"] * 6])})
    made = large_columns._from_chunks

    def small(chunks: list[pa.Array], owner: np.ndarray, places: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
        if len(owner) > 2:
            raise pa.ArrowInvalid(OVERFLOW)
        return made(chunks, owner, places)

    monkeypatch.setattr(large_columns, "_take", _overflow)
    monkeypatch.setattr(large_columns, "_from_chunks", small)
    taken = large_columns.take_rows(table, np.arange(8)[::-1])
    assert taken.column(0).to_pylist() == ["c"] * 6 + ["b", "a"]
    assert taken.column(0).num_chunks >= 4


def test_other_refusals_of_arrow_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pa.ArrowIndexError):
        large_columns.take_rows(pa.table({"s": ["a"]}), np.array([3]))
    assert not large_columns.is_overflow(pa.ArrowInvalid("something else"))


def test_a_window_of_much_text_joins_as_one_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks stay small, and every gather has to go through them one by one."""
    rng = np.random.default_rng(5)
    rows = [pa.table({"k": rng.integers(0, 9, 40), "s": [f"{i}.{n}" * 20 for n in range(40)]}) for i in range(12)]
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(100))

    def joined() -> list[dict[str, object]]:
        with sj.open(spec) as join:
            return [
                row
                for left, right in zip(rows[::2], rows[1::2], strict=True)
                for row in join.push(left, right).to_pylist()
            ]

    plain = joined()
    monkeypatch.setattr(large_columns, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(large_columns, "_take", _overflow)
    assert Counter(map(str, joined())) == Counter(map(str, plain))
    assert plain


def test_a_log_of_much_text_has_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[0]
    monkeypatch.setattr(segments, "CHUNK_BYTES", 300)
    left, right = stream(case, seed=2, n=80)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(case, left, right, 4)):
        found += pairs(in_process(blueprint(case, 2), tmp_path, i, sides))
    assert found == expected(case, left, right)


def test_what_does_not_fit_is_refused_by_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large:
        """A table of two record batches, as Arrow makes of one with more than 2 GiB of text."""

        def combine_chunks(self) -> Large:
            return self

        def to_batches(self) -> list[int]:
            return [1, 2]

    with pytest.raises(InputError, match="more than 2 GiB of text: use smaller batches or more partitions"):
        large_columns.one_batch(Large())
    with pytest.raises(TooManyRowsError, match="push_iter"):
        large_columns.refuse_large_result(pa.ArrowInvalid(OVERFLOW))
    monkeypatch.setattr(pa, "concat_arrays", lambda _: _overflow(None, None))
    with pytest.raises(InputError, match="push the rows in parts"):
        flat(pa.chunked_array([["a"], ["b"]]))


def test_rows_of_100_kb_and_a_thousand_columns() -> None:
    """Wide rows and long values pass through an embedded join, and through an ad-hoc engine that selects some."""
    rng = np.random.default_rng(3)

    def rows(seed: int) -> pa.Table:
        columns = {f"c{i}": rng.integers(0, 100, 20) for i in range(1_000)}
        return pa.table(
            {"k": np.arange(20) % 7, "t": np.arange(20) + 20 * seed, **columns, "s": [f"{seed}" * 100_000] * 20}
        )

    batches = [rows(i) for i in range(4)]
    with sj.open(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(30))) as join:
        results = [join.push(left, right) for left, right in (batches[:2], batches[2:])]
    assert results[1].num_columns >= 2_000
    assert {len(value) for value in results[1]["s_left"].to_pylist()} == {100_000}
    assert all(result["k_left" if "k_left" in result.column_names else "k"].to_pylist() for result in results)
    with sj.adhoc.Engine() as engine:
        for name in "lr":
            engine.register(name, schema=batches[0].schema, time="t")
        engine.create("SELECT x.c999 AS a, y.s AS b FROM l x JOIN r y WITHIN 50 UNITS ON x.k = y.k", name="wide")
        engine.push_all({"l": batches[0], "r": batches[1]})
        found = engine.newest("wide", 1_000).table
    assert found.num_rows == sum((batches[0]["k"].to_numpy() == k).sum() for k in batches[1]["k"].to_pylist())
    assert len(found["b"][0].as_py()) == 100_000


@pytest.mark.parametrize("type_", [pa.string(), pa.bool_(), pa.decimal128(12, 2)])
def test_few_values_of_many_are_taken_without_joining_the_chunks(
    type_: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [None if n % 7 == 0 else n % 3 == 0 if pa.types.is_boolean(type_) else str(n) for n in range(900)]
    column = pa.chunked_array(
        [pa.array(cells[cut]).cast(type_) for cut in (slice(0, 500), slice(500, 500), slice(500, None))]
    )
    monkeypatch.setattr(large_columns, "_MANY", 800)
    monkeypatch.setattr(large_columns, "_take", _overflow)
    monkeypatch.setattr(large_columns, "is_overflow", lambda _: False)
    for places in ([], [899], [3, 499, 500, 3, 7, 899, 0]):
        taken = flat(large_columns.take_values(column, np.array(places, np.int64)))
        assert taken.to_pylist() == [column[place].as_py() for place in places]
    with pytest.raises(pa.ArrowInvalid):
        large_columns.take_values(column, np.arange(900))
