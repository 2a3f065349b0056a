"""Running shared steps over one batch: pairs of references with the bits of the paths that they belong to.

The state of a path is a row a partial result: the tuples' numbers by role, the driver's place, and the bits. A step
probes each bucket of the next stream once for all its paths, then clears the bits of those whose windows, terms or
conditions don't hold; rows without bits are dropped. References become columns only when a query's rows are
gathered. (AJoin, sections 3.3 and 3.4: pipelined joins, late materialization.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamjoin.adhoc.buckets import Bucket, IndexKey, SortedIndex, StreamView, index_key
from streamjoin.adhoc.probe_plan import PathKey
from streamjoin.adhoc.query_sets import Wanted, query_sets
from streamjoin.adhoc.shared_step import UNBOUNDED, FittedTerm, Root, Step, WindowTable, columns_by_role
from streamjoin.kernels.shared_probe import probe_shared
from streamjoin.kernels.sorting import sort_entries
from streamjoin.model.evaluation import evaluate, truth
from streamjoin.model.keys import KeyTerm

Array = np.ndarray[Any, np.dtype[Any]]
Share = Mapping[str, tuple[int, int]]
"""Rows of a batch's buckets by stream, from and to: the tuples that drive."""
_ROOM = 1 << 12
_FEW = 0.5


@dataclass
class StepCounts:
    """What a step did since it was first run."""

    probes: int = 0
    candidates: int = 0
    pairs: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Partial:
    """Partial results: the tuples' numbers by role, the drivers' places, and the sets of paths."""

    refs: tuple[Array, ...]
    gates: Array
    sets: Array

    def keep(self, chosen: Array) -> Partial:
        """The chosen rows."""
        return Partial(tuple(ref[chosen] for ref in self.refs), self.gates[chosen], self.sets[chosen])


class SetCache:
    """The query-sets of buckets, kept as long as the bucket and whoever asks for them."""

    def __init__(self) -> None:
        self._sets: dict[tuple[Wanted, Bucket], Array] = {}
        self._indexes: dict[tuple[Wanted, Bucket, IndexKey | None], SortedIndex | None] = {}

    def of(self, bucket: Bucket, wanted: Wanted) -> Array:
        """The sets of a bucket's tuples."""
        key = (wanted, bucket)
        if key not in self._sets:
            self._sets[key] = query_sets(bucket, wanted)
        return self._sets[key]

    def index(self, bucket: Bucket, wanted: Wanted, term: KeyTerm | None) -> SortedIndex:
        """The bucket's index of a term's attribute; where few tuples are in any set, a copy with these alone."""
        whole = bucket.index(term, "right")
        key = (wanted, bucket, None if term is None else index_key(term, "right"))
        if key not in self._indexes:
            live = np.asarray(self.of(bucket, wanted).any(axis=1))
            few = np.count_nonzero(live) < _FEW * bucket.n
            chosen = live[whole.rows] if few else None
            self._indexes[key] = None if chosen is None else SortedIndex(whole.words[chosen], whole.rows[chosen])
        return self._indexes[key] or whole

    def retain(self, asked: set[Wanted], held: set[Bucket]) -> None:
        """Forget sets that no step asks for, and those of buckets that are gone."""
        sets, indexes = self._sets.items(), self._indexes.items()
        self._sets = {key: s for key, s in sets if key[0] in asked and key[1] in held}
        self._indexes = {key: i for key, i in indexes if key[0] in asked and key[1] in held}

    @property
    def nbytes(self) -> int:
        """The bytes held."""
        indexes = sum(i.words.nbytes + i.rows.nbytes for i in self._indexes.values() if i is not None)
        return indexes + sum(sets.nbytes for sets in self._sets.values())


@dataclass
class BatchRun:
    """One batch: `fresh` has the batch's tuples by stream, `held` all that are kept, these included."""

    fresh: Mapping[str, StreamView]
    held: Mapping[str, StreamView]
    sets: SetCache
    counts: dict[PathKey, StepCounts]
    found: dict[str, list[tuple[Array, ...]]] = field(default_factory=dict)
    """For each path that ends: the tuples' numbers by role."""
    share: Share | None = None

    def run(self, root: Root) -> None:
        """Find the new results of all paths through a root."""
        view = self.fresh.get(root.driver)
        if view is None or not view.buckets:
            return
        bucket = view.buckets[0]
        sets = self.sets.of(bucket, root.wanted)
        live = np.flatnonzero(sets.any(axis=1))
        if self.share is not None:
            live = live[slice(*np.searchsorted(live, self.share[root.driver]))]
        if live.size:
            self._advance(root.step, Partial((live + bucket.first,), bucket.gates[live], sets[live]))

    def _advance(self, step: Step, partial: Partial) -> None:
        counts = self.counts.setdefault(step.key, StepCounts())
        counts.batches += 1
        counts.probes += partial.gates.size
        found = self._tested(step, self._probed(step, partial, counts))
        counts.pairs += found.gates.size
        if not found.gates.size:
            return
        for name in step.enders:
            word, bit = step.layout.place(name)
            rows = np.flatnonzero(found.sets[:, word] & bit)
            if rows.size:
                self.found.setdefault(name, []).append(tuple(ref[rows] for ref in found.refs))
        for child in step.children:
            sets = found.sets & child.mask
            live = np.flatnonzero(sets.any(axis=1))
            if live.size:
                self._advance(child, Partial(found.refs, found.gates, sets).keep(live))

    # Probing ------------------------------------------------------------------------------------------------------

    def _probed(self, step: Step, partial: Partial, counts: StepCounts) -> Partial:
        """The partial results with every earlier tuple of the next stream that the index finds."""
        target = self.held[step.stream]
        term = step.terms[0] if step.terms else None
        partial, lo, hi = self._intervals(step, term, partial)
        _, order = sort_entries(lo, np.arange(lo.size))
        ticks = self._at(step.anchor, step, self._view(step.anchor, step).ticks, partial)
        parts = []
        for bucket in target.buckets:
            if step.reach < UNBOUNDED and not _near(bucket, ticks, step.reach):
                continue
            pairs = self._bucket_pairs(step, term, bucket, partial, (order, lo, hi, ticks), counts)
            if pairs[0].size:
                parts.append(pairs)
        if not parts:
            return Partial((*(r[:0] for r in partial.refs), np.empty(0, np.int64)), partial.gates[:0], partial.sets[:0])
        probes, numbers, sets = (
            parts[0] if len(parts) == 1 else (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        )
        return Partial((*(ref[probes] for ref in partial.refs), numbers), partial.gates[probes], sets)

    def _intervals(self, step: Step, term: FittedTerm | None, partial: Partial) -> tuple[Partial, Array, Array]:
        if term is None:
            zeros = np.zeros(partial.gates.size, np.int64)
            return partial, zeros, zeros
        view = self._view(term.role, step)
        words = view.probe_words(term.term, "left")
        rows = partial.refs[term.role] - view.first
        valid = words.valid[rows]
        if not valid.all():
            partial, rows = partial.keep(valid), rows[valid]
        return partial, words.words.lo[rows], words.words.hi[rows]

    def _bucket_pairs(
        self,
        step: Step,
        term: FittedTerm | None,
        bucket: Bucket,
        partial: Partial,
        probes: tuple[Array, Array, Array, Array],
        counts: StepCounts,
    ) -> tuple[Array, Array, Array]:
        index = self.sets.index(bucket, step.wanted, None if term is None else term.term)
        sets = self.sets.of(bucket, step.wanted)
        room, seen = max(_ROOM, 2 * partial.gates.size), np.zeros(1, np.int64)
        while True:
            out = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, sets.shape[1]), np.uint64)
            seen[0] = 0
            n = probe_shared(
                *probes, partial.gates, partial.sets, index.words, index.rows, bucket.ticks, bucket.gates, sets,
                step.reach, step.inclusive, *out, seen,
            )  # fmt: skip
            if n <= room:
                counts.candidates += int(seen[0])
                return out[0][:n], out[1][:n] + bucket.first, out[2][:n]
            room = n

    # Testing ------------------------------------------------------------------------------------------------------

    def _tested(self, step: Step, pairs: Partial) -> Partial:
        """The pairs with the bits of the paths that they satisfy; those without any are gone."""
        for term in step.terms[1:]:
            if pairs.gates.size:
                pairs = pairs.keep(self._term_holds(step, term, pairs))
        for table in step.windows:
            if pairs.gates.size and not (table.role == step.anchor and _settled(table, step)):
                limits = np.searchsorted(table.limits, self._distances(step, table, pairs), side="left")
                pairs = _cleared(pairs, table.keeps[limits])
        for earlier, kept in step.apart:
            same = pairs.refs[earlier] == pairs.refs[-1]
            if same.any():
                pairs = _cleared(pairs, np.where(same[:, np.newaxis], kept, ~np.uint64(0)))
        for test in step.conditions:
            if pairs.gates.size:
                columns = {
                    column: self._view(number, step).values(column.name, pairs.refs[number])
                    for column, number in columns_by_role(test.condition).items()
                }
                holds = truth(evaluate(test.condition, columns), (pairs.gates.size,))
                pairs = _cleared(pairs, np.where(holds[:, np.newaxis], ~np.uint64(0), test.without))
        return pairs

    def _term_holds(self, step: Step, term: FittedTerm, pairs: Partial) -> Array:
        earlier, new = self._view(term.role, step), self.held[step.stream]
        left, right = earlier.probe_words(term.term, "left"), new.probe_words(term.term, "right")
        a, b = pairs.refs[term.role] - earlier.first, pairs.refs[-1] - new.first
        word = right.words.word[b]
        holds: Array = (left.words.lo[a] <= word) & (word <= left.words.hi[a]) & left.valid[a] & right.valid[b]
        return holds

    def _distances(self, step: Step, table: WindowTable, pairs: Partial) -> Array:
        """How far the new tuple is from that of an earlier role: in time, or in tuples of the earlier one's stream."""
        old, new = self._view(table.role, step), self.held[step.stream]
        a, b = pairs.refs[table.role], pairs.refs[-1]
        if not table.counted:
            return _apart(old.ticks[a - old.first], new.ticks[b - new.first])
        gates = old.gates[a - old.first], new.gates[b - new.first]
        all_old = self.held[step.key.streams[table.role]]
        after_a = all_old.first + np.searchsorted(all_old.gates, gates[1], side="right") - (a + 1)
        after_b = new.first + np.searchsorted(new.gates, gates[0], side="right") - (b + 1)
        after: Array = np.where(gates[0] < gates[1], after_a, after_b).astype(np.uint64)
        return after

    # Views --------------------------------------------------------------------------------------------------------

    def _view(self, number: int, step: Step) -> StreamView:
        """Drivers are all in the batch's own bucket, so that nothing of the older ones is touched for them."""
        stream = step.key.streams[number]
        return self.fresh[stream] if number == 0 else self.held[stream]

    def _at(self, number: int, step: Step, values: Array, partial: Partial) -> Array:
        found: Array = values[partial.refs[number] - self._view(number, step).first]
        return found


def _apart(a: Array, b: Array) -> Array:
    """|a - b| without wrapping around."""
    most, least = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
    found: Array = most - least
    return found


def _near(bucket: Bucket, ticks: Array, reach: int) -> bool:
    """Whether any time of the bucket is within reach of any of `ticks`."""
    if not bucket.n or not ticks.size:
        return False
    low, high = bucket.span
    return low - reach <= int(ticks.max()) and int(ticks.min()) <= high + reach


def _settled(table: WindowTable, step: Step) -> bool:
    """Whether reading candidates has tested all there is: one window, the same for all paths."""
    return not table.counted and len(table.limits) == 1 and step.reach == int(table.limits[0])


def _cleared(pairs: Partial, kept: Array) -> Partial:
    sets = pairs.sets & kept
    live = np.asarray(sets.any(axis=1))
    found = Partial(pairs.refs, pairs.gates, sets)
    return found if live.all() else found.keep(live)


def joined_parts(found: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    """The references of several parts as one array a role."""
    return found[0] if len(found) == 1 else tuple(np.concatenate(refs) for refs in zip(*found, strict=True))
