"""The event-time gate against its sequential specification."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.gate.merge import LEFT, RIGHT, EventTimeGate, Released

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


@settings(deadline=None, max_examples=200)
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
