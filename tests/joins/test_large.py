"""Larger inputs than the oracle can take: algorithms against each other, and against DuckDB."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj


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
