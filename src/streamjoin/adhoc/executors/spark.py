"""The executor on Spark: each stream is a Spark query, rows are computed by the driver or by tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from streamjoin.adhoc.engine.executor import FeedKeeper, StreamInput
from streamjoin.adhoc.engine.inbox import Inbox
from streamjoin.adhoc.engine.journal import Journal, Position
from streamjoin.adhoc.executors.spark_feed import SparkFeed, newest_batch, origin_of, stream_of
from streamjoin.adhoc.executors.spark_tasks import executor_for
from streamjoin.adhoc.language.plan import Stream
from streamjoin.model.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkExecutor:
    """Reads streams with `spark`; `partitions` tasks, or the driver, compute rows."""

    kind = "spark"

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        trigger: str | None,
        partitions: int | Literal["auto"] | None,
        latency_threshold: float,
    ) -> None:
        self.session: Any = spark
        self.rows = executor_for(partitions, spark, journal, latency_threshold)
        self._journal, self._trigger = journal, trigger

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
        place = self._journal.spark_checkpoint(stream.name)
        return SparkFeed(stream, given.frame, inbox, place, self._trigger, keeper, given.malformed)

    def check_position(self, journal: Journal, stream: str, position: Position | None) -> None:
        """Refuse a checkpoint of which a part is gone.

        Raises:
            CheckpointError: Spark's own checkpoint of the stream ends elsewhere.
        """
        journal.check_spark(stream, newest_batch(position))

    @property
    def gone(self) -> bool:
        """Whether Spark itself has stopped."""
        try:
            return bool(self.session.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True
