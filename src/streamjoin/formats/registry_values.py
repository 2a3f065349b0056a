"""Avro and Protobuf values as rows of a schema, alike in both runtimes."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from streamjoin.formats.avro import AvroReader
from streamjoin.formats.protobuf import ProtobufReader
from streamjoin.formats.records import Decode, Decoded, MalformedError, decode_one_by_one, moment_of
from streamjoin.formats.registry import shared_registry

_READERS: Final[Mapping[str, Any]] = {"avro": AvroReader, "protobuf": ProtobufReader}


@dataclass(frozen=True)
class RegistryFormat:
    """How values are decoded: "avro" or "protobuf", the URL of a schema registry, and options of its client."""

    name: str
    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def decoder(self, schema: pa.Schema) -> Decode:
        """Decodes records; a field that is missing is NULL, one that is not a column is ignored.

        Raises:
            SetupError: a library is not installed.
            SpecError: the client of the registry does not take an option.
        """
        make = _READERS[self.name]
        registry = shared_registry(self.url, tuple(sorted(self.options.items())), getattr(make, "form", None))
        read = make(registry)

        def row(record: bytes) -> dict[str, Any]:
            fields = read(record)
            return {column.name: _typed(fields.get(column.name), column.type) for column in schema}

        def decode(records: Sequence[bytes | None]) -> Decoded:
            return decode_one_by_one(records, schema, row)

        return decode


def _typed(value: Any, type_: pa.DataType) -> Any:
    """A value as a column of this type has it.

    Raises:
        MalformedError: it has another type.
    """
    types = pa.types
    if value is None:
        return None
    if isinstance(value, list | dict):
        return _nested(value, type_)
    if isinstance(value, uuid.UUID):
        value = str(value)
    if isinstance(value, dt.datetime):
        fits = types.is_timestamp(type_)
        value = moment_of(value, type_) if fits else value
    elif isinstance(value, bool):
        fits = types.is_boolean(type_)
    elif isinstance(value, int):
        fits = types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)
        value = float(value) if types.is_floating(type_) else value
    elif isinstance(value, float):
        fits = types.is_floating(type_)
    elif isinstance(value, str):
        fits = types.is_string(type_) or types.is_large_string(type_)
    elif isinstance(value, bytes):
        fits = types.is_binary(type_) or types.is_large_binary(type_)
    elif isinstance(value, Decimal):
        fits = types.is_decimal(type_)
    elif isinstance(value, dt.date):
        fits = types.is_date(type_)
    else:
        fits = isinstance(value, dt.time) and types.is_time(type_)
    if not fits:
        raise MalformedError
    return value


def _nested(value: list[Any] | dict[Any, Any], type_: pa.DataType) -> Any:
    if isinstance(value, list) and pa.types.is_list(type_):
        return [_typed(one, type_.value_type) for one in value]
    if isinstance(value, dict) and pa.types.is_struct(type_):
        return {member.name: _typed(value.get(member.name), member.type) for member in type_}
    if isinstance(value, dict) and pa.types.is_map(type_):
        return [(_typed(key, type_.key_type), _typed(one, type_.item_type)) for key, one in value.items()]
    raise MalformedError
