"""Checking what is pushed: tables, their schemas, the interleaving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.model.errors import InputError
from streamjoin.model.keys import plain_type

Array = np.ndarray[Any, np.dtype[Any]]


def as_table(data: object, side: str) -> pa.Table:
    """`data` as an Arrow table with plain columns: anything that speaks the Arrow C interface will do."""
    if isinstance(data, pa.Table):
        table = data
    elif isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        table = pa.table(data)
    else:
        raise InputError(
            f"{side} must be a pyarrow Table or RecordBatch, or anything with the Arrow C interface "
            f"(pandas, polars, DuckDB), not {type(data).__name__}"
        )
    plain = plain_schema(table.schema)
    return table if plain.equals(table.schema) else table.cast(plain)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` without dictionary encodings and metadata: what the join stores and gives back."""
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def conform(table: pa.Table, schema: pa.Schema, side: str) -> pa.Table:
    """`table` with its columns in the order of `schema`, or an error that says how it differs."""
    if table.schema.equals(schema):
        return table
    missing = [name for name in schema.names if name not in table.schema.names]
    extra = [name for name in table.schema.names if name not in schema.names]
    other = [
        f"{name} is {table.schema.field(name).type} instead of {schema.field(name).type}"
        for name in schema.names
        if name not in missing and table.schema.field(name).type != schema.field(name).type
    ]
    if missing or extra or other:
        told = [f"missing {', '.join(missing)}"] if missing else []
        told += [f"unexpected {', '.join(extra)}"] if extra else []
        raise InputError(
            f"this {side} table does not look like the first one: {'; '.join(told + other)}. "
            "A join's sides keep their schemas: cast or select before pushing"
        )
    return table.select(schema.names)


def interleaving(interleave: object, n_left: int, n_right: int) -> Array:
    """The side of each tuple in arrival order, checked; left before right where nothing is said."""
    if interleave is None:
        return np.repeat(np.array([False, True]), [n_left, n_right])
    given = interleave.to_numpy(zero_copy_only=False) if isinstance(interleave, pa.Array) else np.asarray(interleave)
    if given.dtype != np.bool_ or given.ndim != 1:
        raise InputError(f"interleave takes a one-dimensional array of booleans, not {given.dtype} of {given.shape}")
    if given.size != n_left + n_right or int(given.sum()) != n_right:
        raise InputError(
            f"interleave says {int(given.sum())} right tuples of {given.size}, but the tables hold {n_left} left and "
            f"{n_right} right ones: it takes one value for each tuple, True where it is the right side's"
        )
    return given
