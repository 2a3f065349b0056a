"""Where sources enter a ScaleGate themselves: each pushes into a ring of its own, from its own thread.

A push is encoded and added by compiled code without the interpreter's lock; sources share no lock. What finds no room
in the ring, and everything the same source sends after it, waits as calls in the source's inlet until another thread
takes it up (`take_up`). Lateness, ties, sources that come, go and rest follow the rules of `gate/decisions.py`, as
`gate/merge.py` does for one caller. Invariant: an inlet's lock is held by whoever works on its ring, so a source of the
gate has one writer at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key, late_mask
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Call
from streamjoin.kernels.positions import ascends
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import StateError
from streamjoin.model.large_columns import take_rows
from streamjoin.scalejoin.carried import CarriedRows
from streamjoin.scalejoin.gate import GateArena, SourceOrder
from streamjoin.scalejoin.kernels import members
from streamjoin.scalejoin.kernels.nodes import COUNT, EVER, LASTS, MISSING, N_SOURCES, NIL, SOURCE_WORDS, SOURCES
from streamjoin.scalejoin.kernels.rings import (
    BELL_WORDS,
    LINE,
    LINES,
    SIDE,
    SOURCE_FIELDS,
    feed,
    move_clock,
    ring_if_more,
)
from streamjoin.scalejoin.lines import EncodedTuples, LineEncoder
from streamjoin.windows.clock import NEVER, to_ticks
from streamjoin.windows.store import SideStore

MOST_SOURCES = 1022
"""How many sources may be open at a time."""
RING = 1 << 12
"""How many tuples of a source may be in the gate."""

SetAside = Callable[[int, str, str, pa.Table], None]
"""Takes rows that can't be joined: side, source, reason."""


@dataclass(slots=True)
class _Feed:
    """Tuples on their way into the gate: those before `begin` are there."""

    tuples: EncodedTuples
    ticks: Array
    arrived: Array
    clock: int
    begin: int = 0


class Inlet:
    """One name of one side: the source that is open under it, and what it has sent and found no room for."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.lock = threading.Lock()
        self.slot = NIL
        self.idle_slot = NIL
        self.clock: int = NEVER
        """The newest time that the source has sent."""
        self.held: tuple[pa.Table, Array, Array] | None = None
        """Tuples that others may still precede, within the lateness: rows, ticks in order, times of arrival."""
        self.rest: _Feed | None = None
        self.calls: deque[Call] = deque()
        self.tuples = self.waiting = 0
        self.is_open = self.gone = False


class GateInlets:
    """All sources of one gate."""

    def __init__(self, bound: BoundSpec, lines: LineEncoder, readers: int, set_aside: SetAside) -> None:
        plan = bound.time
        if plan is None:
            raise AssertionError("a gate without times")
        self._encoder, self._set_aside = lines, set_aside
        self._times = ((plan.left, plan.multipliers[0]), (plan.right, plan.multipliers[1]))
        self._schemas = bound.left_schema, bound.right_schema
        self._lateness = bound.lateness or 0
        self.gate = GateArena(MOST_SOURCES + 1, readers, RING)
        self.mem = self.gate.mem
        self._order = SourceOrder(self.gate)
        self.mem[MISSING], self.mem[LASTS] = 1, 1
        self.bells = np.zeros(BELL_WORDS, np.int64)
        self.carried = CarriedRows(self._schemas)
        self.sources = np.zeros((MOST_SOURCES + 1, SOURCE_FIELDS), np.int64)
        self.layouts = np.zeros((MOST_SOURCES + 1, max(map(len, self._schemas)), 4), np.int64)
        begin = int(self.mem[SOURCES]) + COUNT
        self._counts = self.mem[begin : begin + (MOST_SOURCES + 1) * SOURCE_WORDS : SOURCE_WORDS]
        # Held while sources come and go.
        self._members = threading.Lock()
        self._inlets: dict[Key, Inlet] = {}
        self._rings: dict[tuple[int, int], tuple[Array, SideStore]] = {}
        self._gone_tuples = [0, 0]
        self._missing = {0} if bound.spec.self_join else {0, 1}
        self._blocked: set[Inlet] = set()
        self._n_open = 0
        self.queued = Histogram()
        """Nanoseconds from pushes until they were taken up."""

    # -- calls of sources ----------------------------------------------------------------------------------

    def submit(self, call: Call) -> bool:
        """Take a call of a source, in its thread; False if it found no room and waits to be taken up."""
        while True:
            inlet = self._inlet((call.side, call.source))
            with inlet.lock:
                if inlet.gone:
                    continue
                self._note(inlet, is_open=call.event != "finish")
                if inlet.rest is None and not inlet.calls:
                    if self._process(inlet, call):
                        return True
                else:
                    inlet.calls.append(call)
                    inlet.waiting += 0 if call.rows is None else call.rows.num_rows
                with self._members:
                    self._blocked.add(inlet)
                return False

    def take_up(self) -> bool:
        """Take up the calls that wait, as far as there is room; whether none is left."""
        with self._members:
            blocked = list(self._blocked)
        for inlet in blocked:
            with inlet.lock:
                is_free = inlet.rest is None or self._feed(inlet, inlet.rest)
                while is_free and inlet.calls:
                    call = inlet.calls.popleft()
                    inlet.waiting -= 0 if call.rows is None else call.rows.num_rows
                    is_free = self._process(inlet, call)
                if is_free:
                    with self._members:
                        self._blocked.discard(inlet)
        return not self._blocked

    def finish_all(self) -> None:
        """End all sources that are open, as if each had finished; some may have to be taken up."""
        with self._members:
            keys = list(self._inlets)
        for side, name in keys:
            self.submit(Call("finish", side, name))

    def close(self) -> None:
        """End the input, once nothing is left to take up: everything becomes ready."""
        if not self.mem[N_SOURCES]:
            # A gate without sources has no end.
            members.finish(self.mem, self.gate.add_source(0))
        members.end(self.mem)
        ring_if_more(self.mem, self.bells)

    # -- what there is to see ------------------------------------------------------------------------------

    @property
    def added(self) -> int:
        """How many tuples were added to the gate, ever."""
        return int(self._counts.sum())

    @property
    def is_blocked(self) -> bool:
        """Whether calls wait to be taken up."""
        return bool(self._blocked)

    @property
    def waiting(self) -> int:
        """How many tuples wait in front of the gate: for room, or for later ones of their own source."""
        if not self._blocked and not self._lateness:
            return 0
        with self._members:
            return sum(inlet.waiting for inlet in (self._inlets.values() if self._lateness else self._blocked))

    @property
    def tuples(self) -> tuple[int, int]:
        """How many tuples each side has pushed."""
        with self._members:
            own = [[i.tuples for i in self._inlets.values() if i.key[0] == side] for side in (0, 1)]
            return self._gone_tuples[0] + sum(own[0]), self._gone_tuples[1] + sum(own[1])

    @property
    def holders(self) -> tuple[Key, ...]:
        """The sources that hold back the time of the bound, or all if they rest; none if a side has had no source."""
        with self._members:
            if self._missing:
                return ()
            inlets = list(self._inlets.values())
            clocks = [(self.gate.clock(slot), inlet.key) for inlet in inlets if (slot := inlet.slot) != NIL]
            if not clocks:
                return tuple(sorted(inlet.key for inlet in inlets if inlet.idle_slot != NIL))
        least = min(clocks)[0]
        return tuple(key for clock, key in sorted(clocks) if clock == least)

    def clock(self, key: Key) -> int:
        """The time up to which a source has come; for one that rests the beginning of times.

        The end of times if something of it waits in front of the gate.
        """
        with self._members:
            inlet = self._inlets.get(key)
            if inlet is None or inlet in self._blocked:
                return EVER
            slot = inlet.slot
            if slot == NIL:
                return NEVER if inlet.idle_slot != NIL else EVER
            return self.gate.clock(slot)

    @property
    def nbytes(self) -> int:
        """Bytes of the rings that are or were in use, and of the gate's nodes beside them."""
        # A copy: sources come meanwhile.
        return sum(lines.nbytes + int(lines.nbytes) + rows.block.nbytes for lines, rows in list(self._rings.values()))

    # -- one call, under the lock of its inlet -------------------------------------------------------------

    def _process(self, inlet: Inlet, call: Call) -> bool:
        """Do what a call asks for; False if it, or some of its tuples, found no room and wait in the inlet."""
        if call.event == "finish":
            return self._finish(inlet)
        if not self._open(inlet):
            return self._try_again(inlet, call)
        if call.event == "rest":
            return self._rest(inlet)
        if call.rows is not None:
            self.carried.note(inlet.key[0], call.rows)
            inlet.tuples += call.rows.num_rows
            self.queued.add(np.array([time.monotonic_ns() - call.arrived], np.int64))
            return self._push(inlet, call.table, call.arrived)
        if call.event == "advance":
            inlet.clock = max(inlet.clock, min(call.time + self._lateness, (1 << 63) - 1))
            return self._settle(inlet)
        return True

    def _try_again(self, inlet: Inlet, call: Call) -> bool:
        """Leave a call for the next time; returns False."""
        inlet.calls.appendleft(call)
        inlet.waiting += 0 if call.rows is None else call.rows.num_rows
        return False

    def _push(self, inlet: Inlet, rows: pa.Table, arrived: int) -> bool:
        side, source = inlet.key
        if rows.num_columns != len(self._schemas[side]):
            rows = rows.select(self._schemas[side].names)
        name, multiplier = self._times[side]
        ticks, bad = to_ticks(rows.column(name), multiplier)
        if bad is not None and bad.any():
            self._set_aside(side, source, "no usable time", rows.filter(pa.array(bad)))
            rows, ticks = rows.filter(pa.array(~bad)), ticks[~bad]
        if not ticks.size:
            return True
        floor = self.gate.clock(inlet.slot)
        if self._lateness or not ascends(ticks, max(inlet.clock, floor)):
            late = late_mask(inlet.key, ticks, inlet.clock, self._lateness, (floor, *inlet.key))
            inlet.clock = max(inlet.clock, int(ticks.max()))
            if late.any():
                self._set_aside(side, source, "late", rows.filter(pa.array(late)))
                rows, ticks = rows.filter(pa.array(~late)), ticks[~late]
        else:
            inlet.clock = int(ticks[-1])
        stamps = np.full(ticks.size, arrived, np.int64)
        if not self._lateness:
            return self._add(inlet, rows, ticks, stamps, inlet.clock)
        if inlet.held is not None:
            inlet.waiting -= inlet.held[1].size
            rows = pa.concat_tables([inlet.held[0], rows])
            ticks, stamps = (np.concatenate(pair) for pair in zip(inlet.held[1:], (ticks, stamps), strict=True))
        order = np.argsort(ticks, kind="stable")
        inlet.held = take_rows(rows, order), ticks[order], stamps[order]
        inlet.waiting += order.size
        return self._settle(inlet)

    def _settle(self, inlet: Inlet, everything: bool = False) -> bool:
        """Add the tuples that no others of their source can precede any more, and move the source's clock."""
        clock = max(NEVER, inlet.clock - self._lateness)
        if inlet.held is None:
            move_clock(self.mem, self.bells, inlet.slot, clock)
            return True
        rows, ticks, stamps = inlet.held
        n = ticks.size if everything else int(np.searchsorted(ticks, clock, side="right"))
        inlet.held = None if n == ticks.size else (rows.slice(n), ticks[n:], stamps[n:])
        inlet.waiting -= n
        return self._add(inlet, rows.slice(0, n), ticks[:n], stamps[:n], clock)

    def _add(self, inlet: Inlet, rows: pa.Table, ticks: Array, stamps: Array, clock: int) -> bool:
        if not ticks.size:
            move_clock(self.mem, self.bells, inlet.slot, clock)
            return True
        tuples = self._encoder.encode(inlet.key[0], rows)
        self.carried.put(inlet.slot, inlet.key[0], rows)
        return self._feed(inlet, _Feed(tuples, ticks, stamps, clock))

    def _feed(self, inlet: Inlet, some: _Feed) -> bool:
        """Add as many tuples as there is room for, without the interpreter's lock."""
        side, before, tuples = inlet.key[0], some.begin, some.tuples
        lines, rows = self._rings[inlet.slot, side]
        some.begin = feed(
            self.mem, self.bells, inlet.slot, lines.ctypes.data, lines.strides[0], tuples.block, self._encoder.terms,
            tuples.conditions, some.ticks, some.arrived, tuples.columns[side], rows.layout(), before, some.clock,
        )  # fmt: skip
        left = some.ticks.size - some.begin
        if inlet.rest is None:
            inlet.waiting += left
        else:
            inlet.waiting -= some.begin - before
        inlet.rest = some if left else None
        return not left

    # -- sources that come, rest and go, under the lock of their inlet -------------------------------------

    def _inlet(self, key: Key) -> Inlet:
        with self._members:
            inlet = self._inlets.get(key)
            if inlet is None:
                inlet = self._inlets[key] = Inlet(key)
            return inlet

    def _note(self, inlet: Inlet, is_open: bool) -> None:
        """Record that a source is open or not; rejects one too many."""
        if inlet.is_open == is_open:
            return
        with self._members:
            if is_open and self._n_open == MOST_SOURCES:
                if inlet.slot == NIL and not inlet.calls:
                    inlet.gone = True
                    del self._inlets[inlet.key]
                raise StateError(
                    f"{MOST_SOURCES:,} sources are open, as many as algorithm='scalejoin' takes in event-time order: "
                    "finish some, or take another algorithm"
                )
            inlet.is_open = is_open
            self._n_open += 1 if is_open else -1

    def _open(self, inlet: Inlet) -> bool:
        """Have the gate wait for a source, if it does not; False while sources that are gone take its place."""
        if inlet.slot != NIL:
            return True
        side = inlet.key[0]
        with self._members:
            slot = self._order.add(inlet.key, self._inlets, lambda key: self._inlets[key].is_open)
            if slot == NIL:
                return False
            if (slot, side) not in self._rings:
                self._rings[slot, side] = (
                    np.zeros((RING, self._encoder.words), np.int64),
                    _row_ring(self._schemas[side]),
                )
            lines, rows = self._rings[slot, side]
            self.sources[slot, [LINES, LINE, SIDE]] = lines.ctypes.data, lines.strides[0], side
            self.layouts[slot, : len(rows.schema)] = rows.layout()
            inlet.slot = slot
            if self._missing:
                self._missing.discard(side)
                members.set_missing(self.mem, len(self._missing))
        if inlet.idle_slot != NIL:
            members.finish(self.mem, inlet.idle_slot)
            inlet.idle_slot = NIL
        return True

    def _rest(self, inlet: Inlet) -> bool:
        if inlet.held is not None and not self._settle(inlet, everything=True):
            return self._try_again(inlet, Call("rest", *inlet.key))
        members.rest(self.mem, inlet.slot)
        inlet.idle_slot, inlet.slot = inlet.slot, NIL
        ring_if_more(self.mem, self.bells)
        return True

    def _finish(self, inlet: Inlet) -> bool:
        """End a source: its place and its name can be used again."""
        if inlet.held is not None and not self._settle(inlet, everything=True):
            return self._try_again(inlet, Call("finish", *inlet.key))
        ended = [slot for slot in (inlet.slot, inlet.idle_slot) if slot != NIL]
        inlet.slot = inlet.idle_slot = NIL
        inlet.clock = NEVER
        if any(call.event != "finish" for call in inlet.calls):
            # It has come again under its name meanwhile: the gate waits for it without a gap, in which others pass it.
            self._open(inlet)
        for slot in ended:
            members.finish(self.mem, slot)
        if not inlet.calls:
            with self._members:
                inlet.gone = True
                self._inlets.pop(inlet.key, None)
                self._gone_tuples[inlet.key[0]] += inlet.tuples
        ring_if_more(self.mem, self.bells)
        return True


def _row_ring(schema: pa.Schema) -> SideStore:
    """Room for the rows of a ring; every column may hold NULL."""
    rows = SideStore(schema, 0, False)
    rows.mark_nulls(schema.names)
    rows.block.reserve(RING // 2)
    return rows
