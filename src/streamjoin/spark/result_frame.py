"""The DataFrame that `join` returns: Spark's, with streamjoin's errors and, over Connect, the checkpoint's location.

Three mistakes occur in methods of Spark: two joins with one name meet in `union`, a checkpoint that can't be written
fails `start()` with a Java stack trace, and a function for `foreachBatch` leaves out rows. The methods here call
Spark's, replace these errors, run what was left out (`whole_batches.py`), and return frames of the same class. Over
Spark Connect, `start()` also passes the location of the checkpoint to the tasks, and the query that it returns raises
the errors of the tasks' start. Other frames, such as a view of the result, report Spark's errors.

Over Spark Connect the client passes the checkpoint's location and the join's settings to the tasks. Spark copies the
settings of a session when a query starts, and gives the copy to all tasks of the query. So the settings are made right
before the start and taken back right after it. Spark asks for no checkpoint where a sink needs none and chooses a
directory itself, which a client can't find out: a join over Connect therefore needs a location.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import streamjoin.model.errors as errors
from streamjoin.model.errors import CheckpointError, NotSupportedError, SetupError, SpecError
from streamjoin.spark.backlog import REPORTING_IDLE, backlog_query
from streamjoin.spark.runtime.checkpoints import COMMITS_LATER, followed, joins_of, query_settings, refused
from streamjoin.spark.runtime.internals import io_reason, is_connect
from streamjoin.spark.runtime.session import set_meanwhile
from streamjoin.spark.runtime.unattended import CHECKPOINT
from streamjoin.spark.runtime.whole_batches import reading_all
from streamjoin.storage.places import reached

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

    from streamjoin.storage.blueprint import Blueprint

_DEFAULT = "spark.sql.streaming.checkpointLocation"
_starting = threading.Lock()


@contextlib.contextmanager
def starting(frame: DataFrame, options: Mapping[str, str], name: str | None) -> Iterator[str]:
    """Yield the location of the checkpoint of a query over `frame`; the query is started within.

    Args:
        frame: a DataFrame with joins in its plan.
        options: the options of the query's writer, with keys in lower case.
        name: the query's name.

    Raises:
        SetupError: no location is given.
        SpecError: the location is relative, or another than that given to a join.
    """
    spark, joins = frame.sparkSession, joins_of(frame)
    if options.get("asyncprogresstrackingenabled", "false").lower() == "true":
        raise SetupError(COMMITS_LATER)
    location = _location(spark, joins, options.get("checkpointlocation"), name)
    settings = {
        CHECKPOINT: location,
        **query_settings(joins, lambda key: spark.conf.get(key), lambda key: spark.conf.get(key, None) is not None),
    }
    with _starting, set_meanwhile(spark, settings):
        yield location


def _location(spark: SparkSession, joins: list[Blueprint], given: str | None, name: str | None) -> str:
    wanted = {join.checkpoint.rstrip("/") for join in joins if join.checkpoint is not None}
    if given is None and not wanted:
        parent = spark.conf.get(_DEFAULT, None)
        if not parent:
            raise SetupError(
                "over Spark Connect a join can't find out which checkpoint Spark chooses: name one with "
                ".option('checkpointLocation', ...)"
            )
        return _whole(f"{parent.rstrip('/')}/{name or uuid.uuid4()}")
    location = given if given is not None else min(wanted)
    if wanted - {location.rstrip("/")}:
        raise SpecError(
            f"the query's checkpoint is {location!r}, and the join was given {', '.join(map(repr, sorted(wanted)))}: "
            "give both the same location, or leave checkpoint= of the join out"
        )
    return _whole(location)


def _whole(location: str) -> str:
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:|/", location):
        raise SpecError(
            f"the checkpoint {location!r} is relative to a directory of the Spark Connect server: give the whole path"
        )
    return location


_CHECKPOINT, _FORMAT = "checkpointlocation", "#format"
_OUR_ERROR = re.compile(r"streamjoin\.model\.errors\.(\w+): (.*)")
_IO_ERROR = re.compile(r"\(java\.(?:nio\.file|io|net)\.(\w+)\) (.*)|org\.apache\.hadoop\S+\.(\w*Exception): (.*)")


def result_frame(frame: DataFrame) -> DataFrame:
    """`frame` with streamjoin's errors, and with batches that are run whole."""
    result: DataFrame = _copied(_connect_class() if is_connect(frame) else _classic_class(), frame)
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
    backlog: bool = False
    """Whether it processes what is there, and ends."""

    def option(self, key: str, value: Any) -> Any:
        self._record({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        self._record(options)
        return super().options(**options)  # type: ignore[misc]

    def format(self, source: str) -> Any:
        self.given = {**self.given, _FORMAT: source}
        return super().format(source)  # type: ignore[misc]

    def trigger(self, **when: Any) -> Any:
        self.backlog = bool(when.get("availableNow"))
        return super().trigger(**when)  # type: ignore[misc]

    def queryName(self, queryName: str) -> Any:  # noqa: N802, N803
        self.query_name = queryName
        return super().queryName(queryName)  # type: ignore[misc]

    def start(
        self, path: Any = None, format: Any = None, outputMode: Any = None, partitionBy: Any = None,  # noqa: A002, N803
        queryName: str | None = None, **options: Any,  # noqa: N803
    ) -> Any:  # fmt: skip
        self._record({**options, **({} if format is None else {_FORMAT: format})})
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
def _classic_class() -> Any:
    """The class of the frames; created at the first join because pyspark is an optional dependency."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.group import GroupedData
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    class ClassicWriter(_Recording, DataStreamWriter):
        """Spark's writer, with streamjoin's errors when a query starts."""

        frame: DataFrame

        def foreachBatch(self, func: Any) -> Any:  # noqa: N802
            return super().foreachBatch(reading_all(func, joins_of(self.frame)) if callable(func) else func)

        def _run(self, start: Callable[..., Any], options: dict[str, Any]) -> Any:
            if _CHECKPOINT in self.given:
                # Hadoop's clients repeat what fails for minutes before they say so.
                reached(self.given[_CHECKPOINT])
            spark, joins = self.frame.sparkSession, joins_of(self.frame)
            ends = any(join.end_of_input for join in joins)
            if ends:
                self._check_end(spark)
            starting_as = contextlib.ExitStack()
            if self.backlog:
                starting_as.enter_context(set_meanwhile(spark, REPORTING_IDLE))
                starting_as.enter_context(followed(joins))
            try:
                with starting_as:
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
            if not self.backlog or not joins:
                return query
            return backlog_query(spark, query, functools.partial(self._last, start, options) if ends else None)

        def _check_end(self, spark: Any) -> None:
            """Refuse to end the input of a query that does not end, or can't go on from a checkpoint."""
            if not self.backlog:
                raise SpecError(
                    "end_of_input=True ends the input with the backlog of a run: add .trigger(availableNow=True)"
                )
            if _CHECKPOINT not in self.given and not spark.conf.get(_DEFAULT, None):
                raise SpecError(
                    "end_of_input=True decides the last tuples in a batch that continues from the checkpoint: add "
                    '.option("checkpointLocation", "...")'
                )
            if self.given.get(_FORMAT, "").lower() == "memory":
                raise NotSupportedError(
                    "end_of_input=True needs a sink that continues from a checkpoint, and Spark's memory sink does "
                    "not: write to files, a table or a function for foreachBatch"
                )

        def _last(self, start: Callable[..., Any], options: dict[str, Any], checkpoint: str) -> Any:
            """Start the query again, for the one batch that is planned."""
            # Without the option the writer's own would be that of the first query.
            DataStreamWriter.option(DataStreamWriter.trigger(self, once=True), "checkpointLocation", checkpoint)
            try:
                with followed(joins_of(self.frame)):
                    query = start(**{k: v for k, v in options.items() if k.lower() != _CHECKPOINT})
            finally:
                DataStreamWriter.trigger(self, availableNow=True)
            failure = refused(str(query.runId))
            if failure is not None:
                raise failure
            return query

    return _frame_class(Classic, GroupedData, ClassicWriter)


@functools.cache
def _connect_class() -> Any:
    """The class of the frames over Spark Connect."""
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.dataframe import DataFrame as Remote
    from pyspark.sql.connect.group import GroupedData
    from pyspark.sql.connect.streaming.query import StreamingQuery
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    class RemoteQuery(StreamingQuery):
        """Spark's query, which raises streamjoin's errors where tasks failed with one."""

        def awaitTermination(self, timeout: Any = None) -> Any:  # noqa: N802
            with _our_errors():
                return super().awaitTermination(timeout)

        def processAllAvailable(self) -> None:  # noqa: N802
            with _our_errors():
                super().processAllAvailable()

    class RemoteWriter(_Recording, DataStreamWriter):
        """Spark's writer, which passes the location of the checkpoint to the tasks."""

        frame: DataFrame

        def foreachBatch(self, func: Any) -> Any:  # noqa: N802, ARG002
            raise NotSupportedError(
                "over Spark Connect a function for foreachBatch runs in a process of the server that has no part in "
                "the batch, where a join can't run: use another sink, or a classic session"
            )

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
            return _copied(RemoteQuery, query)

    return _frame_class(Remote, GroupedData, RemoteWriter)


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
    name = metric.removeprefix("streamjoin_").removesuffix(".rows")
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
