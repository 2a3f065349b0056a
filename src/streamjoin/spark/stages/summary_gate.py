"""What the gate does for summaries: which left rows have complete windows, and the positions of the rows that come out.

Released left rows wait in the ranges of their keys. The gate has no rows, but keeps the times of those that wait, so
that it knows how many come out in a batch; they do so in their order, so that gives the positions of the result rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import START
from streamjoin.spark.stages.gating import Standing
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.windows.clock import less

_WAITING = "waiting"


class SummaryGate:
    """The part of the gate that depends on summaries, in one batch; see `KindGate` for those of other joins."""

    reach = 0
    """How far the bound must be beyond a left row before it leaves the gate."""

    def __init__(self, blueprint: Blueprint, *, ends: bool = False) -> None:
        self._blueprint = blueprint
        self._ends = ends
        self._waited = 0
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, Array] | None = None

    def advance(
        self,
        log: WindowLog,
        before: Manifest,
        counts: tuple[int, int],  # noqa: ARG002
        after: Standing,
        ticks: tuple[Array, Array],
    ) -> None:
        """Decide how many left rows come out, given the released ones of the batch; see `KindGate.advance`."""
        waiting = ticks[0]
        if before.batch >= 0:
            footer, piece = log.gate(before.batch, before.epoch)
            if not footer.get("ended"):
                waited = piece.array(footer, _WAITING, pa.int64())
                self._waited, waiting = waited.size, np.concatenate([waited, waiting])
        tick = None if after.bound == START else after.bound[0]
        until = self._blueprint.horizons(self.clocks(after.counts, tick))[0]
        complete = waiting.size if self._ends else int(np.searchsorted(waiting, until))
        self.facts = {"undecided": waiting.size - complete}
        self.arrays = {_WAITING: waiting[complete:]}

    def clocks(self, counts: tuple[int, int], tick: int | None) -> list[int | None]:  # noqa: ARG002
        """The clocks from which the horizons follow: of left rows that wait, and of right ones in their windows."""
        if tick is None:
            return [None, None]
        # A row in force is needed however old it is.
        newest = self._blueprint.keeps_newest
        return [tick, None if newest else less(tick, self._blueprint.windows[0])]

    def positions(self, before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
        """The positions of the first left row that comes out in the batch, and of the first one that does not."""
        return before[0] - self._waited, after[0] - int(self.facts["undecided"])

    def earliest(self, tick: int | None) -> int | None:
        """The time before which no result follows: rows have the times of their left tuples."""
        return tick if tick is None or self._ends else less(tick, self._blueprint.windows[0])
