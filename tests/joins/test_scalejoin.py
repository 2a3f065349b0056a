"""`scalejoin`: one sequence of results whatever the threads do, threads that come and go, errors that get out."""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.engine.refine import Refinement
from streamjoin.model.errors import SpecError
from streamjoin.scalejoin import join as scalejoin
from tests.deadlock import no_deadlock
from tests.joins.scalejoin_runs import check_runs
from tests.threads import YIELDS_FORCED, check_that_runs_hold

SPEC = sj.JoinSpec(on=sj.Band("x", "x", 2) & sj.Band("y", "y", 40.0), window=sj.CountWindow(3_000))


def tuples(seed: int, n: int = 6_000) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"x": rng.integers(0, 200, n).astype(np.int32), "y": rng.normal(0, 100, n).astype(np.float32)})


def digest(join: sj.Join, pushes: int = 3) -> str:
    found = hashlib.sha256()
    for k in range(pushes):
        out = join.push(tuples(2 * k), tuples(2 * k + 1))
        for column in out.columns:
            found.update(column.combine_chunks().to_numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("index", [None, "pim_tree"])
def test_the_output_is_one_sequence_for_every_number_of_threads(index: str | None) -> None:
    with no_deadlock(200), sj.open(SPEC, "nested_loop") as join:
        wanted = digest(join)
        for workers in (1, 2, 3, 8, 8):
            with sj.open(SPEC, "scalejoin", workers, index=index) as join:
                assert digest(join) == wanted, workers


def test_threads_come_and_go_while_a_push_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalejoin, "_PIECE", 256)
    with no_deadlock(200):
        with sj.open(SPEC, "nested_loop") as join:
            wanted = digest(join)
        with sj.open(SPEC, "scalejoin", 2) as join:
            join.push(tuples(0).slice(0, 0), tuples(1).slice(0, 0))
            over = threading.Event()

            def change() -> None:
                n = 0
                while not over.wait(0.001):
                    n += 1
                    join.set_workers(1 + n % 5)

            changing = threading.Thread(target=change)
            changing.start()
            try:
                assert digest(join) == wanted
            finally:
                over.set()
                changing.join()
            assert join.metrics()["redeals"] > 3


def test_a_wider_join_works_on_what_the_narrower_stored() -> None:
    """Dealt again and again, nothing is lost and nothing met twice."""
    with no_deadlock(200), sj.open(SPEC, "scalejoin", 1) as join, sj.open(SPEC, "nested_loop") as plain:
        for k, n in enumerate((1, 5, 2, 8, 1)):
            if k:
                join.set_workers(n)
            left, right = tuples(k, 900), tuples(100 + k, 700)
            assert join.push(left, right).equals(plain.push(left, right))
            assert join.metrics()["threads"] == n


def test_small_runs_match_the_oracle_while_threads_come_and_go() -> None:
    with no_deadlock(200):
        check_runs(range(60))


@pytest.mark.slow
@pytest.mark.thorough
def test_small_runs_hold_with_yields_forced_at_every_access() -> None:
    check_that_runs_hold(YIELDS_FORCED, "tests.joins.scalejoin_runs", "80")


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_a_thread_reaches_the_caller_and_stops_the_others(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    real = Refinement.__call__

    def broken(self: Refinement, probes: np.ndarray, seqs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if workers == 1 or threading.current_thread().name == "streamjoin-1":
            raise RuntimeError("no more")
        return real(self, probes, seqs)

    with no_deadlock(), sj.open(SPEC, "scalejoin", workers, index="btree") as join:
        monkeypatch.setattr(Refinement, "__call__", broken)
        with pytest.raises(RuntimeError, match="no more"):
            join.push(tuples(0), tuples(1))
        monkeypatch.undo()
        assert join.push(tuples(0), tuples(1)).num_rows > 0


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("on", [SPEC.on, "l.x * l.y > r.x * r.y + 30000"])
def test_an_error_while_shares_are_scanned_leaves_the_join_usable(
    monkeypatch: pytest.MonkeyPatch, workers: int, on: object
) -> None:
    spec = sj.JoinSpec(on=on, window=sj.CountWindow(300))

    def broken(*_: object) -> None:
        raise RuntimeError("no more")

    with no_deadlock(), sj.open(spec, "scalejoin", workers) as join, sj.open(spec, "nested_loop") as other:
        with monkeypatch.context() as patched:
            for name in ("count", "__call__"):
                patched.setattr(Refinement, name, broken)
            with pytest.raises(RuntimeError, match="no more"):
                join.push(tuples(0, 600), tuples(1, 600))
        expected = other.push(tuples(0, 600), tuples(1, 600))
        assert expected.num_rows > 0
        assert join.push(tuples(0, 600), tuples(1, 600)) == expected


def test_a_share_is_looked_up_in_the_index_asked_for() -> None:
    with pytest.raises(SpecError, match="no_such"):
        sj.open(SPEC, "scalejoin", index="no_such")
    with sj.open(SPEC, "scalejoin", 2, index="pim_tree") as join:
        join.push(tuples(0), tuples(1))
        assert join.metrics()["steps_insert"] > 0
