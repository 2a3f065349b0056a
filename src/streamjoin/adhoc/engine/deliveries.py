"""A batch's rows to the sinks of their queries: who took theirs, and who refused.

The invariant: what a sink refuses is kept in the log before the batch counts as done, and no sink sees another's error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.engine.figures import RunningQuery, mean_event_time
from streamjoin.adhoc.engine.journal import Journal
from streamjoin.adhoc.language.plan import Stream

_log = logging.getLogger(__name__)


def deliver(
    outputs: Mapping[str, pa.Table],
    arrived: Arrived,
    entries: Mapping[str, RunningQuery],
    streams: Mapping[str, Stream],
    journal: Journal,
) -> dict[str, str]:
    """Give each query's rows to its sink; returns why sinks refused, by query."""
    filled = {name: rows for name, rows in outputs.items() if rows.num_rows}
    for name, rows in filled.items():
        entries[name].newest.write(arrived.batch, rows)
    refused = _written(filled, arrived.batch, entries)
    times: dict[frozenset[str], float | None] = {}
    for name, rows in filled.items():
        entry = entries[name]
        if name in refused:
            journal.write_undelivered(name, arrived.batch, rows)
            entry.undelivered += rows.num_rows
            continue
        if entry.streams not in times:
            buckets = [bucket for stream, bucket in arrived.buckets.items() if stream in entry.streams]
            times[entry.streams] = mean_event_time(buckets, streams)
        entry.delivered(rows.num_rows, times[entry.streams])
    return refused


def _written(filled: Mapping[str, pa.Table], batch: int, entries: Mapping[str, RunningQuery]) -> dict[str, str]:
    """Write what can be written together at once, and the rest one by one; why sinks refused."""
    refused: dict[str, str] = {}
    groups: dict[Any, list[str]] = {}
    for name in filled:
        try:
            groups.setdefault(_together(entries[name].writer) or ("alone", name), []).append(name)
        except Exception as error:
            refused[name] = _said(error)
    for names in groups.values():
        writers = [_opened(entries[name].writer) for name in names]
        if len(names) > 1:
            try:
                writers[0].write_all(batch, [(w, filled[name]) for w, name in zip(writers, names, strict=True)])
                continue
            except Exception:
                # One of them is the reason: each is tried on its own, and may send its rows twice.
                _log.info("queries %s can't be written together", names, exc_info=True)
        for writer, name in zip(writers, names, strict=True):
            try:
                if writer is not None:
                    writer.write(batch, filled[name])
            except Exception as error:
                refused[name] = _said(error)
    return refused


def _together(writer: Any) -> Any:
    return getattr(writer, "together", None)


def _opened(writer: Any) -> Any:
    return getattr(writer, "opened", writer)


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
