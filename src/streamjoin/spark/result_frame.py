"""The DataFrame that `join` returns: Spark's, with streamjoin's errors and, over Connect, the checkpoint's location.

Two mistakes occur in methods of Spark: two joins with one name meet in `union`, and a checkpoint that can't be written
fails `start()` with a Java stack trace. The methods here call Spark's, replace these errors, and return frames of the
same class. Over Spark Connect, `start()` also passes the location of the checkpoint to the tasks, and the query that it
returns raises the errors of the tasks' start. Other frames, such as a view of the result, report Spark's errors.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import streamjoin.model.errors as errors
from streamjoin.model.errors import CheckpointError, SpecError, StreamJoinError
from streamjoin.spark.runtime.connect import starting
from streamjoin.spark.runtime.internals import io_reason, is_connect
from streamjoin.storage.places import reached

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame

_CHECKPOINT = "checkpointlocation"
_OUR_ERROR = re.compile(r"streamjoin\.model\.errors\.(\w+): (.*)")
_IO_ERROR = re.compile(r"\(java\.(?:nio\.file|io|net)\.(\w+)\) (.*)|org\.apache\.hadoop\S+\.(\w*Exception): (.*)")


def result_frame(frame: DataFrame, refused: Callable[[str], StreamJoinError | None]) -> DataFrame:
    """`frame` with streamjoin's errors; `refused` returns why the run with an id was rejected at its start."""
    result: DataFrame = _copied(_connect_class() if is_connect(frame) else _classic_class(refused), frame)
    return result


def _copied(kind: type, value: Any) -> Any:
    """A shallow copy of `value` of another class: the constructors of Spark's classes take internals."""
    copy: Any = object.__new__(kind)
    copy.__dict__.update(vars(value))
    return copy


class _Recording:
    """A writer that knows its options."""

    given: dict[str, str]
    query_name: str | None = None

    def option(self, key: str, value: Any) -> Any:
        self._record({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        self._record(options)
        return super().options(**options)  # type: ignore[misc]

    def queryName(self, queryName: str) -> Any:  # noqa: N802, N803
        self.query_name = queryName
        return super().queryName(queryName)  # type: ignore[misc]

    def start(
        self, path: Any = None, format: Any = None, outputMode: Any = None, partitionBy: Any = None,  # noqa: A002, N803
        queryName: str | None = None, **options: Any,  # noqa: N803
    ) -> Any:  # fmt: skip
        self._record(options)
        self.query_name = queryName or self.query_name
        start = super().start  # type: ignore[misc]
        return self._run(functools.partial(start, path, format, outputMode, partitionBy, queryName), options)

    def toTable(  # noqa: N802
        self, tableName: str, format: Any = None, outputMode: Any = None, partitionBy: Any = None,  # noqa: A002, N803
        queryName: str | None = None, **options: Any,  # noqa: N803
    ) -> Any:  # fmt: skip
        self._record(options)
        self.query_name = queryName or self.query_name
        start = super().toTable  # type: ignore[misc]
        return self._run(functools.partial(start, tableName, format, outputMode, partitionBy, queryName), options)

    def _record(self, options: dict[str, Any]) -> None:
        self.given = {**self.given, **{key.lower(): str(value) for key, value in options.items()}}

    def _run(self, start: Callable[..., Any], options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _unwritable(self, reason: str) -> CheckpointError:
        where = f" ({self.given[_CHECKPOINT]})" if _CHECKPOINT in self.given else ""
        return CheckpointError(
            f"Spark can't start the query: {reason}. The checkpoint{where} and the target of the sink must be writable"
        )


@functools.cache
def _classic_class(refused: Callable[[str], StreamJoinError | None]) -> Any:
    """The class of the frames; created at the first join because pyspark is an optional dependency."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.group import GroupedData
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    class Writer(_Recording, DataStreamWriter):
        """Spark's writer, with streamjoin's errors when a query starts."""

        def _run(self, start: Callable[..., Any], options: dict[str, Any]) -> Any:
            if _CHECKPOINT in self.given:
                # Hadoop's clients repeat what fails for minutes before they say so.
                reached(self.given[_CHECKPOINT])
            try:
                query = start(**options)
            except Py4JJavaError as error:
                reason = io_reason(error)
                if reason is None:
                    raise
                raise self._unwritable(reason) from error
            failure = refused(str(query.runId))
            if failure is not None:
                # The query ends by itself with the same error; until then, no other can use its checkpoint.
                with contextlib.suppress(StreamingQueryException):
                    query.awaitTermination()
                raise failure
            return query

    return _frame_class(Classic, GroupedData, Writer)


@functools.cache
def _connect_class() -> Any:
    """The class of the frames over Spark Connect."""
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.dataframe import DataFrame as Remote
    from pyspark.sql.connect.group import GroupedData
    from pyspark.sql.connect.streaming.query import StreamingQuery
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    class Query(StreamingQuery):
        """Spark's query, which raises streamjoin's errors where tasks failed with one."""

        def awaitTermination(self, timeout: Any = None) -> Any:  # noqa: N802
            with _our_errors():
                return super().awaitTermination(timeout)

        def processAllAvailable(self) -> None:  # noqa: N802
            with _our_errors():
                super().processAllAvailable()

    class Writer(_Recording, DataStreamWriter):
        """Spark's writer, which passes the location of the checkpoint to the tasks."""

        frame: DataFrame

        def _run(self, start: Callable[..., Any], options: dict[str, Any]) -> Any:
            try:
                with starting(self.frame, self.given, self.query_name) as location:
                    query = start(**{**options, "checkpointLocation": location})
            except AnalysisException as error:
                raise _named(error) from error
            except SparkConnectGrpcException as error:
                match = _IO_ERROR.search(str(error))
                if match is None:
                    raise
                reason = f"{match[2] or match[4]} ({match[1] or match[3]})"
                raise self._unwritable(reason) from error
            return _copied(Query, query)

    return _frame_class(Remote, GroupedData, Writer)


def _frame_class(spark_frame: type, spark_groups: type, writer_class: type) -> Any:
    """A subclass of a DataFrame class of Spark's whose methods return frames of the same class."""

    class ResultFrame(spark_frame):  # type: ignore[misc]
        """A streaming DataFrame with a join in its plan."""

        @property
        def writeStream(self) -> Any:  # noqa: N802
            writer = _copied(writer_class, super().writeStream)
            writer.given, writer.frame = {}, self
            return writer

    class ResultGroups(spark_groups):  # type: ignore[misc]
        """A grouped `ResultFrame`."""

    def ours(result: Any) -> Any:
        if type(result) is spark_frame:
            return _copied(ResultFrame, result)
        return _copied(ResultGroups, result) if type(result) is spark_groups else result

    for subclass, spark_class in ((ResultFrame, spark_frame), (ResultGroups, spark_groups)):
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
            raise _named(error) from error

    return kept


def _named(error: AnalysisException) -> Exception:
    """The error of two joins with one name in streamjoin's words; other errors as they are."""
    metric = (error.getMessageParameters() or {}).get("metricName", "")
    name = metric.removeprefix("streamjoin_")
    if error.getCondition() != "DUPLICATED_METRICS_NAME" or name == metric:
        return error
    return SpecError(
        f"two joins of one query are both called {name!r}, and each needs its own directory in the checkpoint: "
        "give them different names, join(..., name='...')"
    )


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Raise the error of streamjoin's that a task failed with instead of Spark's, which quotes it."""
    from pyspark.errors import StreamingQueryException

    try:
        yield
    except StreamingQueryException as error:
        match = _OUR_ERROR.search(str(error))
        kind = getattr(errors, match[1], None) if match else None
        if match is None or kind is None:
            raise
        raise kind(match[2]) from error
