"""What the gate does for the kinds of join: marks for outer, semi and anti joins, and which rows as-of joins need.

A left row of an as-of join leaves the gate once no closer right row can follow: backward when the bound has passed its
time, otherwise when it has passed its time plus the tolerance. All right rows that it may match are then stored, or in
the same batch, so each left row is matched once and no range stores any.
"""

from __future__ import annotations

from typing import Any

from streamjoin._arrays import Array
from streamjoin.spark.stages.gating import Standing
from streamjoin.spark.stages.marks import NO_MARKS, MarkState, advanced, less, resumed
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.windows.clock import NEVER


class KindGate:
    """The part of the gate that depends on the kind of join, in one batch."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._state: MarkState = NO_MARKS
        match = blueprint.bound.match
        self.reach = 0 if match is None or match.direction == "backward" else match.tolerance or 0
        """How far the bound must be beyond a left row of an as-of join."""
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Array] | None = None

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
        self.facts = {"marks": self._state.facts()}
        self.arrays = self._state.arrays()
        if self._blueprint.places:
            self.facts["firsts"] = counts
            self.arrays |= {f"ticks{side}": own for side, own in enumerate(ticks)}

    def clocks(self, counts: tuple[int, int], tick: int | None) -> list[int | None]:
        """The clocks from which the horizons follow: rows that the kind of join still needs are not behind them."""
        plan, match = self._blueprint, self._blueprint.bound.match
        clocks: list[int | None] = [counts[side] if plan.counted[side] else tick for side in (0, 1)]
        if match is not None:
            free = match.tolerance is None
            back = 0 if match.direction == "forward" else match.tolerance or 0
            clocks[1] = None if tick is None or free else less(less(tick, self.reach), back)
        itself = int(plan.bound.spec.self_join)
        for side in plan.preserved:
            gone = self._state.gone[side]
            clocks[side] = None if gone == NEVER else gone + plan.windows[side] - itself * plan.counted[side]
        return clocks

    def earliest(self, tick: int | None) -> int | None:
        """The time before which no result follows; None if there is none."""
        plan = self._blueprint
        if tick is None or any(plan.counted[side] for side in plan.marked):
            return None
        times = [less(tick, self.reach), *(self._state.gone[side] for side in plan.marked)]
        return None if min(times) == NEVER else min(times)
