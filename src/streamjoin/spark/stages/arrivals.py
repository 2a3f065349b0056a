"""The new rows of one side in a range: sorted by word, with late rows set aside.

Without a gate, a row is late when it is further behind the largest time of its side in all earlier batches than the
spec's lateness allows; rows of one batch are never late relative to each other. A row without a time is set aside as
well. The range that owns such a row reports it. A gate removes both kinds before this stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.types.asof import span
from streamjoin.joins.types.marks import Keyless
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.batch.sweep import make_ascending
from streamjoin.spark.stages.facts import TASK_ROWS, WAITED, BatchFacts
from streamjoin.spark.stages.pairing import SortedProbes, tick_bounds
from streamjoin.spark.stages.parts import Received
from streamjoin.spark.stages.route import ROW_ID, SEQ, UPTO, Longest, index_words, owned_by
from streamjoin.storage.blueprint import SIDES, Blueprint
from streamjoin.storage.ranges import MOST
from streamjoin.storage.segments import Segment
from streamjoin.windows.clock import NEVER, minus, to_ticks
from streamjoin.windows.encoding import Encoded, SideEncoder, flat
from streamjoin.windows.intervals import NO_CLASS, length_classes
from streamjoin.windows.words import TermWords

LATE, NO_TIME = "late", "no time"
# Multiples of it, modulo 2**64, are spread evenly.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class KeylessRows:
    """Rows with their times, their positions in their side, and those in the order of both."""

    rows: pa.Table
    ticks: Array
    seqs: Array
    places: Array


@dataclass(frozen=True)
class Arrivals:
    """The new rows: all probes, the rows that the range stores, and the rows set aside, by reason."""

    probes: SortedProbes
    owned: SortedProbes
    clock: int | None
    late: dict[str, pa.Table]
    name: str
    own: Array
    """Which of the probes the range stores."""
    keyless: KeylessRows | Segment | None = None
    """The rows that match nothing, whatever follows, where the kind of join gives them out; without a gate by word."""

    @property
    def late_counts(self) -> dict[str, int]:
        """The late rows by side and reason."""
        return {f"{self.name}: {reason}": rows.num_rows for reason, rows in self.late.items()}


def arrivals(
    blueprint: Blueprint,
    side: int,
    received: Received,
    clock: int | None,
    longest: Longest = (0, 0),
    facts: BatchFacts | None = None,
) -> Arrivals:
    """Prepare the rows of one side, given the side's clock before the batch and the longest intervals."""
    bound = blueprint.bound
    if bound.time is None:
        raise AssertionError("a spec without a time column is refused when the join is built")
    name: Literal["left", "right"] = "right" if side else "left"
    table = received.table.combine_chunks()
    encoded = SideEncoder(bound, name).encode(table)
    ticks, missing = to_ticks(table.column(bound.time.right if side else bound.time.left), bound.time.multipliers[side])
    late = np.zeros(encoded.n, np.bool_)
    if clock is not None and blueprint.gate is None:
        late = ticks < max(NEVER, clock - blueprint.lateness)
        if facts is not None and (side, WAITED) in facts.first:
            # They were on time when they came.
            late &= table.column(ROW_ID).to_numpy() < WAITED << TASK_ROWS
    usable = ~late
    reasons = {LATE: late}
    if missing is not None:
        usable &= ~missing
        reasons = {LATE: late & ~missing, NO_TIME: missing}
    newest = int(ticks[usable].max()) if usable.any() else None
    keyless: KeylessRows | Segment | None = None
    given_out = side in blueprint.preserved or (side == 0 and bound.match is not None)
    if given_out:
        mask = Keyless(bound, side)(table, encoded.valid)
        if mask is not None:
            places = np.flatnonzero(mask[: received.owned] & usable[: received.owned])
            if facts is None:
                keyless = _keyless(blueprint, table, ticks, places)
            else:
                keyless = _spread(side, table, ticks, places, facts)
            usable &= ~mask
    waits = blueprint.summarises and side == 0
    if encoded.valid is not None and not waits and not (given_out and bound.intervals is not None):
        usable &= encoded.valid
    index = index_words(blueprint, encoded, longest[1 - side])
    probes, own = _probes(blueprint, side, table, encoded, index, ticks, usable, received.owned)
    if facts is not None and probes.rows.ids is not None:
        ids = probes.rows.ids
        seqs = facts.numbers(side, ids)
        probes = replace(probes, rows=replace(probes.rows, seqs=seqs, ids=ids if bound.spec.self_join else None))
    # In a self-join every row has both roles; only one of them reports it.
    if bound.spec.self_join and side:
        reasons = {}
    set_apart = {reason: _rows(table, mask, received.owned) for reason, mask in reasons.items() if mask.any()}
    return Arrivals(probes, probes.chosen(own), newest, set_apart, SIDES[side], own, keyless)


def _keyless(blueprint: Blueprint, table: pa.Table, ticks: Array, places: Array) -> KeylessRows:
    rows = table.take(pa.array(places))
    seqs, upto = _column(rows, SEQ), _column(rows, UPTO)
    if seqs is None or upto is None:
        raise AssertionError("rows behind a gate without their numbers")
    rows = rows.drop_columns([SEQ, UPTO])
    return KeylessRows(rows, ticks[places], seqs, seqs if blueprint.bound.spec.self_join else seqs + upto)


def _spread(side: int, table: pa.Table, ticks: Array, places: Array, facts: BatchFacts) -> Segment:
    """Rows without a key, by words that are spread over all ranges: each has an owner for as long as it waits."""
    rows = table.take(pa.array(places))
    seqs = facts.numbers(side, rows.column(ROW_ID).to_numpy())
    words, order = sort_entries((seqs.view(np.uint64) * _GOLDEN).view(np.int64), np.arange(seqs.size))
    rows = rows.drop_columns([ROW_ID]).take(pa.array(order))
    return Segment(words, ticks[places[order]], (), rows, None, seqs[order])


def _probes(
    blueprint: Blueprint,
    side: int,
    table: pa.Table,
    encoded: Encoded,
    index: TermWords,
    ticks: Array,
    usable: Array,
    owned: int,
) -> tuple[SortedProbes, Array]:
    """The usable rows by word, and which of them the range stores."""
    places = np.flatnonzero(usable)
    words, order = sort_entries(owned_by(blueprint, side, encoded, index)[places], places)
    terms = [encoded.terms[i].take(order) for i in blueprint.open_terms]
    rows = table.take(pa.array(order))
    ids, seqs, upto = (_column(rows, name) for name in (ROW_ID, SEQ, UPTO))
    rows = rows.drop_columns([name for name in (ROW_ID, SEQ, UPTO) if name in rows.column_names])
    classes = _classes(blueprint, index, encoded.valid)
    classes = None if classes is None else classes[order]
    segment = Segment(words, ticks[order], tuple(term.word for term in terms), rows, ids, seqs, classes)
    bounds = tuple((term.lo, term.hi) for term in terms)
    first = None
    if blueprint.bound.match is not None:
        since, until = tick_bounds(segment.ticks, *span(blueprint.bound.match))
        upto = None
    elif upto is None:
        window = blueprint.windows
        back, ahead = (window[0], window[1]) if side else (window[1], window[0])
        since, until = tick_bounds(segment.ticks, back, ahead)
    else:
        since, first = _reach(blueprint, 1 - side, upto, segment.ticks)
        until = np.full(upto.size, MOST)
    lo = hi = words
    if not index.matches_itself:
        lo, hi = index.lo[order], index.hi[order]
        if classes is not None:
            lo, hi = np.where(classes == NO_CLASS, 1, lo), np.where(classes == NO_CLASS, 0, hi)
        make_ascending(lo, hi)
    probes = SortedProbes(segment, lo, hi, bounds, since, until, first, upto)
    return probes, order < owned


def stored_probes(blueprint: Blueprint, left: Segment) -> SortedProbes:
    """Left rows of an as-of join, stored and new ones, as probes."""
    match = blueprint.bound.match
    if match is None:
        raise AssertionError("stored rows that probe in a join without a match")
    if blueprint.by_key:
        # They are stored under the words of their keys on the right side.
        return SortedProbes(left, left.words, left.words, (), *tick_bounds(left.ticks, *span(match)))
    encoded = SideEncoder(blueprint.bound, "left").encode(left.rows.combine_chunks())
    index = index_words(blueprint, encoded)
    bounds = tuple((encoded.terms[i].lo, encoded.terms[i].hi) for i in blueprint.open_terms)
    lo, hi = index.lo.copy(), index.hi.copy()
    make_ascending(lo, hi)
    return SortedProbes(left, lo, hi, bounds, *tick_bounds(left.ticks, *span(match)))


def _classes(blueprint: Blueprint, index: TermWords, valid: Array | None) -> Array | None:
    """The classes of intervals by length, in a join on intervals."""
    if blueprint.bound.intervals is None:
        return None
    classes = length_classes(index.word, index.hi)
    return classes if valid is None else np.where(valid, classes, np.uint8(NO_CLASS))


def _reach(blueprint: Blueprint, other: int, upto: Array, ticks: Array) -> tuple[Array, Array]:
    """How far rows reach back into the other side's window, in ticks and in positions."""
    window, itself = blueprint.windows[other], int(blueprint.bound.spec.self_join)
    if blueprint.counted[other]:
        return np.full(upto.size, NEVER), upto - window + itself
    return minus(ticks, window), np.zeros(upto.size, np.int64)


def _column(rows: pa.Table, name: str) -> Array | None:
    return np.asarray(flat(rows.column(name)).to_numpy()) if name in rows.column_names else None


def _rows(table: pa.Table, mask: Array, owned: int) -> pa.Table:
    """The chosen rows that this range stores."""
    rows = table.slice(0, owned).filter(pa.array(mask[:owned]))
    return rows.drop_columns([ROW_ID]) if ROW_ID in rows.column_names else rows
