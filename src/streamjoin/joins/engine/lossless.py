"""Lossless casts of later pushes to the types of the first.

Two types are of one family if they hold the same kind of value: numbers, strings, bytes, times, lists of one family.
Within a family a column is cast if no value changes; it is never cast to another family, so that a number does not
silently become a string. A column that had only NULLs has no type yet and takes the first type that arrives.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.model.metadata import learned_metadata
from streamjoin.model.plain_types import typed_column

_types = pa.types
_FAMILIES: Final = (
    (_types.is_integer, _types.is_floating, _types.is_decimal),
    (_types.is_string, _types.is_large_string, _types.is_string_view),
    (_types.is_binary, _types.is_large_binary, _types.is_binary_view, _types.is_fixed_size_binary),
    (_types.is_date,),
    (_types.is_time,),
    (_types.is_duration,),
)
_LISTS: Final = (
    _types.is_list,
    _types.is_large_list,
    _types.is_fixed_size_list,
    _types.is_list_view,
    _types.is_large_list_view,
)


def lossless(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray | None:
    """`column` as `type_`, or None if a value would change or the types are of different families."""
    if column.type.equals(type_):
        return column
    if column.null_count == len(column):
        return typed_column(column, type_)
    if not of_one_family(column.type, type_):
        return None
    try:
        # An empty list does not determine the type of its values.
        column = typed_column(column, known_type(column.type, type_))
        cast = column.cast(type_)
        same = _same(cast.cast(column.type), column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return cast if same else None


def known_schema(known: pa.Schema, later: pa.Schema) -> pa.Schema:
    """`known`, with the types of `later` for columns that had only NULLs."""
    names = set(later.names)
    fields = [f.with_type(known_type(f.type, later.field(f.name).type)) if f.name in names else f for f in known]
    typed = [field.name for field, before in zip(fields, known, strict=True) if not field.type.equals(before.type)]
    return pa.schema(fields, learned_metadata(known, later, typed) if typed else known.metadata)


def known_type(known: pa.DataType, later: pa.DataType) -> pa.DataType:
    """`known`, with null types replaced by those of `later`, also inside lists and structs."""
    if _types.is_null(known):
        return later
    if _types.is_struct(known) and _types.is_struct(later):
        types = {field.name: field.type for field in later}
        return pa.struct([f.with_type(known_type(f.type, types.get(f.name, f.type))) for f in known])
    for is_list, make in ((_types.is_list, pa.list_), (_types.is_large_list, pa.large_list)):
        if is_list(known) and any(is_other(later) for is_other in _LISTS):
            return make(known.value_field.with_type(known_type(known.value_type, later.value_type)))
    return known


def of_one_family(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether both types hold the same kind of value."""
    if _types.is_null(source):
        return True
    if _types.is_timestamp(source) and _types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if all(any(is_list(type_) for is_list in _LISTS) for type_ in (source, target)):
        return of_one_family(source.value_type, target.value_type)
    if _types.is_struct(source) and _types.is_struct(target):
        # A field that the source lacks becomes NULL; one that the target lacks would be lost.
        fields = {field.name: field.type for field in target}
        return all(field.name in fields and of_one_family(field.type, fields[field.name]) for field in source)
    if _types.is_map(source) and _types.is_map(target):
        return of_one_family(source.key_type, target.key_type) and of_one_family(source.item_type, target.item_type)
    if source.equals(target):
        return True
    return any(all(any(is_kind(type_) for is_kind in family) for type_ in (source, target)) for family in _FAMILIES)


def _same(back: pa.ChunkedArray, column: pa.ChunkedArray) -> bool:
    if not _types.is_floating(column.type):
        return bool(back.equals(column))
    # NaN differs from itself, and NULL stays NULL in every cast.
    both_nan = pc.and_(pc.is_nan(back), pc.is_nan(column))
    return bool(pc.all(pc.or_(pc.equal(back, column), both_nan), min_count=0).as_py())
