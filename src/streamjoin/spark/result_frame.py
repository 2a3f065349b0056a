"""The DataFrame that `join` returns: Spark's, with streamjoin's errors for two mistakes.

Both mistakes occur in methods of Spark: two joins with one name meet in `union`, and a checkpoint that can't be written
fails `start()` with a Java stack trace. The methods here call Spark's, replace these errors, and return frames of the
same class. Other frames, such as a view of the result, run in the same way but report Spark's errors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import CheckpointError, SpecError, StreamJoinError

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import DataFrame

_CHECKPOINT = "checkpointlocation"
_IO = "java.io.IOException"


def result_frame(frame: DataFrame, refused: Callable[[str], StreamJoinError | None]) -> DataFrame:
    """`frame` with streamjoin's errors; `refused` returns why the run with an id was rejected at its start."""
    result: DataFrame = _classes(refused)(frame._jdf, frame.sparkSession)
    return result


@functools.cache
def _classes(refused: Callable[[str], StreamJoinError | None]) -> Any:
    """The class of the frames; created at the first join because pyspark is an optional dependency."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.group import GroupedData
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    class Writer(DataStreamWriter):
        """Spark's writer, with streamjoin's errors when a query starts."""

        _checkpoint: str | None = None

        def option(self, key: str, value: Any) -> Any:
            if key.lower() == _CHECKPOINT:
                self._checkpoint = str(value)
            return super().option(key, value)

        def options(self, **options: Any) -> Any:
            self._checkpoint = _given(options) or self._checkpoint
            return super().options(**options)

        def start(self, *args: Any, **options: Any) -> Any:
            self._checkpoint = _given(options) or self._checkpoint
            return self._started(super().start, *args, **options)

        def toTable(self, *args: Any, **options: Any) -> Any:  # noqa: N802
            self._checkpoint = _given(options) or self._checkpoint
            return self._started(super().toTable, *args, **options)

        def _started(self, start: Callable[..., Any], *args: Any, **options: Any) -> Any:
            try:
                query = start(*args, **options)
            except Py4JJavaError as error:
                reason = _io_reason(error)
                if reason is None:
                    raise
                where = f" ({self._checkpoint})" if self._checkpoint else ""
                raise CheckpointError(
                    f"Spark can't start the query: {reason}. The checkpoint{where} and the target of the sink must "
                    "be writable"
                ) from error
            failure = refused(str(query.runId))
            if failure is not None:
                # The query ends by itself with the same error; until then, no other can use its checkpoint.
                with contextlib.suppress(StreamingQueryException):
                    query.awaitTermination()
                raise failure
            return query

    class ResultFrame(Classic):
        """A streaming DataFrame with a join in its plan."""

        @property
        def writeStream(self) -> Any:  # noqa: N802
            return Writer(self)

    class ResultGroups(GroupedData):
        """A grouped `ResultFrame`."""

    def ours(result: Any) -> Any:
        if type(result) is Classic:
            return ResultFrame(result._jdf, result.sparkSession)
        return ResultGroups(result._jgd, result._df) if type(result) is GroupedData else result

    for subclass, spark_class in ((ResultFrame, Classic), (ResultGroups, GroupedData)):
        for name, method in vars(spark_class).items():
            if not name.startswith("_") and callable(method):
                setattr(subclass, name, _kept(method, ours))
    return ResultFrame


def _kept(method: Callable[..., Any], ours: Callable[[Any], Any]) -> Callable[..., Any]:
    """A method of Spark's; `ours` converts its result."""
    from pyspark.errors import AnalysisException

    @functools.wraps(method)
    def kept(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return ours(method(self, *args, **options))
        except AnalysisException as error:
            metric = (error.getMessageParameters() or {}).get("metricName", "")
            name = metric.removeprefix("streamjoin_")
            if error.getCondition() != "DUPLICATED_METRICS_NAME" or name == metric:
                raise
            raise SpecError(
                f"two joins of one query are both called {name!r}, and each needs its own directory in the checkpoint: "
                "give them different names, join(..., name='...')"
            ) from error

    return kept


def _given(options: dict[str, Any]) -> str | None:
    return next((str(value) for key, value in options.items() if key.lower() == _CHECKPOINT), None)


def _io_reason(error: Py4JJavaError) -> str | None:
    """The message of a Java I/O error; None for other errors."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    failure = error.java_exception
    while failure is not None:
        if is_instance_of(SparkContext._gateway, failure, _IO):
            return f"{failure.getMessage()} ({failure.getClass().getSimpleName()})"
        failure = failure.getCause()
    return None
