"""What the gate does for the join types: which tuples have matched and which are gone, and when left rows may leave it.

A mark is one bit per position of a side. The task of a range sees every pair of the tuples that it owns and writes the
positions that matched into a small file. The gate of the next batch, one task, adds them to the marks and publishes
these in its file, before any task of the batch reads them. A batch that runs again begins with the same marks.

A tuple has left once its age is below its side's threshold, `gone`. The thresholds follow from the gate's progress
alone, so a tuple leaves in one batch, and the task that owns it there knows whether it has a mark.

A left row of an as-of join leaves the gate once no closer right row can follow: backward when the bound has passed its
time, otherwise when it has passed its time plus the tolerance. All right rows that it may match are then stored, or in
the same batch, so each left row is matched once and no range stores any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.types import asof
from streamjoin.joins.types.marks import gone_below, gone_in_order
from streamjoin.spark.stages.gating import Standing
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import MappedPiece
from streamjoin.windows.clock import NEVER, less

Edge = tuple[int, int]
"""The number of a side's tuples after a batch, and its newest time then."""

_MOST_EDGES = 64


@dataclass(frozen=True)
class Marks:
    """Which positions of a side have matched, from `base` on."""

    base: int
    bits: Array

    def at(self, words: Array, seqs: Array) -> Array:  # noqa: ARG002
        """Whether each position has matched; positions beyond the marks have not."""
        places = seqs - self.base
        inside = (places >= 0) & (places < self.bits.size)
        if inside.all():
            return np.asarray(self.bits[places])
        matched = np.zeros(seqs.size, np.bool_)
        matched[inside] = self.bits[places[inside]]
        return matched

    def extended(self, front: int, end: int, matched: Sequence[Array]) -> Marks:
        """The marks of the positions from `front` to `end`, with more that have matched."""
        base = max(front, self.base)
        bits = np.zeros(max(0, end - base), np.bool_)
        known = self.bits[base - self.base :][: bits.size]
        bits[: known.size] = known
        for seqs in matched:
            bits[seqs[seqs >= base] - base] = True
        return Marks(base, bits)


class HasMarks(Protocol):
    """The marks of a side."""

    def at(self, words: Array, seqs: Array) -> Array:
        """Whether each number has matched; `words`, which ascend, are those of the rows."""


@dataclass(frozen=True)
class MarkState:
    """The marks before a batch, and what has left before and after it.

    Args:
        marks: the marks of each side.
        gone: the thresholds of each side after the batch, in ticks or positions; tuples below have left.
        gone_before: the same before the batch.
        newest: the newest time that the gate has released.
        edges: each side's recent edges, oldest first. They tell the gate, which has no stored times, which positions
            have left.
        ended: whether the batch is the end of input, when all tuples leave.
    """

    marks: tuple[Marks, Marks]
    gone: tuple[int, int] = (NEVER, NEVER)
    gone_before: tuple[int, int] = (NEVER, NEVER)
    newest: int = NEVER
    edges: tuple[tuple[Edge, ...], tuple[Edge, ...]] = ((), ())
    ended: bool = False

    def leaving(self, side: int, ages: Array, *, new: bool) -> Array:
        """Which tuples of a side, by their ages, leave in the batch; all others that are gone have left before."""
        leaves = np.ones(ages.size, np.bool_) if new else ages >= self.gone_before[side]
        return leaves if self.ended else leaves & (ages < self.gone[side])

    @classmethod
    def of_gate(cls, footer: Mapping[str, Any], piece: MappedPiece) -> MarkState:
        """The state in a gate's file."""
        facts = footer["marks"]
        left, right = (
            Marks(base, np.unpackbits(piece.array(footer, f"marks{side}", pa.uint8()), count=n).astype(np.bool_))
            for side, (base, n) in enumerate(facts["extents"])
        )
        edges = [tuple((seq, tick) for seq, tick in side) for side in facts["edges"]]
        gone, before = facts["gone"], facts["gone_before"]
        return cls(
            (left, right), (gone[0], gone[1]), (before[0], before[1]), facts["newest"], (edges[0], edges[1]),
            facts.get("ended", False),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """The state as JSON data, without the marks."""
        extents = [(side.base, side.bits.size) for side in self.marks]
        return {
            "extents": extents,
            "gone": self.gone,
            "gone_before": self.gone_before,
            "newest": self.newest,
            "edges": self.edges,
            **({"ended": True} if self.ended else {}),
        }

    def arrays(self) -> dict[str, Array]:
        """The marks as arrays of bits."""
        return {f"marks{side}": np.packbits(marks.bits) for side, marks in enumerate(self.marks)}


NO_MARKS = MarkState((Marks(0, np.zeros(0, np.bool_)), Marks(0, np.zeros(0, np.bool_))))


class KindGate:
    """The part of the gate that depends on the kind of join, in one batch."""

    def __init__(self, blueprint: Blueprint, *, ends: bool = False) -> None:
        self._blueprint = blueprint
        self._ends = ends
        self._state: MarkState = NO_MARKS
        match = blueprint.bound.match
        self.reach = 0 if match is None else asof.span(match)[1]
        """How far the bound must be beyond a left row of an as-of join."""
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Array] | None = None
        self.former_marks: tuple[Marks, Marks] | None = None
        """Where every range decides: the marks that a gate of one task had, after its last batch."""

    @property
    def state(self) -> MarkState:
        """The marks, and what has left before and after the batch."""
        return self._state

    def advance(
        self, log: WindowLog, before: Manifest, counts: tuple[int, int], after: Standing, ticks: tuple[Array, Array]
    ) -> None:
        """Bring the marks up to the version `before`, and decide what leaves in this batch.

        `counts` and `after` are the gate's progress before and after the batch, `ticks` each side's released times.
        """
        if not self._blueprint.marked:
            return
        state = resumed(self._blueprint, log, before, counts)
        newest = tuple(int(own[-1]) if own.size else None for own in ticks)
        self._state = advanced(self._blueprint, state, after.counts, (newest[0], newest[1]), after.bound[0])
        if self._ends:
            self._state = replace(self._state, ended=True)
        if self._blueprint.shared_gate:
            # Marks are in the runs.
            self.former_marks = state.marks if any(side.bits.size for side in state.marks) else None
            self._state = replace(self._state, marks=NO_MARKS.marks, edges=NO_MARKS.edges)
        self.facts = {"marks": self._state.facts()}
        self.arrays = self._state.arrays()
        if self._blueprint.places and not self._blueprint.shared_gate:
            self.facts["firsts"] = counts
            self.arrays |= {f"ticks{side}": own for side, own in enumerate(ticks)}

    def clocks(self, counts: tuple[int, int], tick: int | None) -> list[int | None]:
        """The clocks from which the horizons follow: rows that the kind of join still needs are not behind them."""
        plan, match = self._blueprint, self._blueprint.bound.match
        clocks: list[int | None] = [counts[side] if plan.counted[side] else tick for side in (0, 1)]
        if match is not None:
            clocks[1] = None
            if tick is not None and match.tolerance is not None:
                clocks[1] = asof.oldest(match, less(tick, self.reach))
        itself = int(plan.bound.spec.self_join)
        for side in plan.preserved:
            gone = self._state.gone[side]
            clocks[side] = None if gone == NEVER else gone + plan.windows[side] - itself * plan.counted[side]
        return clocks

    def positions(self, before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
        """The first and the end position of the batch's rows, from the released tuples before and after it."""
        plan = self._blueprint
        itself = plan.bound.spec.self_join or plan.bound.match is not None
        first, end = (counts[0] if itself else sum(counts) for counts in (before, after))
        return first, end

    def earliest(self, tick: int | None) -> int | None:
        """The time before which no result follows; None if there is none."""
        plan = self._blueprint
        if self._ends:
            return tick
        if tick is None or any(plan.counted[side] for side in plan.marked):
            return None
        times = [less(tick, self.reach), *(self._state.gone[side] for side in plan.marked)]
        return None if min(times) == NEVER else min(times)


def resumed(blueprint: Blueprint, log: WindowLog, before: Manifest, counts: tuple[int, int]) -> MarkState:
    """The state after the version `before`, when `counts` tuples of each side were released."""
    if before.batch < 0:
        return NO_MARKS
    footer, piece = log.gate(before.batch, before.epoch)
    state = MarkState.of_gate(footer, piece)
    if "came" in footer:
        return NO_MARKS if state.ended else replace(state, gone_before=state.gone)
    if state.ended:
        nothing = np.zeros(0, np.bool_)
        return replace(NO_MARKS, marks=(Marks(counts[0], nothing), Marks(counts[1], nothing)))
    matched: tuple[list[Array], list[Array]] = ([], [])
    for footer, piece in log.marks(before.batch, before.epoch):
        for side in blueprint.marked:
            matched[side].append(piece.array(footer, f"matched{side}", pa.int64()))
    left, right = (
        state.marks[side].extended(_front(blueprint, state, side), counts[side], matched[side])
        if side in blueprint.marked
        else state.marks[side]
        for side in (0, 1)
    )
    return replace(state, marks=(left, right), gone_before=state.gone)


def _front(blueprint: Blueprint, state: MarkState, side: int) -> int:
    """A position before which all tuples of a side have left."""
    if blueprint.counted[side]:
        return max(0, state.gone[side])
    return max((seq for seq, tick in state.edges[side] if tick < state.gone[side]), default=0)


def advanced(
    blueprint: Blueprint, state: MarkState, counts: tuple[int, int], newest: tuple[int | None, int | None], bound: int
) -> MarkState:
    """The state after a batch: how many tuples of each side were released, and the newest time of each in the batch."""
    now = max([state.newest, *(tick for tick in newest if tick is not None)])
    gone, edges = [], []
    for side in (0, 1):
        gone.append(_gone(blueprint, side, counts[side] if blueprint.counted[side] else bound, now))
        seen = [edge for edge in state.edges[side] if edge[1] >= gone[side]]
        passed = [edge for edge in state.edges[side] if edge[1] < gone[side]][-1:]
        tick = newest[side]
        edges.append((*passed, *_thinned(seen), *([] if tick is None else [(counts[side], tick)])))
    return replace(state, gone=(gone[0], gone[1]), newest=now, edges=(edges[0], edges[1]))


def _gone(blueprint: Blueprint, side: int, clock: int, now: int) -> int:
    """The age below which the tuples of a side are gone."""
    windows, counted = blueprint.windows, blueprint.counted
    alike = windows[0] == windows[1] and counted[0] == counted[1]
    if counted[side] or len(blueprint.preserved) < 2 or alike:
        return gone_below(clock, windows[side])
    return gone_in_order(clock, now, windows[side], None if counted[1 - side] else windows[1 - side])


def _thinned(edges: Sequence[Edge]) -> list[Edge]:
    """The edges, every second one if they are many: marks are then kept a little longer."""
    return list(edges) if len(edges) < _MOST_EDGES else list(edges[1::2])
