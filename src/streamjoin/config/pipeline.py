"""A pipeline as frozen data: the content of a `join.toml`, checked, with defaults.

Nothing here depends on Spark; `pipeline_file` creates these objects and `spark/pipeline` runs them. Options have the
values that Spark gets; `shown` removes secrets before they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from streamjoin.config.lines import VARIABLE
from streamjoin.model.spec import JoinSpec
from streamjoin.storage.settings import StorageSettings

SOURCE_FORMATS = ("kafka", "parquet", "json", "csv", "rate")
SINK_FORMATS = ("kafka", "parquet", "json", "csv", "delta", "iceberg", "console", "memory")
DECODINGS = ("json", "csv", "avro", "protobuf", "text", "binary")
REGISTERED = ("avro", "protobuf")
"""The decodings whose schemas are in a registry."""
KAFKA_COLUMNS = ("key", "topic", "partition", "offset", "timestamp")

_SECRET = re.compile(
    r"password|passwd|secret|jaas|token|credential|key\.?store\.key|private|basic\.auth|api[._-]?key", re.I
)
_WITHIN = re.compile(r"""(?:password|secret|token)\w*\s*=\s*["']?([^"'\s;]+)""", re.I)
_IN_URL = re.compile(r"(://[^/@\s:]+:)[^@/\s]+@")


@dataclass(frozen=True)
class PipelineSource:
    """One side's stream."""

    format: str
    schema: str | None = None
    """The columns as Spark's DDL; None if the format has a fixed schema."""
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    decode: str = "json"
    decode_options: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    """The URL of the schema registry, for Avro and Protobuf; `decode_options` are those of its client."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Columns of a Kafka record beside its value, and the names they get."""
    select: tuple[str, ...] = ()
    where: str | None = None
    by: str | None = None
    """A column whose values are the physical sources, such as a Kafka partition."""
    position: str | None = None
    """An integer column that increases along each physical source, such as a Kafka offset."""
    values: tuple[str, ...] = ()
    """The values of `by` that the gate waits for from the start."""
    name: str | None = None
    """Its name in the gate, which decides the order of equal times."""
    malformed: str | None = None
    """The location of malformed values; None to only count them."""

    @property
    def can_be_malformed(self) -> bool:
        """Whether a value of this source may fail to decode."""
        return self.format in ("json", "csv") or (self.format == "kafka" and self.decode not in ("text", "binary"))


@dataclass(frozen=True)
class PipelineSink:
    """Where the joined rows go."""

    format: str
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    """The column that becomes a Kafka record's key."""
    select: tuple[str, ...] = ()
    name: str | None = None
    """The table of a memory sink, or of Iceberg."""
    catalog: str = "default"
    """The catalog of an Iceberg table; its properties are the options."""


@dataclass(frozen=True)
class Trigger:
    """When batches begin: right after the previous one, at intervals, or until all available input is processed."""

    available_now: bool = False
    every: str | None = None

    def __str__(self) -> str:
        return "available now" if self.available_now else f"every {self.every}" if self.every else "as fast as possible"


class SourceFile(Protocol):
    """The part of a file that the readers of its sources need."""

    @property
    def file(self) -> str:
        """Its path."""

    @property
    def sides(self) -> Mapping[str, PipelineSource]:
        """The sources by name."""

    @property
    def conf(self) -> Mapping[str, str]:
        """Spark's settings; their secrets are in no message."""

    @property
    def lines(self) -> Mapping[str, int]:
        """The line of each part."""


@dataclass(frozen=True)
class JoinSettings:
    """The options of `spark.join`."""

    partitions: int | Literal["auto"] = "auto"
    most_partitions: int | None = None
    ordered: bool = False
    positions: bool = False
    punctuate: bool = False
    idle: str | None = None
    columns: tuple[str, ...] | None = None
    late: str | None = None
    end_of_input: bool = False
    most_waiting: int | None = None


@dataclass(frozen=True)
class Pipeline:
    """A whole file."""

    file: str
    left: PipelineSource
    right: PipelineSource | None
    spec: JoinSpec
    sink: PipelineSink
    checkpoint: str | None
    further: Mapping[str, PipelineSource] = field(default_factory=dict)
    """More physical sources of a side, as left-2, left-3, right-2."""
    trigger: Trigger = Trigger()
    join: JoinSettings = JoinSettings()
    progress: str | None = None
    """A file for the figures of each batch, one line of JSON per batch."""
    name: str = "streamjoin"
    master: str | None = None
    memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    storage: StorageSettings | None = None
    """How stores are reached; None for the settings of the environment."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each part, for errors that occur at run time."""

    @property
    def sides(self) -> dict[str, PipelineSource]:
        """All sources: left, right unless it is a self-join, and further ones of either side."""
        return {"left": self.left} | ({"right": self.right} if self.right else {}) | dict(self.further)

    def side(self, side: str) -> dict[str, PipelineSource]:
        """The sources of one side."""
        return {name: source for name, source in self.sides.items() if name.partition("-")[0] == side}

    @property
    def needs_kafka(self) -> bool:
        """Whether the pipeline needs Spark's Kafka connector."""
        return self.sink.format == "kafka" or any(source.format == "kafka" for source in self.sides.values())


def is_secret(key: str) -> bool:
    """Whether the value under `key` must never be shown.

    >>> is_secret("kafka.sasl.jaas.config"), is_secret("kafka.ssl.key.password"), is_secret("subscribe")
    (True, True, False)
    """
    return _SECRET.search(key) is not None


def has_secrets(options: Mapping[str, str]) -> bool:
    """Whether options have a secret that is written out, so that they must not be in a checkpoint."""
    return any(is_secret(key) and not VARIABLE.search(text) for key, text in options.items())


def sink_spec(sink: Any) -> dict[str, Any] | None:
    """A sink as a checkpoint keeps it: its kind and all of its fields; None with a secret among its options."""
    own = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(sink).items()}
    return None if has_secrets(own.get("options", {})) else {"kind": sink.kind, **own}


def shown(options: Mapping[str, str]) -> str:
    """Options as they may be printed.

    >>> shown({"topic": "t", "kafka.ssl.key.password": "hunter2"})
    'topic=t, kafka.ssl.key.password=***'
    """
    return ", ".join(f"{key}={'***' if is_secret(key) else _in_url(value)}" for key, value in options.items())


def without_secrets(text: str, *option_sets: Mapping[str, str]) -> str:
    """`text` with the value of every secret option replaced by asterisks.

    >>> without_secrets('no login with password="hunter2" at http://me:other@host')
    'no login with password="***" at http://me:***@host'
    """
    for options in option_sets:
        for key, value in options.items():
            if is_secret(key) and value:
                # A JAAS setting contains a password in quotes, which is replaced on its own too.
                for secret in (value, *_WITHIN.findall(value)):
                    text = text.replace(secret, "***")
    for match in _WITHIN.findall(text):
        text = text.replace(match, "***")
    return _in_url(text)


def _in_url(text: str) -> str:
    return _IN_URL.sub(r"\1***@", text)
