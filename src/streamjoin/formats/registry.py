"""Values of Kafka records in Confluent's wire format, whose schemas are in a registry.

A value is a zero byte, the id of its schema in four bytes, and the data. The client of the registry is that of
confluent-kafka, the extra `registry`. Schemas are asked for once. A record with an unknown
id is malformed; a registry that does not answer is an error, because it is then unknown which records are malformed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from streamjoin.config.pipeline import without_secrets
from streamjoin.formats.records import MalformedError
from streamjoin.model.errors import SetupError, SpecError, StateError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

_HEADER: Final = 5
_PAUSE: Final = 60.0
"""Seconds until a schema that the registry did not have is asked for again."""
_NUMBERS: Final = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
MISSING: Final = "Avro and Protobuf with a schema registry need pip install 'streamjoin[registry]' ({})"
Parsed = TypeVar("Parsed")


def schema_id(value: bytes) -> tuple[int, bytes]:
    """The id of a value's schema, and its data.

    Raises:
        MalformedError: the value does not begin as it has to.
    """
    if len(value) < _HEADER or value[0] != 0:
        raise MalformedError
    return int.from_bytes(value[1:_HEADER], "big"), value[_HEADER:]


class Registry:
    """A schema registry."""

    def __init__(self, url: str, options: Mapping[str, str], form: str | None = None) -> None:
        """`form` is the format that schemas are asked for; None for the usual one.

        Raises:
            SetupError: the client is not installed.
            SpecError: it does not take an option.
        """
        self.url, self._options, self._form = url, dict(options), form
        settings: dict[str, Any] = {"timeout": 10, "max.retries": 1, **options, "url": url}
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient

            self._client: SchemaRegistryClient = SchemaRegistryClient(
                {key: float(text) if key in _NUMBERS else text for key, text in settings.items()}
            )
        except ImportError as error:
            raise SetupError(MISSING.format(error)) from error
        except (ValueError, TypeError) as error:
            reason = without_secrets(str(error), options)
            raise SpecError(f"the client of the schema registry {url} refuses its options: {reason}") from error

    def schema(self, number: int) -> Schema:
        """The schema of an id.

        Raises:
            MalformedError: there is none.
            StateError: the registry does not answer, or refuses.
        """
        return self._ask(lambda: self._client.get_schema(number, fmt=self._form))

    def referenced(self, reference: SchemaReference) -> Schema:
        """A schema that another one refers to."""
        subject, version = reference.subject or "", reference.version
        return self._ask(lambda: self._client.get_version(subject, version or "latest", fmt=self._form).schema)

    def _ask(self, question: Callable[[], Schema]) -> Schema:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise MalformedError from error
            reason = f"{error.http_status_code}: {error.error_message}"
        except Exception as error:
            reason = str(error) or type(error).__name__
        raise StateError(f"the schema registry {self.url}: {without_secrets(reason, self._options)}")


class ParsedSchemas(Generic[Parsed]):
    """The schemas of a registry by id, each parsed once."""

    def __init__(self, registry: Registry, parse: Callable[[Registry, Schema], Parsed]) -> None:
        self._registry, self._parse = registry, parse
        self._known: dict[int, Parsed] = {}
        self._refused: dict[int, float] = {}

    def of(self, number: int) -> Parsed:
        """The schema of an id.

        Raises:
            MalformedError: there is none, or it is not of this format.
            StateError: the registry does not answer, or refuses.
        """
        known = self._known.get(number)
        if known is not None:
            return known
        if time.monotonic() < self._refused.get(number, 0.0):
            raise MalformedError
        try:
            parsed = self._parse(self._registry, self._registry.schema(number))
        except MalformedError:
            if len(self._refused) > 10_000:
                self._refused.clear()
            self._refused[number] = time.monotonic() + _PAUSE
            raise
        self._known[number] = parsed
        return parsed


@functools.lru_cache(maxsize=64)
def shared_registry(url: str, options: tuple[tuple[str, str], ...], form: str | None) -> Registry:
    """The registry of this process for a URL and options."""
    return Registry(url, dict(options), form)
