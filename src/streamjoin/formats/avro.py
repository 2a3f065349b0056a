"""Avro values with a schema registry, decoded by fastavro with the schema that they were written with."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from streamjoin.formats.records import MalformedError
from streamjoin.formats.registry import MISSING, ParsedSchemas, Registry, schema_id
from streamjoin.model.errors import SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema


class AvroReader:
    """Reads the records of a registry's Avro schemas."""

    def __init__(self, registry: Registry) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise SetupError(MISSING.format(error)) from error
        self._read = fastavro.schemaless_reader
        self._schemas = ParsedSchemas(registry, _parse)

    def __call__(self, value: bytes) -> dict[str, Any]:
        """The fields of a value.

        Raises:
            MalformedError: it can't be read.
            StateError: the registry does not answer.
        """
        number, data = schema_id(value)
        schema = self._schemas.of(number)
        stream = io.BytesIO(data)
        try:
            record = self._read(stream, schema, None)
        except Exception as error:
            # What a reader meets in damaged bytes is of many kinds.
            raise MalformedError from error
        if not isinstance(record, dict) or stream.tell() != len(data):
            raise MalformedError
        return record


def _parse(registry: Registry, schema: Schema) -> Any:
    from fastavro.schema import parse_schema

    if (schema.schema_type or "AVRO") != "AVRO":
        raise MalformedError
    named: dict[str, Any] = {}

    def parsed(one: Schema) -> Any:
        for reference in one.references or ():
            if reference.name not in named:
                parsed(registry.referenced(reference))
        return parse_schema(json.loads(one.schema_str or ""), named_schemas=named)

    try:
        return parsed(schema)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError from error
    except Exception as error:
        if type(error).__module__.startswith("fastavro"):
            raise MalformedError from error
        raise
