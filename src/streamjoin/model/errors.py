"""Every error a user can meet, in one tree.

Each message says what was wrong, where, and what to do; state is left as it was before the call::

    StreamJoinError
    ├── SpecError (ValueError)          the join as written can't be: negative width, unknown unit, ...
    │   ├── ExpressionError             a Theta or SQL text that does not parse or is not allowed
    │   │   └── QueryError              an ad-hoc query's text; knows the line, the column and the length
    │   ├── SchemaError                 the spec does not fit the data: unknown column, types that don't compare
    │   ├── PipelineFileError           a pipeline file that can't be run; the message names the line
    │   └── NotSupportedError           well-formed, but not there (yet): the message says what is
    ├── InputError (ValueError)         what was pushed is not what the join takes
    ├── StateError (RuntimeError)       the call comes at the wrong moment: closed or broken join, forked process
    ├── TooManyRowsError (RuntimeError) a call has more result rows than it may return; `push_iter` streams them
    ├── CheckpointError (RuntimeError)  stored state is missing, foreign or damaged
    ├── SetupError (RuntimeError)       something outside is missing: Java, pyspark, a jar
    └── ServiceError (RuntimeError)     a service can't be reached, or answered that something is wrong
"""

from __future__ import annotations


class StreamJoinError(Exception):
    """The root: catch this to catch everything streamjoin raises on purpose."""


class SpecError(StreamJoinError, ValueError):
    """The join as written cannot be."""


class ExpressionError(SpecError):
    """A condition's text does not parse, or uses something that is not allowed."""


class QueryError(ExpressionError):
    """An ad-hoc query's text does not parse, does not fit the streams, or asks for something that is not there.

    `message` is what was wrong, without the place; `line` and `column` count from 1, `length` is in characters.
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


class NotSupportedError(SpecError):
    """The spec is well-formed but asks for something that is not there."""


class InputError(StreamJoinError, ValueError):
    """A pushed table, interleaving or source is not what the join takes."""


class StateError(StreamJoinError, RuntimeError):
    """The call comes at the wrong moment."""


class TooManyRowsError(StreamJoinError, RuntimeError):
    """A call has more rows than `max_rows`; nothing was joined."""


class CheckpointError(StreamJoinError, RuntimeError):
    """Stored state is missing, belongs to something else, or is damaged."""


class SetupError(StreamJoinError, RuntimeError):
    """Something outside the package is missing."""


class ServiceError(StreamJoinError, RuntimeError):
    """A service can't be reached, or answered with a problem; `status` is None where there was no answer."""

    def __init__(self, text: str, status: int | None = None, problem: dict[str, object] | None = None) -> None:
        """`problem` are the answer's problem details."""
        super().__init__(text)
        self.status = status
        self.problem = dict(problem or {})
