"""The service's settings as frozen data: the content of its TOML file, checked, with defaults.

The token is a secret: it is not in `repr`, and it is never printed or served.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from streamjoin.config.pipeline import PipelineSink, PipelineSource
from streamjoin.model.errors import SpecError
from streamjoin.queries.engine.info import Record
from streamjoin.storage.settings import StorageSettings

DEFAULT_PORT: Final = 8765
LEAST_TOKEN: Final = 16
"""The smallest length of a token; shorter ones can be guessed."""


@dataclass(frozen=True)
class Limits(Record):
    """The limits of the service."""

    queries: int = 500
    """Queries at the same time."""
    streams_in_query: int = 5
    """Streams that a query may join."""
    window_seconds: float = 3600.0
    """The longest time window; lateness is not included."""
    window_rows: int = 1_000_000
    """The longest window of rows or integer times."""
    request_bytes: int = 65_536
    """The largest body of a request."""
    request_seconds: float = 20.0
    """The time within which a request must arrive."""
    batch_seconds: float = 60.0
    """The time after which a running batch is stuck."""
    connections: int = 512
    """Open connections."""
    readers: int = 64
    """Open event streams."""
    rows_kept: int = 1000
    """The newest rows that are kept per query."""
    rows_bytes: int = 64 << 20
    """The bytes of the rows of all queries that are kept for later readers."""
    spool_rows: int = 1_000_000
    """Rows that may wait for the sink of a query."""
    spool_bytes: int = 1 << 30
    """The bytes of those."""
    aside_bytes: int = 4 << 30
    """Bytes of the late and of the malformed rows that are kept per stream."""
    query_candidates: int = 2_000_000_000
    """Pairs that a query may compare in a batch."""
    query_rows: int = 5_000_000
    """Rows that a query may produce in a batch."""
    query_bytes: int = 1 << 30
    """The bytes of those."""
    scan_pairs: int = 50_000_000
    """Pairs per second from which a join without key or band needs `allow_scan`."""
    engine_rows: int | None = None
    """Rows that all queries together may produce in a batch; null for any number."""
    engine_bytes: int | None = None
    """The bytes of those in memory; null for half of the memory."""
    engine_memory: int | None = None
    """The memory that the process may have; null for 70 % of what there is for it."""
    batch_rows: int = 100_000
    """Rows that a source gives to one batch."""
    batch_bytes: int = 64 << 20
    """The bytes of those."""

    def __post_init__(self) -> None:
        least = {"streams_in_query": 2, "request_bytes": 256, "connections": 16}
        for name, value in vars(self).items():
            if value is not None and value < least.get(name, 1):
                raise SpecError(f"the limit {name} is at least {least.get(name, 1)}, not {value}")


@dataclass(frozen=True)
class StreamConfig:
    """One stream: its source, its time column, and its lateness."""

    source: PipelineSource
    time: str
    lateness: str | int = 0


@dataclass(frozen=True)
class ServiceConfig:
    """A whole file. `sinks` are the sinks that a query can use; `{query}` in a path is the query's name."""

    file: str = "streamjoin.toml"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)
    tokens: str | None = None
    """A file with the tokens of several clients, which is read again when it changes (`clients`)."""
    certificate: str | None = None
    """A file with the certificate chain; with it the service speaks TLS."""
    key: str | None = None
    """The file of the certificate's private key."""
    log: Literal["text", "json"] = "text"
    allowed_hosts: tuple[str, ...] = ()
    engine: Literal["embedded", "spark"] = "spark"
    """Who reads and joins the streams: this process, or Spark."""
    engine_from: str | None = None
    """Where that is set; None if it is the default."""
    checkpoint: str = "streamjoin-data"
    trigger: str | None = None
    partitions: int | Literal["auto"] | None = None
    executor: Literal["driver", "distributed"] | None = None
    """Where Spark joins; chosen by the checkpoint or the master if not given."""
    sharing: str = "cost"
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    sinks: Mapping[str, PipelineSink] = field(default_factory=dict)
    limits: Limits = Limits()
    master: str | None = None
    memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    storage: StorageSettings | None = None
    """How stores are reached; None for the settings of the environment."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each part, for errors that occur at run time."""
    quarantine: tuple[str, ...] = ()
    """Queries that are paused before anything is computed."""

    def __post_init__(self) -> None:
        reason = None if self.token is None else check_token(self.token)
        if reason is not None:
            raise SpecError(reason)
        if (self.certificate is None) != (self.key is None):
            raise SpecError("TLS needs both files: set certificate and key in [service]")
        if self.token is None and self.tokens is None and not is_loopback(self.host):
            raise SpecError(
                f"host {self.host!r} can be reached from other machines, so a token is needed: set token in [service], "
                "or STREAMJOIN_SERVICE__TOKEN (make one with: openssl rand -hex 32), or tokens, or use host 127.0.0.1"
            )

    @property
    def sides(self) -> dict[str, PipelineSource]:
        """The sources by stream, for the readers of pipelines."""
        return {name: stream.source for name, stream in self.streams.items()}

    @property
    def engine_words(self) -> str:
        """Which engine runs, and why."""
        where = "in this process" if self.engine == "embedded" else "on Spark"
        if self.engine_from is not None:
            return f"engine: {self.engine}, {where} ({self.engine_from})"
        return (
            f'engine: {self.engine}, {where}, as {self.file} has no engine in [service]; engine = "embedded" joins in '
            "this process, without Java"
        )

    @property
    def needs_kafka(self) -> bool:
        """Whether the service needs Spark's Kafka connector."""
        return "kafka" in {
            *(source.format for source in self.sides.values()),
            *(sink.format for sink in self.sinks.values()),
        }

    @property
    def url(self) -> str:
        """The URL of the service for a client on this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else "[::1]" if self.host == "::" else self.host  # noqa: S104
        return self.url_of(host.strip("[]"), self.port)

    def url_of(self, host: str, port: int) -> str:
        """The URL of the service at an address."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_token(token: str) -> str | None:
    """What is wrong with a token; None if nothing is."""
    if len(token) < LEAST_TOKEN:
        return f"a token has at least {LEAST_TOKEN} characters; make one with: openssl rand -hex 32"
    if not (token.isascii() and token.isprintable() and " " not in token):
        return "a token is printable ASCII without spaces; make one with: openssl rand -hex 32"
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
