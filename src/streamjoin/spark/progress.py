"""`Progress`: the figures of a session's joins for every batch, in addition to Spark's reports.

It listens to Spark's progress events and reads the manifest of each committed batch, which costs the query nothing.
The files of a batch are removed when the second batch after it begins. If Spark reports later than that, the batch has
no figures here; Spark's own reports are complete.

Over Spark Connect the client may not reach the checkpoint. There the figures are the metrics in Spark's own reports
(`stages/figures.py`), which a query keeps for its newest batches (`spark.sql.streaming.numRecentProgressUpdates`).
"""

from __future__ import annotations

import collections
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import StreamJoinError
from streamjoin.spark.runtime.checkpoints import logs_of
from streamjoin.spark.runtime.internals import is_connect, wait_for_reports
from streamjoin.spark.stages.facts import punctuation_of
from streamjoin.spark.stages.figures import join_name
from streamjoin.spark.stages.spending import spent
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import read_footer

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
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
        rows_per_second: `rows` divided by `seconds`.
        window: stored tuples of the left and the right side, including expired ones that are not dropped yet. Over
            Spark Connect the window, its bytes and runs, `late` and `overflowed` are those before the batch.
        window_bytes: their size on disk.
        runs: the number of sorted runs of the window.
        merged_runs: how many of them were merged in the background.
        ranges: the number of ranges, each joined by one task.
        skew: the rows of the largest range divided by the average; 1.0 is even. Over Spark Connect it is that of the
            batch before.
        late: late rows since the start.
        overflowed: sums of a join with summaries since the start that are NULL because their type could not hold them.
        waiting: rows that wait in the gate; None without a gate.
        gate_lag: how far the bound is behind the newest row, in ticks of the time column; None in an inner join without
            a gate.
        bound: the time, in the same ticks, before which no result follows; None like `gate_lag`, or before it moved.
        start_seconds: the time to start Python and import modules; only first batches have it.
        compile_seconds: the time to compile kernels; a host compiles each kernel once.
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
    overflowed: int = 0


class Progress:
    """The figures of all joins of a session, from the creation of this object on.

    Args:
        spark: the session; its queries are watched.
        keep: how many batches per query are kept.
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

        self._seen, self._lock, self._keep = seen, lock, keep
        self._spark, self._listener = spark, None if is_connect(spark) else Listener()
        if self._listener is not None:
            spark.streams.addListener(self._listener)

    def of(self, query: StreamingQuery) -> list[JoinProgress]:
        """The figures of a query's joins, oldest batch first."""
        if self._listener is None:
            return [figures for progress in query.recentProgress for figures in observed_figures(progress)][
                -self._keep :
            ]
        # A run over a backlog may be two of Spark's queries.
        runs = getattr(query, "runs", [str(query.runId)])
        with self._lock:
            return [figures for run in runs for figures in self._seen.get(run, ())]

    def settle(self) -> None:
        """Wait until Spark, which reports on a thread of its own, has reported all finished batches."""
        from py4j.protocol import Py4JJavaError

        if self._listener is None:
            return
        # If the bus is never empty, it is busy with other queries.
        with contextlib.suppress(Py4JJavaError):
            wait_for_reports(self._spark, _LONGEST_MS)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._spark.streams.removeListener(self._listener)


def observed_figures(progress: Any) -> list[JoinProgress]:
    """The figures of all joins in a report of Spark's, from its metrics."""
    seconds = progress.batchDuration / 1000
    figures = []
    for metric, row in sorted(progress.observedMetrics.items()):
        name = join_name(metric)
        values = _by_name(row) if name is not None else {}
        # A batch without rows may have no metrics at all.
        if name is None or values.get("ranges") is None:
            continue
        figures.append(
            JoinProgress(
                join=name,
                batch=int(progress.batchId),
                rows=int(progress.numInputRows),
                seconds=seconds,
                rows_per_second=progress.numInputRows / seconds if seconds else 0.0,
                window=(values["window_left"], values["window_right"]),
                window_bytes=values["window_bytes"],
                runs=values["runs"],
                merged_runs=values["merged_runs"],
                ranges=values["ranges"],
                skew=values["skew"] / 1000,
                late=values["late"],
                waiting=values["waiting"],
                gate_lag=values["gate_lag"],
                bound=values["bound"],
                start_seconds=values["start_ms"] / 1000,
                compile_seconds=values["compile_ms"] / 1000,
                overflowed=values["overflowed"],
            )
        )
    return figures


def _by_name(row: Row) -> dict[str, Any]:
    """The values of a metric; a report that comes as JSON has them apart from their names."""
    values = row.asDict()
    if values.keys() == {"values", "schema"}:
        return {field["name"]: value for field, value in zip(values["schema"]["fields"], values["values"], strict=True)}
    return values


def batch_figures(log: WindowLog, progress: Any) -> JoinProgress | None:
    """The figures of a join in the batch of `progress`; None if its files are gone or can't be read."""
    batch = int(progress.batchId)
    try:
        manifest = log.version(batch)
        fresh = [read_footer(path)["fresh"] for path in log.pieces(batch, manifest.epoch)]
        waiting, lag, bound = _order_after(log, manifest)
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
        waiting=waiting,
        gate_lag=lag,
        bound=bound,
        start_seconds=began.starting,
        compile_seconds=began.compiling,
        overflowed=manifest.overflowed,
    )


def _order_after(log: WindowLog, manifest: Manifest) -> tuple[int | None, int | None, int | None]:
    """How many rows wait after a version, how far the bound is behind, and the bound; None where there is no order."""
    if manifest.counts is not None:
        progress = punctuation_of(log.blueprint, manifest.batch, manifest.clocks)
        return progress.waiting, progress.lag, progress.bound
    if log.blueprint.gate is None:
        return None, None, None
    gate = log.gate(manifest.batch, manifest.epoch)[0]
    return sum(gate["waiting"]), gate["lag"], gate["bound"]
