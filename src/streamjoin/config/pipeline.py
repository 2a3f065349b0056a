"""A pipeline as frozen data: what a `join.toml` says, checked, with its defaults filled in.

Nothing here knows Spark; `pipeline_file` makes these and `pipeline` runs them. Options keep their values as they are
sent to Spark; what is shown of them goes through `shown`, which never lets a secret through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from streamjoin.model.spec import JoinSpec

SOURCE_FORMATS = ("kafka", "parquet", "json", "csv", "rate")
SINK_FORMATS = ("kafka", "parquet", "json", "csv", "console", "memory")
DECODINGS = ("json", "csv", "text", "binary")
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
    """The columns as Spark's DDL; None where the format brings its own."""
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    decode: str = "json"
    decode_options: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Columns of a Kafka record beside its value, and the names they get."""
    select: tuple[str, ...] = ()
    where: str | None = None
    by: str | None = None
    """A column whose every value is a physical source of its own, such as a Kafka partition."""
    position: str | None = None
    """A whole-number column that rises along each physical source, such as a Kafka offset."""
    values: tuple[str, ...] = ()
    """The values of `by` that are waited for from the beginning."""
    name: str | None = None
    """What the gate calls it, which decides the order of equal times."""
    malformed: str | None = None
    """Where values that can't be decoded are written; None to count them only."""

    @property
    def can_be_malformed(self) -> bool:
        """Whether a value of this source may fail to decode."""
        return self.format in ("json", "csv") or (self.format == "kafka" and self.decode in ("json", "csv"))


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
    """The table of a memory sink."""


@dataclass(frozen=True)
class Trigger:
    """When a batch begins: at once after the one before, every so often, or until what is there is done."""

    available_now: bool = False
    every: str | None = None

    def __str__(self) -> str:
        return "available now" if self.available_now else f"every {self.every}" if self.every else "as fast as possible"


class SourceFile(Protocol):
    """What readers of sources need to know of the file that names them."""

    @property
    def file(self) -> str:
        """Its path."""

    @property
    def sides(self) -> Mapping[str, PipelineSource]:
        """The sources by name."""

    @property
    def conf(self) -> Mapping[str, str]:
        """Spark's settings, whose secrets are in no message."""

    @property
    def lines(self) -> Mapping[str, int]:
        """The line of each part."""


@dataclass(frozen=True)
class JoinSettings:
    """How the join is run, as `spark.join` takes it."""

    partitions: int | Literal["auto"] = "auto"
    most_partitions: int | None = None
    ordered: bool = False
    positions: bool = False
    punctuate: bool = False
    idle: str | None = None
    columns: tuple[str, ...] | None = None
    late: str | None = None


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
    """A file that gets the figures of each batch as a line of JSON."""
    name: str = "streamjoin"
    master: str | None = None
    memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each part, for errors that show only when it runs."""

    @property
    def sides(self) -> dict[str, PipelineSource]:
        """All sources: left, right unless it is a self-join, and further ones of either side."""
        return {"left": self.left} | ({"right": self.right} if self.right else {}) | dict(self.further)

    def side(self, side: str) -> dict[str, PipelineSource]:
        """The sources of one side."""
        return {name: source for name, source in self.sides.items() if name.partition("-")[0] == side}

    @property
    def needs_kafka(self) -> bool:
        """Whether Spark's Kafka connector takes part."""
        return self.sink.format == "kafka" or any(source.format == "kafka" for source in self.sides.values())


def is_secret(key: str) -> bool:
    """Whether the value under `key` must never be shown.

    >>> is_secret("kafka.sasl.jaas.config"), is_secret("kafka.ssl.key.password"), is_secret("subscribe")
    (True, True, False)
    """
    return _SECRET.search(key) is not None


def shown(options: Mapping[str, str]) -> str:
    """Options as they may be printed.

    >>> shown({"topic": "t", "kafka.ssl.key.password": "hunter2"})
    'topic=t, kafka.ssl.key.password=***'
    """
    return ", ".join(f"{key}={'***' if is_secret(key) else _in_url(value)}" for key, value in options.items())


def without_secrets(text: str, *option_sets: Mapping[str, str]) -> str:
    """`text` with the value of every secret option blotted out, wherever Spark repeats one in a message.

    >>> without_secrets('no login with password="hunter2" at http://me:other@host')
    'no login with password="***" at http://me:***@host'
    """
    for options in option_sets:
        for key, value in options.items():
            if is_secret(key) and value:
                # A JAAS setting is a whole sentence: what repeats only the password in it is caught too.
                for secret in (value, *_WITHIN.findall(value)):
                    text = text.replace(secret, "***")
    for match in _WITHIN.findall(text):
        text = text.replace(match, "***")
    return _in_url(text)


def _in_url(text: str) -> str:
    return _IN_URL.sub(r"\1***@", text)
