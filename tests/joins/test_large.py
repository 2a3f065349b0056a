"""Larger inputs than the oracle can take: algorithms against each other, and against DuckDB."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.testing.conformance import algorithms
from tests.seeds import FRESH


def stream(rng: np.random.Generator, n: int, domain: int) -> pa.Table:
    nulls = rng.random(n) < 0.01
    return pa.table(
        {
            "id": np.arange(n),
            "k": pa.array(rng.integers(0, domain, n), mask=nulls),
            "y": pa.array(rng.normal(0, 50, n).astype(np.float32)),
            "s": pa.array([f"s{i}" for i in rng.integers(0, 40, n)]),
        }
    )


PREDICATES = {
    "band": sj.Band("k", "k", 3),
    "two bands": sj.Band("k", "k", 40) & sj.Band("y", "y", 2.0),
    "key": sj.Equi("k"),
    "string": sj.Equi("s") & sj.Band("y", "y", 1.5),
    "residual": sj.Band("k", "k", 10) & sj.Theta("l.y < r.y AND l.s <> r.s"),
}


def run(spec: sj.JoinSpec, tables: tuple[pa.Table, pa.Table], algorithm: str, workers: int, cuts: int) -> pa.Table:
    parts = []
    edges = np.linspace(0, tables[0].num_rows, cuts + 1).astype(int)
    with sj.open(spec, algorithm, workers) as join:
        for begin, end in itertools.pairwise(edges):
            parts.append(join.push(*(t.slice(begin, end - begin) for t in tables)))
    return pa.concat_tables(parts)


@pytest.mark.parametrize("on", PREDICATES.values(), ids=PREDICATES)
def test_algorithms_and_workers_agree_row_for_row(on: sj.Band) -> None:
    rng = np.random.default_rng(11)
    tables = stream(rng, 20_000, 4_000), stream(rng, 20_000, 4_000)
    spec = sj.JoinSpec(on=on, window=(sj.CountWindow(1_500), sj.CountWindow(700)))
    wanted = run(spec, tables, "nested_loop", 1, 8)
    assert wanted.num_rows > 100
    for algorithm, workers in (("nested_loop", 3), ("sweep", 1), ("sweep", 4)):
        got = run(spec, tables, algorithm, workers, 8)
        assert got.combine_chunks().equals(wanted.combine_chunks()), (algorithm, workers)


@pytest.mark.parametrize("algorithm", ["nested_loop", "sweep"])
def test_the_cut_into_batches_changes_nothing(algorithm: str) -> None:
    rng = np.random.default_rng(3)
    tables = stream(rng, 6_000, 800), stream(rng, 6_000, 800)
    spec = sj.JoinSpec(on=sj.Band("k", "k", 2), window=sj.CountWindow(500))
    interleave = rng.permutation(np.repeat([False, True], 6_000))

    def pushed(step: int) -> pa.Table:
        parts, at = [], [0, 0]
        with sj.open(spec, algorithm) as join:
            for begin in range(0, interleave.size, step):
                sides = interleave[begin : begin + step]
                n = [int((~sides).sum()), int(sides.sum())]
                pair = [tables[i].slice(at[i], n[i]) for i in (0, 1)]
                at = [at[0] + n[0], at[1] + n[1]]
                parts.append(join.push(pair[0], pair[1], interleave=sides))
        return pa.concat_tables(parts).combine_chunks()

    wanted = pushed(interleave.size)
    assert wanted.num_rows > 1_000
    for step in (7, 1_000, 5_000):
        assert pushed(step).equals(wanted), step


SQL = {
    "band": "abs(l.k - r.k) <= 3",
    "two bands": "abs(l.k - r.k) <= 40 AND abs(l.y - r.y) <= 2.0::FLOAT",
    "key": "l.k = r.k",
    "string": "l.s = r.s AND abs(l.y - r.y) <= 1.5::FLOAT",
    "residual": "abs(l.k - r.k) <= 10 AND l.y < r.y AND l.s <> r.s",
}


@pytest.mark.parametrize("name", PREDICATES)
def test_duckdb_finds_the_same_pairs_inside_one_window(name: str) -> None:
    rng = np.random.default_rng(5)
    l, r = stream(rng, 3_000, 1_000), stream(rng, 3_000, 1_000)
    spec = sj.JoinSpec(on=PREDICATES[name], window=sj.CountWindow(10_000))
    with duckdb.connect() as db:
        db.register("l", l)
        db.register("r", r)
        wanted = db.sql(f"SELECT l.id, r.id FROM l, r WHERE {SQL[name]} ORDER BY 2, 1").fetchall()
    assert len(wanted) > 100
    for algorithm in ("nested_loop", "sweep"):
        with sj.open(spec, algorithm) as join:
            got = join.push(l, r)
        assert list(zip(got["id_left"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == wanted


OF_REAL_SIZE = {
    "microseconds of today": (pa.timestamp("us"), 1_777_901_400_000_000, 11_000_000, "2 seconds", 2_000_000),
    "nanoseconds of today": (pa.timestamp("ns"), 1_777_901_400_000_000_000, 10**7, "1 ms", 10**6),
    "integers near 10^12": (pa.int64(), 10**12, 100_000, 9_000, 9_000),
    "seconds of today": (pa.float64(), 1_777_901_400, 60, 5.0, 5),
}


@pytest.mark.parametrize("name", OF_REAL_SIZE)
def test_a_key_and_a_band_of_real_size_lose_no_row(name: str) -> None:
    """A key's tuples come in any order of their values, and many of them lie close together."""
    type_, base, spread, distance, units = OF_REAL_SIZE[name]
    rng = np.random.default_rng(FRESH + 7)
    n = 1_200

    def side() -> tuple[pa.Table, pa.Table]:
        values, keys = base + rng.integers(0, spread, n), rng.integers(0, 3, n)
        given = pa.array(values.astype(float) if type_ == pa.float64() else values, type_)
        return pa.table({"id": np.arange(n), "k": keys, "v": given}), pa.table(
            {"id": np.arange(n), "k": keys, "v": values}
        )

    (l, left), (r, right) = side(), side()
    with duckdb.connect() as db:
        db.register("l", left)
        db.register("r", right)
        sql = f"SELECT l.id, r.id FROM l, r WHERE l.k = r.k AND l.v - r.v BETWEEN 0 AND {units} ORDER BY 2, 1"
        wanted = db.sql(sql).fetchall()
    assert len(wanted) > 10_000
    spec = sj.JoinSpec(on=sj.Equi("k") & sj.Band("v", "v", below=distance), window=sj.CountWindow(n))
    for request in algorithms(bind(spec, l.schema, r.schema)):
        with sj.open(spec, request.algorithm, index=request.index) as join:
            got = join.push(l, r)
            compared = join.metrics()["compared"]
        assert list(zip(got["id_left"].to_pylist(), got["id_right"].to_pylist(), strict=True)) == wanted, request
        if request.algorithm == "sweep":
            # The index's word is fine enough: hardly any candidate is not a match.
            assert compared < 1.1 * len(wanted)


@pytest.mark.parametrize("algorithm", ["nested_loop", "sweep", "handshake", "scalejoin"])
def test_a_strict_band_is_empty_beyond_the_ends_of_a_narrow_type(algorithm: str) -> None:
    for type_, value, distances in (
        (pa.int32(), 2**31 - 1, {"below": 5, "above": 0}),
        (pa.int32(), -(2**31), {"below": 0, "above": 5}),
        (pa.int16(), 2**15 - 1, {"below": 5, "above": 0}),
    ):
        table = pa.table({"a": pa.array([value], type_)})
        on = sj.Band("a", "a", strict=True, **distances)
        with sj.open(sj.JoinSpec(on=on, window=sj.CountWindow(5)), algorithm) as join:
            assert join.push(table, table).num_rows == 0


def test_equal_keys_do_not_need_memory_for_their_candidates() -> None:
    n = 3_000
    table = pa.table({"k": np.zeros(n, np.int64), "y": np.arange(n)})
    spec = sj.JoinSpec(on=sj.Equi("k") & sj.Theta("l.y = r.y"), window=sj.CountWindow(n))
    for algorithm in ("sweep", "nested_loop"):
        with sj.open(spec, algorithm) as join:
            assert join.push(table, table).num_rows == n
            assert join.metrics()["compared"] == n * n


def test_memory_is_given_back_as_the_window_moves() -> None:
    rng = np.random.default_rng(1)
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(1_000))
    for algorithm in ("sweep", "nested_loop"):
        held = []
        with sj.open(spec, algorithm) as join:
            for _ in range(30):
                join.push(stream(rng, 4_000, 10**6), stream(rng, 4_000, 10**6))
                held.append(join.metrics()["bytes"])
        assert max(held[15:]) <= 1.1 * max(held[:15]), algorithm
