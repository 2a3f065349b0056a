"""Kafka topics read in this process by confluent-kafka, the extra `kafka`.

Positions are the offsets of all partitions, stored in the engine's journal with the tuples; nothing is committed to the
broker. A partition that appears later is read from its beginning.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamjoin.config.pipeline import KAFKA_COLUMNS, REGISTERED, without_secrets
from streamjoin.formats.records import Decode
from streamjoin.formats.registry_values import RegistryFormat
from streamjoin.model.errors import SetupError, SpecError, StateError
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.sources.base import SourceRows
from streamjoin.queries.sources.decoding import csv_decoder, json_decoder
from streamjoin.storage.places import Place

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

COLUMNS: Final = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""The columns of a record besides its value."""
MOST_RECORDS: Final = 100_000
PATIENCE: Final = 10.0
"""Seconds for a question to the brokers."""
DISCOVERY: Final = 30.0
"""Seconds between two looks for new partitions."""
_OWN: Final = ("kafka.bootstrap.servers", "subscribe", "subscribePattern", "startingOffsets", "maxOffsetsPerTrigger")

Offsets = dict[str, dict[str, int]]
"""The next offset by topic and partition, the latter as text for JSON."""


def topics_of(options: Mapping[str, str]) -> str:
    """What Kafka options subscribe to.

    >>> topics_of({"subscribe": "b, a"})
    'Kafka topics a, b'
    """
    if "subscribePattern" in options:
        return f"Kafka topics that match {options['subscribePattern']}"
    return f"Kafka topics {', '.join(sorted(name.strip() for name in options.get('subscribe', '').split(',')))}"


@dataclass(frozen=True)
class KafkaSource:
    """Topics with their offsets in the engine's checkpoint.

    Args:
        options: those of Spark's Kafka source: `kafka.bootstrap.servers`, `subscribe` or `subscribePattern`,
            `startingOffsets`, `maxOffsetsPerTrigger`; others with the prefix `kafka.` go to librdkafka without it.
        columns: the columns of a value; None for `decode` "text" and "binary".
        decode: "json", "csv", "avro", "protobuf", "text" or "binary".
        decode_options: of CSV `sep`, `quote` and `nullValue`; of Avro and Protobuf those of the registry's client.
        metadata: columns of the record beside its value, and the names they get.
        registry: the URL of the schema registry, for Avro and Protobuf in Confluent's wire format.
    """

    options: Mapping[str, str] = field(repr=False)
    columns: pa.Schema | None = None
    decode: str = "json"
    decode_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None

    def __post_init__(self) -> None:
        self.decoder()
        _starting(self.options.get("startingOffsets", "earliest"))
        most = self.options.get("maxOffsetsPerTrigger", "1")
        if not most.isdigit() or int(most) < 1:
            raise SpecError(f"maxOffsetsPerTrigger is a number from 1, not {most!r}")
        client_settings(self.options, _OWN)

    def decoder(self) -> Decode | None:
        """What decodes values; None where they stay as they are.

        Raises:
            SpecError: there is no such decoding or option.
        """
        if self.decode in ("text", "binary"):
            return None
        if self.columns is None or self.decode not in ("json", "csv", *REGISTERED):
            raise SpecError(
                f"decode = {self.decode!r} needs to be json, csv, avro or protobuf with columns, or text or binary"
            )
        if (self.registry is not None) != (self.decode in REGISTERED):
            raise SpecError("Avro and Protobuf, and no other values, need the URL of a schema registry")
        if self.registry is not None:
            return RegistryFormat(self.decode, self.registry, self.decode_options).decoder(self.columns)
        make = json_decoder if self.decode == "json" else csv_decoder
        return make(self.columns, self.decode_options)

    @property
    def _beside(self) -> Mapping[str, str]:
        if self.metadata or self.decode not in ("text", "binary"):
            return self.metadata
        return {name: name for name in KAFKA_COLUMNS}

    @property
    def schema(self) -> pa.Schema:
        """The columns of a value and those beside it."""
        value: Any = self.columns
        if value is None:
            value = pa.schema({"value": pa.string() if self.decode == "text" else pa.binary()})
        return pa.schema([*value, *(pa.field(name, COLUMNS[column]) for column, name in self._beside.items())])

    @property
    def origin(self) -> str:
        """The topics; brokers may get other addresses."""
        return topics_of(self.options)

    def open(self, notes: Place | None) -> KafkaReader:  # noqa: ARG002
        """A reader; the brokers are asked at the first read.

        Raises:
            SetupError: confluent-kafka is not installed.
        """
        return KafkaReader(self)

    def beside(self, messages: Sequence[Message]) -> list[pa.Array]:
        """The columns beside the values of messages."""
        return [_column(column, messages) for column in self._beside]


def client_settings(options: Mapping[str, str], own: Sequence[str]) -> dict[str, str]:
    """The settings of librdkafka among the options of a source or sink.

    Raises:
        SpecError: an option is neither `own` nor the client's.
    """
    settings = {}
    for key, text in options.items():
        if key in own and key != "kafka.bootstrap.servers":
            continue
        if not key.startswith("kafka."):
            raise SpecError(f'the embedded engine has no option {key!r} for Kafka; engine = "spark" takes Spark\'s')
        if key == "kafka.sasl.jaas.config":
            raise SpecError(
                "kafka.sasl.jaas.config is for Java: the embedded engine takes kafka.sasl.mechanisms, "
                "kafka.sasl.username and kafka.sasl.password"
            )
        settings[key.removeprefix("kafka.")] = text
    return settings


@contextmanager
def kafka_errors(options: Mapping[str, str]) -> Iterator[None]:
    """Turn errors of the client into ours, without secrets.

    Raises:
        SetupError: confluent-kafka is not installed.
        StateError: the brokers can't be reached, or refuse.
    """
    try:
        from confluent_kafka import KafkaException
    except ImportError as error:
        raise SetupError("Kafka needs confluent-kafka: pip install 'streamjoin[kafka]'") from error
    try:
        yield
    except KafkaException as error:
        reason = error.args[0] if error.args else error
        text = reason.str() if hasattr(reason, "str") else str(reason)
        raise StateError(f"Kafka: {without_secrets(text, options)}") from error


def _starting(text: str) -> str | Mapping[str, Mapping[str, int]]:
    if text in ("earliest", "latest"):
        return text
    try:
        offsets = json.loads(text)
        if all(isinstance(offset, int) for parts in offsets.values() for offset in parts.values()):
            return offsets  # type: ignore[no-any-return]
    except (ValueError, AttributeError):
        pass
    raise SpecError(
        f'offsets to start from are "earliest", "latest" or JSON such as {{"topic": {{"0": 5}}}}, not {text!r}'
    )


class KafkaReader:
    """Reads the partitions of topics from the offsets of a position on."""

    def __init__(self, source: KafkaSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self._decode = source.decoder()
        self._most = min(MOST_RECORDS, int(source.options.get("maxOffsetsPerTrigger", MOST_RECORDS)))
        self._assigned: Offsets = {}
        self._ends: dict[tuple[str, int], int] = {}
        """Where a partition was read to its end: after its last record, and after what ended transactions."""
        self._looked_at = 0.0
        with kafka_errors(source.options):
            from confluent_kafka import Consumer

            settings: dict[str, Any] = {
                "group.id": f"streamjoin-{uuid.uuid4().hex}",
                "auto.offset.reset": "error",
                **client_settings(source.options, _OWN),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # What goes wrong is raised by a read; a client that logs by itself would print it a second time.
                "log_level": 0,
            }
            self._consumer: Consumer = Consumer(settings)

    def read(self, position: Position | None) -> SourceRows | None:
        """The records after `position`."""
        with kafka_errors(self._source.options):
            if not isinstance(position, dict):
                # The offsets of the first start are stored before the first record.
                first = self._partitions_from({}, first=True)
                return SourceRows(self._source.schema.empty_table(), {"offsets": first})
            offsets: Offsets = {topic: dict(parts) for topic, parts in position["offsets"].items()}
            if offsets != self._assigned or self._clock() - self._looked_at > DISCOVERY:
                self._assign(self._partitions_from(offsets, first=False))
                offsets = {topic: dict(parts) for topic, parts in self._assigned.items()}
            messages = self._consumer.consume(self._most, 0.0)
        taken = [message for message in messages if self._checked(message)]
        if not taken:
            return None
        for message in taken:
            offsets[message.topic() or ""][str(message.partition())] = (message.offset() or 0) + 1
        self._assigned = offsets
        rows, malformed = self._rows(taken)
        return SourceRows(rows, {"offsets": offsets}, malformed)

    def left(self, position: Position | None) -> int:
        """The records after a position, as far as the brokers have said by the way."""
        from confluent_kafka import TopicPartition

        if not isinstance(position, dict):
            return 0
        left = 0
        for topic, parts in position["offsets"].items():
            for partition, offset in parts.items():
                known = self._consumer.get_watermark_offsets(TopicPartition(topic, int(partition)), cached=True)
                left += max(0, (known[1] if known is not None else 0) - offset)
        return left

    def behind(self) -> bool:
        """Whether the brokers have records that did not get here yet."""
        from confluent_kafka import OFFSET_END, TopicPartition

        at = {(topic, int(p)): offset for topic, parts in self._assigned.items() for p, offset in parts.items()}
        with kafka_errors(self._source.options):
            # Where they end now, by one question to each broker.
            ends = self._consumer.offsets_for_times([TopicPartition(*key, OFFSET_END) for key in at], timeout=PATIENCE)
        read = {key: max(offset, self._ends.get(key, 0)) for key, offset in at.items()}
        return any(end.offset > read[end.topic, end.partition] for end in ends)

    def _checked(self, message: Message) -> bool:
        """Whether it is a record.

        Raises:
            StateError: it is an error, such as offsets that the broker no longer has.
        """
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends[message.topic() or "", message.partition() or 0] = message.offset() or 0
            return False
        self._assigned = {}
        text = without_secrets(error.str(), self._source.options)
        place = f" in partition {message.partition()} of {message.topic()}" if message.topic() else ""
        raise StateError(f"Kafka: {text}{place}")

    def _rows(self, messages: Sequence[Message]) -> tuple[pa.Table, pa.Table | None]:
        values = [_bytes(message.value()) for message in messages]
        if self._decode is None:
            text = self._source.decode == "text"
            data = [None if v is None else v.decode(errors="replace") if text else v for v in values]
            value = pa.array(data, pa.string() if text else pa.binary())
            return pa.Table.from_arrays([value, *self._source.beside(messages)], schema=self._source.schema), None
        rows, good = self._decode(values)
        if rows.num_rows == len(messages):
            return self._complete(rows, messages), None
        bad = [message for message, fits in zip(messages, good, strict=True) if not fits]
        columns = {name: _column(name, bad) for name in KAFKA_COLUMNS}
        malformed = pa.table({**columns, "value": pa.array([_bytes(m.value()) for m in bad], pa.binary())})
        kept = [message for message, fits in zip(messages, good, strict=True) if fits]
        return self._complete(rows, kept), malformed

    def _complete(self, rows: pa.Table, messages: Sequence[Message]) -> pa.Table:
        return pa.Table.from_arrays([*rows.columns, *self._source.beside(messages)], schema=self._source.schema)

    # Partitions -----------------------------------------------------------------------------------------------------

    def _partitions_from(self, offsets: Offsets, first: bool) -> Offsets:
        """The partitions there are now; those without an offset begin as the source says, or later at their start."""
        begun = {topic: dict(parts) for topic, parts in offsets.items()}
        start = _starting(self._source.options.get("startingOffsets", "earliest")) if first else "earliest"
        for topic, partitions in self._topics().items():
            for partition in partitions:
                parts = begun.setdefault(topic, {})
                if str(partition) not in parts:
                    parts[str(partition)] = self._start(topic, partition, start)
        self._looked_at = self._clock()
        return begun

    def _topics(self) -> dict[str, list[int]]:
        options = self._source.options
        listed = self._consumer.list_topics(timeout=PATIENCE).topics
        if "subscribePattern" in options:
            pattern = re.compile(options["subscribePattern"])
            names = [name for name in listed if pattern.fullmatch(name)]
        else:
            names = [name.strip() for name in options["subscribe"].split(",")]
        partitions = {}
        for name in sorted(names):
            if name not in listed or listed[name].error is not None or not listed[name].partitions:
                raise StateError(f"Kafka: there is no topic {name!r}")
            partitions[name] = sorted(listed[name].partitions)
        return partitions

    def _start(self, topic: str, partition: int, start: str | Mapping[str, Mapping[str, int]]) -> int:
        from confluent_kafka import TopicPartition

        wanted = start if isinstance(start, str) else start.get(topic, {}).get(str(partition), -2)
        if isinstance(wanted, int) and wanted >= 0:
            return wanted
        low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE)
        return int(high if wanted in ("latest", -1) else low)

    def _assign(self, offsets: Offsets) -> None:
        from confluent_kafka import TopicPartition

        parts = [TopicPartition(topic, int(p), at) for topic, parts in offsets.items() for p, at in parts.items()]
        self._consumer.assign(parts)
        self._assigned, self._ends = offsets, {}

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _column(name: str, messages: Sequence[Message]) -> pa.Array:
    values: list[Any]
    if name == "key":
        values = [_bytes(message.key()) for message in messages]
    elif name == "timestamp":
        # Milliseconds; below 0 where the record has none.
        values = [at * 1000 if (at := message.timestamp()[1]) >= 0 else None for message in messages]
        return pa.array(values, pa.int64()).cast(COLUMNS[name])
    else:
        values = [getattr(message, name)() for message in messages]
    return pa.array(values, COLUMNS[name])
