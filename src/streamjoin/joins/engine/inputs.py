"""Checks of pushed data: tables, their schemas, the interleaving.

All input is converted to Arrow tables of plain types here (see `model.plain_types`), so no other module handles pandas,
Polars or dictionaries.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.engine.lossless import known_schema, lossless, of_one_family
from streamjoin.joins.engine.numpy_input import NumpyBatch, NumpyReader, has_columns, numpy_table
from streamjoin.model.errors import InputError, SpecError
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Arithmetic, Column, Compare, Expression, Function, Negative
from streamjoin.model.plain_types import plain_schema, plain_table
from streamjoin.model.predicates import Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import TimeWindow

# How many rows are searched for one that does not fit.
_SEARCHED: Final = 1000
_TAKES: Final = (
    "a pyarrow Table or RecordBatch, a pandas, Polars or DuckDB frame (anything with the Arrow C interface), "
    "a dict of NumPy arrays, a structured NumPy array, or rows as an iterable of dicts"
)


def exact_input(data: object, schema: pa.Schema, numpy: NumpyReader) -> pa.Table | NumpyBatch | None:
    """Pushed data that has the columns, order and types of `schema` already; None for any other."""
    if isinstance(data, pa.Table):
        return data if data.schema.equals(schema) else None
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]) if data.schema.equals(schema) else None
    return numpy.read(data, schema) if isinstance(data, dict | np.ndarray) else None


def as_table(data: object, side: str, named: Collection[str] = ()) -> pa.Table:
    """`data` as an Arrow table; `named` are the columns that the join's spec names."""
    if isinstance(data, pa.Table):
        table = data
    elif isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif type(data).__name__ == "Series" or isinstance(data, pa.Array | pa.ChunkedArray):
        raise InputError(
            f"{side} is a {type(data).__name__}, which is one column; a join takes tables: push a frame, such as "
            "series.to_frame(), or pa.table({'name': column})"
        )
    elif is_pandas(data):
        table = _from_pandas(data, side, named)
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        table = _imported(data, side)
    elif has_columns(data):
        table = numpy_table(data, side)
    elif isinstance(data, Mapping):
        raise InputError(
            f"{side} is a {type(data).__name__}, which may be a row or columns: push a row as [row], or as "
            "pa.Table.from_pylist([row]); push columns as NumPy arrays, or as pa.table(columns)"
        )
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        table = _from_rows(data, side)
    elif hasattr(data, "collect"):
        raise InputError(f"{side} is a {type(data).__name__}, which has no rows yet: push {side}=frame.collect()")
    else:
        raise InputError(f"{side} must be {_TAKES}, not {type(data).__name__}")
    return table


def as_arrow(table: pa.Table | NumpyBatch | None) -> pa.Table | None:
    """The table of a push that outlives the call; the caller may change NumPy arrays after it."""
    return table.table() if isinstance(table, NumpyBatch) else table


def as_schema(schema: object, side: str) -> pa.Schema | None:
    """The schema passed to `open` for a side, in plain types."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema) and not hasattr(schema, "__arrow_c_schema__"):
        raise SpecError(
            f"{side}_schema= takes a pyarrow Schema, such as pa.schema([('k', pa.int64())]), not {schema!r}"
        )
    return plain_schema(pa.schema(schema))


def named_columns(spec: JoinSpec) -> tuple[frozenset[str], frozenset[str]]:
    """The columns of the left and of the right side that a spec names."""
    left, right = set(spec.time_columns[:1] if spec.time_columns else ()), set((spec.time_columns or ())[1:])
    for term in spec.predicate.terms():
        if isinstance(term, Theta):
            left |= {column.name for column in term.expression.columns if column.qualifier == "l"}
            right |= {column.name for column in term.expression.columns if column.qualifier == "r"}
        else:
            left.add(term.left)
            right.add(term.right)
    return frozenset(left), frozenset(right)


def is_pandas(data: object) -> bool:
    """Whether `data` is a pandas frame."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _from_pandas(frame: Any, side: str, named: Collection[str]) -> pa.Table:
    for name in frame.index.names:
        if name in named and name not in frame.columns:
            raise InputError(
                f"{name!r} is the index of the {side} frame, and an index is not a column: push frame.reset_index()"
            )
    try:
        # A copy: the table would share memory with the frame, which the caller may change after the push.
        return pa.Table.from_pandas(frame.copy(), preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"the {side} frame has no Arrow form: {error}. Give its columns one type each") from error


def _imported(data: object, side: str) -> pa.Table:
    try:
        return pa.table(data)
    except pa.ArrowException as error:
        raise InputError(
            f"{side} is a {type(data).__name__} that Arrow can't read: {error}. Cast or drop that column before pushing"
        ) from error


def _from_rows(data: Iterable[object], side: str) -> pa.Table:
    """A table from rows as dicts; a name that a row lacks is NULL."""
    rows: list[Mapping[str, object]] = []
    for number, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise InputError(
                f"{side} must be {_TAKES}; item {number} of this {type(data).__name__} is {type(row).__name__}"
            )
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise InputError(f"the names in {side}'s rows must be text, not {odd[0]!r}")
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(
                f"the values of {name!r} in {side}'s rows are not of one type: {error}. Give them one type, or push "
                "pa.Table.from_pylist(rows, schema=...)"
            ) from error
    return pa.table(columns)


def conform(table: pa.Table, schema: pa.Schema | None, side: str) -> pa.Table:
    """`table` with the columns of `schema` in its order and types, or an error that says how it differs.

    A column of `schema` that had only NULLs takes the type that it has in `table`. The first table of a side has no
    schema to fit: it is only converted to plain types.
    """
    if schema is not None and table.schema.equals(schema):
        return table
    if not table.num_columns and not table.num_rows:
        if schema is not None:
            return schema.empty_table()
        raise InputError(f"{side} has neither rows nor columns: push a row first, or give {side}_schema= to open")
    table = plain_table(table)
    if schema is None:
        return table
    problems = _differences(table.schema, schema)
    wanted = schema if problems else known_schema(schema, table.schema)
    columns = []
    for field in wanted if not problems else ():
        column = lossless(table.column(field.name), field.type)
        if column is None:
            problems.append(_loss(table.column(field.name), field))
        columns.append(column)
    if problems:
        raise InputError(
            f"this {side} table differs from the first one: {'; '.join(problems)}. A join's sides keep their "
            f"schemas: cast or select before pushing, or give {side}_schema= to open"
        )
    return pa.Table.from_arrays(columns, schema=wanted)


def untyped(spec: JoinSpec, left: pa.Schema, right: pa.Schema | None) -> bool:
    """Whether a column that every match needs has no type yet, because it had only NULLs.

    Such a column is a key, a column that a condition compares, or a time that orders rows.
    """
    names = {("l", term.left) for term in spec.predicate.terms() if not isinstance(term, Theta)}
    names |= {("r", term.right) for term in spec.predicate.terms() if not isinstance(term, Theta)}
    for term in spec.predicate.terms():
        for part in conjuncts(term.expression) if isinstance(term, Theta) else ():
            if isinstance(part, Compare) and "DISTINCT" not in part.operator:
                names |= {(column.qualifier, column.name) for column in _decisive(part)}
    has_times = spec.order == "event_time" or any(isinstance(window, TimeWindow) for window in spec.windows)
    if spec.time_columns and has_times:
        names |= set(zip("lr", spec.time_columns, strict=True))
    schemas = {"l": left, "r": left if right is None else right}
    return any(name in schemas[side].names and pa.types.is_null(schemas[side].field(name).type) for side, name in names)


def _decisive(expression: Expression) -> set[Column]:
    """The columns whose NULL makes the whole expression NULL."""
    if isinstance(expression, Column):
        return {expression}
    passes_on = isinstance(expression, Compare | Arithmetic | Negative)
    if passes_on or (isinstance(expression, Function) and expression.name == "ABS"):
        return set().union(*map(_decisive, expression.children))
    return set()


def _differences(table_schema: pa.Schema, wanted: pa.Schema) -> list[str]:
    """How the names of two schemas differ, in words."""
    problems = []
    missing = [name for name in wanted.names if name not in table_schema.names]
    extra = [name for name in table_schema.names if name not in wanted.names]
    if missing:
        problems.append(f"missing {', '.join(missing)}")
    if extra:
        near = {name: difflib.get_close_matches(name, missing, n=1) for name in extra}
        hints = [f" (did you mean {near[name][0]}?)" if near[name] else "" for name in extra]
        problems.append("unexpected " + ", ".join(name + hint for name, hint in zip(extra, hints, strict=True)))
    if any(name.startswith("__index_level_") for name in extra):
        problems.append("an index of pandas is not a column: pa.Table.from_pandas(frame, preserve_index=False)")
    doubled = sorted({name for name in table_schema.names if table_schema.names.count(name) > 1})
    if doubled and not problems:
        problems.append(f"more than one column {', '.join(doubled)}")
    return problems


def _loss(column: pa.ChunkedArray, field: pa.Field) -> str:
    """Why a column can't be cast to `field`'s type: another kind of value, or a value that would change."""
    message = f"{field.name} is {column.type} instead of {field.type}"
    if of_one_family(column.type, field.type):
        for place in range(min(len(column), _SEARCHED)):
            if lossless(column.slice(place, 1), field.type) is None:
                return f"{message}, which can't hold {column[place]}"
    return message


def interleaving(interleave: object, n_left: int, n_right: int) -> Array:
    """The side of each tuple in arrival order, checked; by default left before right."""
    if interleave is None:
        flags = np.zeros(n_left + n_right, np.bool_)
        flags[n_left:] = True
        return flags
    flags = interleave.to_numpy(zero_copy_only=False) if isinstance(interleave, pa.Array) else np.asarray(interleave)
    if flags.dtype != np.bool_ or flags.ndim != 1:
        raise InputError(f"interleave takes a one-dimensional array of booleans, not {flags.dtype} of {flags.shape}")
    if flags.size != n_left + n_right or int(flags.sum()) != n_right:
        raise InputError(
            f"interleave says {int(flags.sum())} right tuples of {flags.size}, but the tables hold {n_left} left and "
            f"{n_right} right ones: it takes one value for each tuple, True where it is the right side's"
        )
    return flags
