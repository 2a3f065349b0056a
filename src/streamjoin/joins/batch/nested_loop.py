"""`nested_loop`: compares every tuple with every live tuple of the other side, for any predicate.

Up to two exact terms are tested inside the blocked kernel, 16 or 8 tuples per instruction; the other conditions are
tested on the candidates. Words that fit 32 bits on both sides are stored in 32 bits. Without exact terms a kernel tests
the residual, if it has a program (`windows/conditions.py`); otherwise, and before compiling pays, it is evaluated tile
by tile.

Two terms that no other algorithm looks up are not compared pair by pair where enough tuples look for matches: blocks of
stored tuples are sorted by each term, with bitmaps (`kernels/batch/bitmaps.py`), once for all tuples to come, and what
is left over for the push alone.
The tuples of a chunk are scanned for side by side, without the interpreter's lock. Invariant: places ascend with
positions, and only tuples that can match have a place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.calls import KernelCalls, Own, Row
from streamjoin.jit.flags import is_compiled
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.batch.bitmaps import BLOCK, BLOCK_WORDS, build_block, scan_block
from streamjoin.kernels.batch.nested import GROUP, scan_window
from streamjoin.kernels.conditions import scan_condition
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.conditions import Condition
from streamjoin.windows.words import signed, unsigned_words
from streamjoin.windows.workers import Workers, cuts

Pieces = list[tuple[Array, Array]]

# The pairs of a scan in one round, unless those of a single tuple are more, and of all scans together.
_ROOM = 1 << 14
_MOST_ROOM = 1 << 22
_ALL = np.empty(0, np.bool_)
COMPILING_PAYS = 1 << 27
"""Pairs that are tested tile by tile, before the kernel is compiled that tests them by the residual's program."""
# A block is sorted once this many tuples were compared with it: that takes as long.
LEAST_LOOKS = 512


@dataclass(frozen=True)
class SortedBlock:
    """Stored tuples sorted by each of two terms; the first is the `begin`-th that was ever stored."""

    begin: int
    terms: tuple[Array, ...]
    seqs: Array
    kernel: ClassVar[Any] = staticmethod(scan_block)

    @staticmethod
    def columns(stored: Sequence[Any], probes: ScanProbes) -> tuple[Any, ...]:
        """What the kernel takes of each block, and of the probes."""
        terms = [Own([block.terms[t] for block in stored]) for t in (0, 1)]
        return *terms, Own([block.seqs for block in stored]), *probes.bounds[0], *probes.bounds[1]


@dataclass(frozen=True)
class Unsorted:
    """Stored tuples that are compared one by one: the words of each term, and the positions."""

    words: list[Array]
    seqs: Array
    kernel: ClassVar[Any] = staticmethod(scan_window)

    @staticmethod
    def columns(stored: Sequence[Any], probes: ScanProbes) -> tuple[Any, ...]:
        """What the kernel takes of the tuples, and of the probes."""
        words = [Own([rest.words[t] for rest in stored]) for t in (0, -1)]
        seqs = Own([rest.seqs for rest in stored])
        return len(probes.terms), *words, seqs, *probes.terms[0][1:], *probes.terms[-1][1:]


@dataclass(frozen=True)
class Conditioned:
    """Stored tuples that are tested by the residual's program: the rows that it reads, and the positions."""

    rows: Array
    seqs: Array
    kernel: ClassVar[Any] = staticmethod(scan_condition)

    @staticmethod
    def columns(stored: Sequence[Any], probes: ScanProbes) -> tuple[Any, ...]:
        """What the kernel takes of the tuples, and of the probes."""
        rows = Own([rest.rows for rest in stored])
        return *(probes.condition or ()), rows, Own([rest.seqs for rest in stored])


class StoredWords:
    """One side's valid tuples: ascending positions, and one array of unsigned words per tested term.

    Of a residual with a program, `rows` are what it reads.
    """

    def __init__(self, n_terms: int, dtype: Any, n_columns: int | None = None) -> None:
        self.seqs = Buffer(np.int64)
        self.words = [Buffer(dtype) for _ in range(n_terms)]
        self.rows = None if n_columns is None else Buffer(np.int64, n_columns)
        self.blocks: list[SortedBlock] = []
        self._passing: list[SortedBlock] = []
        # How many tuples were dropped, and looks at those that could be a block.
        self._dropped = self._looks = 0

    @property
    def columns(self) -> list[Buffer]:
        """What is held of each tuple."""
        return [self.seqs, *self.words, *([] if self.rows is None else [self.rows])]

    @property
    def scanned(self) -> list[SortedBlock | Unsorted | Conditioned]:
        """What there is to scan: the blocks, those of the push included, and what no block holds."""
        if self.rows is not None:
            return [Conditioned(self.rows.values, self.seqs.values)]
        blocks = [*self.blocks, *self._passing]
        rest = self._end(blocks)
        if rest == len(self.seqs) and blocks:
            return [*blocks]
        return [*blocks, Unsorted([buffer.values[rest:] for buffer in self.words], self.seqs.values[rest:])]

    def _end(self, blocks: list[SortedBlock]) -> int:
        """The first place that none of the blocks holds."""
        return max(0, blocks[-1].begin + blocks[-1].seqs.size - self._dropped) if blocks else 0

    def sort(self, looks: int, workers: Workers) -> None:
        """Make blocks, for a push in which this many tuples look for matches; some may be for that push alone."""
        n, rest = len(self.seqs), self._end(self.blocks)
        self._passing = []
        if n - rest >= BLOCK:
            self._looks += looks
            if self._looks >= LEAST_LOOKS:
                begins = range(rest, n - BLOCK + 1, BLOCK)
                self.blocks = [*self.blocks, *workers.map(lambda begin: self._block(begin, begin + BLOCK), begins)]
                self._looks, rest = 0, self._end(self.blocks)
        if looks >= LEAST_LOOKS:
            self._passing = workers.map(lambda at: self._block(at, min(n, at + BLOCK)), range(rest, n, BLOCK))

    def passed(self) -> None:
        """End a push: its own blocks go."""
        self._passing = []

    def _block(self, begin: int, end: int) -> SortedBlock:
        terms = []
        for buffer in self.words:
            words, block = signed(buffer.values[begin:end]), np.empty(BLOCK_WORDS, np.int64)
            build_block(words, np.argsort(words), block)
            terms.append(block)
        return SortedBlock(begin + self._dropped, tuple(terms), self.seqs.values[begin:end].copy())

    def append(self, part: SidePart, held: list[Array], places: Array | None = None) -> None:
        """Add the tuples of a chunk that can match, or only those at `places`; `held` are their words, and rows."""
        places = part.valid_places() if places is None else places
        self.seqs.append(places + part.first_seq)
        for buffer, values in zip(self.columns[1:], held, strict=True):
            buffer.append(values if places.size == part.n else values[places])

    def forget(self, min_seq: int) -> None:
        """Drop the positions below `min_seq`."""
        n = int(np.searchsorted(self.seqs.values, min_seq))
        for buffer in self.columns:
            buffer.forget(n)
        self._dropped += n
        if self.blocks and self.blocks[0].begin + self.blocks[0].seqs.size <= self._dropped:
            self.blocks = [block for block in self.blocks if block.begin + block.seqs.size > self._dropped]

    def saved(self) -> Callable[[], None]:
        """Return a function that restores these tuples."""
        parts = [buffer.saved() for buffer in self.columns]
        before = self.blocks, self._dropped, self._looks

        def restore() -> None:
            for part in parts:
                part()
            self.blocks, self._dropped, self._looks = before
            self._passing = []

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        blocks = sum(block.seqs.nbytes + sum(term.nbytes for term in block.terms) for block in self.blocks)
        return sum(buffer.nbytes for buffer in self.columns) + blocks


def live_places(chunk: Chunk, part: SidePart, seqs: Array, decides: frozenset[int]) -> tuple[Array, Array]:
    """For each tuple, the first and last place of the other side where it may find matches."""
    first = np.searchsorted(seqs, chunk.min_seq[part.at])
    if chunk.stored_only:
        return first, first
    last = np.searchsorted(seqs, chunk.stops[part.at])
    for t in decides:
        empty = part.encoded.terms[t].lo > part.encoded.terms[t].hi
        last = np.where(empty, first, last)
    if part.encoded.valid is not None:
        last = np.where(part.encoded.valid, last, first)
    return first, np.maximum(first, last)


@dataclass(frozen=True)
class ScanProbes:
    """One side's tuples: for each tested term words, low ends and widths; their places; which can match at all."""

    terms: list[tuple[Array, Array, Array]]
    at: Array
    usable: Array
    condition: tuple[Array, Array] | None = None
    """The program of the residual, and the rows that it reads of them, where a kernel tests it."""

    @staticmethod
    def of(
        part: SidePart, decides: frozenset[int], narrow: bool, condition: tuple[Array, Array] | None = None
    ) -> ScanProbes:
        """Those of a chunk's side."""
        terms = [part.encoded.terms[t] for t in sorted(decides)]
        usable = _ALL if part.encoded.valid is None else part.encoded.valid
        for term in terms:
            empty = term.lo > term.hi
            if empty.any():
                usable = (usable if usable.size else np.ones(part.n, np.bool_)) & ~empty
        return ScanProbes([unsigned_words(term, narrow) for term in terms], part.at, usable, condition)

    @property
    def held(self) -> list[Array]:
        """What is stored of them: the words of each term, and the rows."""
        return [*(word for word, _, _ in self.terms), *([] if self.condition is None else self.condition[1:])]

    @cached_property
    def bounds(self) -> list[tuple[Array, Array]]:
        """The low and the high ends of each term's intervals, as signed words."""
        return [(signed(lo), signed(lo + span)) for _, lo, span in self.terms]


class WindowScan:
    """The tuples from `begin` to `end` of one side, to be compared with some of what is stored of the other."""

    def __init__(self, probes: ScanProbes, stored: SortedBlock | Unsorted | Conditioned, begin: int, end: int) -> None:
        self.probes, self.stored = probes, stored
        self.state = np.array([begin, end, 0, 0])
        self.room = min(_ROOM, max(1, (end - begin) * stored.seqs.size))

    @property
    def is_over(self) -> bool:
        """Whether all tuples were compared."""
        return bool(self.state[0] >= self.state[1])

    def advance(self, state: Array) -> None:
        """Go on from `state`; if that is where it was, the pairs of one tuple need more room."""
        if state[0] == self.state[0]:
            self.room = max(2 * self.room, self.stored.seqs.size)
        self.state = state

    @property
    def compared(self) -> int:
        """Comparisons so far."""
        return int(self.state[2])

    @property
    def is_undecided(self) -> bool:
        """Whether some pairs came out untested."""
        return bool(self.state[3])


def run_scans(scans: Sequence[WindowScan], chunk: Chunk, refine: Refine, workers: Workers) -> Pieces:
    """The pairs of scans by one kernel that pass the other tests, in pieces; those of the same probes are together."""
    pieces: Pieces = []
    decided = scans and isinstance(scans[0].stored, Conditioned)
    while unfinished := [scan for scan in scans if not scan.is_over]:
        room = max(scan.room for scan in unfinished)
        del unfinished[max(1, _MOST_ROOM // room) :]
        pairs = workers.memory.take(2 * room * len(unfinished)).reshape(2, -1, room)
        states = np.stack([scan.state for scan in unfinished])
        groups, at = [], 0
        for _, group in groupby(unfinished, key=lambda scan: id(scan.probes)):
            members = list(group)
            end = at + len(members)
            groups.append(_calls(members, chunk, states[at:end], pairs[:, at:end]))
            at = end
        sizes = workers.call(scans[0].stored.kernel, *groups)
        for scan, state in zip(unfinished, states, strict=True):
            scan.advance(state)
        found = [(pairs[0, k, :size], pairs[1, k, :size]) for k, size in enumerate(sizes) if size]
        pieces += _tested(found, refine, workers, holds=bool(decided and not states[:, 3].any()))
    return pieces


def _calls(scans: Sequence[WindowScan], chunk: Chunk, states: Array, pairs: Array) -> KernelCalls:
    probes, stored = scans[0].probes, [scan.stored for scan in scans]
    return KernelCalls(
        len(scans), *stored[0].columns(stored, probes), probes.usable, probes.at, chunk.min_seq, chunk.stops,
        Row(states), Row(pairs[0]), Row(pairs[1]),
    )  # fmt: skip


def _tested(found: Pieces, refine: Refine, workers: Workers, *, holds: bool) -> Pieces:
    if refine.tests:
        return workers.map(lambda pair: refine(*pair, holds), found)
    refine.count(sum(probes.size for probes, _ in found))
    return found


# A tile's intermediate results stay in the second-level cache.
_TILE_PROBES = 64
_TILE_STORED = 2048
_SCANS_PER_WORKER = 4

Tile = Callable[[], tuple[Array, Array]]


class NestedLoop:
    """The nested loop in cache-sized blocks."""

    name: ClassVar[str] = "nested_loop"

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        self._workers = workers
        self.decides = frozenset(range(min(2, len(bound.terms))))
        self._narrow = all(bound.terms[t].narrow for t in self.decides)
        dtype = np.uint32 if self._narrow else np.uint64
        self._condition = None if self.decides else Condition.of(bound)
        widths = (None, None) if self._condition is None else map(len, self._condition.parts)
        left, right = (StoredWords(len(self.decides), dtype, width) for width in widths)
        self._left = left
        # A self-join whose roles have the same words stores a tuple once, for both; a program reads other rows of each.
        self._shared = bound.has_equal_roles and self._condition is None
        self._right = left if self._shared else right
        # Terms that can be looked up are scanned only until something does so.
        self._sorts = len(self.decides) == 2 and not bound.index
        self.compared = 0
        self.undecided = False
        """Whether the residual's program could not decide some pairs."""

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Store the chunk, then scan, for each tuple, the positions that it may match."""
        sides = self.probes(chunk, refine)
        self.store(chunk, sides, (chunk.left.valid_places(), chunk.right.valid_places()))
        if self._sorts and not chunk.stored_only:
            self._right.sort(chunk.left.n, self._workers)
            self._left.sort(chunk.right.n, self._workers)
        pieces = scan_all([self], chunk, sides, (0, chunk.n), refine, self._workers)
        self._left.passed()
        self._right.passed()
        return ordered_pieces(chunk, pieces, self._workers)

    @property
    def tests_pairs(self) -> bool:
        """Whether a kernel tests pairs; otherwise the residual is evaluated tile by tile.

        So it is until compiling the kernel pays, and where numbers are too large for it.
        """
        if self.decides or self._condition is None:
            return bool(self.decides)
        return not self.undecided and (self.compared >= COMPILING_PAYS or is_compiled(scan_condition))

    def probes(self, chunk: Chunk, refine: Refine) -> tuple[ScanProbes, ScanProbes]:
        """Both sides of a chunk."""
        left, right = (
            ScanProbes.of(part, self.decides, self._narrow, self._conditioned(side, part.n, refine))
            for side, part in enumerate((chunk.left, chunk.right))
        )
        return left, right

    def _conditioned(self, side: int, n: int, refine: Refine) -> tuple[Array, Array] | None:
        """The residual's program for one side, and what it reads of `n` tuples."""
        condition = self._condition
        if condition is None:
            return None
        return condition.programs[side], condition.rows(side, refine.own(side, condition.columns(side)), n)

    def store(self, chunk: Chunk, sides: tuple[ScanProbes, ScanProbes], places: tuple[Array, Array]) -> None:
        """Store the tuples at these places of each side."""
        self._left.append(chunk.left, sides[0].held, places[0])
        if not self._shared:
            self._right.append(chunk.right, sides[1].held, places[1])

    def scans(self, side: int, probes: ScanProbes, begin: int, end: int) -> list[WindowScan]:
        """Scans for one side's tuples from `begin` to `end`; several for each worker, who may be done early."""
        parts = min(_SCANS_PER_WORKER * self._workers.n, -(-(end - begin) // GROUP)) if self._workers.n > 1 else 1
        shares = [(begin + first, begin + last) for first, last in cuts(end - begin, parts)]
        store = self._left if side else self._right
        return [WindowScan(probes, stored, *share) for stored in store.scanned for share in shares]

    def tiles(self, chunk: Chunk, part: SidePart, side: int, refine: Refine, begin: int, end: int) -> list[Tile]:
        """Without exact terms: the condition for groups of one side's tuples, and everything that is stored."""
        cut = SidePart(part.encoded.part(slice(begin, end)), part.at[begin:end], part.first_seq + begin)
        seqs = (self._left if side else self._right).seqs.values
        first, last = live_places(chunk, cut, seqs, self.decides)
        self.compared += int((last - first).sum())
        return [partial(_scan_tile, cut, seqs, first, last, refine, at) for at in range(0, cut.n, _TILE_PROBES)]

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._left.forget(min(left_min, right_min) if self._shared else left_min)
        if not self._shared:
            self._right.forget(right_min)

    def saved(self) -> Restore:
        """Return a function that restores both windows."""
        left, right, compared = self._left.saved(), self._right.saved(), self.compared

        def restore() -> None:
            left()
            right()
            self.compared = compared

        return restore

    def held(self, side: int) -> list[Array]:
        """One side's positions and words of each term, oldest first."""
        store = (self._left, self._right)[side]
        return [buffer.values for buffer in store.columns]

    def refill(self, side: int, columns: list[Array]) -> None:
        """Store the tuples of another instance; `columns` are as `held` returns them."""
        store = (self._left, self._right)[side]
        if side and self._shared:
            return
        for buffer, values in zip(store.columns, columns, strict=True):
            buffer.append(values)

    def close(self) -> None:
        """Do nothing: the algorithm has no threads of its own."""

    def counters(self) -> dict[str, int]:
        """Pairs compared."""
        return {"compared": self.compared}

    @property
    def nbytes(self) -> int:
        """Bytes held for the words of both sides."""
        return self._left.nbytes + (0 if self._shared else self._right.nbytes)


def scan_all(
    loops: Sequence[NestedLoop],
    chunk: Chunk,
    sides: tuple[ScanProbes, ScanProbes],
    between: tuple[int, int],
    refine: Refine,
    workers: Workers,
) -> Pieces:
    """The pairs of the tuples between two places of a chunk with what several loops have stored, in pieces."""
    if chunk.stored_only:
        return []
    parts = (chunk.left, chunk.right)
    ranges = [np.searchsorted(part.at, between).tolist() for part in parts]
    if not all(loop.tests_pairs for loop in loops):
        tiles = [
            tile
            for side, (part, cut) in enumerate(zip(parts, ranges, strict=True))
            for loop in loops
            for tile in loop.tiles(chunk, part, side, refine, *cut)
        ]
        return workers.map(lambda tile: tile(), tiles)
    scans = [
        (loop, scan)
        for side, (probes, cut) in enumerate(zip(sides, ranges, strict=True))
        for loop in loops
        for scan in loop.scans(side, probes, *cut)
    ]
    pieces: Pieces = []
    for kernel in dict.fromkeys(scan.stored.kernel for _, scan in scans):
        pieces += run_scans([scan for _, scan in scans if scan.stored.kernel is kernel], chunk, refine, workers)
    for loop, scan in scans:
        loop.compared += scan.compared
        loop.undecided = loop.undecided or scan.is_undecided
    return pieces


def _scan_tile(
    part: SidePart, seqs: Array, first: Array, last: Array, refine: Refine, begin: int
) -> tuple[Array, Array]:
    """Evaluate the condition for a group of probes, tile by tile of stored tuples."""
    rows = slice(begin, min(begin + _TILE_PROBES, part.n))
    low, high = int(first[rows].min()), int(last[rows].max())
    pieces = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for place in range(low, high, _TILE_STORED):
        places = np.arange(place, min(place + _TILE_STORED, high))
        holds = refine.grid(part.at[rows], seqs[places])
        holds &= (first[rows, None] <= places) & (places < last[rows, None])
        hit_probe, hit_place = np.nonzero(holds)
        pieces.append((begin + hit_probe, places[hit_place]))
    probe, place_ = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((place_, probe))
    return refine(part.at[probe[order]], seqs[place_[order]])


register_algorithm(NestedLoop.name, lambda bound, _, workers: NestedLoop(bound, workers))
