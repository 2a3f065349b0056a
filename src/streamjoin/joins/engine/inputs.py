"""Checks of pushed data: tables, their schemas, the interleaving.

All input is converted to Arrow tables of plain types here (see `model.plain_types`), so no other module handles pandas,
Polars or dictionaries.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.engine.lossless import known_schema, lossless, of_one_family
from streamjoin.joins.engine.numpy_input import NumpyBatch, NumpyReader, has_columns, numpy_table
from streamjoin.model.binding import bind
from streamjoin.model.errors import InputError, SchemaError, SpecError
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Arithmetic, Column, Compare, Expression, Function, Negative
from streamjoin.model.plain_types import plain_schema, plain_table
from streamjoin.model.predicates import Term, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary

_KEEPS: Final = "A join's sides keep their schemas: cast or select before pushing, or give {side}_schema= to open"
# How many rows are searched for one that does not fit.
_SEARCHED: Final = 1000
# What a column without values may have been.
_TYPES: Final = (pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string(), pa.bool_())
_TAKES: Final = (
    "a pyarrow Table or RecordBatch, a pandas, Polars or DuckDB frame (anything with the Arrow C interface), "
    "a dict of NumPy arrays or lists, a structured NumPy array, or rows as an iterable of dicts"
)


def exact_input(data: object, schema: pa.Schema, numpy: NumpyReader) -> pa.Table | NumpyBatch | None:
    """Pushed data that has the columns, order and types of `schema` already; None for any other."""
    if isinstance(data, pa.Table):
        return data if data.schema.equals(schema) else None
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]) if data.schema.equals(schema) else None
    return numpy.read(data, schema) if isinstance(data, dict | np.ndarray) else None


def as_table(data: object, side: str, named: Collection[str] = (), *, lasting: bool = True) -> pa.Table:
    """`data` as an Arrow table; `named` are the columns that the join's spec names.

    One that need not be `lasting` may share memory with a pandas frame, which the caller may change after the call.
    """
    try:
        return _as_table(data, side, named, lasting)
    except UnicodeEncodeError as error:
        raise InputError(
            f"{side} has a text with {error.object[error.start]!r}, half of a surrogate pair, which is no character: "
            "replace it before pushing, as text.encode('utf-8', 'replace').decode() does"
        ) from error


def _as_table(data: object, side: str, named: Collection[str], lasting: bool) -> pa.Table:
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
        table = _from_pandas(data, side, named, lasting)
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        table = _imported(data, side)
    elif has_columns(data):
        table = numpy_table(data, side)
    elif isinstance(data, Mapping):
        table = _from_lists(data, side)
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
    if isinstance(spec.match, Summary):
        left, right = left | spec.match.columns("l"), right | spec.match.columns("r")
    return frozenset(left), frozenset(right)


def is_pandas(data: object) -> bool:
    """Whether `data` is a pandas frame."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _from_pandas(frame: Any, side: str, named: Collection[str], lasting: bool) -> pa.Table:
    for name in frame.index.names:
        if name in named and name not in frame.columns:
            raise InputError(
                f"{name!r} is the index of the {side} frame, and an index is not a column: push frame.reset_index()"
            )
    check_unique([str(name) for name in frame.columns], side)
    try:
        table = pa.Table.from_pandas(frame.copy() if lasting else frame, preserve_index=False)
        return table if len(frame) else _without_guesses(table, named)
    except UnicodeEncodeError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"the {side} frame has no Arrow form: {_frame_problem(frame) or error}") from error


def _without_guesses(table: pa.Table, named: Collection[str]) -> pa.Table:
    """An empty table whose `named` columns have no type where pandas made them floats, as it does with no values."""
    fields = [
        field.with_type(pa.null()) if field.name in named and field.type == pa.float64() else field
        for field in table.schema
    ]
    return pa.schema(fields, table.schema.metadata).empty_table()


def check_unique(names: Sequence[str], side: str) -> None:
    """Refuse a side with two columns of one name.

    Raises:
        InputError: it has two.
    """
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the {side} side has more than one column {doubled!r}: rename one, or drop it")


def _frame_problem(frame: Any) -> str | None:
    """What is wrong with the first column of a frame that Arrow can't read, and what to do."""
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        dtype = column.dtype
        if type(dtype).__name__ == "SparseDtype":
            return f"column {name!r} is sparse; push column.sparse.to_dense() instead"
        if getattr(dtype, "kind", "") == "c":
            return (
                f"column {name!r} is {dtype}, for which Arrow has no type; push real and imaginary parts as two columns"
            )
        try:
            pa.array(column, from_pandas=True)
        except OverflowError:
            return (
                f"column {name!r} has a whole number beyond 64 bits, {_widest(column)}; make them texts or "
                "decimal.Decimal of up to 76 digits"
            )
        except (pa.ArrowException, ValueError, TypeError) as error:
            return f"column {name!r} is {dtype}: {error}. Give it values of one type"
    return None


def _widest(values: Iterable[object]) -> int:
    return max((value for value in values if isinstance(value, int)), key=abs, default=0)


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
    return _of_values({name: [row.get(name) for row in rows] for name in names}, side)


def _from_lists(data: Mapping[Any, object], side: str) -> pa.Table:
    """A table from a list for each column."""
    columns = {name: list(values) for name, values in data.items() if isinstance(values, list | tuple)}
    if not columns or len(columns) < len(data):
        raise InputError(
            f"{side} is a {type(data).__name__}, which may be a row or columns: give a row as [row], or as "
            "pa.Table.from_pylist([row]); give columns as lists, as NumPy arrays, or as pa.table(columns)"
        )
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in columns.items())
        raise InputError(f"the columns of {side} are not of one length: {lengths} rows")
    return _of_values(columns, side)


def _of_values(values_by_name: Mapping[Any, list[object]], side: str) -> pa.Table:
    columns = {}
    for name, values in values_by_name.items():
        if not isinstance(name, str):
            raise InputError(f"the names in {side}'s rows must be text, not {name!r}")
        try:
            columns[name] = _array_of(values)
        except OverflowError as error:
            raise InputError(
                f"{name!r} in {side}'s rows has a whole number beyond 64 bits, {_widest(values)}; make them texts or "
                "decimal.Decimal of up to 76 digits"
            ) from error
        except pa.ArrowException as error:
            raise InputError(
                f"the values of {name!r} in {side}'s rows are not of one type: {error}. Give them one type, or push "
                "pa.Table.from_pylist(rows, schema=...)"
            ) from error
    return pa.table(columns)


def _array_of(values: list[object]) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:
        try:
            return pa.array(values, pa.uint64())
        except (OverflowError, pa.ArrowException):
            pass
        raise


def conform(table: pa.Table, schema: pa.Schema | None, side: str, rule: str | None = None) -> pa.Table:
    """`table` with the columns of `schema` in its order and types, or an error that says how it differs.

    The error ends with `rule`, what to do; by default that of a join's side.

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
        # Here, as nothing that the other side pushes makes it right.
        check_unique(table.schema.names, side)
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
            f"{'this ' + side + ' table' if rule is None else side} differs from the first one: {'; '.join(problems)}. "
            + (rule or _KEEPS.format(side=side))
        )
    return pa.Table.from_arrays(columns, schema=wanted)


def untyped(spec: JoinSpec, left: pa.Schema, right: pa.Schema | None) -> bool:
    """Whether a column that every match needs has no type yet, because it had only NULLs.

    Such a column is a key, a column that a condition compares, or a time.
    """
    return bool(_untyped_columns(spec, {"l": left, "r": left if right is None else right}))


def settled(spec: JoinSpec, left: pa.Schema, right: pa.Schema | None) -> tuple[pa.Schema, pa.Schema | None]:
    """Schemas at the end of the input, with a type for each column that still has none: it has no value.

    That is the type of the column that it is compared with, or else the first one that the spec can be bound to.

    Raises:
        SchemaError: the spec can't be bound to any, for a reason that has nothing to do with these columns.
    """
    schemas = {"l": left, "r": left if right is None else right}
    pairs = [pair for term in spec.predicate.terms() for pair in _compared(term)]
    pairs += [spec.time_columns] if spec.time_columns else []
    unknown = _untyped_columns(spec, schemas)
    hints = {}
    for one, other in pairs:
        for own, partner in ((("l", one), ("r", other)), (("r", other), ("l", one))):
            if own in unknown and partner not in unknown and partner[1] in schemas[partner[0]].names:
                hints[own] = schemas[partner[0]].field(partner[1]).type
    reasons: dict[str, SchemaError] = {}
    types = [field.type for schema in schemas.values() for field in schema if not pa.types.is_null(field.type)]
    for type_ in dict.fromkeys([*_TYPES, *types]):
        given = {column: hints.get(column, type_) for column in unknown}
        typed = [
            _with_types(schemas[side], {name: t for (own, name), t in given.items() if own == side}) for side in "lr"
        ]
        try:
            bind(spec, typed[0], typed[1])
        except SchemaError as error:
            reasons[str(error)] = error
            continue
        return typed[0], None if right is None else typed[1]
    if len(reasons) == 1:
        raise next(iter(reasons.values()))
    return left, right


def _compared(term: Term) -> list[tuple[str, str]]:
    """The columns, a left and a right one, that a term compares with each other."""
    if not isinstance(term, Theta):
        return [(term.left, term.right)]
    found = []
    for part in conjuncts(term.expression):
        if isinstance(part, Compare) and isinstance(part.left, Column) and isinstance(part.right, Column):
            names = {part.left.qualifier: part.left.name, part.right.qualifier: part.right.name}
            found += [(names["l"], names["r"])] if len(names) == 2 else []
    return found


def _with_types(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in schema], schema.metadata)


def _untyped_columns(spec: JoinSpec, schemas: Mapping[str, pa.Schema]) -> set[tuple[str, str]]:
    """The columns that every match needs and that have had only NULLs, with the sides they belong to."""
    names = {("l", term.left) for term in spec.predicate.terms() if not isinstance(term, Theta)}
    names |= {("r", term.right) for term in spec.predicate.terms() if not isinstance(term, Theta)}
    for term in spec.predicate.terms():
        for part in conjuncts(term.expression) if isinstance(term, Theta) else ():
            if isinstance(part, Compare) and "DISTINCT" not in part.operator:
                names |= {(column.qualifier, column.name) for column in _decisive(part)}
    if isinstance(spec.match, Summary):
        # Their types are those of the result.
        names |= {(side, name) for side in "lr" for name in spec.match.columns(side)}
    if spec.time_columns:
        names |= set(zip("lr", spec.time_columns, strict=True))
    # A name that a schema lacks or has twice has no place; `bind` says so.
    places = {(side, name): schemas[side].get_field_index(name) for side, name in names}
    return {
        (side, name)
        for (side, name), place in places.items()
        if place >= 0 and pa.types.is_null(schemas[side].field(place).type)
    }


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
