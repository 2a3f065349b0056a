"""All errors that streamjoin raises, in one hierarchy.

Each message says what was wrong, where, and what to do; state is left as it was before the call:

    StreamJoinError
    ├── SpecError (ValueError)          the spec is invalid: negative width, unknown unit, ...
    │   ├── ExpressionError             a Theta or SQL text that does not parse or is not allowed
    │   │   └── QueryError              an ad-hoc query's text; knows the line, the column and the length
    │   ├── SchemaError                 the spec does not fit the data: unknown column, types that don't compare
    │   ├── PipelineFileError           a pipeline file that can't be run; the message names the line
    │   ├── UnknownQueryError           an ad-hoc engine has no query of this name
    │   │   └── CursorGoneError         a cursor is one of a query that was dropped
    │   └── NotSupportedError           valid, but not supported; the message says what is
    ├── InputError (ValueError)         the join does not accept the pushed data
    │   ├── BudgetExceededError         an ad-hoc query took more of a batch than it may; knows figures and place
    │   └── EngineBudgetExceededError   all ad-hoc queries together hold too much, and this one the most; knows figures
    ├── StateError (RuntimeError)       the call is not allowed now: closed or broken join, forked process
    ├── InterruptedBatchError (RuntimeError)  a batch of ad-hoc queries was stopped from outside; it can be run again
    ├── BackPressureError (RuntimeError) a live join has no room for tuples now, or an engine for changes; try again
    ├── TooManyRowsError (RuntimeError) a call has more result rows than it may return; `push_iter` streams them
    ├── CheckpointError (RuntimeError)  stored state is missing, foreign or damaged
    ├── SetupError (RuntimeError)       an external component is missing: Java, pyspark, a jar
    └── ServiceError (RuntimeError)     a service can't be reached, or answered with an error
"""

from __future__ import annotations


class StreamJoinError(Exception):
    """The base class of all errors that streamjoin raises on purpose."""


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line: our own text, or the kind of error and the first line of its text."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        # Errors of others may have no text that can be made.
        lines = []
    if isinstance(error, StreamJoinError) and lines:
        return " ".join(lines)
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


class SpecError(StreamJoinError, ValueError):
    """The spec is invalid."""


class ExpressionError(SpecError):
    """A condition's text does not parse, or uses something that is not allowed."""


class QueryError(ExpressionError):
    """An ad-hoc query's text does not parse, does not fit the streams, or uses something unsupported.

    `message` describes the error without its place; `line` and `column` count from 1, `length` is in characters.
    """

    def __init__(self, text: str, message: str = "", line: int = 1, column: int = 1, length: int = 1) -> None:
        """`text` is the whole message, with the line and its carets."""
        super().__init__(text)
        self.message = message or text
        self.line = line
        self.column = column
        self.length = length


class SchemaError(SpecError):
    """The spec does not fit the columns it was given."""


class PipelineFileError(SpecError):
    """A pipeline file can't be run as it is written."""


class UnknownQueryError(SpecError):
    """There is no ad-hoc query of this name, or there is none any more."""


class CursorGoneError(UnknownQueryError):
    """A cursor is one of a query that was dropped, or of another checkpoint."""


class NotSupportedError(SpecError):
    """The spec is valid but asks for something that is not supported."""


class InputError(StreamJoinError, ValueError):
    """The join does not accept a pushed table, interleaving or source."""


class BudgetExceededError(InputError):
    """An ad-hoc query took more of a batch than its budget allows, and has no rows of it.

    `kind` is candidates, rows or bytes; `limit` is the budget, `reached` what was counted when the query was stopped,
    and `place` the step of the plan where.
    """

    def __init__(self, kind: str, limit: int, reached: int, place: str) -> None:
        """The message is made of the figures."""
        super().__init__(
            f"over its budget of {limit:,} {kind} a batch: {reached:,} at {place}; "
            "narrow the condition or the window, or raise the budget"
        )
        self.kind = kind
        self.limit = limit
        self.reached = reached
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return BudgetExceededError, (self.kind, self.limit, self.reached, self.place)


class EngineBudgetExceededError(InputError):
    """All queries together hold more than the engine's budget, and this one held the most: it is paused.

    `kind` is rows, bytes or memory; `limit` is the budget, `total` what all queries held (of memory: what the process
    has), and `held` what this one did, which is `share` of what all queries held.
    """

    def __init__(self, kind: str, limit: int, total: int, held: int, share: float) -> None:
        """The message is made of the figures."""
        most, all_hold, own = (
            f"{amount:,} rows" if kind == "rows" else format_bytes(amount) for amount in (limit, total, held)
        )
        what, of = {
            "rows": (" a batch", f"{own} of {all_hold}"),
            "bytes": (" for the rows of a batch", f"{own} of {all_hold}"),
            "memory": (f" of memory ({all_hold} in use)", own),
        }[kind]
        super().__init__(
            f"paused: the engine's budget of {most}{what} is exceeded; this query held {of}, {100 * share:.0f} %. "
            f"Narrow its condition or its window, or raise engine_{kind}, and resume it"
        )
        self.kind = kind
        self.limit = limit
        self.total = total
        self.held = held
        self.share = share

    def __reduce__(self) -> tuple[object, ...]:
        return EngineBudgetExceededError, (self.kind, self.limit, self.total, self.held, self.share)


def format_bytes(count: float) -> str:
    """An amount of memory in words.

    >>> format_bytes(900), format_bytes(1_300_000_000), format_bytes(2 << 30)
    ('900 bytes', '1.3 GB', '2.1 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    units = iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    count /= 1000
    while count >= 999.95 and unit != "TB":
        count, unit = count / 1000, next(units)
    return f"{count:.1f}".removesuffix(".0") + f" {unit}"


class InterruptedBatchError(StreamJoinError, RuntimeError):
    """A batch of ad-hoc queries was stopped from outside; state is as before it."""


class StateError(StreamJoinError, RuntimeError):
    """The call is not allowed in the current state."""


class BackPressureError(StreamJoinError, RuntimeError):
    """A live join has no room for the pushed tuples; none was taken."""


class TooManyRowsError(StreamJoinError, RuntimeError):
    """A call has more rows than `max_rows`; nothing was joined."""


class CheckpointError(StreamJoinError, RuntimeError):
    """Stored state is missing, belongs to something else, or is damaged."""


class SetupError(StreamJoinError, RuntimeError):
    """An external component is missing."""


class ServiceError(StreamJoinError, RuntimeError):
    """A service can't be reached, or answered with an error; `status` is None if there was no answer."""

    def __init__(self, text: str, status: int | None = None, problem: dict[str, object] | None = None) -> None:
        """`problem` holds the problem details of the response."""
        super().__init__(text)
        self.status = status
        self.problem = dict(problem or {})
