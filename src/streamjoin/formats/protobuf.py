"""Protobuf values with a schema registry, which gives schemas as serialized descriptors: no compiler is needed.

Before the data are message indexes, which say which message of the file a value is: their number and each of them as
zigzag varints; a single zero byte stands for the first message.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import importlib
from typing import TYPE_CHECKING, Any, Final

from streamjoin.formats.records import MalformedError
from streamjoin.formats.registry import MISSING, ParsedSchemas, Registry, schema_id
from streamjoin.model.errors import SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

_WELL_KNOWN: Final = (
    "any", "source_context", "type", "api", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers",
)  # fmt: skip
"""The files that every schema may import, each after those that it imports itself."""
_MOST_INDEXES: Final = 100
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class ProtobufReader:
    """Reads the messages of a registry's Protobuf schemas."""

    form = "serialized"

    def __init__(self, registry: Registry) -> None:
        try:
            importlib.import_module("google.protobuf.message_factory")
        except ImportError as error:
            raise SetupError(MISSING.format(error)) from error
        self._schemas = ParsedSchemas(registry, _parse)
        self._classes: dict[tuple[int, tuple[int, ...]], Any] = {}

    def __call__(self, value: bytes) -> dict[str, Any]:
        """The fields of a value.

        Raises:
            MalformedError: it can't be read.
            StateError: the registry does not answer.
        """
        from google.protobuf.message import DecodeError

        number, data = schema_id(value)
        indexes, at = _indexes(data)
        kind = self._classes.get((number, indexes))
        if kind is None:
            kind = self._classes[number, indexes] = _message(self._schemas.of(number), indexes)
        message = kind()
        try:
            message.ParseFromString(data[at:])
        except DecodeError as error:
            raise MalformedError from error
        return _fields(message)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedError
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    count, at = _varint(data, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise MalformedError
    if not count:
        return (0,), at
    indexes = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _message(file: Any, indexes: tuple[int, ...]) -> Any:
    """The class of the message that indexes name in a file."""
    from google.protobuf import message_factory

    messages = list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(messages):
            raise MalformedError
        descriptor = messages[index]
        messages = list(descriptor.nested_types)
    return message_factory.GetMessageClass(descriptor)


def _parse(registry: Registry, schema: Schema) -> Any:
    """The file of a schema, in a pool of its own."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    if schema.schema_type != "PROTOBUF":
        raise MalformedError
    pool = descriptor_pool.DescriptorPool()
    for name in _WELL_KNOWN:
        pool.AddSerializedFile(importlib.import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb)
    added: set[str] = set()

    def add(one: Schema, name: str) -> None:
        for reference in one.references or ():
            other = reference.name or ""
            if other not in added and not other.startswith("google/protobuf/"):
                added.add(other)
                add(registry.referenced(reference), other)
        content = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(one.schema_str or "", validate=True))
        # The registry knows a file by the name that others import it by, or not at all.
        content.name = name
        pool.Add(content)

    try:
        add(schema, "value.proto")
        return pool.FindFileByName("value.proto")
    except (DecodeError, binascii.Error, TypeError, KeyError, ValueError) as error:
        raise MalformedError from error


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message; one that says whether it is there is None if it is not."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            entry = kind.fields_by_name["value"]
            return {key: _value(value[key], entry) for key in value}
        return [_value(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        if known is None:
            raise MalformedError
        return known.name
    kind = field.message_type
    if kind is None:
        return value
    if kind.full_name == "google.protobuf.Timestamp":
        # Nanoseconds beyond microseconds have no place in a row: rounding down is what Spark does.
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if kind.file.name == "google/protobuf/wrappers.proto":
        return value.value
    return _fields(value)
