"""`round_robin`: shares that add up to the whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import benchmarks.papers.round_robin  # noqa: F401 - registers it
import streamjoin as sj

ROWS = 3_000
SPEC = sj.JoinSpec(on=sj.Band("k", "k", 40), window=sj.CountWindow(700))


def run(algorithm: str, workers: int = 1, index: str | None = None) -> tuple[pa.Table, dict[str, object]]:
    rng = np.random.default_rng(3)
    left, right = (pa.table({"k": rng.integers(0, 20_000, ROWS), "id": np.arange(ROWS)}) for _ in range(2))
    with sj.open(SPEC, algorithm, workers, index=index) as join:
        found = [join.push(left=left.slice(at, 500), right=right.slice(at, 500)) for at in range(0, ROWS, 500)]
        return pa.concat_tables(found), join.metrics()


@pytest.mark.parametrize("index", [None, "btree", "scan"])
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_rows_and_order_are_those_of_the_sweep(workers: int, index: str | None) -> None:
    assert run("round_robin", workers, index)[0] == run("sweep")[0]


def test_every_thread_searches_for_every_tuple_and_one_stores_it() -> None:
    _, alone = run("round_robin", 1, "scan")
    _, shared = run("round_robin", 4, "scan")
    assert shared["steps_insert"] == alone["steps_insert"]
    _, one = run("round_robin", 1, "btree")
    _, four = run("round_robin", 4, "btree")
    assert isinstance(one["steps_search"], int)
    assert isinstance(four["steps_search"], int)
    assert four["steps_search"] > 2 * one["steps_search"]


def test_the_settings_of_its_indexes_are_checked() -> None:
    with pytest.raises(sj.SpecError, match="the indexes of 'round_robin' take fanout"):
        sj.open(SPEC, "round_robin", index_options={"fan": 3})


def test_an_index_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(sj.NotSupportedError):
        run("round_robin", 2, "hashed")
