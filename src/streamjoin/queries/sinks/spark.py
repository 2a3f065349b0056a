"""Sinks on other systems: a Kafka topic, and a view of a Spark session that SQL can read.

On Spark, however many queries write to Kafka, the rows of a batch go there in one job for each cluster of brokers; rows
that lie in files are read by the tasks that send them. An engine without Spark has its own client.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from streamjoin.config.lines import from_environment
from streamjoin.config.pipeline import sink_spec, without_secrets
from streamjoin.model import json_values
from streamjoin.model.errors import SpecError
from streamjoin.queries.sinks.base import FiledRows, NewestRows, Target
from streamjoin.queries.sources.kafka import client_settings, kafka_errors

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


_HEADERS: Final = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_COLUMNS: Final = "topic STRING, key STRING, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


@dataclass(frozen=True)
class KafkaSink:
    """A Kafka topic, at least once: after a crash the rows of the newest batch may come a second time.

    A row becomes one JSON object, NULLs included, encoded as over REST (`model/json_values.py`). The record's headers
    `streamjoin-query`, `streamjoin-batch` and `streamjoin-position` identify it: readers can drop what comes again.

    Args:
        servers: the brokers, as in `kafka.bootstrap.servers`.
        topic: the topic.
        key: the column that becomes the record's key.
        options: further options of Spark's Kafka writer; in an engine without Spark, of librdkafka, after `kafka.`.
            ${NAME} in one is taken from the environment when rows are written, so that the checkpoint has only the
            name. With a secret written out (a password, JAAS) nothing of the sink is kept, and a restart needs
            `Engine.attach`.
    """

    servers: str
    topic: str
    key: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    kind: ClassVar[str] = "kafka"
    reads_spool: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for what in ("servers", "topic"):
            if not isinstance(getattr(self, what), str) or not getattr(self, what):
                raise SpecError(f"a KafkaSink needs its {what} as a text, not {getattr(self, what)!r}")
        fixed = {str(name): str(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", MappingProxyType(fixed))

    def open(self, target: Target) -> KafkaWriter | KafkaClientWriter:
        """A writer for a query.

        Raises:
            SpecError: the key is no column of the query.
        """
        if self.key is not None and self.key not in target.schema.names:
            raise SpecError(f"the key {self.key!r} is no output of the query; it has: {', '.join(target.schema.names)}")
        options = self.resolved()
        if target.spark is None:
            return KafkaClientWriter(target.query, self.topic, self.key, options)
        return KafkaWriter(self, target.query, target.spark)

    def resolved(self) -> dict[str, str]:
        """The options with what the environment says, as Spark takes them.

        Raises:
            SpecError: the environment has no such variable.
        """
        options = {key: from_environment(value, "an option of a KafkaSink") for key, value in self.options.items()}
        return {**options, "kafka.bootstrap.servers": self.servers}

    def spec(self) -> dict[str, Any] | None:
        """All fields; None with a secret among them."""
        return sink_spec(self)

    @property
    def together(self) -> tuple[Any, ...]:
        """What queries must have in common to be sent in one Spark job."""
        return self.kind, self.servers, tuple(sorted(self.options.items()))

    def __str__(self) -> str:
        return f"kafka {self.topic} at {self.servers}"


class KafkaWriter:
    """Writes a query's rows to a Kafka topic; one Spark job can serve all writers whose sinks have equal `together`."""

    takes_files = True

    def __init__(self, sink: KafkaSink, query: str, spark: Any) -> None:
        self.sink, self.query = sink, query
        self._spark = spark

    def write(self, batch: int, rows: pa.Table | FiledRows) -> None:
        """Send a batch."""
        self.write_all(batch, [(self, rows)])

    def write_all(self, batch: int, parts: Sequence[tuple[KafkaWriter, pa.Table | FiledRows]]) -> None:
        """Send the rows of several queries in one job; one more if some are in files and others are not."""
        filed: list[_FiledRecords] = []
        tables: list[pa.Table] = []
        for writer, rows in parts:
            records = _Records(writer.query, batch, writer.sink.topic, writer.sink.key)
            if isinstance(rows, FiledRows):
                filed += [
                    _FiledRecords(records, FiledRows(rows.schema, (block,)), number)
                    for number, block in enumerate(rows.blocks)
                ]
            else:
                tables.append(records.table(rows))
        if filed:
            from streamjoin.spark.runtime.internals import map_in_arrow

            tasks = min(len(filed), self._spark.sparkContext.defaultParallelism)
            numbers = self._spark.range(0, tasks, 1, tasks)
            shares = [filed[number::tasks] for number in range(tasks)]
            self._send(map_in_arrow(numbers, partial(_read_records, shares), _COLUMNS, "streamjoin_read"))
        if tables:
            self._send(self._spark.createDataFrame(pa.concat_tables(tables)))

    def _send(self, frame: Any) -> None:
        options = self.sink.resolved()
        try:
            frame.write.format("kafka").options(**options).save()
        except Exception as error:
            reasons = str(getattr(error, "desc", None) or error).strip().splitlines() or ["Spark gave no reason"]
            raise OSError(f"Kafka did not take the rows: {without_secrets(reasons[0], options)}") from error

    def close(self) -> None:
        """Nothing is open between two batches."""


@dataclass(frozen=True)
class _Records:
    """How the rows of a query become records of a topic."""

    query: str
    batch: int
    topic: str
    key: str | None

    def table(self, rows: pa.Table, place: str = "") -> pa.Table:
        """The records; their positions begin with `place`."""
        records = json_rows(rows, self.key)
        headers = [identity(self.query, self.batch, f"{place}{position}") for position in range(len(records))]
        return pa.table(
            {
                "topic": pa.array([self.topic] * len(records), pa.string()),
                "key": pa.array([key for key, _ in records], pa.string()),
                "value": pa.array([value for _, value in records], pa.string()),
                "headers": pa.array([[{"key": k, "value": v} for k, v in each] for each in headers], _HEADERS),
            }
        )


@dataclass(frozen=True)
class _FiledRecords:
    """Rows in a file that become records of a topic; `number` is that of the file among those of the batch."""

    records: _Records
    rows: FiledRows
    number: int

    def read(self) -> pa.Table:
        """The records."""
        return self.records.table(self.rows.table(), f"{self.number}.")


def _read_records(
    shares: Sequence[Sequence[_FiledRecords]], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The records of the shares with these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for records in shares[number]:
                yield from records.read().to_batches()


@dataclass(frozen=True)
class TableSink:
    """A temporary view of the session with the newest rows, for SQL: `spark.table(view)`."""

    view: str
    limit: int = 10_000
    kind: ClassVar[str] = "table"

    def __post_init__(self) -> None:
        if not isinstance(self.view, str) or not self.view.isidentifier():
            raise SpecError(f"the view of a TableSink is named by letters, digits and _, not {self.view!r}")
        if self.limit < 1:
            raise SpecError(f"the limit of a TableSink is a number of rows from 1, not {self.limit!r}")

    @property
    def newest_only(self) -> int:
        """The limit."""
        return self.limit

    def open(self, target: Target) -> TableWriter:
        """A writer that keeps the view.

        Raises:
            SpecError: the engine has no Spark session.
        """
        if target.spark is None:
            raise SpecError("a TableSink is a view of a Spark session, and this engine has none: read Engine.rows")
        return TableWriter(self, target)

    def spec(self) -> dict[str, Any] | None:
        """All fields."""
        return sink_spec(self)

    def __str__(self) -> str:
        return f"table {self.view}, newest {self.limit:,} rows"


class TableWriter:
    """Makes the view anew for each batch with rows."""

    def __init__(self, sink: TableSink, target: Target) -> None:
        self._sink, self._spark = sink, target.spark
        self._rows = NewestRows(target.schema, sink.limit)
        self._show()

    def write(self, batch: int, rows: pa.Table) -> None:
        """Add the rows of a batch."""
        self._rows.write(batch, rows)
        self._show()

    def _show(self) -> None:
        rows = self._rows.newest(self._sink.limit)
        self._spark.createDataFrame(rows).createOrReplaceTempView(self._sink.view)

    def close(self) -> None:
        """Remove the view."""
        self._spark.catalog.dropTempView(self._sink.view)
