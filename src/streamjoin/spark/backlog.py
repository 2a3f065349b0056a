"""The query of a run over a backlog, with the trigger `availableNow`: at its end it says what waits, or ends the input.

A thread waits for Spark's query. Where the input is to end, it plans one more batch (`runtime/end_of_input.py`) and
starts the query again for that batch alone, so a run is two of Spark's queries, which the user sees as one. Spark tells
a query that was stopped from one that has processed everything only by a report on a trigger that found no rows.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamjoin.model.errors import StreamJoinError
from streamjoin.spark.batch_lines import query_title, say, wait_for_lines
from streamjoin.spark.runtime.checkpoints import RunningJoin, followed_joins
from streamjoin.spark.runtime.end_of_input import plan_end
from streamjoin.spark.runtime.starts import newest_number
from streamjoin.spark.stages.undecided import Undecided, undecided
from streamjoin.storage.places import place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORTING_IDLE: Final = {"spark.sql.streaming.noDataProgressEventInterval": "0"}
"""Settings with which a query that starts reports triggers without rows at once, not only after ten seconds."""
_WAY = "The next start goes on with what waits; join(..., end_of_input=True) decides it at the end of a backlog"
_logger = logging.getLogger(__name__)


def caught_up(report: Any) -> bool:
    """Whether the last report of a query is on a trigger that found no rows."""
    return report is not None and "addBatch" not in report.durationMs


def backlog_query(spark: SparkSession, query: Any, last: Callable[[str], Any] | None) -> Any:
    """`query`, which has started; `last` starts it for one more batch, given its checkpoint, if the input is to end."""
    joins = followed_joins(str(query.runId))
    copy: Any = object.__new__(_query_class())
    copy.__dict__.update(vars(query))
    copy.follow(spark, query, joins, last)
    return copy


@functools.cache
def _query_class() -> Any:
    """The class of the queries; created at the first one because pyspark is an optional dependency."""
    from py4j.protocol import Py4JError
    from pyspark import InheritableThread
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

    class BacklogQuery(StreamingQuery):
        """Spark's query, until the last batch."""

        undecided: list[tuple[str, Undecided]]
        """The joins after which tuples wait, once the query has ended."""
        runs: list[str]

        def follow(
            self, spark: SparkSession, query: Any, joins: list[RunningJoin], last: Callable[[str], Any] | None
        ) -> None:
            self._spark, self._joins, self._last = spark, joins, last
            self.undecided, self.runs = [], [self.runId]
            self._reports: list[Any] = []
            self._failure: Exception | None = None
            self._asked, self._lock = False, threading.Lock()
            self._thread = InheritableThread(
                target=self._to_the_end, args=(query,), name="streamjoin-backlog", daemon=True, session=spark
            )
            self._thread.start()

        def _to_the_end(self, query: Any) -> None:
            try:
                query.awaitTermination()
            except (StreamingQueryException, Py4JError):
                # The query itself tells what failed; a session that is stopped takes its queries with it.
                return
            try:
                second = self._second()
                if second is not None:
                    second.awaitTermination()
                    wait_for_lines(self._spark)
            except StreamingQueryException:
                return
            except Exception as error:
                self._failure = error

        def _second(self) -> Any:
            """The query of the last batch, which takes the place of the first one; None if there is none."""
            if not caught_up(super().lastProgress):
                if self._last is not None and not self._asked:
                    _logger.warning("the input has not ended: the query was stopped before the end of its backlog")
                return None
            checkpoint = self._joins[0].checkpoint
            wait_for_lines(self._spark)
            if self._last is None:
                self._report(newest_number(place(checkpoint) / "commits"))
                return None
            with self._lock:
                if self._asked or plan_end(place(checkpoint)) is None:
                    return None
                reports = self.recentProgress
                second = self._last(checkpoint)
                self._reports = reports
                self.__dict__.update(vars(second))
                self.runs.append(self.runId)
            return second

        def _report(self, batch: int) -> None:
            name = self.name
            for running in self._joins:
                try:
                    waiting = undecided(running.join, running.log, batch)
                except (StreamJoinError, OSError) as error:
                    # The next start reports what can't be read.
                    _logger.info("what waits after %s can't be counted: %s", running.join.name, error)
                    continue
                if waiting.total:
                    self.undecided.append((running.join.name, waiting))
                    text = f"{query_title(name, running.join.name, len(self._joins))}: {waiting}"
                    say(self._spark, f"{text}. {_WAY}")

        @property
        def isActive(self) -> bool:  # noqa: N802
            return self._thread.is_alive()

        @property
        def recentProgress(self) -> Any:  # noqa: N802
            # The trigger that found no more rows is reported as well.
            return [*self._reports, *(report for report in super().recentProgress if not caught_up(report))]

        @property
        def lastProgress(self) -> Any:  # noqa: N802
            return next(reversed(self.recentProgress), None)

        def exception(self) -> Any:
            return self._failure or super().exception()

        def awaitTermination(self, timeout: Any = None) -> Any:  # noqa: N802
            if timeout is not None and timeout > 0:
                self._thread.join(timeout)
                if self._thread.is_alive():
                    return False
            elif timeout is None:
                self._thread.join()
            if self._failure is not None:
                raise self._failure
            return super().awaitTermination(timeout)

        def processAllAvailable(self) -> None:  # noqa: N802
            self.awaitTermination()

        def stop(self) -> None:
            with self._lock:
                self._asked = True
            super().stop()
            self._thread.join()

    return BacklogQuery
