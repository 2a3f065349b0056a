"""Whether a query stays within the service's limits: its streams and its windows, before the engine sees it.

Reads the frame of the text alone, so an error points at the place; names and types are the engine's to check.
"""

from __future__ import annotations

from streamjoin.adhoc import clauses
from streamjoin.adhoc.clauses import JoinClause, QueryText
from streamjoin.model.parsing import Scan
from streamjoin.model.window import CountWindow, TimeWindow
from streamjoin.service.config import Limits


def check_limits(sql: str, limits: Limits) -> None:
    """Refuse a query that asks for more than is allowed.

    Raises:
        QueryError: it joins too many streams, or a window is too long; or its text is not a query at all.
    """
    source = Scan.of(QueryText(sql)).source
    frame = clauses.read(source)
    if len(frame.joins) + 1 > limits.streams_in_query:
        extra = frame.joins[limits.streams_in_query - 1]
        raise source.error(
            f"this service joins at most {limits.streams_in_query} streams in a query, not {len(frame.joins) + 1}",
            *extra.table.span,
        )
    for join in frame.joins:
        told = _too_long(join, limits)
        if told is not None:
            raise source.error(told, *join.window_span)


def _too_long(join: JoinClause, limits: Limits) -> str | None:
    window = join.window
    if isinstance(window, TimeWindow) and window.is_duration:
        if window.length > limits.window_seconds * 1e9:
            return f"a window of this service is at most {limits.window_seconds:,g} seconds"
        return None
    size = window.n if isinstance(window, CountWindow) else window.length
    return (
        f"a window of this service is at most {limits.window_rows:,} rows or units"
        if size > limits.window_rows
        else None
    )
