"""What pairs must satisfy beyond the index, the nearest window and common bits: further terms, windows, conditions.

The invariant: a bit is cleared iff its path has a test at the step that the pair fails; rows without bits are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.intervals import FittedInterval
from streamjoin.adhoc.core.shared_step import FittedTerm, Tests, WindowTable, columns_by_role
from streamjoin.adhoc.core.stored_stream import StoredStream
from streamjoin.model.expression.evaluation import evaluate, truth

Streams = Mapping[str, StoredStream]


@dataclass(frozen=True)
class Partial:
    """Partial results: the tuples' numbers by role, the driver's first, and the sets of paths."""

    refs: tuple[Array, ...]
    sets: Array

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.sets)

    def keep(self, chosen: Array) -> Partial:
        """The chosen rows."""
        return Partial(tuple(ref[chosen] for ref in self.refs), self.sets[chosen])

    def clear(self, kept: Array) -> Partial:
        """With the bits of `kept` alone; rows without any are gone."""
        sets = self.sets & kept
        live = np.asarray(sets.any(axis=1))
        pairs = Partial(self.refs, sets)
        return pairs if live.all() else pairs.keep(live)


def apply_tests(
    tests: Tests, looked_up: FittedTerm | FittedInterval | None, pairs: Partial, streams: Streams
) -> Partial:
    """The pairs with the bits of the paths that they satisfy; the new role's tuples are the last of their refs.

    The term by which they were found holds already.
    """
    if tests.settled:
        return pairs
    for term in tests.terms:
        if pairs.n and term is not looked_up:
            pairs = pairs.keep(_term_holds(tests, term, pairs, streams))
    for table in tests.windows:
        if pairs.n:
            limits = np.searchsorted(table.limits, _distances(tests, table, pairs, streams), side="left")
            pairs = pairs.clear(table.keeps[limits])
    for earlier, kept in tests.apart:
        same = pairs.refs[earlier] == pairs.refs[-1]
        if same.any():
            pairs = pairs.clear(np.where(same[:, np.newaxis], kept, ~np.uint64(0)))
    for test in tests.conditions:
        if pairs.n:
            columns = {
                column: streams[tests.streams[number]].values(column.name, pairs.refs[number])
                for column, number in columns_by_role(test.condition).items()
            }
            holds = truth(evaluate(test.condition, columns), (pairs.n,))
            pairs = pairs.clear(np.where(holds[:, np.newaxis], ~np.uint64(0), test.without))
    return pairs


def _term_holds(tests: Tests, term: FittedTerm, pairs: Partial, streams: Streams) -> Array:
    earlier, new = streams[tests.streams[term.role]], streams[tests.streams[-1]]
    left, right = earlier.probe_words(term.left), new.probe_words(term.right)
    a, b = pairs.refs[term.role] - earlier.first, pairs.refs[-1] - new.first
    word = right.words.word[b]
    holds: Array = (left.words.lo[a] <= word) & (word <= left.words.hi[a]) & left.valid[a] & right.valid[b]
    return holds


def _distances(tests: Tests, table: WindowTable, pairs: Partial, streams: Streams) -> Array:
    """How far the new tuple is from that of an earlier role: in time, or in tuples of the earlier one's stream."""
    old, new = streams[tests.streams[table.role]], streams[tests.streams[-1]]
    a, b = pairs.refs[table.role], pairs.refs[-1]
    if not table.counted:
        return _apart(old.ticks.at(a), new.ticks.at(b))
    gates = old.gates.at(a), new.gates.at(b)
    if old.positions is not None and new.positions is not None:
        numbers = old.positions.at(a), new.positions.at(b)
        reached = _reached(new, old, b), _reached(old, new, a)
        apart: Array = np.where(gates[0] < gates[1], reached[0] - numbers[0], reached[1] - numbers[1]) - 1
        return apart.astype(np.uint64)
    after_a = old.first + np.searchsorted(old.gates.view(old.first), gates[1], side="right") - (a + 1)
    after_b = new.first + np.searchsorted(new.gates.view(new.first), gates[0], side="right") - (b + 1)
    after: Array = np.where(gates[0] < gates[1], after_a, after_b).astype(np.uint64)
    return after


def _reached(later: StoredStream, earlier: StoredStream, refs: Array) -> Array:
    """How many tuples of the `earlier` stream had come when chosen tuples of the `later` one came, these included."""
    if later is earlier:
        if later.positions is None:
            raise AssertionError("tuples without their positions")
        return later.positions.at(refs) + 1
    return later.before[earlier.stream.name].at(refs)


def _apart(a: Array, b: Array) -> Array:
    """|a - b| without wrapping around."""
    most, least = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
    distance: Array = most - least
    return distance
