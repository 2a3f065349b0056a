"""Reading all rows of a query in order, page by page: cursors, and what a page says of rows that are gone.

A cursor names a query, not only its name: one of a query that was dropped is never taken for one of its successor. Rows
have the same numbers after a restart, but those of a batch that a crash left unfinished may have been given out and be
computed again: a cursor behind them goes back to the last row of which the checkpoint knows, and the page says how many
rows it may repeat.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.model.errors import CursorGoneError, SpecError
from streamjoin.queries.engine.figures import RunningQuery
from streamjoin.queries.engine.info import QueryState
from streamjoin.queries.sinks.base import ReadRows

LONGEST = 400
"""The characters of a cursor, which are far fewer."""
_NUMBER = 18
"""The digits of a row's number."""


@dataclass(frozen=True)
class RowCursor:
    """A place in the rows of a query: after row number `row`, as a process (`run`) counted it."""

    query: str
    created_at: float
    run: str
    row: int

    def __str__(self) -> str:
        fields = [self.query, self.created_at, self.run, self.row]
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")

    @staticmethod
    def of(text: str) -> RowCursor:
        """The cursor of a text.

        Raises:
            SpecError: it is none.
        """
        try:
            padded = text + "=" * (-len(text) % 4)
            if len(text) > LONGEST:
                raise ValueError
            query, created_at, run, row = json.loads(base64.b64decode(padded.encode("ascii"), b"-_", validate=True))
        except (ValueError, TypeError, RecursionError):
            raise no_cursor(text) from None
        fits = isinstance(query, str) and isinstance(created_at, int | float) and isinstance(run, str)
        if not (fits and type(row) is int and 0 <= row < 10**_NUMBER):
            raise no_cursor(text)
        return RowCursor(query, created_at, run, row)


@dataclass(frozen=True)
class RowsPage:
    """Rows of a query in order, none left out among them."""

    table: pa.Table
    next: str
    """The cursor of the rows that follow."""
    total: int
    """The number of rows so far."""
    remaining: int
    """How many of them come after this page."""
    missed: int
    """How many rows before this page are no longer kept."""
    repeated: int
    """How many rows, from the first one on, may have been given out before a crash."""
    created_at: float | None
    """Which query it is of those that had the name; None while it is not in force."""
    state: QueryState
    """The state of the query; no rows follow the last one of a query that is `dropped`."""


def no_cursor(text: str) -> SpecError:
    """What is wrong with a text that is no cursor."""
    return SpecError(f"{text[:50]!r} is no cursor: take `next` of the page before, or a row number, 0 for the first")


def read_page(name: str, entries: list[RunningQuery], after: str | int | None, limit: int) -> RowsPage:
    """The rows after a cursor or a row number, of one of the queries that have or had the name, the newest first.

    Without `after` they are the newest rows.

    Raises:
        SpecError: it is no cursor, or one of another query, or there is no row of this number yet.
        CursorGoneError: the query of the cursor was dropped.
    """
    if limit < 1:
        raise SpecError(f"a page has at least 1 row, not {limit}")
    text = "0" if after is None else str(after)
    entry, run, row = entries[0], None, 0
    if text.isascii() and text.isdigit() and len(text) <= _NUMBER:
        row = int(text)
    else:
        cursor = RowCursor.of(text)
        if cursor.query != name:
            raise SpecError(f"the cursor is one of query {cursor.query!r}, and not of {name!r}")
        found = next((entry for entry in entries if entry.created_at == cursor.created_at), None)
        if found is None:
            raise CursorGoneError(
                f"the query {name!r} of the cursor was dropped, or was in another checkpoint: begin anew, with after=0"
            )
        entry, run, row = found, cursor.run, cursor.row
    rows = entry.newest
    begin = row if run in (None, rows.run) else min(row, rows.before)
    # A state that was read before is not too new for the rows.
    state = entry.state
    if after is None:
        newest = rows.after(0, limit)
        begin = row = newest.total - newest.table.num_rows
        read = ReadRows(begin, newest.total, newest.table)
    else:
        read = rows.read(begin, limit)
    if row > read.total and begin == row:
        raise SpecError(f"there is no row number {row:,} yet: query {name!r} has {read.total:,}")
    following = str(RowCursor(name, entry.created_at, rows.run, read.end))
    missed, repeated = read.begin - begin, row - begin
    return RowsPage(read.table, following, read.total, read.total - read.end, missed, repeated, entry.created_at, state)
