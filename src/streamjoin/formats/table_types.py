"""Arrow types as tables of Delta and Iceberg store them.

Both formats have fewer types than Arrow. `stored_schema` gives the columns of a new table, `file_schema` those of a
data file for a table that exists. The invariant: a value is stored as it is, or the write fails; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pyarrow as pa

from streamjoin.model.errors import InputError, SchemaError
from streamjoin.model.plain_types import plain_type

_UNSIGNED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_DIGITS: Final = 38


def stored_schema(schema: pa.Schema, kind: str) -> pa.Schema:
    """The columns of a new table for rows of `schema`; `kind` is "Delta" or "Iceberg".

    Raises:
        SchemaError: a column's type is one that such tables don't have.
    """
    fields = []
    for column in schema:
        type_ = _stored(plain_type(column.type), kind == "Iceberg")
        if type_ is None:
            raise SchemaError(
                f"{kind} tables have no type for the column {column.name!r}, which is {column.type}: "
                "leave it out, or convert it in the query"
            )
        fields.append(pa.field(column.name, type_))
    return pa.schema(fields)


def _stored(type_: pa.DataType, iceberg: bool) -> pa.DataType | None:
    """The type in a table; None where there is none."""
    types = pa.types
    if types.is_unsigned_integer(type_):
        type_ = _UNSIGNED[type_]
    if iceberg and type_ in (pa.int8(), pa.int16()):
        return pa.int32()
    if types.is_boolean(type_) or types.is_signed_integer(type_) or type_ in (pa.float32(), pa.float64()):
        return type_
    if types.is_float16(type_):
        return pa.float32()
    if types.is_string(type_) or types.is_large_string(type_):
        return pa.string()
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_date(type_):
        return pa.date32()
    if types.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if types.is_time(type_) and iceberg:
        return pa.time64("us")
    if types.is_decimal(type_) and type_.precision <= _DIGITS:
        return pa.decimal128(type_.precision, type_.scale)
    return _nested(type_, iceberg)


def _nested(type_: pa.DataType, iceberg: bool) -> pa.DataType | None:
    types = pa.types
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        element = _stored(type_.value_type, iceberg)
        return None if element is None else pa.list_(pa.field("element", element))
    if types.is_map(type_):
        key, item = _stored(type_.key_type, iceberg), _stored(type_.item_type, iceberg)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_struct(type_):
        members = [(member.name, _stored(member.type, iceberg)) for member in type_]
        return None if any(inner is None for _, inner in members) else pa.struct(members)
    return None


def file_schema(rows: pa.Schema, table: pa.Schema, kind: str, name: str) -> pa.Schema:
    """The columns of a data file with rows of `rows` for a table with the columns `table`; `name` is the table's.

    Raises:
        SchemaError: the table lacks a column, has it with another type, or needs one that the rows don't have.
    """
    stored = stored_schema(rows, kind)
    columns = {column.name: column for column in table}
    _refuse_names(name, "has no column", set(stored.names) - columns.keys())
    needed = {column.name for column in table if not column.nullable}
    _refuse_names(name, "needs a value for each row in", needed - set(stored.names))
    fields = []
    for column in stored:
        wanted = columns[column.name]
        type_ = _stored(plain_type(wanted.type), kind == "Iceberg")
        if type_ is None or not _fits(column.type, type_):
            raise SchemaError(
                f"the table {name} has the column {column.name!r} as {wanted.type}, and the rows have it as "
                f"{rows.field(column.name).type}: convert it in the query, or name another table"
            )
        fields.append(pa.field(column.name, type_, wanted.nullable))
    return pa.schema(fields)


def _refuse_names(table: str, what: str, names: Collection[str]) -> None:
    if names:
        raise SchemaError(f"the table {table} {what} {', '.join(repr(name) for name in sorted(names))}")


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether each value of one type is a value of the other."""
    types = pa.types
    if given == wanted:
        return True
    if types.is_signed_integer(given) and types.is_signed_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_floating(given) and types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_decimal(given) and types.is_decimal(wanted):
        return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
    if types.is_list(given) and types.is_list(wanted):
        return _fits(given.value_type, wanted.value_type)
    if types.is_map(given) and types.is_map(wanted):
        return _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
    if types.is_struct(given) and types.is_struct(wanted):
        same = [member.name for member in given] == [member.name for member in wanted]
        return same and all(_fits(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    return False


def as_stored(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a data file, in its order.

    Raises:
        InputError: a value can't be stored as it is, or is missing where the table needs one.
    """
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if not field.nullable and column.null_count:
            raise InputError(f"the table takes no NULL in {field.name!r}, and a row has one")
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise InputError(
                f"a value of {field.name!r} can't be stored as {field.type} without a change: {error}"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)
