"""Streams that Spark reads: each has a streaming query of its own whose every micro-batch is handed in.

Spark can't add a source to a query that runs, so each stream has a query and a part of the checkpoint to itself. What
is more than a batch should take is handed in over several. The invariant: Spark commits a micro-batch only after the
engine has it safe; one that is in the log already is passed over, and so is the part of one that is.
A frame may carry records that could not be decoded, told by a column of their own: they are set aside in the same step.
A query that fails is started again from where it was, after a pause that doubles with each failure.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from streamjoin.config.pipeline import without_secrets
from streamjoin.model.errors import InputError, SetupError, SpecError, StateError, StreamJoinError
from streamjoin.queries.engine.executor import FeedKeeper, StreamInput, pause_after
from streamjoin.queries.engine.inbox import Inbox, SourceBatch, Staging, plain_position
from streamjoin.queries.engine.journal import FileJournal, Position
from streamjoin.queries.language.plan import Stream
from streamjoin.spark.columns import check_collations, quoted
from streamjoin.storage.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def newest_batch(position: Position | None) -> int:
    """The last micro-batch of a stream that the journal has all of; -1 for none."""
    if isinstance(position, int):
        return position
    within = plain_position(position)
    return within - 1 if isinstance(within, int) else -1


def stream_of(name: str, given: StreamInput, time: str) -> Stream:
    """A streaming DataFrame as a registered stream; the column of malformed records is none of its columns.

    Raises:
        InputError: it is no streaming DataFrame, has no such column, or has one that Arrow can't carry.
        SchemaError: it has no such time column.
        NotSupportedError: a column has a collation.
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
    check_collations(f"a query of stream {name!r}", frame)
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


def missing_directory(frame: DataFrame) -> str | None:
    """A directory that a frame reads and that is gone: Spark reads on as if it were empty. None if all are there."""
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        return None
    leaves = plan.queryExecution().analyzed().collectLeaves()
    session: Any = frame.sparkSession
    jvm, conf = session._jvm, session._jsparkSession.sessionState().newHadoopConf()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if str(leaf.nodeName()) != "StreamingRelation" or not leaf.dataSource().options().contains("path"):
            continue
        path = jvm.org.apache.hadoop.fs.Path(str(leaf.dataSource().options().apply("path")))
        # Of a path without wildcards that is not there it gives null.
        if path.getFileSystem(conf).globStatus(path) is None:
            return str(path)
    return None


def _local_path(path: str) -> str:
    """A path as it is from any directory, without the scheme that local ones may have.

    >>> _local_path("file:/data/x/"), _local_path("s3://bucket/x")
    ('/data/x', 's3://bucket/x')
    """
    plain = re.sub(r"^file:/+", "/", path)
    return plain if "://" in plain else os.path.abspath(plain)  # noqa: PTH100 - links stay as they are


_LONGEST_BATCH: Final = 60.0
STEADY: Final = 15
"""Seconds after which a query that was started again and has not failed counts as recovered, though nothing came."""


LOOKED_AT_EVERY: Final = 5
"""Seconds between two looks at whether the directories that a query reads are still there."""


class HandedIn(NamedTuple):
    """How far a micro-batch is handed in: where the stream goes on, the rows of this step, and those that are left."""

    position: Position
    rows: int
    left: int


class MicroBatchReader(Protocol):
    """Brings the micro-batches of a stream into the engine."""

    def resume(self, position: Position | None) -> None:
        """Go on at a position of the journal."""

    def hand(self, frame: Any, spark_batch: int) -> Iterator[HandedIn]:
        """Hand in a micro-batch, step by step; each is safe in the journal when it is told."""


class TableReader:
    """Reads micro-batches into this process; what is more than a batch should take is handed in over several."""

    def __init__(self, stream: Stream, mark: str | None, inbox: Inbox, staged: Place | None) -> None:
        self._stream, self._mark, self._inbox = stream, mark, inbox
        self._staging = Staging(staged)
        """What a micro-batch has that is not handed in yet."""

    def resume(self, position: Position | None) -> None:
        """Go on at a position of the journal, also within a micro-batch."""
        self._staging.resume(position)

    def hand(self, frame: Any, spark_batch: int) -> Iterator[HandedIn]:
        """Hand in a micro-batch, in the order of time."""
        read_at = time.monotonic()
        if not self._staging.has_more:
            with self._inbox.reading(self._stream.name):
                table, malformed = split(frame.toArrow(), self._mark)
            table = table.select(self._stream.schema.names).cast(self._stream.schema)
            self._staging.begin(table, malformed, spark_batch, self._stream.time)
        while self._staging.has_more:
            given = self._staging.next(self._inbox.pace)
            self._inbox.hand(
                SourceBatch(self._stream.name, given.position, given.rows, given.malformed, read_at=read_at)
            )
            self._staging.handed(given)
            yield HandedIn(given.position, given.rows.num_rows, self._staging.rows_left)


class SparkFeed:
    """Reads one stream with a Spark query; `position` is the last micro-batch in the engine's log."""

    def __init__(
        self,
        stream: Stream,
        frame: DataFrame,
        checkpoint: str,
        trigger: str | None,
        keeper: FeedKeeper,
        mark: str | None,
        reader: MicroBatchReader,
    ) -> None:
        self._reader = reader
        self.stream = stream
        self.position: Position | None = None
        self._frame, self._checkpoint, self._trigger = frame, checkpoint, trigger
        self._keeper, self._mark = keeper, mark
        self.failed = False
        self._failures = 0
        """In a row."""
        self._reason: str | None = None
        """Why the last micro-batch could not be handed in."""
        self._directory_gone = False
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
        self._reader.resume(self.position)
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
        return self._frame.withColumn(self._mark, self._frame[quoted(self._mark)].cast(kind.toNullable()))

    def _take(self, frame: DataFrame, spark_batch: int) -> None:
        with self._taking:
            if spark_batch <= newest_batch(self.position):
                return
            if self._stopping.is_set():
                # Short, because Spark searches what it is told with patterns that overflow its stack.
                raise StateError("the engine stops; this batch is run again at the next start")
            try:
                for handed in self._reader.hand(frame, spark_batch):
                    self.position = handed.position
                    self._keeper.stream_progress(self, handed.rows, handed.left)
                    if handed.left and self._stopping.is_set():
                        raise StateError("the engine stops; this batch goes on at the next start")
            except Exception as error:
                # Spark's own message has this one somewhere within the traces of two languages.
                self._reason = _cause(error)
                raise
        self._recovered()

    def _watch(self, query: StreamingQuery | None) -> None:
        """Wait for the query's end; after a failure tell of it and start again, until the feed is stopped."""
        while query is not None:
            try:
                if self.failed and not query.awaitTermination(STEADY):
                    self._recovered()
                while not query.awaitTermination(LOOKED_AT_EVERY):
                    self._look_at_directories()
                error = StateError(f"stream {self.stream.name!r} was stopped from outside, through Spark")
            except Exception as failure:
                error = StateError(f"stream {self.stream.name!r} failed: {self._reason or _cause(failure)}")
            self._reason = None
            query = self._again(error)

    def _look_at_directories(self) -> None:
        """Tell of a directory that is gone, and when it is there again; the query runs on."""
        missing = missing_directory(self._frame)
        if missing is None:
            if self._directory_gone:
                self._recovered()
        elif not self._directory_gone:
            self.failed = self._directory_gone = self._keeper.stream_failed(
                self,
                StateError(f"stream {self.stream.name!r} failed: there is no directory {missing} any more"),
                LOOKED_AT_EVERY,
            )

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
        self._directory_gone = False
        if self.failed:
            self.failed, self._failures = False, 0
            self._keeper.stream_recovered(self)

    def process_all_available(self) -> None:
        """Wait until everything that was there when this was called is safe in the engine.

        Raises:
            StateError: the stream fails.
        """
        # A query that starts again may hand in its first micro-batch before it is known here.
        with self._starting:
            query = self._query
        if query is not None and query.isActive:
            try:
                query.processAllAvailable()
            except Exception as error:
                raise StateError(f"stream {self.stream.name!r} failed: {self._reason or _cause(error)}") from error

    def stop(self) -> None:
        """Stop the query; what it is handing in is still taken."""
        self._stopping.set()
        # Spark's own stop interrupts the batch that runs, in the middle of whatever it does.
        if self._taking.acquire(timeout=_LONGEST_BATCH):
            self._taking.release()
        with self._starting:
            if self._query is not None:
                self._query.stop()


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
_FILE: Final = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
_JAVA_CLASS: Final = re.compile(r"[a-z][\w.$]*\.[A-Z][\w$]*(?:Exception|Error): ")


def _cause(error: Any) -> str:
    r"""The line of what Spark says that tells a user something, without what is secret.

    >>> _cause(ValueError("it failed\n\tat a.B\nCaused by: java.io.IOException: no such topic\n\tat c.D"))
    'no such topic'
    >>> _cause(ValueError("Encountered error while reading file file:/in/1.gz. \nCaused by: java.io.EOFException: end"))
    'end (file:/in/1.gz)'
    """
    text = whole = str(getattr(error, "desc", None) or error).strip()
    text = text.partition("\n=== Streaming Query ===")[0].rpartition("Caused by: ")[2]
    text = _JAVA_CLASS.sub("", _ENVELOPE.sub("", text, count=1), count=1).strip()
    if not text:
        return type(error).__name__
    line, file = text.splitlines()[0], _FILE.search(whole)
    # The innermost cause is what is wrong; it need not say where.
    where = f" ({file[1]})" if file is not None and file[1].rpartition("/")[2] not in line else ""
    return without_secrets(line + where)


ReaderFactory = Callable[[Stream, str | None, Inbox], MicroBatchReader]
"""What reads the micro-batches of a stream, whose malformed records a column marks."""


class SparkExecutor:
    """Reads streams with `spark`; `reader` brings what it reads into the engine, as tables if not given."""

    adds_columns = False

    def __init__(
        self, spark: SparkSession, journal: FileJournal, trigger: str | None, reader: ReaderFactory | None = None
    ) -> None:
        self._spark, self._journal, self._trigger = spark, journal, trigger
        self._reader = reader or self._table_reader

    def _table_reader(self, stream: Stream, mark: str | None, inbox: Inbox) -> TableReader:
        return TableReader(stream, mark, inbox, self._journal.staged(stream.name))

    def describe(self, name: str, given: StreamInput, time: str) -> Stream:
        """The stream that a streaming DataFrame gives.

        Raises:
            SpecError: something else than a frame was given.
            InputError: it is no streaming DataFrame.
        """
        if given.schema is not None or given.source is not None:
            raise SpecError(
                f"stream {name!r} has a schema or a source of its own, but this engine reads streaming DataFrames: "
                "give it one, or make an engine without a Spark session"
            )
        return stream_of(name, given, time)

    def origin(self, given: StreamInput) -> str | None:
        """Where the frame reads from."""
        return origin_of(given.frame)

    def feed(self, stream: Stream, given: StreamInput, inbox: Inbox, keeper: FeedKeeper) -> SparkFeed:
        """The Spark query of a stream."""
        checkpoint = self._journal.spark_checkpoint(stream.name)
        reader = self._reader(stream, given.malformed, inbox)
        return SparkFeed(stream, given.frame, checkpoint, self._trigger, keeper, given.malformed, reader)

    def check_position(self, stream: str, position: Position | None) -> None:
        """Refuse a checkpoint of which a part is gone.

        Raises:
            CheckpointError: Spark's own checkpoint of the stream ends elsewhere.
        """
        self._journal.check_spark(stream, newest_batch(position))

    @property
    def gone(self) -> bool:
        """Whether Spark itself has stopped."""
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True
