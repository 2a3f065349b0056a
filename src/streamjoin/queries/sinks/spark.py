"""Sinks on other systems: a Kafka topic, and a view of a Spark session that SQL can read.

On Spark, however many queries write to Kafka, the rows of a batch go there in one job for each cluster of brokers; rows
that lie in files are read by the tasks that send them. An engine without Spark has its own client (`kafka_client`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

import pyarrow as pa

from streamjoin.adhoc.sinks.base import FiledRows, NewestRows, Target
from streamjoin.adhoc.sinks.kafka_client import KafkaClientWriter, identity, json_rows
from streamjoin.config.pipeline import has_secrets, without_secrets
from streamjoin.config.variables import from_environment
from streamjoin.model.errors import SpecError

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
        if has_secrets(self.options):
            return None
        return {
            "kind": self.kind,
            "servers": self.servers,
            "topic": self.topic,
            "key": self.key,
            "options": dict(self.options),
        }

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
            tasks = min(len(filed), self._spark.sparkContext.defaultParallelism)
            numbers = self._spark.range(0, tasks, 1, tasks)
            shares = [filed[number::tasks] for number in range(tasks)]
            self._send(numbers.mapInArrow(partial(_read_records, shares), _COLUMNS))
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

    def open(self, target: Target) -> TableWriter:
        """A writer that keeps the view.

        Raises:
            SpecError: the engine has no Spark session.
        """
        if target.spark is None:
            raise SpecError("a TableSink is a view of a Spark session, and this engine has none: read Engine.rows")
        return TableWriter(self, target)

    def spec(self) -> dict[str, Any]:
        """All fields."""
        return {"kind": self.kind, "view": self.view, "limit": self.limit}

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
