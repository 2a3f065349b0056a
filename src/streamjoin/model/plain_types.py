"""Arrow types as the joins store them, and conversion of columns to those types.

Libraries return the same values in many layouts: dictionaries, run ends, views, unions. Arrow itself can't take rows
from some of them, so every input column is converted once to a plain layout of the same values:

- dictionaries and run-end encodings become their values;
- `string_view` and `binary_view` become `large_string` and `large_binary`;
- a union becomes a struct with a field for each member, NULL in all but one.

The same holds inside lists, maps and structs. A plain column is returned unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.model.metadata import rewritten_metadata, without_layout


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The plain type that holds the values of `type_`."""
    if pa.types.is_primitive(type_):
        # Asked for every column of every batch.
        return type_
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.large_string()
    if pa.types.is_binary_view(type_):
        return pa.large_binary()
    if isinstance(type_, pa.BaseExtensionType):
        storage = plain_type(type_.storage_type)
        return type_ if storage.equals(type_.storage_type) else storage
    members = _members(type_)
    fields = [field.with_type(plain_type(field.type)) for field in members]
    if pa.types.is_union(type_):
        return pa.struct([field.with_nullable(True) for field in fields])
    return type_ if fields == members else _rebuilt(type_, fields)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with plain types, as a join stores and returns it; all columns may be NULL."""
    fields = [_plain_field(field) for field in schema]
    return pa.schema(fields, rewritten_metadata(schema, fields))


def _plain_field(field: pa.Field) -> pa.Field:
    type_ = plain_type(field.type)
    metadata = field.metadata if type_.equals(field.type) else without_layout(field.metadata)
    return pa.field(field.name, type_, metadata=metadata)


def plain_table(table: pa.Table) -> pa.Table:
    """`table` with plain columns."""
    schema = plain_schema(table.schema)
    if schema.equals(table.schema, check_metadata=True):
        return table
    columns = [_plain_column(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def retyped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` in `schema`, which gives types to columns where the table has only NULLs."""
    if table.schema.equals(schema):
        return table
    columns = [typed_column(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def typed_column(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """A column in the type that is known now; it is NULL wherever its type was unknown."""
    if column.type.equals(type_):
        return column
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), type_)], type_)
    return column.cast(type_)


def storage_type(type_: pa.DataType) -> pa.DataType:
    """The type that a condition uses: the storage of Arrow's own extension types, such as a UUID's 16 bytes."""
    own = isinstance(type_, pa.BaseExtensionType) and type_.extension_name.startswith("arrow.")
    return type_.storage_type if own else type_


def without_extension(array: pa.Array) -> pa.Array:
    """The storage of an array of an extension type; any other array unchanged."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _members(type_: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type."""
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.field(i) for i in range(type_.num_fields)] if pa.types.is_nested(type_) else []


def _rebuilt(type_: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """The nested type `type_` with other fields."""
    if pa.types.is_struct(type_):
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(fields[0], fields[1], type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(fields[0], type_.list_size)
    for is_kind, make in (
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if is_kind(type_):
            return make(fields[0])
    return pa.list_(fields[0])


def _plain_column(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(type_):
        return column
    return pa.chunked_array([plain_array(chunk) for chunk in column.chunks], type_)


def plain_array(array: pa.Array) -> pa.Array:
    """`array` in its plain type."""
    type_ = array.type
    plain = plain_type(type_)
    if plain.equals(type_):
        return array
    if pa.types.is_dictionary(type_):
        return plain_array(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(type_):
        return _decoded_runs(array)
    if pa.types.is_string_view(type_) or pa.types.is_binary_view(type_):
        return array.cast(plain)
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    if pa.types.is_union(type_):
        return _union_as_struct(array, plain)
    if pa.types.is_struct(type_):
        children = [plain_array(array.field(i)) for i in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(plain), mask=array.is_null())
    # Lists and maps: the same offsets over other values.
    own = array.buffers()[: 3 if _is_list_view(type_) else 1 if pa.types.is_fixed_size_list(type_) else 2]
    return pa.Array.from_buffers(plain, len(array), own, offset=array.offset, children=[_plain_values(array, plain)])


def _is_list_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def _plain_values(array: Any, plain: pa.DataType) -> pa.Array:
    """The values of all lists of `array`, including those outside its slice; for a map, its entries."""
    if not pa.types.is_map(plain):
        return plain_array(array.values)
    children = [plain_array(child) for child in (array.keys, array.items)]
    return pa.StructArray.from_arrays(children, fields=[plain.key_field, plain.item_field])


def _decoded_runs(array: Any) -> pa.Array:
    run_ends = np.asarray(array.run_ends)
    runs = np.searchsorted(run_ends, np.arange(array.offset, array.offset + len(array)), side="right")
    return plain_array(array.values).take(pa.array(runs))


def _union_as_struct(array: Any, plain: pa.DataType) -> pa.Array:
    type_, n = array.type, len(array)
    cut = slice(array.offset, array.offset + n)
    codes = np.frombuffer(array.buffers()[1], np.int8)[cut] if n else np.empty(0, np.int8)
    places = np.arange(n, dtype=np.int32)
    if type_.mode == "dense" and n:
        places = np.frombuffer(array.buffers()[2], np.int32)[cut]
    children = [
        plain_array(array.field(i)).take(pa.array(places, mask=codes != code))
        for i, code in enumerate(type_.type_codes)
    ]
    return pa.StructArray.from_arrays(children, fields=list(plain))
