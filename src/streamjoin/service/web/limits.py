"""Checks a query's streams and windows against the service's limits, before the engine sees it.

It parses only the frame of the text, so an error has a position; the engine checks names and types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.source_text import SourceText
from streamjoin.model.window import CountWindow, TimeWindow, Window
from streamjoin.queries.language import clauses
from streamjoin.queries.language.clauses import JoinClause, QueryText
from streamjoin.service.config import Limits

MOST_WORDS: Final = 5000
"""The largest number of tokens of a query, which bounds the cost of parsing it."""


def check_limits(sql: str, limits: Limits) -> None:
    """Reject a query that exceeds the limits.

    Raises:
        QueryError: it has too many words, joins too many streams, or a window is too long; or its text is no query.
    """
    source = Scan.of(QueryText(sql)).source
    if len(source.words) > MOST_WORDS:
        extra = source.words[MOST_WORDS]
        message = f"a query of this service has at most {MOST_WORDS:,} tokens, not {len(source.words):,}"
        raise source.error(message, extra.start, extra.end)
    for frame in clauses.read(source):
        _check_joins(source, frame.joins, limits)


def _check_joins(source: SourceText, joins: Sequence[JoinClause], limits: Limits) -> None:
    if len(joins) + 1 > limits.streams_in_query:
        excess = joins[limits.streams_in_query - 1]
        raise source.error(
            f"this service joins at most {limits.streams_in_query} streams in a query, not {len(joins) + 1}",
            *excess.table.span,
        )
    for join in joins:
        reason = _too_long(join, limits)
        if reason is not None:
            raise source.error(reason, *(join.window_span if join.range is None else join.range.span))


def _too_long(join: JoinClause, limits: Limits) -> str | None:
    window: Window | None = join.window
    if join.range is not None:
        reach = max(abs(join.range.low), abs(join.range.high))
        window = TimeWindow(f"{reach} ns" if join.range.is_duration else reach)
    if window is None:
        # The engine bounds what an as-of join without a tolerance keeps.
        return None
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
