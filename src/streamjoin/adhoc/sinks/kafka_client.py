"""Rows to a Kafka topic from this process, by confluent-kafka: the writer of `KafkaSink` in an engine without Spark.

Queries that write to the same brokers with the same options share one producer and its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamjoin.adhoc.sources.kafka import client_settings, kafka_errors
from streamjoin.config.pipeline import without_secrets
from streamjoin.model import json_values
from streamjoin.model.errors import SpecError

if TYPE_CHECKING:
    from confluent_kafka import Producer

TIMEOUT_MS: Final = 30_000
"""How long a record may take until it has failed, unless an option says otherwise."""

Record = tuple[str | None, str]
"""A key and a value."""


def json_rows(rows: pa.Table, key: str | None) -> list[Record]:
    """The rows as JSON objects, each with its key.

    >>> json_rows(pa.table({"a": [1, None], "b": ["x", "y"]}), "b")
    [('x', '{"a":1,"b":"x"}'), ('y', '{"a":null,"b":"y"}')]
    """
    texts = json_values.row_texts(rows)
    if key is None:
        return [(None, text) for text in texts]
    keys = json_values.column_values(rows.column(key))
    return list(zip(map(_key_text, keys), texts, strict=True))


def identity(query: str, batch: int, position: str) -> list[tuple[str, str | bytes | None]]:
    """The headers of a record: query, batch and position in it. A row that is sent again has them again."""
    return [
        ("streamjoin-query", query.encode()),
        ("streamjoin-batch", str(batch).encode()),
        ("streamjoin-position", position.encode()),
    ]


def _key_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_values.text(value)


@dataclass
class _Shared:
    producer: Producer
    users: int = 0


_producers: dict[tuple[tuple[str, str], ...], _Shared] = {}
_opening = threading.Lock()


class KafkaClientWriter:
    """Sends a query's rows and returns when the brokers have them."""

    def __init__(self, query: str, topic: str, key: str | None, options: Mapping[str, str]) -> None:
        self._query, self._topic, self._key, self._options = query, topic, key, options
        settings = {
            "enable.idempotence": "true",
            "message.timeout.ms": str(TIMEOUT_MS),
            **client_settings(options, ("kafka.bootstrap.servers",)),
            "log_level": "0",
        }
        self._settings = tuple(sorted(settings.items()))
        with _opening:
            if self._settings not in _producers:
                _producers[self._settings] = _Shared(_producer(settings, options))
            self._shared = _producers[self._settings]
            self._shared.users += 1

    def write(self, batch: int, rows: pa.Table) -> None:
        """Send a batch.

        Raises:
            OSError: the brokers did not take all rows.
        """
        errors: list[str] = []
        left = [rows.num_rows]
        taken = threading.Event()

        def reported(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(str(error.str()))
            left[0] -= 1
            if not left[0]:
                taken.set()

        producer = self._shared.producer
        for position, (key, value) in enumerate(json_rows(rows, self._key)):
            headers = identity(self._query, batch, str(position))
            while True:
                try:
                    producer.produce(self._topic, value, key, on_delivery=reported, headers=headers)
                    break
                except BufferError:
                    # Its queue is full: wait until some of it is sent.
                    producer.poll(0.1)
            producer.poll(0)
        while not taken.is_set():
            # Any of the writers that share the producer may serve the reports.
            producer.poll(0.05)
        if errors:
            raise OSError(f"Kafka did not take {len(errors)} rows: {without_secrets(errors[0], self._options)}")

    def close(self) -> None:
        """Let go of the producer."""
        with _opening:
            self._shared.users -= 1
            if not self._shared.users:
                _producers.pop(self._settings, None)


def _producer(settings: Mapping[str, str], options: Mapping[str, str]) -> Producer:
    with kafka_errors(options):
        from confluent_kafka import KafkaException, Producer

        try:
            return Producer(dict(settings))
        except KafkaException as error:
            reason = without_secrets(str(error.args[0].str() if error.args else error), options)
            raise SpecError(f"librdkafka refuses the options of a KafkaSink: {reason}") from error
