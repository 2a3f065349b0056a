"""Metrics of the engine and of requests in Prometheus's text format 0.0.4.

The format is simple, so it is written here. The invariants: all samples of a name follow one HELP and TYPE, and label
values are escaped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

    def add(
        self, name: str, kind: str, about: str, samples: Iterable[tuple[Mapping[str, object], float | None]]
    ) -> None:
        """Add all samples of one name, except those without a value."""
        present = [(labels, value) for labels, value in samples if value is not None]
        if not present:
            return
        self.lines += [f"# HELP streamjoin_{name} {about}", f"# TYPE streamjoin_{name} {kind}"]
        for labels, value in present:
            rendered = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
            self.lines.append(f"streamjoin_{name}{f'{{{rendered}}}' if rendered else ''} {_number(value)}")

    def one(self, name: str, kind: str, about: str, value: float | None) -> None:
        """A name with a single sample."""
        self.add(name, kind, about, [({}, value)])

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
    text.add("info", "gauge", "Version of the service.", [({"version": __version__}, 1)])
    text.add(
        "http_requests_total",
        "counter",
        "HTTP responses by method, route and status.",
        [({"method": m, "route": r, "status": s}, count) for (m, r, s), count in sorted(counts.items())],
    )
    text.add(
        "http_request_seconds_total",
        "counter",
        "Time spent on responses by route; for event streams, how long they were open.",
        [({"route": route}, total) for route, total in sorted(seconds.items())],
    )
    text.one("event_readers", "gauge", "Open event streams.", readers.open)
    text.one("event_rows_skipped_total", "counter", "Rows skipped because readers were too slow.", readers.skipped)
    text.one("event_readers_replaced_total", "counter", "Readers disconnected in favour of new ones.", readers.replaced)
    text.one("connections", "gauge", "Open connections.", connections.open)
    text.add(
        "connections_ended_total",
        "counter",
        "Connections closed or refused by the service, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(connections.ended.items())],
    )


def of_waiting(text: Text, kinds: Mapping[str, WaitingRequests]) -> None:
    """The metrics of requests that wait for the engine."""
    by_kind = [({"kind": kind}, waiting) for kind, waiting in kinds.items()]
    text.add("requests_waiting", "gauge", "Requests waiting for the engine.", [(at, w.open) for at, w in by_kind])
    text.add(
        "requests_refused_total",
        "counter",
        "Requests refused because too many were waiting for the engine.",
        [(at, w.refused) for at, w in by_kind],
    )


def of_engine(
    text: Text, streams: Sequence[StreamInfo], queries: Sequence[QueryInfo], last: BatchEvent | None, batches: int
) -> None:
    """The metrics of the engine."""
    by_stream = [({"stream": stream.name}, stream) for stream in streams]
    by_query = [({"query": query.name}, query) for query in queries]
    text.add("stream_rows_total", "counter", "Rows read.", [(at, s.rows) for at, s in by_stream])
    text.add(
        "stream_rows_per_second", "gauge", "Current rows per second.", [(at, s.rows_per_second) for at, s in by_stream]
    )
    text.add("stream_lag_seconds", "gauge", "Age of the newest row.", [(at, s.lag_seconds) for at, s in by_stream])
    text.add(
        "stream_backpressure",
        "gauge",
        "Share of the last ten seconds in which tuples waited for the engine.",
        [(at, s.backpressure) for at, s in by_stream],
    )
    text.add(
        "stream_caught_up",
        "gauge",
        "Share done by a stream that catches up with its source; 1 if nothing is missed.",
        [(at, 1.0 if s.caught_up is None else s.caught_up) for at, s in by_stream],
    )
    text.add("stream_late_total", "counter", "Late rows.", [(at, s.late) for at, s in by_stream])
    text.add("stream_untimed_total", "counter", "Rows without a usable time.", [(at, s.untimed) for at, s in by_stream])
    text.add(
        "stream_malformed_total",
        "counter",
        "Records that could not be decoded.",
        [(at, s.malformed) for at, s in by_stream],
    )
    text.add(
        "stream_up",
        "gauge",
        "1 if the stream can be read, else 0.",
        [(at, float(s.error is None)) for at, s in by_stream],
    )
    text.add("stream_failures_total", "counter", "Number of failures.", [(at, s.failures) for at, s in by_stream])
    text.add("query_rows_total", "counter", "Result rows.", [(at, q.rows) for at, q in by_query])
    text.add(
        "query_cpu_seconds_total",
        "counter",
        "Time that threads spent joining for a query; its share of what several use.",
        [(at, q.cpu_seconds) for at, q in by_query],
    )
    text.add(
        "query_state_bytes",
        "gauge",
        "A query's share of the bytes of the streams that it reads.",
        [(at, q.state_bytes) for at, q in by_query],
    )
    owners = Counter(query.owner for query in queries if query.owner is not None)
    text.add("owner_queries", "gauge", "Queries by owner.", [({"owner": o}, n) for o, n in sorted(owners.items())])
    waiting = [(at, q.rows_undelivered) for at, q in by_query]
    text.add("query_rows_waiting", "gauge", "Rows that wait for their sink.", waiting)
    missed = [(at, q.rows_missed) for at, q in by_query]
    text.add("query_rows_missed_total", "counter", "Rows lost because the spool of their sink was full.", missed)
    sink_up = [(at, float(q.retry_at is None)) for at, q in by_query]
    text.add("query_sink_up", "gauge", "Whether the sink takes rows; 0 while it fails and is retried.", sink_up)
    degraded = [(at, float(q.state == "degraded")) for at, q in by_query]
    text.add("query_degraded", "gauge", "1 while the sink or a stream of a query that runs fails, else 0.", degraded)
    text.add(
        "query_rows_per_second", "gauge", "Current rows per second.", [(at, q.rows_per_second) for at, q in by_query]
    )
    text.add(
        "query_latency_seconds",
        "gauge",
        "Time from the arrival of tuples to the delivery of their rows in the last batch with rows.",
        [(at, None if q.latency_ms is None else q.latency_ms / 1000) for at, q in by_query],
    )
    text.add(
        "query_latency_stage_seconds",
        "gauge",
        "The same by stage: source, read, queue, join, store, sink.",
        [({**at, "stage": stage}, span / 1000) for at, q in by_query for stage, span in q.latency.items()],
    )
    states = [query.state for query in queries]
    text.add("queries", "gauge", "Queries by state.", [({"state": s}, states.count(s)) for s in _STATES])
    text.one("batches_total", "counter", "Batches since the service started.", batches)
    if last is not None:
        text.one("batch", "gauge", "Number of the last batch.", last.batch)
        text.one("batch_seconds", "gauge", "Duration of the last batch.", last.seconds)
        text.one("state_bytes", "gauge", "Size of the state in bytes.", last.state_bytes)
        text.one("memory_bytes", "gauge", "Memory of the process after the last batch.", last.memory_bytes or None)
        text.one("memory_budget_bytes", "gauge", "Memory above which queries are paused.", last.memory_budget or None)
        text.one("batch_budget_ratio", "gauge", "What the last batch took of the budget.", last.budget_share)
        text.one("partitions", "gauge", "Number of partitions in the last batch.", last.partitions)
