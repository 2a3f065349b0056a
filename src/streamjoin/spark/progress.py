"""`Progress`: what the joins of a session do, batch by batch, next to what Spark itself reports.

It listens to Spark's progress events and reads the manifest that the batch left behind: figures of a batch come after
it is committed and cost the query nothing. The files of a batch are kept until the one after the next begins: where
Spark reports later than that, the batch has no figures here; those of Spark's own reports are whole.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import StreamJoinError
from streamjoin.spark.runtime.checkpoints import logs_of
from streamjoin.spark.stages.spending import spent
from streamjoin.storage.log import WindowLog
from streamjoin.storage.pieces import read_footer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_LONGEST_MS = 60_000


@dataclass(frozen=True)
class JoinProgress:
    """One join in one batch.

    Args:
        join: the join's name.
        batch: the batch.
        rows: rows that came in, over all sources of the query.
        seconds: how long the batch took.
        rows_per_second: the one by the other.
        window: live and not yet dropped tuples of the left and the right side.
        window_bytes: what they take on disk.
        runs: sorted runs that the window lies in.
        merged_runs: those of them that were made in the background.
        ranges: how many tasks joined.
        skew: the rows of the range that stored most, over the average; 1.0 is even.
        late: rows set aside since the beginning.
        waiting: rows in the gate, None without one.
        gate_lag: how far, in ticks of the time column, the gate is behind the newest row, None without one.
        bound: the time, in the same ticks, before which no result follows; None without a gate or before it moved.
        start_seconds: how long starting Python took, with all that tasks import; the first batch pays for it.
        compile_seconds: how long kernels were compiled; none is compiled twice on a host.
    """

    join: str
    batch: int
    rows: int
    seconds: float
    rows_per_second: float
    window: tuple[int, int]
    window_bytes: int
    runs: int
    merged_runs: int
    ranges: int
    skew: float
    late: int
    waiting: int | None
    gate_lag: int | None
    bound: int | None
    start_seconds: float
    compile_seconds: float


class Progress:
    """The figures of all joins that run on a session, from when it is made.

    Args:
        spark: the session; its queries are watched.
        keep: how many batches of each query are remembered.
    """

    def __init__(self, spark: SparkSession, keep: int = 100) -> None:
        from pyspark.sql.streaming.listener import StreamingQueryListener

        seen: dict[str, collections.deque[JoinProgress]] = {}
        lock = threading.Lock()

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:  # noqa: N802
                pass

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802
                figures = [batch_figures(log, event.progress) for log in logs_of(str(event.progress.runId))]
                with lock:
                    entries = seen.setdefault(str(event.progress.runId), collections.deque(maxlen=keep))
                    entries.extend(figure for figure in figures if figure is not None)

            def onQueryIdle(self, event: Any) -> None:  # noqa: N802
                pass

            def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
                pass

        self._seen, self._lock = seen, lock
        self._spark, self._listener = spark, Listener()
        spark.streams.addListener(self._listener)

    def of(self, query: StreamingQuery) -> list[JoinProgress]:
        """The figures of a query's joins, oldest batch first."""
        with self._lock:
            return list(self._seen.get(str(query.runId), ()))

    def settle(self) -> None:
        """Wait until Spark has reported all finished batches: it reports on its own thread."""
        from py4j.protocol import Py4JJavaError

        # A bus that is never empty is at work on other queries.
        with contextlib.suppress(Py4JJavaError):
            self._spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(_LONGEST_MS)

    def close(self) -> None:
        """Stop listening."""
        self._spark.streams.removeListener(self._listener)


def batch_figures(log: WindowLog, progress: Any) -> JoinProgress | None:
    """One join's figures of the batch that `progress` reports; None when its files are gone or can't be read."""
    batch = int(progress.batchId)
    try:
        manifest = log.version(batch)
        fresh = [read_footer(path)["fresh"] for path in log.pieces(batch, manifest.epoch)]
        gate = log.gate(batch, manifest.epoch)[0] if log.gated else None
        began = spent(log, batch, manifest.epoch)
    except (StreamJoinError, OSError):
        return None
    blocks = [block for run in manifest.runs for piece in run.pieces for side in piece.blocks for block in side]
    left, right = (sum(run.statistics[side].rows for run in manifest.runs) for side in (0, 1))
    seconds = progress.batchDuration / 1000
    return JoinProgress(
        join=log.root.name,
        batch=batch,
        rows=int(progress.numInputRows),
        seconds=seconds,
        rows_per_second=progress.numInputRows / seconds if seconds else 0.0,
        window=(left, right),
        window_bytes=sum(block.length for block in blocks),
        runs=len(manifest.runs),
        merged_runs=manifest.merged_runs,
        ranges=len(fresh),
        skew=max(fresh) * len(fresh) / sum(fresh) if sum(fresh) else 1.0,
        late=sum(manifest.late.values()),
        waiting=sum(gate["waiting"]) if gate else None,
        gate_lag=gate["lag"] if gate else None,
        bound=gate["bound"] if gate else None,
        start_seconds=began.starting,
        compile_seconds=began.compiling,
    )
