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

from streamjoin._arrays import Array
from streamjoin.model.errors import SpecError

_WHOLE: Final = re.compile(r"[+-]?\d+")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INTEGERS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

Decoded = tuple[pa.Table, Array]
"""The rows of the good records in order, and which records are good."""
Decode = Callable[[Sequence[bytes | None]], Decoded]


class _MalformedError(Exception):
    pass


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
            raise _MalformedError
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
    good = np.zeros(len(records), np.bool_)
    rows = []
    for number, record in enumerate(records):
        try:
            text = (record or b"").decode()
            if not text.strip():
                continue
            one = row(text)
            # What Arrow refuses (a number that does not fit its column) is malformed as well.
            pa.RecordBatch.from_pylist([one], schema)
        except (_MalformedError, ValueError, TypeError, OverflowError, csv.Error, RecursionError, pa.ArrowException):
            continue
        rows.append(one)
        good[number] = True
    return pa.Table.from_pylist(rows, schema), good


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
        raise _MalformedError
    return {column.name: _from_json(value.get(column.name), column.type) for column in schema}


def _refuse_constant(_: str) -> Any:
    raise _MalformedError


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
        raise _MalformedError
    if types.is_temporal(type_) or types.is_binary(type_):
        return _from_text(value, type_)
    if types.is_floating(type_) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise _MalformedError


def _expect(condition: bool, value: Any) -> Any:
    if not condition:
        raise _MalformedError
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
        return _moment(_EPOCH + dt.timedelta(seconds=float(value)), type_)
    raise _MalformedError


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
            raise _MalformedError from None
    if types.is_date(type_):
        return dt.date.fromisoformat(text)
    if types.is_timestamp(type_):
        return _moment(dt.datetime.fromisoformat(text), type_)
    if types.is_binary(type_):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise _MalformedError from None
    raise _MalformedError


def _moment(moment: dt.datetime, type_: pa.DataType) -> dt.datetime:
    """A moment of a column with or without a time zone; text without one is UTC."""
    if type_.tz is None:
        return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo is not None else moment
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
