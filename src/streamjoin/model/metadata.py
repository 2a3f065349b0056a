"""Metadata of schemas on its way from the inputs of a join to its result.

A field keeps its metadata. Of the schema's, the entry of pandas describes columns by name: it says for example that a
column of integers was nullable, without which `to_pandas` makes floats of integers beside a NULL. It is written anew
for the result's columns: under their names, without an index, and only where the column still has the type that the
entry speaks of. Other keys are those of both sides, the left one's where both have one.

Invariant: a result with metadata converts to pandas wherever the same columns without it do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

Metadata = dict[bytes, bytes]
Entry = dict[str, Any]
Source = tuple[pa.Schema, str]
"""A column of an input: its schema and its name."""

_PANDAS: Final = b"pandas"
# Keys that describe the layout of one file or array; Spark reads the columns of a file from its own key.
_OF_LAYOUT: Final = (b"ARROW:", b"_PL_", b"org.apache.spark.")
_NUMPY: Final = re.compile(r"object|bool|u?int\d+|float\d+|(datetime|timedelta)64\[\w+\]")
_NULLABLE: Final = {
    **{pa.type_for_alias(name.lower()): name for name in ("Int8", "Int16", "Int32", "Int64")},
    **{pa.type_for_alias(name.lower()): name for name in ("UInt8", "UInt16", "UInt32", "UInt64")},
    pa.bool_(): "boolean",
}
"""The types of NumPy that have no NULL, and the type of pandas that has."""


def without_layout(metadata: Metadata | None) -> Metadata | None:
    """Metadata without the keys that describe the layout of the column or table that it comes from."""
    return {key: value for key, value in (metadata or {}).items() if not key.startswith(_OF_LAYOUT)} or None


def rewritten_metadata(schema: pa.Schema, fields: Sequence[pa.Field]) -> Metadata | None:
    """The metadata of `schema` where its columns have the types of `fields` instead."""
    metadata: Metadata | None = schema.metadata
    pandas = _pandas_of(metadata)
    if pandas is None:
        return metadata
    entries = _entries(pandas)
    for field, plain in zip(schema, fields, strict=True):
        same = field.type.equals(plain.type) or pa.types.is_string_view(field.type)
        if not same and field.name in entries:
            # A categorical of integers has NULLs, but no type of pandas that would keep them as integers.
            entry = _nullable_entry(field.name, plain.type)
            entries[field.name] = entry or {}
    return _with_pandas(metadata, pandas, entries.values())


def learned_metadata(known: pa.Schema, later: pa.Schema, names: Iterable[str]) -> Metadata | None:
    """The metadata of `known`, with what `later` says of the columns `names`, whose types it gives."""
    metadata: Metadata | None = known.metadata
    told = _entries(_pandas_of(later.metadata))
    added = {name: told[name] for name in names if name in told}
    if not added:
        return metadata
    pandas = _pandas_of(metadata) or {}
    return _with_pandas(metadata, pandas, {**_entries(pandas), **added}.values())


def result_metadata(
    columns: Sequence[tuple[pa.Field, Sequence[Source]]], sides: Sequence[pa.Schema]
) -> Metadata | None:
    """The metadata of a result: its columns with the input columns whose values they have, and its sides."""
    merged: Metadata = {}
    for schema in reversed(sides):
        merged.update(without_layout(schema.metadata) or {})
    pandas = [_pandas_of(schema.metadata) for schema in sides]
    merged.pop(_PANDAS, None)
    if any(pandas):
        told = {id(schema): _entries(own) for schema, own in zip(sides, pandas, strict=True)}
        entries = [_entry(field, sources, told) for field, sources in columns]
        attributes = [(own or {}).get("attributes") for own in pandas]
        first = next(own for own in pandas if own)
        # Of what describes a frame as a whole only what all have said stays, as in pandas' own merge.
        kept = attributes[0] if all(other == attributes[0] for other in attributes) else None
        merged = _with_pandas(merged, {**first, "attributes": kept or {}}, entries) or merged
    return merged or None


def _entry(field: pa.Field, sources: Sequence[Source], told: dict[int, dict[str, Entry]]) -> Entry:
    """What pandas is told of a result column: what a source says that has its type, rather one that knows NULL."""
    found = [(schema.field(name).type, told.get(id(schema), {}).get(name)) for schema, name in sources]
    entries = [(type_, entry) for type_, entry in found if entry]
    fitting = [entry for type_, entry in entries if type_.equals(field.type)]
    fitting.sort(key=_is_of_numpy)
    if (not fitting or _is_of_numpy(fitting[0])) and not all(_is_of_numpy(entry) for _, entry in entries):
        return _nullable_entry(field.name, field.type) or {}
    return {**fitting[0], "name": field.name, "field_name": field.name} if fitting else {}


def _is_of_numpy(entry: Entry) -> bool:
    """Whether an entry names a type of NumPy, which pandas takes without being told."""
    return _NUMPY.fullmatch(entry["numpy_type"]) is not None


def _nullable_entry(name: str, type_: pa.DataType) -> Entry | None:
    nullable = _NULLABLE.get(type_)
    if nullable is None:
        return None
    return {"name": name, "field_name": name, "pandas_type": str(type_), "numpy_type": nullable, "metadata": None}


def _pandas_of(metadata: Metadata | None) -> dict[str, Any] | None:
    """What pandas has written into a schema; None if there is nothing, or nothing that can be read."""
    try:
        pandas = json.loads((metadata or {}).get(_PANDAS, b"null"))
    except ValueError:
        return None
    return pandas if isinstance(pandas, dict) else None


def _entries(pandas: dict[str, Any] | None) -> dict[str, Entry]:
    """The entries by the names of their columns."""
    columns = (pandas or {}).get("columns")
    entries = [entry for entry in (columns if isinstance(columns, list) else ()) if _is_usable(entry)]
    return {entry["field_name"]: entry for entry in entries}


def _is_usable(entry: object) -> bool:
    """Whether Arrow can read an entry: it can't read the names of nested types in brackets that it writes itself."""
    if not isinstance(entry, dict) or not isinstance(entry.get("field_name"), str):
        return False
    name = entry.get("numpy_type")
    if not isinstance(name, str) or "pandas_type" not in entry or "metadata" not in entry:
        return False
    return not (name.endswith("[pyarrow]") and "<" in name)


def _with_pandas(metadata: Metadata | None, pandas: dict[str, Any], entries: Iterable[Entry]) -> Metadata:
    """Metadata that has these entries for its columns, and no index."""
    columns = [entry for entry in entries if entry]
    whole = {**pandas, "index_columns": [], "column_indexes": [], "columns": columns}
    return {**(metadata or {}), _PANDAS: json.dumps(whole).encode()}
