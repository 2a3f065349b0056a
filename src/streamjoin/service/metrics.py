"""Metrics of the engine and of requests in Prometheus's text format 0.0.4.

The format is simple, so it is written here. The invariants: all samples of a name follow one HELP and TYPE, and label
values are escaped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streamjoin._version import __version__

if TYPE_CHECKING:
    from streamjoin.queries.engine.info import BatchEvent, QueryInfo, StreamInfo
    from streamjoin.service.web.connections import Connections
    from streamjoin.service.web.readers import Readers
    from streamjoin.service.web.waiting import WaitingRequests

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STATES: Final = ("pending", "running", "degraded", "paused", "failed")


class Requests:
    """Counts responses by method, route and status; one object per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        method = method if method in ("GET", "POST", "DELETE", "HEAD") else "other"
        with self._lock:
            key = (method, route, status)
            self._counts[key] = self._counts.get(key, 0) + 1
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def samples(self) -> tuple[dict[tuple[str, str, int], int], dict[str, float]]:
        """The counts, and the seconds by route."""
        with self._lock:
            return dict(self._counts), dict(self._seconds)


@dataclass
class Text:
    """Samples collected under their names."""

    lines: list[str] = field(default_factory=list)

    def add(self, name: str, about: str, samples: Iterable[tuple[Mapping[str, object], float | None]]) -> None:
        """Add all samples of one name, except those without a value; names of counters end in "_total"."""
        present = [(labels, value) for labels, value in samples if value is not None]
        if not present:
            return
        kind = "counter" if name.endswith("_total") else "gauge"
        self.lines += [f"# HELP streamjoin_{name} {about}", f"# TYPE streamjoin_{name} {kind}"]
        for labels, value in present:
            rendered = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
            self.lines.append(f"streamjoin_{name}{f'{{{rendered}}}' if rendered else ''} {_number(value)}")

    def one(self, name: str, about: str, value: float | None) -> None:
        """A name with a single sample."""
        self.add(name, about, [({}, value)])

    def __str__(self) -> str:
        return "\n".join([*self.lines, ""])


def _escaped(text: str) -> str:
    r"""A label's value.

    >>> print(_escaped('a"b'))
    a\"b
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def of_requests(text: Text, requests: Requests, readers: Readers, connections: Connections) -> None:
    """The metrics of requests and connections."""
    counts, seconds = requests.samples()
    text.add("info", "Version of the service.", [({"version": __version__}, 1)])
    text.add(
        "http_requests_total",
        "HTTP responses by method, route and status.",
        [({"method": m, "route": r, "status": s}, count) for (m, r, s), count in sorted(counts.items())],
    )
    text.add(
        "http_request_seconds_total",
        "Time spent on responses by route; for event streams, how long they were open.",
        [({"route": route}, total) for route, total in sorted(seconds.items())],
    )
    text.one("event_readers", "Open event streams.", readers.open)
    text.one("event_rows_skipped_total", "Rows skipped because readers were too slow.", readers.skipped)
    text.one("event_readers_replaced_total", "Readers disconnected in favour of new ones.", readers.replaced)
    text.one("connections", "Open connections.", connections.open)
    text.add(
        "connections_ended_total",
        "Connections closed or refused by the service, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(connections.ended.items())],
    )


def of_waiting(text: Text, kinds: Mapping[str, WaitingRequests]) -> None:
    """The metrics of requests that wait for the engine."""
    by_kind = [({"kind": kind}, waiting) for kind, waiting in kinds.items()]
    text.add("requests_waiting", "Requests waiting for the engine.", [(at, w.open) for at, w in by_kind])
    text.add(
        "requests_refused_total",
        "Requests refused because too many were waiting for the engine.",
        [(at, w.refused) for at, w in by_kind],
    )


_STREAM_FIGURES: Final[tuple[tuple[str, str, Callable[[StreamInfo], float | None]], ...]] = (
    ("rows_total", "Rows read.", lambda s: s.rows),
    ("rows_per_second", "Current rows per second.", lambda s: s.rows_per_second),
    ("lag_seconds", "Age of the newest row.", lambda s: s.lag_seconds),
    ("backpressure", "Share of the last ten seconds in which tuples waited for the engine.", lambda s: s.backpressure),
    (
        "caught_up",
        "Share done by a stream that catches up with its source; 1 if nothing is missed.",
        lambda s: 1.0 if s.caught_up is None else s.caught_up,
    ),
    ("late_total", "Late rows.", lambda s: s.late),
    ("untimed_total", "Rows without a usable time.", lambda s: s.untimed),
    ("malformed_total", "Records that could not be decoded.", lambda s: s.malformed),
    ("up", "1 if the stream can be read, else 0.", lambda s: s.error is None),
    ("failures_total", "Number of failures.", lambda s: s.failures),
)
_QUERY_FIGURES: Final[tuple[tuple[str, str, Callable[[QueryInfo], float | None]], ...]] = (
    ("rows_total", "Result rows.", lambda q: q.rows),
    (
        "cpu_seconds_total",
        "Time that threads spent joining for a query; its share of what several use.",
        lambda q: q.cpu_seconds,
    ),
    ("state_bytes", "A query's share of the bytes of the streams that it reads.", lambda q: q.state_bytes),
    ("rows_waiting", "Rows that wait for their sink.", lambda q: q.rows_undelivered),
    ("rows_missed_total", "Rows lost because the spool of their sink was full.", lambda q: q.rows_missed),
    ("overflowed_total", "Sums that are NULL because their type could not hold them.", lambda q: q.overflowed),
    ("sink_up", "Whether the sink takes rows; 0 while it fails and is retried.", lambda q: q.retry_at is None),
    ("degraded", "1 while the sink or a stream of a query that runs fails, else 0.", lambda q: q.state == "degraded"),
    ("rows_per_second", "Current rows per second.", lambda q: q.rows_per_second),
    (
        "latency_seconds",
        "Time from the arrival of tuples to the delivery of their rows in the last batch with rows.",
        lambda q: None if q.latency_ms is None else q.latency_ms / 1000,
    ),
)
_BATCH_FIGURES: Final[tuple[tuple[str, str, Callable[[BatchEvent], float | None]], ...]] = (
    ("batch", "Number of the last batch.", lambda last: last.batch),
    ("batch_seconds", "Duration of the last batch.", lambda last: last.seconds),
    ("state_bytes", "Size of the state in bytes.", lambda last: last.state_bytes),
    ("memory_bytes", "Memory of the process after the last batch.", lambda last: last.memory_bytes or None),
    ("memory_budget_bytes", "Memory above which queries are paused.", lambda last: last.memory_budget or None),
    ("batch_budget_ratio", "What the last batch took of the budget.", lambda last: last.budget_share),
    ("partitions", "Number of partitions in the last batch.", lambda last: last.partitions),
)


def of_engine(
    text: Text, streams: Sequence[StreamInfo], queries: Sequence[QueryInfo], last: BatchEvent | None, batches: int
) -> None:
    """The metrics of the engine."""
    for name, about, figure in _STREAM_FIGURES:
        text.add(f"stream_{name}", about, [({"stream": s.name}, figure(s)) for s in streams])
    for name, about, value in _QUERY_FIGURES:
        text.add(f"query_{name}", about, [({"query": q.name}, value(q)) for q in queries])
    text.add(
        "query_latency_stage_seconds",
        "The same by stage: source, read, queue, join, store, sink.",
        [({"query": q.name, "stage": stage}, span / 1000) for q in queries for stage, span in q.latency.items()],
    )
    owners = Counter(query.owner for query in queries if query.owner is not None)
    text.add("owner_queries", "Queries by owner.", [({"owner": o}, n) for o, n in sorted(owners.items())])
    states = [query.state for query in queries]
    text.add("queries", "Queries by state.", [({"state": s}, states.count(s)) for s in _STATES])
    text.one("batches_total", "Batches since the service started.", batches)
    if last is not None:
        for name, about, told in _BATCH_FIGURES:
            text.one(name, about, told(last))
