"""The right side of a join with summaries: the stored tuples, and the windows that slide over them.

Of a tuple what the aggregates need is written once, when it comes. What windows hold follows from that and from how far
they are (`summary_slides.py`), so `saved` copies nothing: once tuples were taken back the windows start anew. Tuples
that no window needs any more are dropped in front, as all others move up; where some of them stay, because they are in
force, and where keys get new numbers, the side is built anew from what is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.summary_slides import Best, NewestTuples, Slide, Sums, WindowBounds, WindowFrame
from streamjoin.kernels.kinds.summary import NONE, mark_newest
from streamjoin.windows.buffer import ColumnBlock, Restore
from streamjoin.windows.clock import FOREVER, NEVER, minus, plus
from streamjoin.windows.encoding import flat
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

# How many of the newest tuples of a key may be in force: in a self-join the newest may be the left tuple itself.
_MOST_IN_FORCE = 2


@dataclass(frozen=True)
class RightNeeds:
    """What a right side keeps: columns of tuples with their types, words that are tested, and what slides.

    `sums` are the columns that are summed or counted, `bests` those with an order, each with its orders; `hidden` says
    whether a left tuple is among the tuples of its window and does not count.
    """

    schema: pa.Schema
    n_words: int
    sums: Mapping[str, pa.DataType]
    bests: Sequence[tuple[str, tuple[str, ...]]]
    low: int
    high: int
    listed: bool
    prevailing: bool
    hidden: bool


@dataclass(frozen=True)
class Windows:
    """The windows of left tuples: their sizes, their newest tuple, the one that does not count, the one in force.

    The last three are positions, NONE where there is none; they are known where windows are listed.
    """

    sizes: Array
    newest: Array
    hole: Array
    in_force: Array

    @property
    def n(self) -> int:
        """The number of left tuples."""
        return int(self.sizes.size)


class RightSide:
    """The stored right tuples and the windows over them."""

    def __init__(self, kept: RightNeeds, workers: Workers) -> None:
        self.kept = kept
        self.store = SideStore(kept.schema, kept.n_words, timed=True)
        self._workers = workers
        self._block = block = ColumnBlock()
        self._keys = block.add(np.int64)
        self._newest = NewestTuples(block) if kept.listed or kept.prevailing else None
        self.sums = {name: Sums(block, type_) for name, type_ in kept.sums.items()}
        # Whether another tuple lies exactly on the window's start is said by the first one in it.
        bests = [*kept.bests, *([("", ("FIRST",))] if kept.prevailing else [])]
        # A window without a tuple of its own is two: in front of that tuple, and behind it.
        self._halves = kept.hidden and kept.low <= 0 <= kept.high and bool(bests)
        self._bests = [{own: Best(block, own[1]) for own in bests} for _ in range(1 + self._halves)]
        whole: list[Slide] = [*self.sums.values(), *([] if self._newest is None else [self._newest])]
        parts: list[list[Slide]] = [list(own.values()) for own in self._bests]
        self._frames = [WindowFrame(own) for own in ([whole, *parts] if self._halves else [[*whole, *parts[0]]])]
        self._n_keys = 0
        # Whether windows start anew, and how often they have moved.
        self._anew, self._moves = True, 0
        block.reserve(1)

    # -- stored tuples -------------------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """The number of stored tuples."""
        return len(self._block)

    @property
    def keys(self) -> Array:
        """The number of each tuple's key."""
        return self._block.values(self._keys)

    @property
    def ticks(self) -> Array:
        """The times."""
        return np.empty(0, np.int64) if self.store.ticks is None else self.store.ticks

    @property
    def previous(self) -> Array:
        """The position of each tuple's predecessor in its key, where windows are listed."""
        return np.empty(0, np.int64) if self._newest is None else self._newest.previous

    def append(self, table: pa.Table, words: list[Array], ticks: Array, keys: Array, n_keys: int) -> None:
        """Add tuples in stream order; there are `n_keys` keys by now."""
        first, n = self.store.count, keys.size
        self._block.reserve(n + 1, self._workers)
        self._block.arrays[self._keys][self._block.end : self._block.end + n] = keys
        forms = self._forms
        for name, sums in self.sums.items():
            sums.append(flat(table.column(name)), first)
        for bests in self._bests:
            for (name, _), best in bests.items():
                best.append(flat(table.column(name)) if name else pa.array(keys), first)
        self._anew |= forms != self._forms
        self.store.append(table.select(self.store.schema.names), words, ticks, n, self._workers)
        self._block.end += n
        self.know_keys(n_keys)

    def know_keys(self, n_keys: int) -> None:
        """There are `n_keys` keys by now."""
        self._n_keys = n_keys

    def place_of(self, tick: int) -> int:
        """The place of the first tuple that is not before a time."""
        return int(np.searchsorted(self.ticks, tick))

    def needed(self, tick: int) -> Array:
        """The places of the tuples that a window from a time on may have, ascending."""
        end, kept = self.place_of(tick), np.ones(self.stored, np.bool_)
        kept[:end] = False
        if self.kept.prevailing:
            mark_newest(self.keys, end, np.zeros(self._n_keys, np.int64), _MOST_IN_FORCE, kept)
        return np.flatnonzero(kept)

    def forget(self, tick: int | None = None) -> None:
        """Drop the tuples that all windows have left; with a time, those that no window from then on has."""
        if self.kept.prevailing or (self._anew and tick is None):
            return
        if tick is not None:
            place = np.full(1, self.place_of(tick))
            places = np.arange(self.stored)
            passing = WindowBounds(place, place - 1, np.full(1, NONE), 0, 1, places, places)
            self._move([passing] * len(self._frames))
        dropped = min(frame.left for frame in self._frames) - self.store.base
        if dropped:
            self.store.forget(self.store.base + dropped)
            self._block.begin += dropped

    def rebuilt(self, needed: Array, keys: Array, n_keys: int) -> RightSide:
        """A side with the tuples at some places alone, whose keys have the numbers `keys`."""
        fresh, store, n = RightSide(self.kept, self._workers), self.store, needed.size
        block = fresh._block
        block.reserve(n + 1, self._workers)
        block.arrays[fresh._keys][block.end : block.end + n] = keys
        for new, old in zip(fresh._slides, self._slides, strict=True):
            new.keep(old, needed)
        table = pa.table(store.gather(store.schema.names, needed + store.base, self._workers), schema=store.schema)
        fresh.store.append(table, [words[needed] for words in store.words], self.ticks[needed], n, self._workers)
        block.end += n
        fresh.know_keys(n_keys)
        return fresh

    # -- windows -------------------------------------------------------------------------------------------

    def windows(self, ticks: Array, keys: Array, own: Array) -> Windows:
        """The windows of left tuples, whose times ascend from call to call; what slides has their aggregates then.

        `own` are the positions of the left tuples themselves in a self-join, NONE where they are not stored.
        """
        low, high, n = self.kept.low, self.kept.high, ticks.size
        starts, ends = _moved(ticks, low), _moved(ticks, high)
        # Windows that end before all times, and that begin after all.
        short = int(np.searchsorted(ticks, NEVER - min(0, high)))
        beyond = int(np.searchsorted(ticks, FOREVER - max(0, low), side="right"))
        bounds = [WindowBounds(starts, ends, keys, short, beyond, self.ticks, self.ticks)]
        order, hole = None, np.full(n if self._lists or self.kept.hidden else 0, NONE)
        if self.kept.hidden and low <= 0 <= high:
            known = (own != NONE) & (keys >= 0)
            known[known] = self.keys[own[known] - self.store.base] == keys[known]
            hole[known] = own[known]
        if self._halves:
            halves, order = self._halved(ticks, bounds[0], own)
            bounds += halves
        sizes = self._move(bounds)
        if order is not None:
            for bests in self._bests:
                for best in bests.values():
                    best.put_back(order)
        if self._halves:
            for best, other in zip(*(bests.values() for bests in self._bests), strict=True):
                best.join(np.arange(n), other.words, other.counts)
        if self.kept.hidden:
            sizes -= hole != NONE
            places = np.flatnonzero(hole != NONE)
            for sums in self.sums.values() if places.size else ():
                sums.numbers.take(hole[places] - self.store.base).take_away(places, sums.rows, sums.form)
        newest = in_force = hole
        if self._newest is not None:
            newest, in_force = self._newest.found[:, 0], np.full(n, NONE)
        if self.kept.prevailing:
            in_force = self._in_force(starts, beyond, own)
            sizes += in_force != NONE
        return Windows(sizes, newest, hole, in_force)

    def best(self, name: str, order: str) -> tuple[Array, Array]:
        """For each of the newest windows the best word of a column, and how many values it has."""
        for (own, orders), best in self._bests[0].items():
            if own == name and order in orders:
                return best.words[:, orders.index(order)], best.counts
        raise AssertionError(f"{name} without an order")

    # -- undoing -------------------------------------------------------------------------------------------

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        restore_store, block, n_keys, moves = self.store.saved(), self._block.state(), self._n_keys, self._moves
        forms = self._forms

        def restore() -> None:
            restore_store()
            self._block.restore(block)
            self._n_keys = n_keys
            if moves == self._moves and forms == self._forms:
                return
            self._anew = True
            for slide, form in zip(self._slides, forms, strict=True):
                slide.form = form

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes of what is known beside the stored tuples."""
        return self._block.nbytes + sum(frame.nbytes for frame in self._frames)

    # -- internals -----------------------------------------------------------------------------------------

    @property
    def _lists(self) -> bool:
        return self._newest is not None

    @property
    def _slides(self) -> list[Slide]:
        return [slide for frame in self._frames for slide in frame.slides]

    @property
    def _forms(self) -> list[object]:
        return [slide.form for slide in self._slides]

    def _move(self, bounds: Sequence[WindowBounds]) -> Array:
        """Move all frames, each by its bounds; returns the sizes of the first one's windows."""
        # Until all have moved they are good for nothing.
        anew, self._anew, self._moves = self._anew, True, self._moves + 1
        sizes = []
        for frame, own in zip(self._frames, bounds, strict=True):
            if anew:
                frame.start(self.store.base, self._n_keys)
            sizes.append(frame.sizes(own, self.keys, self.store.base, self._n_keys))
        self._anew = False
        return sizes[0]

    def _halved(self, ticks: Array, whole: WindowBounds, own: Array) -> tuple[list[WindowBounds], Array | None]:
        """The windows in front of the left tuples themselves and behind them; and their order, if it is another."""
        known, order = own != NONE, None
        # One that is not stored has all of its window behind it.
        cut = np.where(known, own - self.store.base, np.searchsorted(self.ticks, whole.starts))
        if (np.diff(cut[known]) < 0).any():
            order = np.lexsort((cut, ticks))
            known, cut = known[order], cut[order]
            starts, ends, keys = (values[order] for values in (whole.starts, whole.ends, whole.keys))
            whole = replace(whole, starts=starts, ends=ends, keys=keys)
        behind = np.maximum.accumulate(cut + known)
        before = np.where(known, cut, behind) - 1
        places = np.arange(self.stored)
        return [
            WindowBounds(whole.starts, before, whole.keys, whole.short, whole.beyond, places, self.ticks),
            WindowBounds(behind, whole.ends, whole.keys, whole.short, whole.beyond, self.ticks, places),
        ], order

    def _in_force(self, starts: Array, beyond: int, own: Array) -> Array:
        """The tuples in force at the starts of windows, which are in their aggregates then."""
        if self._newest is None:
            raise AssertionError("tuples in force without chains")
        base, (first, counts) = self.store.base, self.best("", "FIRST")
        exact = counts > 0
        exact[beyond:] = False
        exact[exact] = self.ticks[first[exact] - base] == starts[exact]
        found = np.where(exact, NONE, self._newest.found[:, 1])
        if self.kept.hidden:
            # A tuple is not in force for itself.
            itself = np.flatnonzero((found != NONE) & (found == own))
            found[itself] = self.previous[found[itself] - base]
        windows = np.flatnonzero(found != NONE)
        places = found[windows] - base
        for sums in self.sums.values():
            sums.numbers.take(places).add(windows, sums.rows, sums.form)
        for best in self._bests[0].values():
            best.join(windows, *best.words_at(places))
        return found


def _moved(ticks: Array, by: int) -> Array:
    """Ascending times and a signed length, saturated."""
    if ticks.size and NEVER < by <= FOREVER and int(ticks[0]) + by >= NEVER and int(ticks[-1]) + by <= FOREVER:
        # One pass instead of several.
        return ticks + by
    return plus(ticks, by) if by >= 0 else minus(ticks, -by)
