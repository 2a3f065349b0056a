"""The gate's decisions for one batch: which rows are late, which are ready, and in which order.

Late and ready rows are decided as in the embedded engine (`gate/decisions.py`). A `Standing` is the state of the gate
between batches. Decisions depend only on it and on the batch's rows, so a batch that runs again has the same result.

A source is idle when it has sent nothing for longer than the user allows, measured by the batches' times, which Spark
records. The gate no longer waits for an idle source, and rows that it later sends behind the bound are late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.gate.decisions import START, Bound, Key, late_mask, passed, ties_are_ready
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.windows.clock import NEVER


@dataclass(frozen=True)
class SourceProgress:
    """One source: its newest time, and when its last row arrived."""

    clock: int | None
    seen_ms: int | None


@dataclass(frozen=True)
class Standing:
    """The state of the gate: its sources, the bound up to which rows are released, and how many tuples were."""

    sources: Mapping[Key, SourceProgress]
    bound: Bound = START
    counts: tuple[int, int] = (0, 0)

    @property
    def lag(self) -> int | None:
        """How far the bound is behind the newest time of all sources, in ticks."""
        clocks = [source.clock for source in self.sources.values() if source.clock is not None]
        return max(clocks) - self.bound[0] if clocks and self.bound[0] > NEVER else None

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data."""
        sources = [[*key, p.clock, p.seen_ms] for key, p in sorted(self.sources.items())]
        return {"sources": sources, "bound": list(self.bound), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Standing:
        """The state from the data that `to_json` returned."""
        sources = {(side, name): SourceProgress(clock, seen) for side, name, clock, seen in data["sources"]}
        return cls(sources, tuple(data["bound"]), tuple(data["counts"]))


@dataclass(frozen=True)
class UngatedRows:
    """One side's rows before the gate, in the order in which each source sent them.

    `source` is an index into `names`. A `strict` source sends in the order of its positions:
    whether a row is late depends on the rows before it. For other sources it depends on the clock before the batch.
    """

    ticks: Array
    source: Array
    names: Sequence[str]
    strict: frozenset[str] = frozenset()


def late_in(standing: Standing, side: int, rows: UngatedRows, lateness: int) -> Array:
    """Which new rows are behind their source by more than the lateness, or behind the released rows."""
    late = np.zeros(rows.ticks.size, np.bool_)
    for i, name in enumerate(rows.names):
        own = np.flatnonzero(rows.source == i)
        if own.size == 0:
            continue
        source_state = standing.sources.get((side, name))
        clock = NEVER if source_state is None or source_state.clock is None else source_state.clock
        late[own] = late_mask(
            (side, name), rows.ticks[own], clock, lateness, standing.bound, in_order=name in rows.strict
        )
    return late


def advanced(
    standing: Standing, batch: Iterable[tuple[int, UngatedRows]], lateness: int, now_ms: int | None, idle_ms: int | None
) -> Standing:
    """The sources after their new rows, and the new bound."""
    sources = {
        key: p if p.seen_ms is not None or now_ms is None else SourceProgress(p.clock, now_ms)
        for key, p in standing.sources.items()
    }
    for side, rows in batch:
        for i, name in enumerate(rows.names):
            own = rows.ticks[rows.source == i]
            if own.size:
                before = sources.get((side, name), SourceProgress(None, None)).clock
                newest = int(own.max()) if before is None else max(before, int(own.max()))
                sources[side, name] = SourceProgress(newest, now_ms)
    bound = _bound(sources, lateness, now_ms, idle_ms)
    return Standing(sources, standing.bound if bound is None else max(standing.bound, bound), standing.counts)


def _bound(
    sources: Mapping[Key, SourceProgress], lateness: int, now_ms: int | None, idle_ms: int | None
) -> Bound | None:
    reached = {key: passed(key, p.clock, lateness) for key, p in sources.items() if p.clock is not None}

    def idle(progress: SourceProgress) -> bool:
        times = (now_ms, idle_ms, progress.seen_ms)
        return None not in times and now_ms - progress.seen_ms > idle_ms  # type: ignore[operator]

    awaited = [key for key, progress in sources.items() if not idle(progress)]
    if not awaited:
        return max(reached.values(), default=None)
    if any(key not in reached for key in awaited):
        return None
    return min(reached[key] for key in awaited)


def ready_in(standing: Standing, side: int, rows: UngatedRows) -> Array:
    """Which rows are not after the bound."""
    tick = standing.bound[0]
    ready: Array = rows.ticks < tick
    tied = [i for i, name in enumerate(rows.names) if ties_are_ready((side, name), standing.bound)]
    if tied:
        at = np.flatnonzero(rows.ticks == tick)
        ready[at] = np.isin(rows.source[at], tied)
    return ready


def ordered(rows: UngatedRows, places: Array) -> Array:
    """`places` in the order of one side: by time, then by source, then as before."""
    if len(rows.names) > 1:
        ranks = np.argsort(np.argsort(np.array(rows.names, object), kind="stable"), kind="stable")
        _, places = sort_entries(ranks[rows.source[places]].astype(np.int64), places)
    ticks = rows.ticks[places]
    if (ticks[1:] >= ticks[:-1]).all():
        return places
    return sort_entries(ticks, places)[1]


def numbered(left: Array, right: Array) -> tuple[Array, Array]:
    """How many tuples of the other side come before each; both sides' times are sorted, and left comes first."""
    return (
        np.searchsorted(right, left, side="left").astype(np.int64),
        np.searchsorted(left, right, side="right").astype(np.int64),
    )
