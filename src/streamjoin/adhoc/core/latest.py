"""As-of joins without a TOLERANCE: the newest tuple of each key, however old, copied out of its stream.

A stream holds one stretch of tuples, as long as windows need them. The tuple that such a join looks back to may be
older than any window, so its columns that the query uses are copied when it arrives. The invariant: of the tuples
before the earliest time that a lookup can still have, the newest of each key is held, and all later ones are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.adhoc.core.stored_stream import StoredStream
from streamjoin.adhoc.language.plan import JoinStep, Query
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.model.asof import AsOf
from streamjoin.model.binding import bind
from streamjoin.model.errors import InputError
from streamjoin.model.predicates import Equi, JoinPredicate
from streamjoin.model.spec import JoinSpec

MOST_HELD: Final = 1 << 20
"""Tuples that one join holds; with more keys its query fails, as what is held is written with every batch."""
_NONE = -1
_TIME, _ID = "#ticks", "#number"


@dataclass(frozen=True)
class HeldTuples:
    """Tuples by time, then in gate order: their ids, times, and the columns that are used."""

    ids: Array
    ticks: Array
    rows: pa.Table

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.ids)

    def keep(self, places: Array) -> HeldTuples:
        """Those at ascending places."""
        if len(places) == self.n:
            return self
        return HeldTuples(self.ids[places], self.ticks[places], self.rows.take(places))

    def joined_by(self, others: HeldTuples) -> HeldTuples:
        """With others, of which some may be here already."""
        ids, ticks = np.concatenate([self.ids, others.ids]), np.concatenate([self.ticks, others.ticks])
        _, first = np.unique(ids, return_index=True)
        order = first[np.lexsort((ids[first], ticks[first]))]
        rows = pa.concat_tables([self.rows, others.rows.cast(self.rows.schema)])
        return HeldTuples(ids[order], ticks[order], rows.take(order))

    def take(self, name: str, ids: Array) -> pa.Array:
        """A column of the tuples with these ids, NULL where an id is negative."""
        order = np.argsort(self.ids)
        missing = ids < 0
        if missing.all():
            return pa.nulls(len(ids), self.rows.schema.field(name).type)
        at = np.searchsorted(self.ids, np.where(missing, self.ids[order[0]], ids), sorter=order)
        return self.rows.column(name).combine_chunks().take(pa.array(order[at], mask=missing))

    def packed(self) -> bytes:
        """As bytes, for a file."""
        table = self.rows
        for name, values in ((_ID, self.ids), (_TIME, self.ticks)):
            table = table.append_column(name, pa.array(values))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def unpacked(cls, data: bytes) -> HeldTuples:
        """What `packed` gave."""
        table = pa.ipc.open_stream(data).read_all()
        ids, ticks = (table.column(name).to_numpy() for name in (_ID, _TIME))
        # Earlier versions wrote one column more.
        own = [name for name in table.column_names if name not in (_ID, _TIME, "#gate")]
        return cls(ids, ticks, table.select(own))


class LatestTuples:
    """What one as-of join without a tolerance holds and looks up; it keeps no state itself."""

    def __init__(self, query: Query, step: JoinStep) -> None:
        self._step = step
        self._types = query.schemas
        used = [*(output.expression for output in query.outputs), *query.filters]
        columns = {column.name for one in used for column in one.columns if column.qualifier == step.right}
        self._columns = sorted(columns | {equality.right.name for equality in step.equalities})

    @cached_property
    def nothing(self) -> HeldTuples:
        """No tuples."""
        schema = self._types[self._step.right]
        empty = np.empty(0, np.int64)
        columns = pa.schema([schema.field(name) for name in self._columns])
        return HeldTuples(empty, empty, columns.empty_table())

    @cached_property
    def _keys(self) -> JoinSpec:
        names = [f"k{place}" for place in range(len(self._step.equalities))]
        terms: list[JoinPredicate] = [Equi(name) for name in names]
        on = reduce(and_, terms) if terms else None
        return JoinSpec(on, match=AsOf(), time=_TIME, order="event_time")

    def _numbering(self) -> KeyNumbers:
        schemas = []
        for side in ("left", "right"):
            columns = [getattr(equality, side) for equality in self._step.equalities]
            types = [self._types[column.qualifier].field(column.name).type for column in columns]
            schemas.append(pa.schema([(_TIME, pa.int64()), *((f"k{n}", type_) for n, type_ in enumerate(types))]))
        return KeyNumbers(bind(self._keys, schemas[0], schemas[1]))

    def _held_keys(self, held: HeldTuples, numbering: KeyNumbers) -> Array:
        columns = [held.rows.column(equality.right.name) for equality in self._step.equalities]
        return numbering.number(1, _keyed(columns, held.n))

    def with_new(self, held: HeldTuples, stream: StoredStream, numbers: Array) -> HeldTuples:
        """With new tuples of the stream."""
        if not len(numbers):
            return held
        rows = pa.Table.from_arrays([stream.take(name, numbers) for name in self._columns], names=self._columns)
        return held.joined_by(HeldTuples(stream.ids_of(numbers), stream.ticks.at(numbers), rows))

    def partners(self, held: HeldTuples, keys: Sequence[pa.Array], ticks: Array, own: Array | None) -> Array:
        """The id of the newest held tuple at or before each time with the same key, or -1.

        `keys` are the left columns of the equalities. `own` are the ids of the tuples themselves, where they are of
        the same stream: a tuple is not its own partner.
        """
        numbering, rule = self._numbering(), self._step.nearest
        if rule is None or not held.n or not len(ticks):
            return np.full(len(ticks), _NONE, np.int64)
        theirs = self._held_keys(held, numbering)
        wanted = numbering.number(0, _keyed(keys, len(ticks)))
        usable = np.flatnonzero(theirs != _NONE)
        # Key and place in one number: sorted, the places of one key are adjacent and ascend by time.
        width = held.n + 1
        entries = np.sort(theirs[usable] * width + usable)
        upto = np.searchsorted(held.ticks, ticks, side="right" if rule.exact else "left")
        at = np.searchsorted(entries, wanted * width + upto) - 1
        place = _of_key(entries, at, wanted, width)
        if own is not None:
            itself = (place != _NONE) & (held.ids[place] == own)
            place = np.where(itself, _of_key(entries, at - 1, wanted, width), place)
        return np.where(place == _NONE, _NONE, held.ids[place])

    def needed(self, held: HeldTuples, low: int) -> HeldTuples:
        """What lookups at `low` or later can need.

        Raises:
            InputError: there are too many keys.
        """
        old = int(np.searchsorted(held.ticks, low))
        if not old:
            return held
        keys = self._held_keys(held, self._numbering())[:old]
        # The last place of each key.
        _, last = np.unique(keys[::-1], return_index=True)
        newest = old - 1 - last
        newest = np.sort(newest[keys[newest] != _NONE])
        if newest.size > MOST_HELD:
            raise InputError(
                f"the as-of join with {self._step.right!r} has more than {MOST_HELD:,} keys, and keeps the newest "
                "tuple of each: add a TOLERANCE"
            )
        return held.keep(np.concatenate([newest, np.arange(old, held.n)]))


def _keyed(columns: Sequence[pa.Array | pa.ChunkedArray], n: int) -> pa.Table:
    names = [f"k{place}" for place in range(len(columns))]
    return pa.Table.from_arrays([*columns, pa.nulls(n, pa.int64())], names=[*names, _TIME])


def _of_key(entries: Array, at: Array, wanted: Array, width: int) -> Array:
    """The places of the entries at `at`, where they have the wanted key."""
    if not entries.size:
        return np.full(at.size, _NONE, np.int64)
    entry = entries[np.clip(at, 0, entries.size - 1)]
    return np.where((at >= 0) & (entry // width == wanted) & (wanted != _NONE), entry % width, _NONE)
