"""The event-time gate against its sequential specification."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.gate.merge import LEFT, RIGHT, EventTimeGate, Released
from tests.seeds import examples

SCHEMA = pa.schema([("side", pa.int64()), ("source", pa.string()), ("tick", pa.int64()), ("at", pa.int64())])
SOURCES = ((LEFT, "a"), (LEFT, "b"), (RIGHT, "a"), (RIGHT, "c"))


def rows(side: int, source: str, ticks: list[int], first: int) -> pa.Table:
    n = len(ticks)
    columns = [[side] * n, [source] * n, ticks, list(range(first, first + n))]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def sequence(released: Released) -> list[tuple[int, int, str, int]]:
    """What came out, in gate order, as (tick, side, source, position)."""
    sides = [table.to_pylist() for table in released.tables]
    out = []
    for is_right in released.is_right.tolist():
        row = sides[int(is_right)].pop(0)
        out.append((row["tick"], row["side"], row["source"], row["at"]))
    assert sides == [[], []]
    return out


@settings(deadline=None, max_examples=examples(200))
@given(
    pushes=st.lists(st.tuples(st.sampled_from(SOURCES), st.lists(st.integers(0, 12), max_size=5)), max_size=15),
    lateness=st.sampled_from([0, 0, 2, 5]),
)
def test_out_comes_what_the_sequential_gate_would_let_out(
    pushes: list[tuple[tuple[int, str], list[int]]], lateness: int
) -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), lateness)
    for source in SOURCES:
        gate.add(*source)
    clocks = dict.fromkeys(SOURCES, -(1 << 63))
    sent = dict.fromkeys(SOURCES, 0)
    accepted: list[tuple[int, int, str, int]] = []
    out: list[tuple[int, int, str, int]] = []
    for source, ticks in pushes:
        late = gate.push(*source, rows(*source, ticks, sent[source]), np.array(ticks, np.int64))
        for i, tick in enumerate(ticks):
            assert bool(late[i]) == (tick < clocks[source] - lateness)
            if not late[i]:
                accepted.append((tick, *source, sent[source] + i))
            clocks[source] = max(clocks[source], tick)
        sent[source] += len(ticks)
        out += sequence(gate.release())
        # Ready: no source can still send something that sorts before.
        bound = min((clock - lateness, *key) for key, clock in clocks.items())
        assert sorted(out) == out
        assert set(out) == {t for t in accepted if t[:3] <= bound}
        assert gate.waiting == len(accepted) - len(out)
    out += sequence(gate.release(everything=True))
    assert out == sorted(accepted)


def test_it_waits_for_a_source_of_each_side() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    gate.push(LEFT, "a", rows(LEFT, "a", [1, 2], 0), np.array([1, 2]))
    assert sequence(gate.release()) == []
    gate.push(RIGHT, "", rows(RIGHT, "", [5], 0), np.array([5]))
    assert len(sequence(gate.release())) == 2


def test_an_idle_source_can_advance_and_a_finished_one_holds_nobody() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    for source in SOURCES:
        gate.add(*source)
    gate.push(LEFT, "a", rows(LEFT, "a", [1, 9], 0), np.array([1, 9]))
    assert gate.release().is_right.size == 0
    for source in SOURCES[1:3]:
        gate.advance(*source, 4)
    assert gate.release().is_right.size == 0
    gate.finish(RIGHT, "c")
    assert gate.release().is_right.size == 1
    assert gate.nbytes > 0
    gate.finish(LEFT, "b")
    gate.finish(RIGHT, "a")
    assert gate.release().is_right.size == 1


@settings(deadline=None, max_examples=examples(200))
@given(
    pushes=st.lists(
        st.tuples(st.sampled_from((LEFT, RIGHT)), st.sampled_from("abcdefgh"), st.lists(st.integers(0, 6), max_size=4)),
        max_size=40,
    ),
    lateness=st.sampled_from([0, 3]),
)
def test_sources_may_join_at_any_time_under_any_name(pushes: list[tuple[int, str, list[int]]], lateness: int) -> None:
    """More of them than the gate first has room for; what a new one sends behind what was let out is late."""
    gate = EventTimeGate((SCHEMA, SCHEMA), lateness)
    clocks: dict[tuple[int, str], int] = {}
    accepted: list[tuple[int, int, str, int]] = []
    out: list[tuple[int, int, str, int]] = []
    bound = (-(1 << 63), LEFT, "")
    floors: dict[tuple[int, str], int] = {}
    for number, (side, name, steps) in enumerate(pushes):
        source = (side, name)
        clock = clocks.setdefault(source, -(1 << 63))
        # What it sends from now on lies behind the bound: so far it holds nobody.
        floors.setdefault(source, bound[0] + (bound[0] > -(1 << 63) and source < bound[1:]))
        ticks = [max(clock, 0) + step - 2 for step in steps]
        late = gate.push(side, name, rows(side, name, ticks, 10 * number), np.array(ticks, np.int64))
        for i, tick in enumerate(ticks):
            behind = tick < clocks[source] - lateness or (tick, side, name) < bound
            assert bool(late[i]) == behind
            if not behind:
                accepted.append((tick, side, name, 10 * number + i))
            clocks[source] = max(clocks[source], tick)
        out += sequence(gate.release())
        if {known for known, _ in clocks} == {LEFT, RIGHT}:
            bound = max(bound, min((max(floors[key], c - lateness), *key) for key, c in clocks.items()))
        assert out == sorted(t for t in accepted if t[:3] <= bound)
    out += sequence(gate.release(everything=True))
    assert out == sorted(accepted)
    assert gate.waiting == 0


def test_many_more_tuples_wait_than_the_gate_holds_at_a_time() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    n = 20_000
    for side in (LEFT, RIGHT):
        for name in ("a", "b"):
            gate.add(side, name)
    for side, name in SOURCES[:3]:
        gate.push(side, name, rows(side, name, list(range(n)), 0), np.arange(n))
        assert gate.release().is_right.size == 0
    assert gate.waiting == 3 * n
    gate.push(RIGHT, "b", rows(RIGHT, "b", [n // 2], 0), np.array([n // 2]))
    # The last one's own time is let out, ties that sort before it included.
    assert len(sequence(gate.release())) == 3 * (n // 2 + 1) + 1
    out = sequence(gate.release(everything=True))
    assert out == sorted(out)
    assert len(out) == 3 * (n // 2 - 1)


def test_a_source_that_leaves_gives_its_place_back() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    gate.add(RIGHT, "camera")
    for number in range(5_000):
        name = f"sensor {number}"
        gate.push(LEFT, name, rows(LEFT, name, [number], 0), np.array([number]))
        gate.leave(LEFT, name)
        gate.advance(RIGHT, "camera", number)
        assert sequence(gate.release()) == [(number, LEFT, name, 0)]
        assert gate.sources == 1


def test_a_name_that_comes_again_is_a_new_source_behind_the_rows_of_the_old() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    gate.push(RIGHT, "camera", rows(RIGHT, "camera", [1], 0), np.array([1]))
    gate.push(LEFT, "a", rows(LEFT, "a", [5, 8], 0), np.array([5, 8]))
    gate.leave(LEFT, "a")
    late = gate.push(LEFT, "a", rows(LEFT, "a", [3, 8], 2), np.array([3, 8]))
    assert not late.any()  # its own clock begins anew
    gate.advance(RIGHT, "camera", 20)
    assert sequence(gate.release())[1:] == [(3, LEFT, "a", 2), (5, LEFT, "a", 0), (8, LEFT, "a", 1), (8, LEFT, "a", 3)]


def test_when_all_sources_have_left_others_may_come() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    gate.push(RIGHT, "camera", rows(RIGHT, "camera", [4], 0), np.array([4]))
    gate.push(LEFT, "a", rows(LEFT, "a", [9], 0), np.array([9]))
    gate.leave(LEFT, "a")
    gate.leave(RIGHT, "camera")
    assert [row[0] for row in sequence(gate.release())] == [4, 9]
    late = gate.push(LEFT, "b", rows(LEFT, "b", [8, 9, 10], 0), np.array([8, 9, 10]))
    assert late.tolist() == [True, False, False]
    assert sequence(gate.release(everything=True)) == [(9, LEFT, "b", 1), (10, LEFT, "b", 2)]


def test_a_resting_source_holds_nobody_until_it_sends_and_keeps_its_clock() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 0)
    gate.push(LEFT, "a", rows(LEFT, "a", [2], 0), np.array([2]))
    gate.push(RIGHT, "b", rows(RIGHT, "b", [7], 0), np.array([7]))
    assert [row[0] for row in sequence(gate.release())] == [2]
    gate.rest(LEFT, "a")
    assert [row[0] for row in sequence(gate.release())] == [7]
    gate.push(RIGHT, "b", rows(RIGHT, "b", [9], 1), np.array([9]))
    late = gate.push(LEFT, "a", rows(LEFT, "a", [1, 8], 1), np.array([1, 8]))
    assert late.tolist() == [True, False]
    assert [row[0] for row in sequence(gate.release())] == [8]
    assert gate.holders[0] == (LEFT, "a")


def test_stamps_travel_with_their_rows() -> None:
    gate = EventTimeGate((SCHEMA, SCHEMA), 5)
    gate.push(LEFT, "a", rows(LEFT, "a", [9, 7], 0), np.array([9, 7]), np.array([90, 70]))
    gate.push(LEFT, "b", rows(LEFT, "b", [8, 1], 0), np.array([8, 1]), np.array([80, 10]))
    gate.push(RIGHT, "c", rows(RIGHT, "c", [6, 30], 0), np.array([6, 30]), np.array([60, 300]))
    released = gate.release(everything=True)
    assert released.stamps is not None
    times = [row[0] for row in sequence(released)]
    assert times == [6, 7, 8, 9, 30]  # 1 is late
    assert released.stamps.tolist() == [10 * time for time in times]
