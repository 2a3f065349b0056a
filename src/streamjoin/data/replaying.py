"""A replay of tables as streams: rows come batch by batch in the order in which they would have arrived."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.engine.inputs import as_table
from streamjoin.model.durations import DECIMALS, Duration, nanoseconds
from streamjoin.model.errors import InputError, SpecError
from streamjoin.model.plain_types import plain_table

_NANOSECOND_DECIMALS = 9


def replay(
    streams: Mapping[str, object],
    time: str | Mapping[str, str],
    *,
    every: Duration = "1 minute",
    disorder: Duration = "0 seconds",
    speed: float | None = None,
    seed: int = 0,
) -> Iterator[dict[str, pa.Table]]:
    """The rows of several tables as they would arrive, in batches that all cover the same span of time.

    Args:
        streams: the tables by name; anything that `push` takes.
        time: the column with the time of a row, or one for each table: a timestamp or a date, without NULLs.
        every: the span of one batch.
        disorder: how much later than its time a row may arrive; each row by a random share of it.
        speed: how many seconds of the data pass in one second; without it batches follow each other at once.
        seed: of the disorder.

    Yields:
        For each span in which anything arrives, the rows of each table that has some, in the order of arrival.

    Raises:
        InputError: a table has no such column, or a time is NULL or not a timestamp.
        SpecError: `every` or `speed` is not positive.

    Examples:
        >>> import streamjoin as sj
        >>> batches = list(replay({"w": sj.data.weather()}, "observed", every="1 day"))
        >>> len(batches), batches[0]["w"].num_rows
        (32, 52)
    """
    step = nanoseconds(every)
    if step <= 0:
        raise SpecError(f"every={every!r} is not a positive duration: it is the span of one batch")
    if speed is not None and not speed > 0:
        raise SpecError(f"speed={speed} is not positive: it is the seconds of data that pass in one second")
    spread, random = nanoseconds(disorder), np.random.default_rng(seed)
    tables: dict[str, pa.Table] = {}
    arrivals: dict[str, Array] = {}
    for name, data in streams.items():
        column = time if isinstance(time, str) else time.get(name)
        table = as_table(data, name)
        if column is None or column not in table.column_names:
            raise InputError(f"{name!r} has no time column {column!r}: it has {', '.join(table.column_names)}")
        moments = _moments(table[column], name, column) + random.integers(0, spread + 1, table.num_rows)
        order = np.argsort(moments, kind="stable")
        tables[name] = table if np.all(np.diff(order) == 1) else plain_table(table).take(order)
        arrivals[name] = moments[order]
    return _batches(tables, arrivals, step, speed)


def _moments(column: pa.ChunkedArray, name: str, label: str) -> Array:
    """Nanoseconds since 1970."""
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise InputError(f"{label!r} of {name!r} is {column.type}: a replay needs a timestamp or a date")
    if column.null_count:
        raise InputError(f"{label!r} of {name!r} is NULL in {column.null_count} rows: leave them out first")
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    factor = 10 ** (_NANOSECOND_DECIMALS - DECIMALS[column.type.unit])
    moments: Array = column.cast(pa.int64()).to_numpy() * factor
    return moments


def _batches(
    tables: Mapping[str, pa.Table], arrivals: Mapping[str, Array], step: int, speed: float | None
) -> Iterator[dict[str, pa.Table]]:
    spans = {name: moments // step for name, moments in arrivals.items()}
    filled = np.unique(np.concatenate([np.empty(0, np.int64), *spans.values()]))
    cuts = {name: [*np.searchsorted(own, filled), own.size] for name, own in spans.items()}
    begin = clock.monotonic()
    for number, span in enumerate(filled):
        if speed is not None:
            due = begin + float(span + 1 - filled[0]) * step / 1e9 / speed
            clock.sleep(max(0.0, due - clock.monotonic()))
        rows = {name: (ends[number], ends[number + 1]) for name, ends in cuts.items()}
        yield {name: tables[name].slice(low, high - low) for name, (low, high) in rows.items() if high > low}
