"""One stream's way from Spark into the engine: a streaming query of its own whose every micro-batch is a portion.

Spark can't add a source to a query that runs, so each stream has a query and a part of the checkpoint to itself. The
invariant: Spark commits a micro-batch only after the engine has it safe; one that is in the log already is passed over.
A frame may carry records that could not be decoded, told by a column of their own: they are set aside in the same step.
A query that fails is started again from where it was, after a pause that doubles with each failure.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamjoin.adhoc.engine.executor import FeedKeeper, StreamInput, pause_after
from streamjoin.adhoc.engine.inbox import Inbox, Portion
from streamjoin.adhoc.engine.journal import Position
from streamjoin.adhoc.language.plan import Stream
from streamjoin.config.pipeline import without_secrets
from streamjoin.model.errors import InputError, SetupError, StateError, StreamJoinError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def newest_batch(position: Position | None) -> int:
    """The last micro-batch of a stream that the journal has; -1 for none."""
    return position if isinstance(position, int) else -1


def stream_of(name: str, given: StreamInput, time: str) -> Stream:
    """A streaming DataFrame as a registered stream; the column of malformed records is none of its columns.

    Raises:
        InputError: it is no streaming DataFrame, has no such column, or has one that Arrow can't carry.
        SchemaError: it has no such time column.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    frame, mark = given.frame, given.malformed
    if frame is None or not getattr(frame, "isStreaming", False):
        what = "a DataFrame that is not streaming; read it with spark.readStream" if hasattr(frame, "schema") else ""
        raise InputError(f"stream {name!r} is a streaming DataFrame, not {what or repr(frame)}")
    try:
        schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkTypeError as error:
        raise InputError(f"stream {name!r} has a column that Arrow can't carry: {error.getMessage()}") from error
    if mark is not None and mark not in schema.names:
        raise InputError(f"stream {name!r} has no column {mark!r}, which would tell its malformed records")
    return Stream(name, pa.schema([(field.name, field.type) for field in schema if field.name != mark]), time)


_PLACES: Final = ("path", "subscribe", "subscribepattern", "assign", "host", "port", "table", "topic")
"""The options of a source that say where it reads."""


def origin_of(frame: DataFrame) -> str | None:
    """Where a frame reads from, as its plan says; None if it has no plan that can be read here (Spark Connect)."""
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        return None
    leaves = plan.queryExecution().analyzed().collectLeaves()
    return "; ".join(sorted({_place_of(leaves.apply(number)) for number in range(leaves.size())}))


def _place_of(leaf: Any) -> str:
    """What a leaf of a plan reads: its format, and the options that say where."""
    kind = str(leaf.nodeName())
    options: dict[str, str] = {}
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        kind, pairs = str(source.className()), source.options().toSeq()
        options = {str(pairs.apply(n)._1()).lower(): str(pairs.apply(n)._2()) for n in range(pairs.size())}
    elif kind == "StreamingRelationV2":
        kind = str(leaf.sourceName())
        options = {str(name).lower(): str(value) for name, value in dict(leaf.extraOptions()).items()}
    if "path" in options:
        options["path"] = _local_path(options["path"])
    return " ".join([kind, *(f"{name}={options[name]}" for name in _PLACES if name in options)])


def _local_path(path: str) -> str:
    """A path as it is from any directory, without the scheme that local ones may have.

    >>> _local_path("file:/data/x/"), _local_path("s3://bucket/x")
    ('/data/x', 's3://bucket/x')
    """
    plain = re.sub(r"^file:/+", "/", path)
    return plain if "://" in plain else os.path.abspath(plain)  # noqa: PTH100 - links stay as they are


_LONGEST_PORTION: Final = 60.0
STEADY: Final = 15
"""Seconds after which a query that was started again and has not failed counts as recovered, though nothing came."""


class SparkFeed:
    """Reads one stream with a Spark query; `position` is the last micro-batch in the engine's log."""

    def __init__(
        self,
        stream: Stream,
        frame: DataFrame,
        inbox: Inbox,
        checkpoint: str,
        trigger: str | None,
        keeper: FeedKeeper,
        mark: str | None = None,
    ) -> None:
        self.stream = stream
        self.position: Position | None = None
        self._frame, self._inbox, self._checkpoint, self._trigger = frame, inbox, checkpoint, trigger
        self._keeper, self._mark = keeper, mark
        self.failed = False
        self._failures = 0
        """In a row."""
        self._reason: str | None = None
        """Why the last portion could not be handed in."""
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        self._taking = threading.Lock()

    def start(self) -> None:
        """Start the query.

        Raises:
            SetupError: Spark refuses it.
        """
        self._query = query = self._started()
        self._in_background(lambda: self._watch(query))

    def start_later(self, error: StreamJoinError) -> None:
        """Start the query as after a failure, because Spark refused it now."""
        self._in_background(lambda: self._watch(self._again(error)))

    def _in_background(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, daemon=True, name=f"feed {self.stream.name}").start()

    def _started(self) -> StreamingQuery:
        writer = self._read().writeStream.foreachBatch(_while_held(self._take))
        writer = writer.option("checkpointLocation", self._checkpoint)
        if self._trigger is not None:
            writer = writer.trigger(processingTime=self._trigger)
        try:
            return writer.start()
        except Exception as error:
            raise SetupError(f"Spark can't read stream {self.stream.name!r}: {_cause(error)}") from error

    def _read(self) -> DataFrame:
        """The frame; Spark can't hand on a struct that is NULL and whose fields are not nullable."""
        from pyspark.sql.types import StructType

        kind = self._frame.schema[self._mark].dataType if self._mark is not None else None
        if self._mark is None or not isinstance(kind, StructType):
            return self._frame
        return self._frame.withColumn(self._mark, self._frame[self._mark].cast(kind.toNullable()))

    def _take(self, frame: DataFrame, spark_batch: int) -> None:
        with self._taking:
            if spark_batch <= newest_batch(self.position):
                return
            if self._stopping.is_set():
                # Short, because Spark searches what it is told with patterns that overflow its stack.
                raise StateError("the engine stops; this batch is run again at the next start")
            try:
                self._hand(frame, spark_batch)
            except Exception as error:
                # Spark's own message has this one somewhere within the traces of two languages.
                self._reason = _cause(error)
                raise
        self._recovered()

    def _hand(self, frame: DataFrame, spark_batch: int) -> None:
        read_at = time.monotonic()
        with self._inbox.reading(self.stream.name):
            table, malformed = split(frame.toArrow(), self._mark)
        table = table.select(self.stream.schema.names).cast(self.stream.schema)
        self._inbox.hand(Portion(self.stream.name, spark_batch, table, malformed, read_at=read_at))
        self.position = spark_batch

    def _watch(self, query: StreamingQuery | None) -> None:
        """Wait for the query's end; after a failure tell of it and start again, until the feed is stopped."""
        while query is not None:
            try:
                if self.failed and not query.awaitTermination(STEADY):
                    self._recovered()
                query.awaitTermination()
                error = StateError(f"stream {self.stream.name!r} was stopped from outside, through Spark")
            except Exception as failure:
                error = StateError(f"stream {self.stream.name!r} failed: {self._reason or _cause(failure)}")
            self._reason = None
            query = self._again(error)

    def _again(self, error: StreamJoinError) -> StreamingQuery | None:
        """The query, started again after a pause; None when that is not wanted any more."""
        while not self._stopping.is_set():
            pause = pause_after(self._failures)
            self._failures += 1
            self.failed = True
            if not self._keeper.stream_failed(self, error, pause) or self._stopping.wait(pause):
                return None
            with self._starting:
                if self._stopping.is_set():
                    return None
                try:
                    self._keeper.stream_restarts(self)
                    self._query = self._started()
                except StreamJoinError as refused:
                    error = refused
                else:
                    return self._query
        return None

    def _recovered(self) -> None:
        if self.failed:
            self.failed, self._failures = False, 0
            self._keeper.stream_recovered(self)

    def process_all_available(self) -> None:
        """Wait until everything that was there when this was called is safe in the engine.

        Raises:
            StateError: the stream fails.
        """
        # A query that starts again may hand in its first portion before it is known here.
        with self._starting:
            query = self._query
        if query is not None and query.isActive:
            try:
                query.processAllAvailable()
            except Exception as error:
                raise StateError(f"stream {self.stream.name!r} failed: {self._reason or _cause(error)}") from error

    def stop(self) -> None:
        """Stop the query; a portion that it is handing in is still taken."""
        self._stopping.set()
        # Spark's own stop interrupts the batch that runs, in the middle of whatever it does.
        if self._taking.acquire(timeout=_LONGEST_PORTION):
            self._taking.release()
        with self._starting:
            if self._query is not None:
                self._query.stop()

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return self._query is not None and bool(self._query.isActive)


def _while_held(take: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """A method as a callback that keeps nothing alive: Spark holds on to it after the query until the JVM collects it.

    The feed is held by its engine, and as long as its query runs by the thread that watches it.
    """
    held = weakref.WeakMethod(take)

    def relay(frame: DataFrame, spark_batch: int) -> None:
        method = held()
        if method is None:
            raise StateError("the engine of this stream is gone")
        method(frame, spark_batch)

    return relay


def split(table: pa.Table, mark: str | None) -> tuple[pa.Table, pa.Table | None]:
    """The rows, and of those that have a `mark` what it says; None where there are none.

    >>> rows, bad = split(pa.table({"x": [1, None], "bad": [None, {"value": "!"}]}), "bad")
    >>> rows.to_pydict(), bad.to_pydict()
    ({'x': [1], 'bad': [None]}, {'value': ['!']})
    """
    if mark is None or table.column(mark).null_count == table.num_rows:
        return table, None
    marked = table.column(mark).is_valid()
    malformed = table.filter(marked).select([mark])
    if pa.types.is_struct(malformed.schema.field(0).type):
        malformed = pa.Table.from_struct_array(malformed.column(0))
    return table.filter(table.column(mark).is_null()), malformed


_ENVELOPE: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_JAVA_CLASS: Final = re.compile(r"[a-z][\w.$]*\.[A-Z][\w$]*(?:Exception|Error): ")


def _cause(error: Any) -> str:
    r"""The line of what Spark says that tells a user something, without what is secret.

    >>> _cause(ValueError("it failed\n\tat a.B\nCaused by: java.io.IOException: no such topic\n\tat c.D"))
    'no such topic'
    """
    text = str(getattr(error, "desc", None) or error).strip()
    text = text.partition("\n=== Streaming Query ===")[0].rpartition("Caused by: ")[2]
    text = _JAVA_CLASS.sub("", _ENVELOPE.sub("", text, count=1), count=1).strip()
    return without_secrets(text.splitlines()[0]) if text else type(error).__name__
