"""Memory that is used again: never while anybody can see it."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.windows import memory as module
from streamjoin.windows.memory import Memory

N = 1 << 16


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_free_memory_is_used_again() -> None:
    memory = Memory(reuses=True)
    first = address(memory.take(N))
    assert address(memory.take(N - 100)) == first
    assert memory.nbytes < 3 * 8 * N


def test_memory_with_a_reference_is_not_used_again() -> None:
    memory = Memory(reuses=True)
    array, data = memory.take_bytes(8 * N)
    held = pa.Array.from_buffers(pa.int64(), N, [None, data]).slice(5)
    seen, rows = {address(array)}, memory.take_rows(N, np.empty((0, 2), np.uint32))
    view = rows[3:]
    seen.add(address(rows))
    del array, data, rows
    gc.collect()
    others = [memory.take(N) for _ in range(3)]
    assert not seen & {address(other) for other in others}
    del held, view
    assert seen == {address(memory.take(N)) for _ in range(2)} | seen


def test_memory_that_is_free_for_long_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 3)
    memory = Memory(reuses=True)
    memory.take(8 * N)
    for _ in range(6):
        memory.take(N)
    assert memory.nbytes < 2 * 8 * N
    memory.clear()
    assert memory.nbytes == 0


def test_without_reuse_memory_is_the_allocators() -> None:
    memory = Memory(reuses=False)
    assert memory.take(N).size == N
    assert memory.take_bytes(7)[1].size == 7
    assert memory.nbytes == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_results_stay_as_they_are_while_a_join_goes_on(workers: int) -> None:
    """Held rows, or a view of one column of them, are not overwritten by later pushes."""
    rng = np.random.default_rng(1)
    spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(40_000))
    pushes = [
        tuple(pa.table({"k": rng.integers(0, 60_000, 30_000), "v": rng.integers(0, 9, 30_000)}) for _ in (0, 1))
        for _ in range(6)
    ]
    with sj.open(spec, "sweep", workers) as join:
        held = []
        for left, right in pushes:
            rows = join.push(left, right)
            assert rows.num_rows > 30_000
            held.append((rows["k_left"].slice(7), rows["k_left"].to_numpy()[7:].copy()))
            del rows
    for column, values in held:
        assert (column.to_numpy() == values).all()
