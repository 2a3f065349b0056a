"""ScaleGate against its sequential specification, alone and under many threads; once more with yields forced."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.model.errors import InputError, StateError
from streamjoin.scalejoin.gate import GateArena
from streamjoin.scalejoin.kernels.nodes import arena_words
from tests.deadlock import no_deadlock
from tests.gate.histories import check, check_many, record
from tests.gate.membership import check_members
from tests.threads import check_that_runs_hold


def rows(read: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[tuple[int, int, int]]:
    slots, payload, times = (column.tolist() for column in read)
    return list(zip(times, slots, payload, strict=True))


@settings(deadline=None, max_examples=150)
@given(
    calls=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=6), st.sampled_from(["add", "advance"])),
        max_size=40,
    ),
    ring=st.sampled_from([2, 4, 16]),
)
def test_each_reader_gets_what_no_source_can_precede(calls: list[tuple[int, list[int], str]], ring: int) -> None:
    gate = GateArena(4, 2, ring)
    slots = [gate.add_source(rank) for rank in (5, -3, 9, 0)]
    order = dict(zip(slots, (5, -3, 9, 0), strict=True))
    clocks = dict.fromkeys(slots, -(1 << 63))
    sent: list[tuple[int, int, int]] = []
    got: list[list[tuple[int, int, int]]] = [[], []]
    counts = dict.fromkeys(slots, 0)
    for slot, steps, kind in calls:
        times = np.cumsum([max(0, clocks[slot]), *steps])[1:].astype(np.int64)
        if kind == "advance" and steps:
            gate.advance(slot, int(times[-1]))
            clocks[slot] = int(times[-1])
        elif kind == "add":
            taken = gate.add(slot, times, counts[slot] + np.arange(times.size))
            sent += [(int(t), slot, counts[slot] + i) for i, t in enumerate(times[:taken])]
            counts[slot] += taken
            clocks[slot] = int(times[taken - 1]) if taken else clocks[slot]
        bound = min((clock, order[s]) for s, clock in clocks.items())
        ready = sorted((r for r in sent if (r[0], order[r[1]]) <= bound), key=lambda r: (r[0], order[r[1]], r[2]))
        got[0] += rows(gate.read(0, 100))
        assert got[0] == ready
        got[1] += rows(gate.read(1, 2))
        assert got[1] == ready[: len(got[1])]
    for slot in slots:
        gate.finish(slot)
    for reader in (0, 1):
        while found := rows(gate.read(reader, 3)):
            got[reader] += found
        assert got[reader] == sorted(sent, key=lambda r: (r[0], order[r[1]], r[2]))


def test_a_full_ring_waits_for_the_slowest_reader_and_then_goes_round() -> None:
    gate = GateArena(1, 2, 4)
    slot = gate.add_source(0)
    times = np.arange(100)
    assert gate.add(slot, times, times) == 4
    assert gate.read(0, 10)[2].tolist() == [0, 1, 2, 3]
    assert gate.add(slot, times, times, 4) == 4
    at = 4
    for _ in range(200):
        gate.read(1, 1)
        gate.read(0, 1)
        at = gate.add(slot, times, times, at)
    assert at == 100


def test_an_idle_source_holds_no_memory_of_the_others() -> None:
    gate = GateArena(2, 1, 4)
    busy, idle = gate.add_source(0), gate.add_source(1)
    gate.add(idle, np.array([0]), np.array([0]))
    gate.advance(idle, 1_000)
    at, times, got = 0, np.zeros(500, np.int64), 0
    while at < times.size:
        reached = gate.add(busy, times, times, at)
        got += gate.read(0, 100)[0].size
        assert reached > at
        at = reached
    # Its place was given up meanwhile; it adds again, in order.
    assert gate.add(idle, np.array([1_000, 2_000]), np.array([1, 2])) == 2
    gate.finish(busy)
    assert got + gate.read(0, 100)[0].size == 503


def test_a_source_that_joins_starts_behind_what_was_let_out() -> None:
    gate = GateArena(3, 1, 8)
    first = gate.add_source(5)
    gate.add(first, np.array([1, 7]), np.array([0, 1]))
    assert gate.read(0, 8)[2].tolist() == [1, 7]
    later, sooner = gate.add_source(6), gate.add_source(4)
    assert (gate.clock(later), gate.clock(sooner)) == (7, 8)
    assert gate.let_out == (7, 5)
    with pytest.raises(InputError, match="clock"):
        gate.add(sooner, np.array([7]), np.array([0]))
    with pytest.raises(InputError, match="fall"):
        gate.add(later, np.array([9, 8]), np.array([0, 1]))
    with pytest.raises(StateError, match="more"):
        gate.add_source(1)


def test_the_place_of_a_finished_source_is_given_again() -> None:
    gate = GateArena(3, 1, 4)
    lasting = gate.add_source(1 << 20)
    wanted = []
    for life in range(50):
        slot = gate.add_source(life)
        begin = max(0, gate.clock(slot))
        gate.advance(lasting, begin + 3)
        assert gate.add(slot, np.arange(begin, begin + 3), np.full(3, life)) == 3
        gate.finish(slot)
        wanted += [life] * 3
        assert gate.read(0, 10)[1].tolist() == wanted[-3:]


def test_the_last_reader_stays() -> None:
    gate = GateArena(1, 2)
    gate.remove_reader(0)
    with pytest.raises(StateError, match="last"):
        gate.remove_reader(1)
    assert gate.add_reader() == 0
    with pytest.raises(StateError, match="more"):
        gate.add_reader()


@pytest.mark.parametrize(("shape", "said"), [((0, 1, 4), "sources"), ((1, 0, 4), "reader"), ((1, 1, 6), "not 6")])
def test_a_gate_has_a_shape(shape: tuple[int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        arena_words(*shape)


def test_histories_of_threads_are_those_of_a_sequential_gate() -> None:
    with no_deadlock():
        check_many(40, 60)
        check(record(0, 3, 2, 64, 3_000))


def test_a_reader_that_skips_or_repeats_is_found() -> None:
    """The check itself can fail."""
    with no_deadlock():
        history = record(3, 3, 1, 8, 60)
    check(history)
    history.got[0][1][5:7] = history.got[0][1][[6, 5]]
    history.got[0][0][5:7] = history.got[0][0][[6, 5]]
    with pytest.raises(AssertionError):
        check(history)


def test_sources_and_readers_come_and_go() -> None:
    with no_deadlock():
        for seed in range(8):
            check_members(seed, ring=2 << seed % 4, n=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "runs"), [({"STREAMJOIN_FORCED_YIELDS": "3"}, "40"), ({"NUMBA_DISABLE_JIT": "1"}, "4")], ids=str
)
def test_histories_hold_in_a_test_build_and_without_the_jit(environment: dict[str, str], runs: str) -> None:
    check_that_runs_hold(environment, "tests.gate.histories", runs, "50")
