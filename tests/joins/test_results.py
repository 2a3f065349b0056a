"""Results larger than a limit: refused as a whole by `push`, streamed by `push_iter`; and what is left at the end."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

import benchmarks.papers.cell_join  # noqa: F401 - it registers itself
import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.batch.packed_pairs import PackedPairs
from streamjoin.kernels.batch.sweep import SLACK
from tests.deadlock import no_deadlock

REQUESTS = [r for r in auto.requests() if r.index in (None, "pim_tree") and r.algorithm != "interval"]
SPEC = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(400))
N = 300


def same(n: int = N, first: int = 0) -> pa.Table:
    return pa.table({"k": np.zeros(n, np.int64), "id": np.arange(first, first + n)})


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_too_many_rows_are_refused_or_streamed(request_: auto.AlgorithmRequest) -> None:
    with (
        no_deadlock(300),
        sj.open(SPEC, request_.algorithm, 2, index=request_.index, max_rows=10_000) as join,
        sj.open(SPEC, "nested_loop") as twin,
    ):
        before = join.push(same(20), same(20))
        assert before.equals(twin.push(same(20), same(20)))
        with pytest.raises(sj.TooManyRowsError, match=r"max_rows=10,000 .* push_iter"):
            join.push(same(), same())
        assert join.metrics()["window_left"] == 20
        tables = list(join.push_iter(same(), same(), batch_rows=1000))
        assert max(table.num_rows for table in tables) <= 1000
        assert pa.concat_tables(tables).equals(twin.push(same(), same()))
        assert join.push(left=same(1, 999)).equals(twin.push(left=same(1, 999)))


def test_a_refused_push_gathers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    with sj.open(SPEC, "sweep", max_rows=N * N) as join:
        assert join.push(same(), same()).num_rows == N * N
    with sj.open(SPEC, "sweep", max_rows=N) as join:
        join.push(same(1), same(1))
        monkeypatch.setattr("streamjoin.joins.engine.operator.Operator._materialize", lambda *_: gathered.append(1))
        with pytest.raises(sj.TooManyRowsError):
            join.push(same(), same())
    assert not gathered


def test_an_explosion_is_refused_before_its_pairs_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """31,623 equal keys on both sides have 10^9 pairs; no more than the limit and one block are ever collected."""
    collected: list[int] = []
    close = PackedPairs.close

    def counted(pairs: PackedPairs) -> None:
        collected.append(pairs.n)
        close(pairs)

    monkeypatch.setattr(PackedPairs, "close", counted)
    n, limit = 31_623, 1_000_000
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(n))
    join = sj.open(spec, "sweep", max_rows=limit)
    with pytest.raises(sj.TooManyRowsError):
        join.push(same(n), same(n))
    assert limit < sum(collected) <= limit + PackedPairs.CAPACITY + SLACK
    results = join.push_iter(same(n), same(n), batch_rows=100_000)
    sizes = [next(results).num_rows for _ in range(20)]
    assert max(sizes) <= 100_000
    assert sum(sizes) > 1_000_000


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "many"])
def test_limits_are_numbers_of_rows(value: object) -> None:
    with pytest.raises(sj.SpecError, match="max_rows="):
        sj.open(SPEC, max_rows=value)  # type: ignore[arg-type]
    with sj.open(SPEC, max_rows=None) as join, pytest.raises(sj.SpecError, match="batch_rows="):
        join.push_iter(same(), same(), batch_rows=value)  # type: ignore[arg-type]
    with pytest.raises(sj.SpecError, match="on_close="):
        sj.open(SPEC, on_close=1)  # type: ignore[arg-type]


def test_a_reader_hands_the_rows_to_other_libraries() -> None:
    with sj.open(SPEC) as join:
        reader = join.push_iter(same(30), same(30), batch_rows=100).to_reader()
        assert reader.schema == join.schema
        assert reader.read_all().num_rows == 900
        assert list(join.push_iter(same(0))) == []


def test_nothing_comes_between_the_tables_of_an_iterator() -> None:
    join = sj.open(SPEC)
    assert list(join.push_iter(left=same())) == []
    results = join.push_iter(right=same(), batch_rows=N)
    assert results.schema == join.schema
    next(results)
    for call in (lambda: join.push(same()), join.close, lambda: join.push_iter(same())):
        with pytest.raises(sj.StateError, match="not read to their end"):
            call()
    assert join.metrics()["waiting"] > 0
    assert sum(table.num_rows for table in results) == N * N - N
    assert join.close().num_rows == 0


def test_a_table_that_fails_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with sj.open(SPEC, "indexed") as join:
        results = join.push_iter(same(), same(), batch_rows=1000)
        rows = next(results).num_rows
        with monkeypatch.context() as patch:
            patch.setattr("streamjoin.joins.engine.operator.Operator._materialize", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                while True:
                    rows += next(results).num_rows
        rows += sum(table.num_rows for table in results)
        assert rows == N * N


def test_an_iterator_that_is_dropped_breaks_the_join() -> None:
    join = sj.open(SPEC)
    results = join.push_iter(same(), same(), batch_rows=1000)
    next(results)
    del results
    gc.collect()
    with pytest.raises(sj.StateError, match="dropped before its end"):
        join.push(same())
    with pytest.raises(sj.StateError, match="dropped before its end"):
        join.close()


TIMED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(10), time="t", order="event_time")


def timed(*times: int) -> pa.Table:
    return pa.table({"k": np.ones(len(times), np.int64), "t": np.array(times, np.int64)})


def test_the_tail_of_a_block_goes_to_on_close() -> None:
    tail: list[pa.Table] = []
    with sj.open(TIMED, on_close=tail.append) as join:
        rows = join.push(timed(1, 2, 3), timed(1, 2, 3)).num_rows
    assert rows + sum(table.num_rows for table in tail) == 9
    assert tail
    with sj.open(TIMED, on_close=tail.append) as join:
        join.push(timed(1, 2, 3), timed(1, 2, 3))
        join.close()
    assert rows + sum(table.num_rows for table in tail) == 9


def test_a_tail_that_nobody_takes_is_an_error() -> None:
    with pytest.raises(sj.StateError, match=r"ended with 3 rows .* on_close="), sj.open(TIMED) as join:
        assert join.push(timed(1, 2, 3), timed(1, 2, 3)).num_rows == 6
    with pytest.raises(sj.StateError, match="more than 2 rows"), sj.open(TIMED, max_rows=2) as join:
        list(join.push_iter(timed(1, 2, 3), timed(1, 2, 3)))
    with sj.open(TIMED) as join:
        assert join.push(timed(1, 2, 3), timed(1, 2, 3)).num_rows + join.close().num_rows == 9
    with pytest.raises(sj.StateError, match="not read to their end"), sj.open(TIMED) as join:
        join.push(timed(1, 2, 3), timed(1, 2, 3))
        unread = join.close_iter()
    with pytest.raises(sj.StateError, match="closed before"):
        next(unread)


def test_a_block_left_by_an_exception_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    tail: list[pa.Table] = []
    with pytest.raises(KeyError, match="mine"), sj.open(TIMED, on_close=tail.append) as join:
        join.push(timed(1, 2, 3), timed(1, 2, 3))
        monkeypatch.setattr("streamjoin.joins.engine.operator.Operator.step", lambda *_: steps.append(1))
        raise KeyError("mine")
    assert not steps
    assert not tail
    with pytest.raises(sj.StateError, match="closed"):
        join.push(timed(4))


def test_calls_that_release_what_waits_can_be_streamed() -> None:
    join = sj.open(TIMED, max_rows=5, sources={"left": ["a"], "right": ["b", "c"]})
    join.push(left=timed(*range(9)), source="a")
    join.push(right=timed(*range(9)), source="b")
    with pytest.raises(sj.TooManyRowsError):
        join.advance(5, side="right", source="c")
    rows = sum(table.num_rows for table in join.advance_iter(5, side="right", source="c", batch_rows=3))
    with pytest.raises(sj.TooManyRowsError):
        join.finish("c", side="right")
    rows += sum(table.num_rows for table in join.finish_iter("c", side="right"))
    join.advance(8, side="right", source="b")
    rows += sum(table.num_rows for table in join.close_iter())
    assert rows == 81
    assert join.close().num_rows == 0
    assert list(join.close_iter()) == []


def in_forked_child(use: Callable[[], bytes]) -> bytes:
    """What `use` says in a forked child; one that hangs is ended by an alarm and says nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os.write(write, use())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


THREADED = [("sweep", 2), ("nested_loop", 2), ("handshake", 1), ("low_latency_handshake", 1), ("scalejoin", 2)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("algorithm", "workers"), [*THREADED, ("pim_parallel", 1), ("cell_join", 2)])
def test_threads_do_not_follow_into_a_forked_child(algorithm: str, workers: int) -> None:
    join = sj.open(SPEC, algorithm, workers)
    join.push(same(100), same(100))

    def use() -> bytes:
        said = []
        for call in (lambda: join.push(same(100), same(100)), join.metrics, join.close):
            try:
                call()
            except sj.StateError as error:
                said.append("forked" in str(error))
        return repr(said).encode()

    assert in_forked_child(use) == b"[True, True, True]"
    assert join.push(left=same(1)).num_rows == 100
    join.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_join_without_threads_goes_on_in_a_forked_child_unless_it_was_at_work() -> None:
    join = sj.open(SPEC, "nested_loop")
    join.push(same(3), same(3))
    assert in_forked_child(lambda: str(join.push(left=same(1)).num_rows).encode()) == b"3"
    inside, go_on = threading.Event(), threading.Event()

    def interleave() -> object:
        class Waits:
            def __array__(self, *_: object, **__: object) -> object:
                inside.set()
                go_on.wait()
                return np.array([False])

        return Waits()

    def refused() -> bytes:
        try:
            return str(join.push(left=same(1)).num_rows).encode()
        except sj.StateError:
            return b"refused"

    thread = threading.Thread(target=lambda: join.push(left=same(1), interleave=interleave()))
    thread.start()
    inside.wait()
    try:
        assert in_forked_child(refused) == b"refused"
    finally:
        go_on.set()
        thread.join()
    join.close()
