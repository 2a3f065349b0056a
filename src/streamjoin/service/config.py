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
from streamjoin.storage.settings import StorageSettings

DEFAULT_PORT: Final = 8765
LEAST_TOKEN: Final = 16
"""The smallest length of a token; shorter ones can be guessed."""


@dataclass(frozen=True)
class Limits:
    """The limits of the service.

    `window_seconds` limits time windows (lateness is not included), `window_rows` windows of rows and of integer times;
    `request_bytes` and `request_seconds` the size and the arrival of a request; a batch that runs for longer than
    `batch_seconds` is stuck; `connections` limits the open connections, and `readers` the event streams among them;
    `rows_kept` is the number of newest rows kept per query, and `rows_bytes` the size of those kept of all queries
    for readers that come later; `spool_rows` and `spool_bytes` limit the rows that wait for
    a query's sink; `query_candidates`, `query_rows` and `query_bytes` limit what a query may take of one batch;
    `aside_bytes` the late and the malformed rows kept per stream; `scan_pairs` the pairs per second of a join without
    key or band. `engine_rows` and `engine_bytes` limit what all queries may take of one batch together, `engine_memory`
    the memory of the process; without them it is 70 % of what the process may have, and half of that for the bytes.
    A source gives at most `batch_rows` and `batch_bytes` to one batch.
    """

    queries: int = 500
    streams_in_query: int = 5
    window_seconds: float = 3600.0
    window_rows: int = 1_000_000
    request_bytes: int = 65_536
    request_seconds: float = 20.0
    batch_seconds: float = 60.0
    connections: int = 512
    readers: int = 64
    rows_kept: int = 1000
    rows_bytes: int = 64 << 20
    spool_rows: int = 1_000_000
    spool_bytes: int = 1 << 30
    aside_bytes: int = 4 << 30
    query_candidates: int = 2_000_000_000
    query_rows: int = 5_000_000
    query_bytes: int = 1 << 30
    scan_pairs: int = 50_000_000
    engine_rows: int | None = None
    engine_bytes: int | None = None
    engine_memory: int | None = None
    batch_rows: int = 100_000
    batch_bytes: int = 64 << 20

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
