"""The state of outer, semi and anti joins: which tuples have matched, and which have left their windows.

A mark is one bit per position of a side. The task of a range sees every pair of the tuples that it owns and writes the
positions that matched into a small file. The gate of the next batch, one task, adds them to the marks and publishes
these in its file, before any task of the batch reads them. A batch that runs again begins with the same marks.

A tuple has left once its age is below its side's threshold, `gone`. The thresholds follow from the gate's progress
alone, so a tuple leaves in one batch, and the task that owns it there knows whether it has a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import MappedPiece
from streamjoin.windows.clock import NEVER, minus

Edge = tuple[int, int]
"""The number of a side's tuples after a batch, and its newest time then."""

_MOST_EDGES = 64


@dataclass(frozen=True)
class Marks:
    """Which positions of a side have matched, from `base` on."""

    base: int
    bits: Array

    def at(self, seqs: Array) -> Array:
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
    """

    marks: tuple[Marks, Marks]
    gone: tuple[int, int] = (NEVER, NEVER)
    gone_before: tuple[int, int] = (NEVER, NEVER)
    newest: int = NEVER
    edges: tuple[tuple[Edge, ...], tuple[Edge, ...]] = ((), ())

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
        return cls((left, right), (gone[0], gone[1]), (before[0], before[1]), facts["newest"], (edges[0], edges[1]))

    def facts(self) -> dict[str, Any]:
        """The state as JSON data, without the marks."""
        extents = [(side.base, side.bits.size) for side in self.marks]
        return {
            "extents": extents,
            "gone": self.gone,
            "gone_before": self.gone_before,
            "newest": self.newest,
            "edges": self.edges,
        }

    def arrays(self) -> dict[str, Array]:
        """The marks as arrays of bits."""
        return {f"marks{side}": np.packbits(marks.bits) for side, marks in enumerate(self.marks)}


NO_MARKS = MarkState((Marks(0, np.zeros(0, np.bool_)), Marks(0, np.zeros(0, np.bool_))))


def resumed(blueprint: Blueprint, log: WindowLog, before: Manifest, counts: tuple[int, int]) -> MarkState:
    """The state after the version `before`, when `counts` tuples of each side were released."""
    if before.batch < 0:
        return NO_MARKS
    state = MarkState.of_gate(*log.gate(before.batch, before.epoch))
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
        own = counts[side] - blueprint.windows[side] if blueprint.counted[side] else None
        gone.append(_passed(blueprint, side, now, bound) if own is None else own)
        seen = [edge for edge in state.edges[side] if edge[1] >= gone[side]]
        passed = [edge for edge in state.edges[side] if edge[1] < gone[side]][-1:]
        tick = newest[side]
        edges.append((*passed, *_thinned(seen), *([] if tick is None else [(counts[side], tick)])))
    return replace(state, gone=(gone[0], gone[1]), newest=now, edges=(edges[0], edges[1]))


def _passed(blueprint: Blueprint, side: int, now: int, bound: int) -> int:
    """The time before which a side's tuples have left a time window.

    The bound decides, as no tuple before it follows. With two different windows of preserved sides it may pass a tuple
    while an earlier one of the other side is not decided, and the next tuple may leave both behind: then a tuple waits
    until none of the other side that is earlier can be undecided, or a tuple finds it gone.
    """
    windows, counted = blueprint.windows, blueprint.counted
    own = less(bound, windows[side])
    if len(blueprint.preserved) < 2 or (windows[0] == windows[1] and counted[0] == counted[1]):
        return own
    other = NEVER if counted[1 - side] else less(bound, windows[1 - side])
    return max(less(now, windows[side]), min(own, other))


def less(tick: int, length: int) -> int:
    """`tick` - `length`, saturated at the smallest int64."""
    return int(minus(np.array([tick]), length)[0])


def _thinned(edges: Sequence[Edge]) -> list[Edge]:
    """The edges, every second one if they are many: marks are then kept a little longer."""
    return list(edges) if len(edges) < _MOST_EDGES else list(edges[1::2])


@dataclass(frozen=True)
class Places:
    """The new tuples of a batch in gate order, to find where tuples leave; `ticks` are those of each side, sorted."""

    first: int
    firsts: tuple[int, int]
    ticks: tuple[Array, Array]
    self_join: bool

    def by_time(self, ticks: Array, window: int) -> Array:
        """The gate position of the first new tuple that is later than a tuple's time plus `window`."""
        last = np.where(ticks > np.iinfo(np.int64).max - window, np.iinfo(np.int64).max, ticks + window)
        sides = self.ticks[:1] if self.self_join else self.ticks
        position = self.first + sum(np.searchsorted(own, last, side="right") for own in sides)
        return np.asarray(position, np.int64)

    def by_count(self, side: int, seqs: Array, window: int) -> Array:
        """The gate position of the tuple of the same side that comes `window` tuples later."""
        if self.self_join:
            return seqs + window
        place = seqs + window - self.firsts[side]
        other = np.searchsorted(self.ticks[1 - side], self.ticks[side][place], side="right" if side else "left")
        return np.asarray(self.first + place + other, np.int64)
