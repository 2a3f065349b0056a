"""A side's new rows in a range: sorted, in words, with the late ones set apart.

A row is late when it is further behind the largest time of its side in all earlier batches than the spec's lateness
allows; rows of one batch are never late for each other. A row without a time is set apart as well. Both
are reported by the range that owns them, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from streamjoin.kernels.sorting import sort_entries
from streamjoin.spark.blueprint import SIDES, Blueprint
from streamjoin.spark.pairing import Probes, tick_bounds
from streamjoin.spark.route import ROW_ID
from streamjoin.spark.segments import Segment
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import Encoded, SideEncoder, flat

Array = np.ndarray[Any, np.dtype[Any]]

LATE, NO_TIME = "late", "no time"


@dataclass(frozen=True)
class Arrivals:
    """What came: all as probes, what the range owns as a segment, and what was late, by reason."""

    probes: Probes
    owned: Segment
    clock: int | None
    late: dict[str, pa.Table]
    name: str

    @property
    def late_counts(self) -> dict[str, int]:
        """The late rows by side and reason."""
        return {f"{self.name}: {reason}": rows.num_rows for reason, rows in self.late.items()}


def arrivals(blueprint: Blueprint, side: int, table: pa.Table, clock: int | None, span: tuple[int, int]) -> Arrivals:
    """Prepare the rows of one side, given the side's clock before the batch and the range's words."""
    bound = blueprint.bound
    if bound.time is None:
        raise AssertionError("a spec without a time column is refused when the join is built")
    name: Literal["left", "right"] = "right" if side else "left"
    table = table.combine_chunks()
    encoded = SideEncoder(bound, name).encode(table)
    if encoded.index is None:
        raise AssertionError("a spec without an index is refused when the join is built")
    ticks, missing = to_ticks(table.column(bound.time.right if side else bound.time.left), bound.time.multipliers[side])
    late = np.zeros(encoded.n, np.bool_) if clock is None else ticks < clock - blueprint.lateness
    usable = ~late
    reasons = {LATE: late}
    if missing is not None:
        usable &= ~missing
        reasons = {LATE: late & ~missing, NO_TIME: missing}
    newest = int(ticks[usable].max()) if usable.any() else None
    if encoded.valid is not None:
        usable &= encoded.valid
    rows, lo, hi, bounds = _sorted(blueprint, table, encoded, ticks, usable)
    window = blueprint.windows
    back, ahead = (window[0], window[1]) if side else (window[1], window[0])
    probes = Probes(rows, lo, hi, bounds, *tick_bounds(rows.ticks, back, ahead))
    # In a self-join every row comes in both roles; one of them reports it.
    if bound.spec.self_join and side:
        reasons = {}
    set_apart = {reason: _owned_rows(table, encoded, mask, span) for reason, mask in reasons.items() if mask.any()}
    return Arrivals(probes, rows.within(*span), newest, set_apart, SIDES[side])


def _sorted(
    blueprint: Blueprint, table: pa.Table, encoded: Encoded, ticks: Array, usable: Array
) -> tuple[Segment, Array, Array, tuple[tuple[Array, Array], ...]]:
    index = encoded.index
    if index is None:
        raise AssertionError("a spec without an index is refused when the join is built")
    places = np.flatnonzero(usable)
    words, order = sort_entries(index.word[places], places)
    terms = [encoded.terms[i].take(order) for i in blueprint.open_terms]
    rows = table.take(pa.array(order))
    ids = None
    if blueprint.bound.spec.self_join:
        ids = flat(rows.column(ROW_ID)).to_numpy()
        rows = rows.drop_columns([ROW_ID])
    segment = Segment(words, ticks[order], tuple(term.word for term in terms), rows, ids)
    return segment, index.lo[order], index.hi[order], tuple((term.lo, term.hi) for term in terms)


def _owned_rows(table: pa.Table, encoded: Encoded, mask: Array, span: tuple[int, int]) -> pa.Table:
    """The chosen rows that this range owns; one with no key was sent to this range alone."""
    if encoded.index is None:
        raise AssertionError("a spec without an index is refused when the join is built")
    word = encoded.index.word
    own = (word >= span[0]) & (word <= span[1])
    if encoded.valid is not None:
        own |= ~encoded.valid
    rows = table.filter(pa.array(mask & own))
    return rows.drop_columns([ROW_ID]) if ROW_ID in rows.column_names else rows
