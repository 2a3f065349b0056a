"""Joins without key or band: how many pairs they are expected to compare, and whether that is too many.

Each new tuple is compared with every tuple of the other stream within the window. What is expected follows from the
rates of the streams now; a stream that has sent nothing yet is expected to send nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from streamjoin.adhoc.core.intervals import fit_interval
from streamjoin.adhoc.engine.figures import RunningStream
from streamjoin.adhoc.language.plan import JoinStep, Query
from streamjoin.model.errors import SpecError
from streamjoin.model.expression.nodes import Column
from streamjoin.model.window import CountWindow


def is_scan(query: Query, step: JoinStep) -> bool:
    """Whether no index serves a step: it has no key, no band and no interval."""

    def type_of(column: Column) -> pa.DataType:
        return query.schemas[column.qualifier].field(column.name).type

    return not step.terms and fit_interval(step.others, step.right, type_of) is None


def expected_pairs(query: Query, step: JoinStep, streams: Mapping[str, RunningStream]) -> float:
    """The pairs per second that a step of a query compares; before the engine runs nothing is known of its streams."""
    if any(query.source(alias).stream.name not in streams for alias in (step.right, *step.related)):
        return 0.0
    right = streams[query.source(step.right).stream.name]
    return max(
        _within(right, left, step) + _within(left, right, step)
        for left in (streams[query.source(alias).stream.name] for alias in step.related)
    )


def _within(new: RunningStream, stored: RunningStream, step: JoinStep) -> float:
    window = step.window
    held = float(window.n) if isinstance(window, CountWindow) else stored.density * window.length
    # Tuples of one moment say nothing of how many come in a window: not more than there were so far.
    held = min(held, float(stored.rows))
    return new.rate.value * held


def scan_warning(query: Query, streams: Mapping[str, RunningStream], limit: int) -> str | None:
    """What to say about the joins of a query that no index serves; None if there are none."""
    scans = {step.right: expected_pairs(query, step, streams) for step in query.steps if is_scan(query, step)}
    if not scans:
        return None
    alias, pairs = max(scans.items(), key=lambda item: item[1])
    allowed = f"; above {limit:,} it needs allow_scan" if pairs > limit else ""
    return (
        f"the join with {alias!r} has no key and no band, so every pair within the window is compared: about "
        f"{pairs:,.0f} pairs per second at the current rates{allowed}"
    )


def pairs_scanned(query: Query, streams: Mapping[str, RunningStream]) -> float:
    """The most pairs per second that a join of a query without an index is expected to compare."""
    return max((expected_pairs(query, step, streams) for step in query.steps if is_scan(query, step)), default=0.0)


def refuse_scan(query: Query, streams: Mapping[str, RunningStream], limit: int) -> None:
    """Refuse a query that is expected to compare too many pairs.

    Raises:
        SpecError: it is.
    """
    if pairs_scanned(query, streams) > limit:
        raise SpecError(
            f"{scan_warning(query, streams, limit)}. Add an equality or a band, shorten the window, or create it with "
            "allow_scan=True"
        )
