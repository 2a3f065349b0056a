"""The join types in one range: which tuples have matched, the nearest partners, and the rows that come out.

The task of a range sees every pair of the tuples that it owns, so no mark of another range is missing when one of them
leaves. Most pairs are found in the range anyway. A new tuple whose interval reaches beyond the range may also match
there, where a copy of it probes. The owner looks these up itself, for tuples that have not matched yet: new right
tuples that can match are there as copies, and stored tuples are in the log, which every task can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.key_numbers import ExactTerms, KeyNumbers
from streamjoin.joins.types.asof import RightByKey, nearest_pairs
from streamjoin.joins.types.marks import Places, outcome
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.kinds.asof import NONE
from streamjoin.kernels.kinds.marks import find_marks, lower_places
from streamjoin.model.binding import BoundAsOf, BoundSpec
from streamjoin.model.large_columns import take_rows
from streamjoin.spark.stages.arrivals import Arrivals, KeylessRows
from streamjoin.spark.stages.kind_gate import HasMarks, MarkState
from streamjoin.spark.stages.output import FoundPairs, GatheredRows, TaskRows
from streamjoin.spark.stages.pairing import ResidualTest, SortedProbes, after_begin, matches
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.ranges import MOST, SplitPoints, WordRange
from streamjoin.storage.segments import MATCHED, Segment, first_of_each, marks_of, merged
from streamjoin.windows.encoding import SideEncoder, read_only

_MOST_PAIRS = 1 << 24
"""Pairs kept in memory until the marks are published; if there are more, they are found a second time."""
_ROWS = 1 << 18


NO_ENTRIES = marks_of(*np.empty((3, 0), np.int64))


class RunMarks:
    """The marks of a side that lie in the runs, and those that the gate of an earlier version had."""

    def __init__(self, entries: Sequence[Segment], former: HasMarks | None = None) -> None:
        self._entries = entries
        self._former = former

    def at(self, words: Array, seqs: Array) -> Array:
        """Whether each number has matched; `words`, which ascend, are those of the rows."""
        matched: Array = seqs == MATCHED
        if self._former is not None:
            matched |= self._former.at(words, seqs)
        for entries in self._entries:
            marked = read_only(entries.words), read_only(seqs_of(entries))
            find_marks(read_only(words), read_only(seqs), *marked, matched)
        return matched


@dataclass(frozen=True)
class RangeRows:
    """The rows of one range: the new ones and the stored ones of each side, and a way to those of other ranges.

    `beside` returns the stored rows of a side outside the range, with words from the second argument to the third.
    """

    blueprint: Blueprint
    points: SplitPoints
    partition: int
    new: tuple[Arrivals, Arrivals]
    old: tuple[Sequence[Segment], Sequence[Segment]]
    beside: Callable[[int, int, int], list[Segment]]

    def pairs(self) -> Iterator[FoundPairs]:
        """The pairs of the inner join that this range finds."""
        left, right = self.new
        for segment in self.old[1]:
            yield from found(self.blueprint, left.probes, segment, 0)
        if self.blueprint.gate is None and self.blueprint.bound.intervals is not None:
            yield from self._pairs_of_new_intervals()
        else:
            yield from found(self.blueprint, left.probes, right.owned.rows, 0)
        for segment in self.old[0]:
            yield from found(self.blueprint, right.probes, segment, 1)
        if self.blueprint.gate is not None:
            # Probes match earlier tuples only, so new right rows also probe the new left rows.
            yield from found(self.blueprint, right.owned, left.probes.rows, 1)

    def _pairs_of_new_intervals(self) -> Iterator[FoundPairs]:
        """The pairs of two new rows whose later begin is in this range; at one begin, those with its right rows."""
        left, right = self.new
        starting = after_begin(left.probes, strictly=False)
        yield from found(self.blueprint, starting, right.owned.rows, 0, by_class=False)
        starting = after_begin(right.probes, strictly=True)
        yield from found(self.blueprint, starting, left.owned.rows, 1, by_class=False)

    def reaching(self, probes: SortedProbes) -> Array:
        """Which probes can match rows of other ranges."""
        outside: Array = self.points.word_range(self.partition).exceeded(probes.lo, probes.hi)
        return outside & (probes.lo <= probes.hi)

    def pairs_beside(self, side: int, probes: SortedProbes) -> Iterator[FoundPairs]:
        """The pairs of new rows of a side with stored rows outside the range."""
        some = probes.chosen(self.reaching(probes))
        if some.rows.n:
            for segment in self.beside(1 - side, int(some.lo.min()), int(some.hi.max())):
                yield from found(self.blueprint, some, segment, side)


def found(
    blueprint: Blueprint, probes: SortedProbes, stored: Segment, side: int, *, by_class: bool = True
) -> Iterator[FoundPairs]:
    """The pairs of new rows of a side with rows of the other side; see `ResidualTest` for `by_class`."""
    bound = blueprint.bound
    by_class &= bound.intervals is not None
    condition = ResidualTest(bound.residual, blueprint.indexed, side == 0, by_class)
    for probe, place in matches(probes, stored, condition):
        yield FoundPairs(probes, stored, probe, place, side == 0)


def unkeyed(new: Arrivals) -> Segment:
    """The new rows of a side without a key, by word, which wait like others where there is no gate."""
    return new.keyless if isinstance(new.keyless, Segment) else replace(new.owned.rows.part(0, 0), terms=())


class _Hits:
    """Which rows of one segment have matched, and, if `ranked`, where each matched first."""

    def __init__(self, n: int, ranked: bool) -> None:
        self.matched = np.zeros(n, np.bool_)
        self.position, self.partner = (np.full(n if ranked else 0, MOST) for _ in range(2))

    def note(self, rows: Array, places: tuple[Array, Array] | None) -> None:
        """Mark rows, with the place of the pair of each."""
        self.matched[rows] = True
        if places is not None:
            lower_places(self.position, self.partner, *map(read_only, (rows, *places)))

    def add(self, rows: Array, other: _Hits) -> None:
        """Mark rows as those of another segment, which has the same tuples in the same order."""
        matched = other.matched
        self.note(rows[matched], (other.position[matched], other.partner[matched]) if other.position.size else None)


class MarkedRange:
    """One range of an outer, semi or anti join in one batch."""

    def __init__(
        self,
        rows: RangeRows,
        state: MarkState,
        marks: tuple[HasMarks, HasMarks],
        places: Places | None,
        keyless: tuple[Sequence[Segment], Sequence[Segment]] = ((), ()),
    ) -> None:
        self._rows = rows
        self._blueprint = rows.blueprint
        self._state = state
        self._marks = marks
        self._places = places
        self._keyless = keyless
        self._how = rows.blueprint.bound.spec.how
        gate = rows.blueprint.gate
        self._ranked = self._how == "semi" and gate is not None and gate.ordered
        # By identity, with the segment itself, so that no other gets its identity.
        self._hits: dict[int, tuple[Segment, _Hits]] = {}
        self._pairs: list[FoundPairs] | None = []
        self._find()
        self._had = [self._marked_before(side) if side in self._blueprint.marked else {} for side in (0, 1)]

    def matched(self) -> dict[str, Array]:
        """The positions of each marked side that matched in this batch and have not left."""
        return {
            f"matched{side}": np.concatenate(
                [seqs_of(segment)[rows] for segment, rows, _ in self._marked_now(side)] or [np.empty(0, np.int64)]
            )
            for side in self._blueprint.marked
        }

    def fresh(self) -> tuple[Segment, Segment]:
        """The new rows that the range stores; those that matched need no mark any more."""
        rows = [side.owned.rows for side in self._rows.new]
        for side in self._blueprint.marked:
            hits = self._hits_of(rows[side])
            rows[side] = replace(rows[side], seqs=np.where(hits.matched, MATCHED, seqs_of(rows[side])))
        return rows[0], rows[1]

    def entries(self, former: tuple[HasMarks, HasMarks] | None, *, fresh: bool = False) -> tuple[Segment, Segment]:
        """The marks of the rows of each side that matched in this batch, and those that a `former` gate had.

        Those of the new rows only if `fresh` says so: without a gate, these have marks in place of their numbers.
        """
        sides = []
        for side in (0, 1):
            parts = [NO_ENTRIES]
            if side in self._blueprint.marked:
                parts += [segment.take(rows) for segment, rows, is_old in self._marked_now(side) if is_old or fresh]
                if former is not None:
                    old = self._rows.old[side]
                    matched = [former[side].at(segment.words, seqs_of(segment)) for segment in old]
                    parts += [segment.take(np.flatnonzero(mask)) for segment, mask in zip(old, matched, strict=True)]
            columns = zip(*((part.words, part.ticks, seqs_of(part)) for part in parts), strict=True)
            sides.append(marks_of(*(np.concatenate(column) for column in columns)))
        return sides[0], sides[1]

    def _marked_now(self, side: int) -> Iterator[tuple[Segment, Array, bool]]:
        """The rows of a side that matched for the first time in this batch and have not left."""
        for segment, hits, is_old in self._segments(side):
            rows = np.flatnonzero(hits.matched)
            rows = rows[self._ages(side, segment)[rows] >= self._state.gone[side]]
            yield segment, self._unmarked(side, segment, rows, is_old), is_old

    def rows(self) -> Iterator[TaskRows]:
        """The rows of the batch."""
        if self._how == "semi":
            yield from self._first_matches()
            return
        for side in self._blueprint.preserved:
            yield from self._leaving(side)
        if self._how != "anti":
            yield from self._rows.pairs() if self._pairs is None else self._pairs

    def _find(self) -> None:
        """Find all pairs, mark their tuples, and keep those that are rows."""
        count = 0
        for pairs in self._rows.pairs():
            self._note(pairs)
            if self._pairs is not None and self._how not in ("semi", "anti"):
                count += pairs.probe.size
                self._pairs.append(pairs)
                if count > _MOST_PAIRS:
                    self._pairs = None
        for side in self._blueprint.marked:
            self._find_beside(side)

    def _find_beside(self, side: int) -> None:
        """Mark the new tuples of a side that match rows which other ranges own."""
        new, hits = self._rows.new[side], self._owned_hits(side)
        undecided = ~hits.matched
        if self._ranked:
            # The first pair of a tuple that finds an earlier one is at its own place.
            own = self._own_places(new.owned)
            undecided = (hits.position > own) | self._blueprint.bound.spec.self_join
        places = np.flatnonzero(undecided & self._rows.reaching(new.owned))
        if side == 0:
            # A right tuple that can match is here as a copy, also if the left one's interval ends before its word.
            copies = self._rows.new[1].probes.chosen(~self._rows.new[1].own)
            again = np.flatnonzero(undecided & bool(copies.rows.n))
            self._mark_some(hits, new.owned, again, lambda some: self._with_copies(some, copies))
        self._mark_some(hits, new.owned, places, lambda some: self._rows.pairs_beside(side, some))

    def _with_copies(self, some: SortedProbes, copies: SortedProbes) -> Iterator[FoundPairs]:
        yield from found(self._blueprint, some, copies.rows, 0)
        if self._blueprint.gate is not None:
            # Probes match earlier tuples only.
            yield from found(self._blueprint, copies, some.rows, 1)

    def _mark_some(
        self, hits: _Hits, owned: SortedProbes, places: Array, pairs: Callable[[SortedProbes], Iterator[FoundPairs]]
    ) -> None:
        """Mark those of the rows at `places` that `pairs` finds."""
        if not places.size:
            return
        chosen = np.zeros(owned.rows.n, np.bool_)
        chosen[places] = True
        some = owned.chosen(chosen)
        marks = self._hits_of(some.rows) if some is not owned else hits
        for each in pairs(some):
            self._note(each)
        if marks is not hits:
            hits.add(places, marks)

    def _note(self, pairs: FoundPairs) -> None:
        places = pairs.places(self._blueprint) if self._ranked else None
        for side in self._blueprint.marked:
            probing = pairs.probes_left == (side == 0)
            segment, rows = (pairs.probes.rows, pairs.probe) if probing else (pairs.stored, pairs.place)
            self._hits_of(segment).note(rows, places)

    def _hits_of(self, segment: Segment) -> _Hits:
        if id(segment) not in self._hits:
            self._hits[id(segment)] = segment, _Hits(segment.n, self._ranked)
        return self._hits[id(segment)][1]

    def _owned_hits(self, side: int) -> _Hits:
        """The marks of the new tuples that the range owns, found as probes or by probes."""
        new = self._rows.new[side]
        hits = self._hits_of(new.owned.rows)
        if new.owned is not new.probes:
            probes = self._hits_of(new.probes.rows)
            own = np.flatnonzero(new.own)
            part = _Hits(own.size, self._ranked)
            part.matched = probes.matched[own]
            if self._ranked:
                part.position, part.partner = probes.position[own], probes.partner[own]
            hits.add(np.arange(own.size), part)
        return hits

    def _segments(self, side: int) -> Iterator[tuple[Segment, _Hits, bool]]:
        """The rows of a side that the range owns, their marks of this batch, and whether they may have earlier ones."""
        for segment in self._rows.old[side]:
            yield segment, self._hits_of(segment), True
        owned = self._rows.new[side].owned.rows
        yield owned, self._hits_of(owned), False

    def _marked_before(self, side: int) -> dict[int, Array]:
        """By segment, which stored rows that match in this batch or leave had a mark before: looked up at once."""
        old, rows = self._rows.old[side], []
        for segment in old:
            wanted = self._hits_of(segment).matched
            if side in self._blueprint.preserved:
                wanted = wanted | self._state.leaving(side, self._ages(side, segment), new=False)
            rows.append(np.flatnonzero(wanted))
        if not any(some.size for some in rows):
            return {}
        words = np.concatenate([segment.words[some] for segment, some in zip(old, rows, strict=True)])
        seqs = np.concatenate([seqs_of(segment)[some] for segment, some in zip(old, rows, strict=True)])
        words, order = sort_entries(words, np.arange(words.size))
        matched = np.empty(order.size, np.bool_)
        matched[order] = self._marks[side].at(words, seqs[order])
        had, first = {}, 0
        for segment, some in zip(old, rows, strict=True):
            had[id(segment)] = np.zeros(segment.n, np.bool_)
            had[id(segment)][some] = matched[first : first + some.size]
            first += some.size
        return had

    def _unmarked(self, side: int, segment: Segment, rows: Array, is_old: bool) -> Array:
        """Those of the rows, which match in this batch or leave, that had no mark before it."""
        return rows[~self._had[side][id(segment)][rows]] if is_old and rows.size else rows

    def _ages(self, side: int, segment: Segment) -> Array:
        return segment.ages(self._blueprint.counted[side])

    def _leaving(self, side: int) -> Iterator[TaskRows]:
        """The unmatched tuples of a side that leave in this batch."""
        state = self._state
        for segment, hits, is_old in self._segments(side):
            ages = self._ages(side, segment)
            leaves = np.flatnonzero(state.leaving(side, ages, new=not is_old) & ~hits.matched)
            for some in parts_of(self._unmarked(side, segment, leaves, is_old)):
                part = segment.take(some)
                yield self._one_sided(side, part.rows, part.ticks, seqs_of(part), self._places_of(side, part))
        for segment in self._keyless[side]:
            yield from self._gone_keyless(side, segment, new=False)
        keyless = self._rows.new[side].keyless
        if isinstance(keyless, Segment):
            yield from self._gone_keyless(side, keyless, new=True)
        elif keyless is not None and keyless.ticks.size:
            yield self._one_sided(side, keyless.rows, keyless.ticks, keyless.seqs, keyless.places)

    def _gone_keyless(self, side: int, segment: Segment, *, new: bool) -> Iterator[TaskRows]:
        """Rows without a key that leave, without a gate: earlier, they would be ahead of all other results."""
        for some in parts_of(np.flatnonzero(self._state.leaving(side, segment.ticks, new=new))):
            part = segment.take(some)
            yield self._one_sided(side, part.rows, part.ticks, None, None)

    def _places_of(self, side: int, part: Segment) -> Array | None:
        """The gate position where each tuple leaves, if rows need it."""
        if self._places is None:
            return None
        window = self._blueprint.windows[side]
        if self._blueprint.counted[side]:
            return self._places.by_count(side, seqs_of(part), window)
        return self._places.by_time(part.ticks, window)

    def _one_sided(
        self, side: int, rows: pa.Table, ticks: Array, seqs: Array | None, places: Array | None
    ) -> GatheredRows:
        left, right = (None, rows) if side else (rows, None)
        # Several that leave at one place come in gate order: by time, left before right, then by position.
        order = None if places is None or seqs is None else (places, ticks, seqs + (side << 62))
        return GatheredRows(left, right, ticks, order)

    def _first_matches(self) -> Iterator[TaskRows]:
        """The left tuples that matched for the first time."""
        for segment, hits, is_old in self._segments(0):
            for some in parts_of(self._unmarked(0, segment, np.flatnonzero(hits.matched), is_old)):
                part = segment.take(some)
                rank = np.zeros(some.size, np.int64)
                order = (hits.position[some], rank, hits.partner[some]) if self._ranked else None
                yield GatheredRows(part.rows, None, part.ticks, order)

    def _own_places(self, probes: SortedProbes) -> Array:
        if probes.upto is None:
            raise AssertionError("an order without a gate")
        seqs = seqs_of(probes.rows)
        return seqs if self._blueprint.bound.spec.self_join else seqs + probes.upto


@dataclass(frozen=True)
class RightRows:
    """The right rows that can be nearest by key: the new ones, and the stored ones of the words of a range.

    Those in runs that the batch folds are apart. Where the rows of a word are divided, a range sees all of them and
    stores the part in its own `words`.
    """

    new: Arrivals
    words: WordRange
    kept: Sequence[Segment]
    folded: Sequence[Segment]


class AsOfRange:
    """One range of an as-of join in one batch: the nearest right row of each left row that is decided.

    No closer right row can follow, so each left row is matched once, in the range that owns it, and its row leaves in
    the same batch: the batch in which a gate released it, or without a gate the one whose facts decide it. By key, the
    owner of a left row sees all right rows of its key: of the stored ones it looks up those with the words of its left
    rows. By any other condition the owner of a left row tests all right rows within the tolerance: stored ones in the
    log, also those of other ranges, and new ones, of which it has copies.
    """

    def __init__(
        self,
        rows: RangeRows,
        left: SortedProbes,
        keyless: Sequence[KeylessRows | Segment],
        right: RightRows | None = None,
    ) -> None:
        match = rows.blueprint.bound.match
        if match is None:
            raise AssertionError("an as-of join without a match")
        self._rows = rows
        self._match = match
        self._left = left
        self._keyless = keyless
        self._how = rows.blueprint.bound.spec.how
        if right is None:
            self._choose_by_condition(match)
        else:
            self._right = right
            self._choose_by_key(right)

    def rows(self) -> Iterator[TaskRows]:
        """The rows of all decided left rows."""
        left = self._left.rows
        matched = self._of != NONE
        out, _ = outcome(self._how, matched, np.ones(matched.size, np.bool_))
        for number, segment in enumerate(self._segments):
            for some in parts_of(np.flatnonzero(out & (self._of == number))):
                own, partners = left.take(some), segment.take(self._at[some])
                ticks = np.maximum(own.ticks, partners.ticks)
                yield GatheredRows(own.rows, partners.rows, ticks, _in_order_of(seqs_of(own)))
        for some in parts_of(np.flatnonzero(out & ~matched)):
            own = left.take(some)
            yield GatheredRows(own.rows, None, own.ticks, _in_order_of(seqs_of(own)))
        for keyless in self._keyless if self._how != "inner" else ():
            if keyless.seqs is not None and keyless.ticks.size:
                yield GatheredRows(keyless.rows, None, keyless.ticks, _in_order_of(keyless.seqs))

    def needed(self, low: int) -> Segment:
        """The right rows that the range stores, by word, without those that no left row from `low` on can take."""
        is_needed = np.zeros(self._rights, np.bool_)
        is_needed[self._by_key.needed(self._match, low)] = True
        new, words = self._right.new, self._right.words
        first, parts = self._rights - new.probes.rows.n, []
        owned = np.flatnonzero(is_needed[first:] & new.own)
        for segment in reversed(self._right.folded):
            first -= segment.n
            begin, end = words.part(segment.words)
            parts.append(segment.take(begin + np.flatnonzero(is_needed[first + begin : first + end])))
        return merged([*reversed(parts), new.probes.rows.take(owned)])

    def _choose_by_key(self, right: RightRows) -> None:
        """For each left row the segment of its partner, or NONE, and its place there."""
        left, new = self._left.rows, right.new.probes.rows
        words = left.words[first_of_each(left.words)]
        found = [(segment, segment.having(words)) for segment in right.kept]
        found += [(segment, np.arange(segment.n)) for segment in (*right.folded, new)]
        ticks = np.concatenate([segment.ticks[places] for segment, places in found])
        seqs = np.concatenate([seqs_of(segment)[places] for segment, places in found])
        self._rights = seqs.size
        bound = self._rows.blueprint.bound
        if bound.settled and len(bound.keys) == 1:
            # The words of the rows are their keys.
            numbers = np.concatenate([segment.words[places] for segment, places in found])
            self._by_key = RightByKey(numbers, ticks, seqs, nothing=None)
            own = SideEncoder(ExactTerms(bound.keys), "left").encode(left.rows).terms[0]
            place = self._by_key.nearest(self._match, left.words, left.ticks)
            if own.lo is not own.hi:
                # The type on the right can't hold all keys.
                place = np.where(own.lo <= own.hi, place, NONE)
        else:
            keys, numbers = _key_numbers(bound, left, found)
            self._by_key = RightByKey(numbers, ticks, seqs)
            place = self._by_key.nearest(self._match, keys, left.ticks)
        self._segments = [segment for segment, _ in found]
        self._of, self._at = (np.full(left.n, NONE, np.int64) for _ in range(2))
        matched = np.flatnonzero(place != NONE)
        partner = place[matched]
        self._of[matched] = np.repeat(np.arange(len(found)), [at.size for _, at in found])[partner]
        self._at[matched] = np.concatenate([at for _, at in found])[partner]

    def _choose_by_condition(self, match: BoundAsOf) -> None:
        left, right = self._left, self._rows.new[1].probes
        n = left.rows.n
        self._segments = []
        self._of, self._at = (np.full(n, NONE, np.int64) for _ in range(2))
        # The position and the time of each partner so far.
        best = np.zeros((2, n), np.int64)
        reaching = self._rows.reaching(left)
        everywhere, outside = np.arange(n), np.flatnonzero(reaching)
        for segment in (*self._rows.old[1], right.rows):
            for pairs in found(self._rows.blueprint, left, segment, 0):
                self._take_nearest(match, pairs, everywhere, best)
        for pairs in self._rows.pairs_beside(0, left.chosen(reaching)):
            self._take_nearest(match, pairs, outside, best)

    def _take_nearest(self, match: BoundAsOf, pairs: FoundPairs, rows: Array, best: Array) -> None:
        """Take the pairs that are nearer than those before them; `rows` are the left rows of the probes."""
        stored, left = pairs.stored, rows[pairs.probe]
        if not self._segments or self._segments[-1] is not stored:
            self._segments.append(stored)
        known = np.unique(left[self._of[left] != NONE])
        seqs = np.concatenate([seqs_of(stored)[pairs.place], best[0][known]])
        theirs = np.concatenate([stored.ticks[pairs.place], best[1][known]])
        left = np.concatenate([left, known])
        taken = nearest_pairs(match, left, self._left.rows.ticks[left], seqs, theirs)
        taken = taken[taken < pairs.place.size]
        changed = left[taken]
        self._of[changed], self._at[changed] = len(self._segments) - 1, pairs.place[taken]
        best[0][changed], best[1][changed] = seqs[taken], theirs[taken]


def _key_numbers(bound: BoundSpec, left: Segment, right: Sequence[tuple[Segment, Array]]) -> tuple[Array, Array]:
    """A number for the key of each left row and of right rows at some places; NONE for one that matches nothing."""
    if not bound.keys:
        return np.zeros(left.n, np.int64), np.zeros(sum(places.size for _, places in right), np.int64)
    numbers, names = KeyNumbers(bound.keys), [key.right.name for key in bound.keys]
    tables = [take_rows(segment.rows.select(names), places) for segment, places in right]
    return numbers.number(0, left.rows), np.concatenate([numbers.number(1, table) for table in tables])


def _in_order_of(seqs: Array) -> tuple[Array, Array, Array]:
    nothing = np.zeros(seqs.size, np.int64)
    return seqs, nothing, nothing


def seqs_of(segment: Segment) -> Array:
    """The positions of the rows in their side."""
    if segment.seqs is None:
        raise AssertionError("rows behind a gate without their numbers")
    return segment.seqs


def parts_of(places: Array) -> Iterator[Array]:
    """Places in parts of a bounded size."""
    for begin in range(0, places.size, _ROWS):
        yield places[begin : begin + _ROWS]
