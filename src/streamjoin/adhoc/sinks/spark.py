"""Sinks on other systems: a Kafka topic, and a view of a Spark session that SQL can read.

On Spark, however many queries write to Kafka, the rows of a batch go there in one job for each cluster of brokers; an
engine without Spark sends them by a client of its own (`kafka_client`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final

import pyarrow as pa

from streamjoin.adhoc.sinks.base import NewestRows, Target
from streamjoin.adhoc.sinks.kafka_client import KafkaClientWriter, Record, json_rows
from streamjoin.config.pipeline import is_secret, without_secrets
from streamjoin.model.errors import SpecError

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class KafkaSink:
    """A Kafka topic, at least once: after a crash the rows of the newest batch may come a second time.

    A row becomes one JSON object, NULLs included, encoded as over REST (`model/json_values.py`).

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
            return KafkaClientWriter(self.topic, self.key, options)
        return KafkaWriter(self, target.spark)

    def resolved(self) -> dict[str, str]:
        """The options with what the environment says, as Spark takes them.

        Raises:
            SpecError: the environment has no such variable.
        """
        options = {key: _VARIABLE.sub(_from_environment, value) for key, value in self.options.items()}
        return {**options, "kafka.bootstrap.servers": self.servers}

    def spec(self) -> dict[str, Any] | None:
        """All fields; None with a secret among them."""
        if any(is_secret(key) and not _VARIABLE.search(value) for key, value in self.options.items()):
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

    def __init__(self, sink: KafkaSink, spark: Any) -> None:
        self.sink = sink
        self._spark = spark

    def write(self, batch: int, rows: pa.Table) -> None:
        """Send a batch."""
        self.write_all(batch, [(self, rows)])

    def write_all(self, batch: int, parts: Sequence[tuple[KafkaWriter, pa.Table]]) -> None:  # noqa: ARG002
        """Send the rows of several queries in one job."""
        topics: list[str] = []
        sent: list[Record] = []
        for writer, rows in parts:
            records = json_rows(rows, writer.sink.key)
            topics += [writer.sink.topic] * len(records)
            sent += records
        table = pa.table(
            {
                "topic": pa.array(topics, pa.string()),
                "key": pa.array([key for key, _ in sent], pa.string()),
                "value": pa.array([value for _, value in sent], pa.string()),
            }
        )
        frame = self._spark.createDataFrame(table)
        options = self.sink.resolved()
        try:
            frame.write.format("kafka").options(**options).save()
        except Exception as error:
            reasons = str(getattr(error, "desc", None) or error).strip().splitlines() or ["Spark gave no reason"]
            raise OSError(f"Kafka did not take the rows: {without_secrets(reasons[0], options)}") from error

    def close(self) -> None:
        """Nothing is open between two batches."""


def _from_environment(variable: re.Match[str]) -> str:
    value = os.environ.get(variable[1])
    if value is None:
        raise SpecError(f"the environment has no variable {variable[1]!r}, which an option of a KafkaSink names")
    return value


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
