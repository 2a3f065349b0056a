"""JSON and CSV records as rows, and the records that are none.

A block of records goes to Arrow's own reader first. Where that refuses the block, each record is decoded on its own, so
that one malformed record costs itself alone. The invariant: both ways give the same rows, and every record is a row or
is malformed.
"""

from __future__ import annotations

import base64
import binascii
import csv
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json

from streamjoin.formats.records import Decode, Decoded, MalformedError, decode_one_by_one, moment_of
from streamjoin.model.errors import SpecError

_WHOLE: Final = re.compile(r"[+-]?\d+")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INTEGERS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def json_decoder(schema: pa.Schema, options: Mapping[str, str] | None = None) -> Decode:
    """Decodes records that are JSON objects; a field that is missing is NULL, and one that is not a column is ignored.

    Raises:
        SpecError: an option is not known.
    """
    _only(options or {}, ())
    plain = not any(pa.types.is_nested(type_) or pa.types.is_decimal(type_) for type_ in schema.types)

    def decode(records: Sequence[bytes | None]) -> Decoded:
        if plain and records:
            rows = _json_at_once(records, schema)
            if rows is not None:
                return rows, np.ones(len(records), np.bool_)
        return _one_by_one(records, schema, lambda record: _json_row(record, schema))

    return decode


def csv_decoder(schema: pa.Schema, options: Mapping[str, str] | None = None) -> Decode:
    """Decodes records that are lines of CSV: as many fields as there are columns, and an empty one is NULL.

    Raises:
        SpecError: an option is not known.
    """
    given = dict(options or {})
    _only(given, ("sep", "delimiter", "quote", "nullValue"))
    separator = given.get("sep", given.get("delimiter", ","))
    quote = given.get("quote", '"')
    if len(separator) != 1 or len(quote) != 1:
        raise SpecError(f"the options sep and quote are one character each, not {separator!r} and {quote!r}")
    null = given.get("nullValue", "")

    def row(record: str) -> dict[str, Any]:
        lines = list(csv.reader([record], delimiter=separator, quotechar=quote, strict=True))
        fields = lines[0] if lines else []
        if len(fields) != len(schema):
            raise MalformedError
        return {
            column.name: None if text in ("", null) else _from_text(text, column.type)
            for column, text in zip(schema, fields, strict=True)
        }

    return lambda records: _one_by_one(records, schema, row)


def _only(options: Mapping[str, str], known: Sequence[str]) -> None:
    for key in options:
        if key not in known:
            takes = f"; it takes {', '.join(known)}" if known else ""
            raise SpecError(f'the embedded engine has no option {key!r} here{takes}; engine = "spark" takes Spark\'s')


def _one_by_one(records: Sequence[bytes | None], schema: pa.Schema, row: Callable[[str], dict[str, Any]]) -> Decoded:
    def decoded(record: bytes) -> dict[str, Any]:
        text = record.decode()
        if not text.strip():
            raise MalformedError
        try:
            return row(text)
        except csv.Error as error:
            raise MalformedError from error

    return decode_one_by_one(records, schema, decoded)


# JSON -----------------------------------------------------------------------------------------------------------------


def _json_at_once(records: Sequence[bytes | None], schema: pa.Schema) -> pa.Table | None:
    """All records by Arrow's reader; None where it refuses one, or would read a record as none or as two."""
    if any(not record or b"\n" in record or b"\r" in record or not record.strip() for record in records):
        return None
    block = b"\n".join(record for record in records if record)
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(block), pyarrow.json.ReadOptions(block_size=len(block) + 1), options
        )
    except pa.ArrowException:
        return None
    return table.select(schema.names) if table.num_rows == len(records) else None


def _json_row(record: str, schema: pa.Schema) -> dict[str, Any]:
    value = json.loads(record, parse_float=Decimal, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise MalformedError
    return {column.name: _from_json(value.get(column.name), column.type) for column in schema}


def _refuse_constant(_: str) -> Any:
    raise MalformedError


def _from_json(value: Any, type_: pa.DataType) -> Any:
    types = pa.types
    if value is None:
        return None
    if types.is_string(type_):
        return value if isinstance(value, str) else json.dumps(value, default=float, separators=(",", ":"))
    if isinstance(value, bool):
        return _expect(types.is_boolean(type_), value)
    if isinstance(value, int | Decimal):
        return _from_number(value, type_)
    if types.is_nested(type_):
        return _from_nested(value, type_)
    if not isinstance(value, str):
        raise MalformedError
    if types.is_temporal(type_) or types.is_binary(type_):
        return _from_text(value, type_)
    if types.is_floating(type_) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise MalformedError


def _expect(condition: bool, value: Any) -> Any:
    if not condition:
        raise MalformedError
    return value


def _from_number(value: int | Decimal, type_: pa.DataType) -> Any:
    types = pa.types
    if types.is_floating(type_):
        return float(value)
    if types.is_decimal(type_):
        return Decimal(value)
    if type_ in _INTEGERS:
        return _expect(isinstance(value, int), value)
    if types.is_timestamp(type_):
        # Seconds since 1970, as Spark reads a number.
        return moment_of(_EPOCH + dt.timedelta(seconds=float(value)), type_)
    raise MalformedError


def _from_nested(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_list(type_):
        return [_from_json(one, type_.value_type) for one in _expect(isinstance(value, list), value)]
    _expect(isinstance(value, dict), value)
    if pa.types.is_struct(type_):
        return {field.name: _from_json(value.get(field.name), field.type) for field in type_}
    return [(_from_json(key, type_.key_type), _from_json(one, type_.item_type)) for key, one in value.items()]


# Text -----------------------------------------------------------------------------------------------------------------


def _from_text(text: str, type_: pa.DataType) -> Any:
    types = pa.types
    if types.is_string(type_):
        return text
    if type_ in _INTEGERS:
        return int(_expect(_WHOLE.fullmatch(text) is not None, text))
    if types.is_floating(type_):
        return float(_expect("_" not in text, text))
    if types.is_boolean(type_):
        return _expect(text.lower() in ("true", "false"), text.lower() == "true")
    if types.is_decimal(type_):
        try:
            return Decimal(text)
        except InvalidOperation:
            raise MalformedError from None
    if types.is_date(type_):
        return dt.date.fromisoformat(text)
    if types.is_timestamp(type_):
        return moment_of(dt.datetime.fromisoformat(text), type_)
    if types.is_binary(type_):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise MalformedError from None
    raise MalformedError
