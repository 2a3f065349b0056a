"""The interface between the operator and a kind of join.

An algorithm gives pairs of positions; a kind turns them into rows: pairs of positions in which MISSING stands for the
side that a row does not have. Rows are in result order, and do not depend on how tuples were cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk
from streamjoin.joins.engine.result_rows import later_time
from streamjoin.model.binding import BoundSpec
from streamjoin.model.common_types import either
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

MISSING = -1


@dataclass(frozen=True)
class KindRows:
    """Rows in result order: the positions of their left and right tuple, or MISSING."""

    left: Array
    right: Array
    place: Array | None = None
    """The place in its chunk of the tuple with which each row comes out, ascending; by default the last one."""
    are_pairs: bool = False
    """Whether no tuple is missing."""
    few: FewRows | None = None
    """Rows between these."""

    @property
    def n(self) -> int:
        """The number of rows."""
        return int(self.left.size) + (0 if self.few is None else self.few.rows.n)

    def places(self, last: int) -> Callable[[], Array]:
        """A function that returns the place of every row; those without one have `last`. It holds no positions."""
        n, place, few = self.n, self.place, self.few

        def all_places() -> Array:
            if place is None:
                return np.full(n, last, np.int64)
            return place if few is None else np.insert(place, few.before, few.rows.places(last)())

        return all_places


@dataclass(frozen=True)
class FewRows:
    """A few rows that come between many others; `before` has the numbers of the rows that follow each, ascending."""

    rows: KindRows
    before: Array


@dataclass(frozen=True)
class Tail:
    """What the end of a call decides: no tuple before `tick` follows, or, at the `last` call, none at all."""

    tick: int
    last: bool = False


@dataclass(frozen=True)
class StoredChunk:
    """A chunk whose tuples are stored, with each side's own table and ticks."""

    chunk: Chunk
    tables: tuple[pa.Table, pa.Table]
    ticks: tuple[Array | None, Array | None]
    self_join: bool

    @property
    def n(self) -> int:
        """The number of tuples; those of a self-join count once."""
        return self.chunk.n // 2 if self.self_join else self.chunk.n

    def places(self, side: int) -> Array:
        """The places of one side's tuples in gate order."""
        part = self.chunk.right if side else self.chunk.left
        return part.at >> 1 if self.self_join else part.at

    def place_of(self, probes: Array) -> Array:
        """The places of probes."""
        return probes >> 1 if self.self_join else probes

    def first(self, side: int) -> int:
        """The position of one side's first tuple."""
        return (self.chunk.right if side else self.chunk.left).first_seq


class KindLayer(Protocol):
    """Turns the pairs of an inner join into the rows of another kind."""

    gives_pairs: bool
    """Whether every pair is a row, so that a limit of rows holds for pairs."""

    def reduce(self, chunk: StoredChunk, probes: Array, seqs: Array) -> tuple[Array, Array]:
        """Take pairs of a chunk, in any order, and return those that are still needed. Safe from several threads."""

    def begin(self, chunk: StoredChunk) -> None:
        """Add a chunk's tuples, before they are paired."""

    def rows(self, chunk: StoredChunk, probes: Array, left: Array, right: Array) -> KindRows:
        """The rows of a chunk, from its pairs in result order."""

    def end(self, tail: Tail) -> KindRows:
        """The rows that the end of a call decides."""

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""

    def needed_from(self, side: int, live: int) -> int:
        """The first position of a side that later rows may need; `live` is the first in its window."""

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop state of positions below these, which the windows no longer hold."""

    def saved(self) -> Restore:
        """Return a function that restores the current state."""


class PositionBuffer:
    """One value for each position of a side from `base` on. Changes in place are undone by a journal."""

    def __init__(self, dtype: type[np.generic], fill: int) -> None:
        self._buffer = Buffer(dtype)
        self._fill = fill
        self.base = 0
        self._journal: list[tuple[Array, Array | int, Array | None]] = []

    @property
    def values(self) -> Array:
        """The values, from position `base` on."""
        return self._buffer.values

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.base + len(self._buffer)

    def extend(self, n: int) -> Array:
        """Add `n` positions; returns their values."""
        room = self._buffer.room_for(n)
        room[...] = self._fill
        return room

    def note(self, positions: Array, old: Array | int, count: Array | None = None) -> None:
        """Record that the values at `positions` were `old` before they changed.

        A kernel that changes values fills `positions` and their number `count` itself, so that a call that fails right
        behind it is undone as well; until then count[0] is 0.
        """
        if positions.size:
            self._journal.append((positions, old, count))

    def forget(self, position: int) -> None:
        """Drop the positions before this one."""
        n = min(position, self.end) - self.base
        if n > 0:
            self._buffer.forget(n)
            self.base += n

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._buffer.nbytes

    def saved(self) -> Restore:
        """Return a function that restores these values."""
        base, buffer, end = self.base, self._buffer.saved(), self.end
        journal: list[tuple[Array, Array | int, Array | None]] = []
        self._journal = journal

        def restore() -> None:
            buffer()
            self.base = base
            for positions, old, count in reversed(journal):
                n = positions.size if count is None else int(count[0])
                # Backwards: of several values of one position the oldest is written last.
                inside = np.flatnonzero((positions[:n] >= base) & (positions[:n] < end))[::-1]
                self.values[positions[inside] - base] = old if isinstance(old, int) else old[inside]

        return restore


def gather_kind(bound: BoundSpec, stores: tuple[SideStore, SideStore], rows: KindRows, workers: Workers) -> pa.Table:
    """The rows as a table, column by column."""
    sides = {}
    time = None if bound.spec.left_only else bound.time
    shared = [c.source for c in bound.columns if c.is_key] if "right" in bound.spec.preserved else []
    for side, positions in (("left", rows.left), ("right", rows.right)):
        names = [c.source for c in bound.columns if c.side == side] + (shared if side == "right" else [])
        names += [] if time is None else [time.right if side == "right" else time.left]
        store = stores[side == "right"]
        sides[side] = gather_or_null(store, list(dict.fromkeys(names)), positions, workers)
    arrays = []
    for column, field in zip(bound.columns, bound.schema, strict=False):
        array = sides[column.side][column.source]
        if column.source in shared and column.is_key:
            array = either(array, sides["right"][column.source], field.type)
        arrays.append(array)
    if time is not None:
        arrays.append(later_time([sides["left"][time.left], sides["right"][time.right]], time.type))
    return pa.Table.from_arrays(arrays, schema=bound.schema)


def gather_or_null(store: SideStore, names: list[str], positions: Array, workers: Workers) -> dict[str, pa.Array]:
    """The values of the named columns at `positions`, NULL where they are MISSING."""
    if not names:
        return {}
    present = positions != MISSING
    if present.all():
        return store.gather(names, positions, workers)
    if not present.any():
        return {name: pa.nulls(positions.size, store.schema.field(name).type) for name in names}
    anywhere = positions[np.argmax(present)]
    columns = store.gather(names, np.where(present, positions, anywhere), workers)
    return {name: _masked(array, present) for name, array in columns.items()}


def _masked(array: pa.Array, present: Array) -> pa.Array:
    """`array` with NULL where `present` is false."""
    type_ = array.type
    if pa.types.is_primitive(type_) and not pa.types.is_boolean(type_) and array.offset == 0:
        valid = present & array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else present
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(type_, len(array), [bitmap, array.buffers()[1]])
    return array.take(pa.array(np.arange(present.size), mask=~present))


def interleaved(rows: pa.Table, few: pa.Table, before: Array) -> pa.Table:
    """All rows; each of `few` comes before the row of `rows` with the number that `before` says."""
    parts, begin = [], 0
    for number, end in enumerate(before.tolist()):
        parts += [rows.slice(begin, end - begin), few.slice(number, 1)]
        begin = end
    return pa.concat_tables([part for part in (*parts, rows.slice(begin)) if part.num_rows])
