"""Rows of tables with more than 2 GiB of text in a column: Arrow's offsets of text have 32 bits.

Arrow takes rows of a column with several chunks by joining the chunks first, and refuses with "offset overflow" where
these are too large together. The functions here then take rows chunk by chunk. What does not fit into one array is
returned in several chunks, or refused with an error of ours where one array is needed.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError, TooManyRowsError

MOST_BYTES = (1 << 31) - (1 << 20)
"""The bytes of text that one array may have, with a margin."""
CHUNK_BYTES = 1 << 30
"""Chunks are joined up to this size."""
# Where fewer than one in `_FEW` values are taken, chunks with more than `_MANY` in all are not joined first.
_FEW, _MANY = 16, 1 << 17


def is_overflow(error: pa.ArrowException) -> bool:
    """Whether Arrow refused because an array would have more than 2 GiB of text."""
    return "overflow" in str(error)


def take_rows(table: pa.Table, places: Array) -> pa.Table:
    """The rows of a table at `places`; columns with much text have several chunks."""
    try:
        return _take(table, places)
    except pa.ArrowInvalid as error:
        if not is_overflow(error):
            raise
    columns = [pa.chunked_array(_pieces(column, places), column.type) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def take_values(column: pa.ChunkedArray, places: Array) -> pa.ChunkedArray | pa.Array:
    """The values of a column at `places`, in as few chunks as their bytes allow."""
    if column.num_chunks > 1 and len(column) > _MANY and len(places) < len(column) // _FEW:
        # Joining the chunks would take longer than looking at each.
        return pa.chunked_array(_pieces(column, places), column.type)
    try:
        return _take(column, places)
    except pa.ArrowInvalid as error:
        if not is_overflow(error):
            raise
    return pa.chunked_array(_pieces(column, places), column.type)


def take_or_null(column: pa.ChunkedArray, places: Array) -> pa.ChunkedArray:
    """`take_values`, with NULL where a place is negative."""
    missing = places < 0
    if not missing.any():
        return take_values(column, places)
    try:
        return _take(column, places, missing)
    except pa.ArrowInvalid as error:
        if not is_overflow(error):
            raise
    with_null = pa.chunked_array([*column.chunks, pa.nulls(1, column.type)])
    return take_values(with_null, np.where(missing, len(column), places))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one record batch.

    Raises:
        InputError: a column has more than 2 GiB of text.
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise InputError(too_large("a column of a batch"))
    return batches[0]


def too_large(what: str) -> str:
    """The message for a column that does not fit into one array."""
    return f"{what} has more than 2 GiB of text: use smaller batches or more partitions, or leave the column out"


def refuse_large_result(error: pa.ArrowException) -> NoReturn:
    """Raise for a result that has too much text for one array."""
    raise TooManyRowsError(
        "a column of the result has more than 2 GiB of text in one call: push fewer rows at a time, or read the "
        "result with push_iter"
    ) from error


def _take(
    column: pa.Table | pa.ChunkedArray, places: Array, missing: Array | None = None
) -> pa.Table | pa.ChunkedArray:
    return column.take(pa.array(places, mask=missing))


def _pieces(column: pa.ChunkedArray, places: Array) -> list[pa.Array]:
    """The values at `places`, in order, as arrays that Arrow can make."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    owner = np.searchsorted(ends, places, side="right")
    begins = ends - [len(chunk) for chunk in column.chunks]
    sizes = np.array([max(1, chunk.nbytes // max(1, len(chunk))) for chunk in column.chunks])
    out: list[pa.Array] = []
    begin = 0
    # Half of what fits, because values differ from their chunk's average; a piece that is too large is halved again.
    pending = _cuts(np.cumsum(sizes[owner]), CHUNK_BYTES) if len(places) else []
    pending.reverse()
    while pending:
        end = pending.pop()
        try:
            out.append(_from_chunks(column.chunks, owner[begin:end], (places - begins[owner])[begin:end]))
        except pa.ArrowInvalid as error:
            if not is_overflow(error) or end - begin < 2:
                raise
            pending += [end, (begin + end) // 2]
            continue
        begin = end
    return out


def _cuts(total: Array, limit: int) -> list[int]:
    """The ends of parts whose sizes stay below the limit, from the running total of sizes."""
    ends = np.flatnonzero(np.diff(total // limit)) + 1
    return [*ends.tolist(), len(total)]


def _from_chunks(chunks: list[pa.Array], owner: Array, places: Array) -> pa.Array:
    order = np.argsort(owner, kind="stable")
    taken = [chunks[k].take(pa.array(places[owner == k])) for k in np.unique(owner)]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(taken).take(pa.array(back))


def row_bytes(schema: pa.Schema) -> int | None:
    """The bytes of a row if all columns have a fixed width."""
    try:
        return sum(-(-int(field.type.bit_width) // 8) for field in schema)
    except ValueError:
        return None
