"""`live`: starts a live join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa

from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.engine.settings import check_workers
from streamjoin.joins.live.idle import MonotonicClock, WaitClock
from streamjoin.joins.live.live import Live
from streamjoin.joins.live.settings import LiveLimits, idle_seconds
from streamjoin.model.errors import SpecError
from streamjoin.model.output import check_wanted
from streamjoin.model.spec import JoinSpec


def live(
    spec: JoinSpec,
    algorithm: str = "auto",
    workers: int = 1,
    *,
    ordered: bool = True,
    index: str | None = None,
    index_options: Mapping[str, float] | None = None,
    options: Mapping[str, object] | None = None,
    left_schema: pa.Schema | None = None,
    right_schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    idle: str | timedelta | None = None,
    queue_rows: int = LiveLimits.queue_rows,
    queue_bytes: int = LiveLimits.queue_bytes,
    result_rows: int = LiveLimits.result_rows,
    result_bytes: int = LiveLimits.result_bytes,
    batch_rows: int = LiveLimits.batch_rows,
    clock: WaitClock | None = None,
) -> Live:
    """Start a join that runs by itself: sources push from any thread, consumers read rows as they are found.

    Args:
        spec: what to join.
        algorithm: "auto", or one by name; all give the same rows.
        workers: threads that share the work.
        ordered: True for the rows in result order, the same for any threads; False for rows as soon as they are found,
            with punctuations that say how far the result is complete. Most algorithms find rows in result order anyway.
        index: the index by name, for algorithms that use one; by default the one that suits the condition.
        index_options: settings of that index, such as {"merge_ratio": 0.125}.
        options: settings of the algorithm, by name.
        left_schema: the left side's schema, if it should be checked, or its types fixed, before the first push.
        right_schema: likewise for the right side.
        columns: the columns of the result; others are not stored. The result's time is always included. Default: all.
        idle: in event-time order, after how long without a push or `advance` a source is no longer waited for.
        queue_rows: how many tuples may wait in front of the join, and in its gate; then sources wait.
        queue_bytes: likewise, in bytes.
        result_rows: how many rows may wait for a consumer; then the join waits.
        result_bytes: likewise, in bytes.
        batch_rows: how many rows a record batch has at the most.
        clock: the clock that `idle` is measured with, for tests.
    """
    if not isinstance(spec, JoinSpec):
        raise SpecError(f"live takes a JoinSpec, not {type(spec).__name__}")
    if not isinstance(ordered, bool):
        raise SpecError(f"ordered={ordered!r}: it is True or False")
    spec = spec.in_order("arrival")
    check_workers(workers)
    return Live(
        spec,
        AlgorithmRequest(algorithm, index, index_options or {}, options or {}),
        workers,
        ordered=ordered,
        schemas=(left_schema, right_schema),
        columns=check_wanted(columns),
        idle=idle_seconds(spec, idle),
        clock=clock or MonotonicClock(),
        limits=LiveLimits(queue_rows, queue_bytes, result_rows, result_bytes, batch_rows),
    )
