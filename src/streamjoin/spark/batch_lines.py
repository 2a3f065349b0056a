"""A line on the terminal for each batch of a session's joins, and one for what waits at the end of a backlog.

The lines go to stderr if it is a terminal where no one types: in a notebook, a log or an interactive Python they would
disturb. The session's setting `spark.streamjoin.progress` decides otherwise: true for lines anywhere, false for none.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import SpecError
from streamjoin.spark.runtime.checkpoints import running_joins
from streamjoin.spark.runtime.internals import is_connect, session_id, wait_for_reports
from streamjoin.spark.stages.figures import BatchFigures, rows_metric

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.streamjoin.progress"

_LONGEST_MS = 10_000
_shown: set[str] = set()
_lock = threading.Lock()
_logger = logging.getLogger(__name__)


def show_batches(spark: SparkSession) -> bool:
    """Show the batches of the joins of `spark` from now on, if they are to be shown; returns whether they are."""
    if is_connect(spark) or not _wanted(spark):
        return False
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Lines(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            if _wanted(spark):
                for text in lines(event.progress):
                    _write(text)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    with _lock:
        if session_id(spark) not in _shown:
            _shown.add(session_id(spark))
            spark.streams.addListener(Lines())
    return True


def lines(progress: Any) -> list[str]:
    """One line for each join in a report of Spark's on a batch."""
    joins = [running.join for running in running_joins(str(progress.runId))]
    texts = []
    for join in joins:
        figures = BatchFigures.of(progress.observedMetrics, join.name)
        if figures is None:
            continue
        counted = progress.observedMetrics.get(rows_metric(join.name))
        rows_out = None if counted is None else counted["rows"]
        text = figures.text(rows_out, progress.batchDuration / 1000, self_join=join.bound.spec.self_join)
        texts.append(f"{query_title(progress.name, join.name, len(joins))}: batch {progress.batchId}: {text}")
    return texts


def query_title(query: str | None, join: str, joins: int) -> str:
    """What a line calls a join of a query with that number of joins.

    >>> query_title("prices", "join", 1), query_title("prices", "first", 2), query_title(None, "join", 1)
    ('prices', 'prices first', 'join')
    """
    return " ".join(name for name in (query, join if joins > 1 or query is None else None) if name)


def wait_for_lines(spark: SparkSession) -> None:
    """Wait until the batches so far are shown, if they are: Spark reports them on a thread of its own."""
    from py4j.protocol import Py4JJavaError

    if _wanted(spark):
        # If the bus is never empty, it is busy with other queries.
        with contextlib.suppress(Py4JJavaError):
            wait_for_reports(spark, _LONGEST_MS)


def say(spark: SparkSession, text: str) -> None:
    """Write one line where batches are shown; else, unless the setting is false, to the log."""
    if _wanted(spark):
        _write(text)
    elif _setting(spark) is None:
        _logger.warning("%s", text)


def _setting(spark: SparkSession) -> bool | None:
    value = spark.conf.get(SETTING, None)
    if value is None:
        return None
    if value.lower() not in ("true", "false"):
        raise SpecError(f"{SETTING} is {value!r}: it is true or false")
    return value.lower() == "true"


def _wanted(spark: SparkSession) -> bool:
    setting = _setting(spark)
    return sys.stderr.isatty() and not hasattr(sys, "ps1") if setting is None else setting


def _write(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
