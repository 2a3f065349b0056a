"""Gathers the rows of a kind of join: the columns of a missing side are NULL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.joins.engine.later import later
from streamjoin.joins.kinds.base import MISSING, KindRows
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers


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
    for column in bound.columns:
        array = sides[column.side][column.source]
        if column.source in shared and column.is_key:
            array = pc.coalesce(array, sides["right"][column.source].cast(array.type))
        arrays.append(array)
    if time is not None:
        arrays.append(later([sides["left"][time.left], sides["right"][time.right]], time.type))
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
