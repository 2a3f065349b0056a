"""Both handshake joins: random runs, with yields forced as well; settings, results beyond a ring, how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.handshake.chain import RING, SideLog, facts_of
from streamjoin.handshake.kernels.meet import WORD_ROWS
from streamjoin.windows.crew import live
from tests.deadlock import no_deadlock
from tests.joins.handshake_runs import SYSTEMS, check
from tests.threads import YIELDS_FORCED, check_that_runs_hold

ROOT = Path(__file__).parents[2]
each = pytest.mark.parametrize(("algorithm", "index"), SYSTEMS, ids=lambda name: str(name))


def numbers(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"x": rng.integers(0, 40, n), "id": np.arange(n), "t": np.arange(n)})


@pytest.mark.parametrize("seed", [1, 2])
def test_random_runs_give_the_oracles_rows(seed: int) -> None:
    with no_deadlock(500):
        check(40, seed)


@pytest.mark.slow
@pytest.mark.thorough
def test_runs_hold_with_yields_forced_at_every_shared_access() -> None:
    check_that_runs_hold(YIELDS_FORCED, "tests.joins.handshake_runs", "30", "7")


@pytest.mark.slow
def test_runs_hold_with_the_jit_off() -> None:
    program = (
        "from tests.joins.handshake_runs import SYSTEMS, check\n"
        "from tests.deadlock import no_deadlock\n"
        "with no_deadlock(300): check(3, 5)\n"
        "print('held')\n"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore:overflow"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment
    )
    assert done.stdout == "held\n", done.stderr


@each
def test_the_rows_do_not_depend_on_nodes_batch_or_repeat(algorithm: str, index: str | None) -> None:
    left, right = numbers(3000, 1), numbers(3000, 2)
    spec = sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(500))
    outcomes = set()
    with no_deadlock(500):
        for nodes, batch in ((1, 64), (2, 1), (3, 4), (8, 64), (8, 64)):
            with sj.open(spec, algorithm, nodes, index=index, options={"batch": batch}) as join:
                parts = [join.push(left.slice(at, 1000), right.slice(at, 1000)) for at in (0, 1000, 2000)]
            rows = pa.concat_tables(parts).select(["id_left", "id_right"])
            outcomes.add(tuple(zip(*rows.to_pydict().values(), strict=True)))
    assert len(outcomes) == 1
    assert len(outcomes.pop()) > 1000


@each
def test_a_chunk_with_more_results_than_a_ring_holds(algorithm: str, index: str | None) -> None:
    n = 400
    same = pa.table({"x": np.zeros(n, np.int64), "id": np.arange(n)})
    with (
        no_deadlock(),
        sj.open(sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(n)), algorithm, 1, index=index) as join,
    ):
        assert n * n > 4 * RING
        rows = join.push(same, same)
        assert rows["id_left"].to_pylist() == [i for _ in range(n) for i in range(n)]
        assert join.metrics()["compared"] >= n * n


def test_few_tuples_pass_each_other_between_two_nodes() -> None:
    nodes, n = 4, 1 << 15
    rng = np.random.default_rng(5)
    sides = [pa.table({"k": rng.integers(0, n, n)}) for _ in range(2)]
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(n))
    with no_deadlock(), sj.open(spec, "low_latency_handshake", nodes, index="hashed") as join:
        rows = join.push(*sides).num_rows
        compared = join.metrics()["compared"]
    # A ring of four messages, the one that is sent and the one at hand, of 64 tuples each; and what the tables find.
    assert compared <= nodes * n * 6 * 64 + 2 * rows


@each
def test_long_streams_do_not_grow_the_chain(algorithm: str, index: str | None) -> None:
    spec = sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(64))
    sizes = []
    with no_deadlock(500), sj.open(spec, algorithm, 3, index=index) as join:
        for at in range(30):
            join.push(numbers(1024, at), numbers(1024, at))
            sizes.append(join.metrics()["bytes"])
    assert sizes[-1] <= 1.1 * max(sizes[:10])


@each
def test_closing_ends_the_threads(algorithm: str, index: str | None) -> None:
    before = set(live())
    join = sj.open(sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(8)), algorithm, 4, index=index)
    with no_deadlock(500):
        join.push(numbers(10, 1), numbers(10, 2))
        assert set(live()) - before
        join.close()
    assert set(live()) == before


@pytest.mark.parametrize("batch", [0, 5000, True, 2.5, "64"])
def test_a_batch_that_is_none_is_refused(batch: object) -> None:
    for algorithm in ("handshake", "low_latency_handshake"):
        with pytest.raises(sj.SpecError, match="batch="):
            sj.open(
                sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(8)), algorithm, options={"batch": batch},
                left_schema=numbers(0, 0).schema, right_schema=numbers(0, 0).schema,
            )  # fmt: skip


def test_an_index_that_nodes_do_not_keep_is_refused() -> None:
    schema = numbers(0, 0).schema
    spec = sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(8))
    with pytest.raises(sj.NotSupportedError, match="'btree'; it runs over 'hashed' or 'pim_tree'"):
        sj.open(spec, "low_latency_handshake", index="btree", left_schema=schema, right_schema=schema)
    with pytest.raises(sj.SpecError, match="index= goes with"):
        sj.open(spec, "handshake", index="hashed", left_schema=schema, right_schema=schema)


def test_an_error_in_a_node_reaches_the_caller() -> None:
    spec = sj.JoinSpec(on=sj.Theta("l.x / r.x > 0"), window=sj.CountWindow(8))
    with no_deadlock(500), sj.open(spec, "handshake", 3) as join:
        join.push(numbers(20, 1), numbers(20, 2))

        def fails(*_: object) -> None:
            raise ValueError("no refinement today")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamjoin.joins.engine.operator.Refinement.__call__", fails)
            with pytest.raises(ValueError, match="today"):
                join.push(numbers(20, 1), numbers(20, 2))
        assert join.push(numbers(20, 1), numbers(20, 2)).num_rows > 0


def test_a_log_keeps_places_while_it_forgets() -> None:
    log = SideLog(np.uint64)
    for begin in range(0, 20_000, 500):
        seqs = np.arange(begin, begin + 500) * 2
        words = np.tile(seqs.astype(np.uint64), (WORD_ROWS, 1))
        log.append(words, facts_of(seqs, seqs, seqs, seqs))
        log.forget(max(0, begin - 300))
        assert log.base <= max(0, begin - 300) < log.count
        rows = slice(0, log.count - log.base)
        assert np.array_equal(log.seqs, 2 * np.arange(log.base, log.count))
        assert np.array_equal(log.words[0, rows], log.seqs)
    assert log.facts.shape[0] < 5_000
    assert log.place_of([39_000, 39_001]).tolist() == [19_500, 19_501]
