"""The right side of a join with summaries: stored tuples in chains by key, with prefix sums and ladders.

All of a tuple is written once, when it comes; what changes is only the link to its successor and three places of each
key. So `saved` copies nothing: taking tuples back follows their links. Tuples that no window needs any more are dropped
by building the side anew from the others once they are the smaller part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.exact_columns import Numbers, numbers_of
from streamjoin.joins.kinds.summary_values import order_words
from streamjoin.kernels.exact import Layout, differences, rounded_windows, take_away
from streamjoin.kernels.kinds.summary import (
    BEGUN,
    KNOWN,
    NONE,
    RUNGS,
    best_values,
    climb,
    last_values,
    link,
    pass_until,
    undo,
    window_sizes,
    windows,
)
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import FOREVER, NEVER, minus, plus
from streamjoin.windows.encoding import flat
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers


@dataclass(frozen=True)
class Ranges:
    """The window of each left tuple: its first and last place in the chain of its key, and one that does not count."""

    keys: Array
    first: Array
    last: Array
    hole: Array

    @property
    def n(self) -> int:
        """The number of left tuples."""
        return int(self.first.size)


class PrefixSums:
    """For each right tuple the exact sum of a column over its chain so far."""

    def __init__(self) -> None:
        self.layout = Layout()
        self._rows = Buffer(np.uint64, self.layout.width)
        self._room = 0
        self._spare: Buffer | None = None

    def append(self, numbers: Numbers, previous: Array) -> None:
        """Add the values of new tuples."""
        needed = self.layout.wide_enough(numbers.layout()) if len(self._rows) else numbers.layout()
        if needed != self.layout:
            rows = Buffer(np.uint64, needed.width)
            rows.reserve(self._room, self._spare)
            self._spare = None
            if len(self._rows):
                rows.append(self.layout.widened(self._rows.values, needed))
            self.layout, self._rows = needed, rows
        begin = len(self._rows)
        self._rows.room_for(previous.size)
        numbers.prefix(previous, self._rows.values, begin, self.layout)

    def reserve(self, room: int, spare: PrefixSums | None) -> None:
        """Have room for a number of tuples once the first ones are known."""
        self._room, self._spare = room, None if spare is None else spare._rows

    def of(self, ranges: Ranges, previous: Array) -> Array:
        """The sum of each window, as rows of the layout."""
        out, head = self.layout.rows(ranges.n), self.layout.head
        if not len(self._rows):
            return out
        rows = self._rows.values
        since = np.where(ranges.first == NONE, NONE, previous[ranges.first])
        differences(rows, ranges.last, since, head, out)
        holes = np.flatnonzero(ranges.hole != NONE)
        if holes.size:
            own = self.layout.rows(holes.size)
            differences(rows, ranges.hole[holes], previous[ranges.hole[holes]], head, own)
            take_away(own, holes, out, head)
        return out

    def floats_of(self, ranges: Ranges, previous: Array) -> tuple[Array, Array]:
        """The number of values of each window and their sum, rounded once, of a column of floats."""
        counts, sums = np.empty(ranges.n, np.int64), np.empty(ranges.n)
        rounded_windows(
            self._rows.values, ranges.first, ranges.last, ranges.hole, previous, self.layout.head, self.layout.first,
            counts, sums,
        )  # fmt: skip
        return counts, sums

    def saved(self) -> Restore:
        """Return a function that restores these sums."""
        layout, rows = self.layout, self._rows
        restore_rows = rows.saved()

        def restore() -> None:
            self.layout, self._rows = layout, rows
            restore_rows()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._rows.nbytes


class Ladder:
    """The best values of chains: the least, the greatest, or by their order the first and the last."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._rungs = Buffer(np.int64, RUNGS)
        self._known = np.full((0, KNOWN), NONE, np.int64)

    def append(self, array: pa.Array, previous: Array) -> None:
        """Add the values of new tuples."""
        begin = len(self._rungs)
        if self._order == "FIRST":
            words = np.arange(begin, begin + len(array))
        else:
            words = order_words(array, greatest=self._order == "MAX")
        present: Array = np.ones(len(array), np.bool_)
        if array.null_count:
            present = np.array(array.is_valid().to_numpy(zero_copy_only=False))
        self._rungs.room_for(len(array))
        climb(words, present, previous, self._rungs.values, begin)

    def reserve(self, room: int, spare: Ladder | None) -> None:
        """Have room for a number of tuples."""
        self._rungs.reserve(room, None if spare is None else spare._rungs)

    def best(self, ranges: Ranges, n_keys: int, previous: Array, following: Array) -> Array:
        """The place of each window's best value; NONE where it has none."""
        if len(self._known) < n_keys:
            # One that nothing else knows: a failed call forgets what is known.
            known = np.full((2 * n_keys, KNOWN), NONE, np.int64)
            known[: len(self._known)] = self._known
            self._known = known
        out = np.empty(ranges.n, np.int64)
        windows = ranges.first, ranges.last, ranges.hole
        best_values(self._rungs.values, previous, following, self._known, ranges.keys, *windows, out)
        return out

    def newest(self, ranges: Ranges, previous: Array) -> Array:
        """The place of each window's last value; NONE where it has none."""
        out = np.empty(ranges.n, np.int64)
        last_values(self._rungs.values, previous, ranges.first, ranges.last, ranges.hole, out)
        return out

    def saved(self) -> Restore:
        """Return a function that restores the ladder."""
        restore_rungs = self._rungs.saved()

        def restore() -> None:
            restore_rungs()
            # What is known may be of tuples that were taken back.
            self._known = np.full((0, KNOWN), NONE, np.int64)

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._rungs.nbytes + int(self._known.nbytes)


class RightSide:
    """The stored right tuples. `sums` are arguments that are summed or counted, `ladders` those with an order."""

    def __init__(
        self, schema: pa.Schema, n_words: int, sums: Sequence[str], ladders: Sequence[tuple[str, str]]
    ) -> None:
        self.store = SideStore(schema, n_words, timed=True)
        self.sums = {name: PrefixSums() for name in sums}
        self.ladders = {(name, order): Ladder(order) for name, order in ladders}
        self._keys, self._previous, self._following, self._ranks = (Buffer(np.int64) for _ in range(4))
        self._tips, self._low, self._high = (Buffer(np.int64) for _ in range(3))
        self._at = np.zeros(3, np.int64)

    @property
    def _by_tuple(self) -> tuple[Buffer, ...]:
        return self._keys, self._previous, self._following, self._ranks

    @property
    def keys(self) -> Array:
        """The number of each tuple's key."""
        return self._keys.values

    @property
    def previous(self) -> Array:
        """Each tuple's predecessor in its chain."""
        return self._previous.values

    @property
    def following(self) -> Array:
        """Each tuple's successor in its chain."""
        return self._following.values

    @property
    def ticks(self) -> Array:
        """The times."""
        return np.empty(0, np.int64) if self.store.ticks is None else self.store.ticks

    def append(self, table: pa.Table, words: list[Array], ticks: Array, keys: Array, n_keys: int) -> None:
        """Add tuples in stream order; there are `n_keys` keys by now."""
        self.store.append(table, words, ticks, keys.size)
        self._keys.append(keys)
        for buffer in self._by_tuple[1:]:
            buffer.room_for(keys.size)
        self.know_keys(n_keys)
        link(
            self.keys, self._tips.values, self._low.values, self.previous, self.following, self._ranks.values, self._at
        )
        previous = self.previous[self.previous.size - keys.size :]
        for name, sums in self.sums.items():
            sums.append(numbers_of(flat(table.column(name))), previous)
        for (name, _), ladder in self.ladders.items():
            ladder.append(flat(table.column(name)), previous)

    def reserve(self, room: int, spare: RightSide | None) -> None:
        """Have room for a number of tuples, where possible that of a side that nothing refers to any more."""
        for number, buffer in enumerate(self._by_tuple):
            buffer.reserve(room, None if spare is None else spare._by_tuple[number])
        for name, sums in self.sums.items():
            sums.reserve(room, None if spare is None else spare.sums[name])
        for key, ladder in self.ladders.items():
            ladder.reserve(room, None if spare is None else spare.ladders[key])

    def know_keys(self, n_keys: int) -> None:
        """There are `n_keys` keys by now."""
        for buffer in (self._tips, self._low, self._high):
            buffer.append(np.full(max(0, n_keys - len(buffer)), NONE, np.int64))

    def best(self, ladder: tuple[str, str], ranges: Ranges) -> Array:
        """The place of the best value of a ladder in each window; NONE where it has none."""
        own = self.ladders[ladder]
        return own.best(ranges, len(self._tips), self.previous, self.following)

    def windows(
        self, bounds: tuple[Array, Array, Array, Array], keys: Array, own: Array, prevailing: bool, itself: bool
    ) -> Ranges:
        """The windows of left tuples, which ascend from call to call."""
        ranges = Ranges(keys, *(np.empty(keys.size, np.int64) for _ in range(3)))
        windows(
            *bounds, keys, own, prevailing, itself, self.keys, self.ticks, self.previous, self.following,
            self._tips.values, self._low.values, self._high.values, self._at, ranges.first, ranges.last, ranges.hole,
        )  # fmt: skip
        return ranges

    def sizes(self, ranges: Ranges) -> Array:
        """The number of tuples in each window."""
        out = np.empty(ranges.n, np.int64)
        window_sizes(self._ranks.values, ranges.first, ranges.last, ranges.hole, out)
        return out

    def pass_until(self, tick: int) -> None:
        """Let go of the tuples before a time: no later window begins before it."""
        low, high = self._low.values, self._high.values
        pass_until(tick, self.keys, self.ticks, self.following, low, high, self._at)

    def needed(self, prevailing: bool) -> Array:
        """The tuples that a later window may have, ascending."""
        kept = np.zeros(self.keys.size, np.bool_)
        kept[self._at[BEGUN] :] = True
        if prevailing:
            # Those in force, and those before them, which are in force for the tuple itself in a self-join.
            low, tips = self._low.values, self._tips.values
            if self.keys.size:
                in_force = np.where(low == NONE, tips, self.previous[low])
                in_force = in_force[in_force != NONE]
                kept[in_force] = True
                before = self.previous[in_force]
                kept[before[before != NONE]] = True
        return np.flatnonzero(kept)

    def rebuilt(
        self, needed: Array, keys: Array, n_keys: int, workers: Workers, room: int, spare: RightSide | None
    ) -> RightSide:
        """A side with the tuples `needed` alone, whose keys have the numbers `keys`; see `reserve` for the others."""
        store = self.store
        fresh = RightSide(store.schema, len(store.words), tuple(self.sums), tuple(self.ladders))
        names = store.schema.names
        table = pa.table(store.gather(names, needed, workers), schema=store.schema)
        fresh.reserve(room, spare)
        # The cursors begin anew: they pass what is behind the windows once more.
        fresh.append(table, [words[needed] for words in store.words], self.ticks[needed], keys, n_keys)
        return fresh

    def let_go(self) -> None:
        """Drop the tuples; only the memory of what is known of them is still of use."""
        self.store = SideStore(self.store.schema, len(self.store.words), timed=True)

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        before = self._at.copy()
        buffers = (*self._by_tuple, self._tips, self._low, self._high)
        parts = [self.store.saved(), *(buffer.saved() for buffer in buffers)]
        parts += [sums.saved() for sums in self.sums.values()]
        parts += [ladder.saved() for ladder in self.ladders.values()]

        def restore() -> None:
            keys, previous, now = self.keys, self.previous, self._at.copy()
            for part in parts:
                part()
            undo(before, now, keys, previous, self._tips.values, self._low.values, self._high.values, self.following)
            self._at[:] = before

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes of what is known beside the stored tuples."""
        buffers = (*self._by_tuple, self._tips, self._low, self._high)
        known = sum(sums.nbytes for sums in self.sums.values()) + sum(own.nbytes for own in self.ladders.values())
        return known + sum(buffer.nbytes for buffer in buffers)


def bounds_of(ticks: Array, low: int, high: int) -> tuple[Array, Array, Array, Array]:
    """The windows of left tuples: their begins and ends, those beyond all times, and those before all."""
    return _moved(ticks, low), _moved(ticks, high), ticks > FOREVER - max(0, low), ticks < NEVER - min(0, high)


def _moved(ticks: Array, by: int) -> Array:
    return plus(ticks, by) if by >= 0 else minus(ticks, -by)
