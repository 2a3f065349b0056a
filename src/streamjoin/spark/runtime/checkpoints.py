"""The location of a join's log, which is under the checkpoint of the query that runs the join.

`join` returns a DataFrame; the checkpoint is set later, with `writeStream`. Spark calls listeners when a query starts,
before its first batch, and waits for them. The listener here then knows the checkpoint. It writes the location of the
log and a number for this start into the settings of the query's session, which Spark passes to every task. If the
checkpoint is unusable, the listener ends the query before its first batch; if Spark does not allow that, the reason
goes to the tasks in the same way, and the first task raises it.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.model.errors import CheckpointError, SetupError, StateError, StreamJoinError
from streamjoin.spark.runtime.stage_names import name_stages
from streamjoin.spark.stages.late_output import catch_up, forget_uncommitted
from streamjoin.storage.background import Merger, Mergers
from streamjoin.storage.blueprint import TASK, Blueprint
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.places import Place, entries, place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "streamjoin"
_SETTING = "spark.streamjoin.log."
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
_USUAL_BYTES, _UNLIMITED, _FEW_BYTES = "67108864b", str((1 << 31) - 1), 1 << 28
_COMMITS_LATER = (
    "with asyncProgressTrackingEnabled Spark commits batches some time after they are done, and a restart would go "
    "back to batches whose window has been removed; remove the option"
)
_tasks = itertools.count(1)
_TASKS = re.compile(TASK + r"_([0-9a-f]{32})\(")


@dataclass
class RunningJoin:
    """A join of a running query, its log, and the batch up to which its late rows are written."""

    join: Blueprint
    log: WindowLog
    late_written: int = -1


_joins: dict[str, Blueprint] = {}
_watched: dict[str, Any] = {}
_lock = threading.Lock()
_logger = logging.getLogger(__name__)
_mergers = Mergers()
_running: dict[str, list[RunningJoin]] = {}
_refused: dict[str, StreamJoinError] = {}


def log_root(checkpoint: str | Path, name: str) -> Place:
    """The directory of the log of the join `name`."""
    return place(str(checkpoint)) / DIRECTORY / name


def joins_in(plan: str) -> list[str]:
    """The tokens of the joins in a plan that Spark printed."""
    return list(dict.fromkeys(_TASKS.findall(plan)))


def expect(spark: SparkSession, blueprint: Blueprint) -> None:
    """Listen for the start of queries with this join on `spark`."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Starts(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            _started(spark, str(event.id), str(event.runId))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            _progressed(str(event.progress.runId), int(event.progress.batchId))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            _mergers.ended(str(event.runId))
            _running.pop(str(event.runId), None)

    session = spark._jsparkSession.sessionUUID()
    with _lock:
        _joins[blueprint.token] = blueprint
        if session not in _watched:
            _watched[session] = Starts()
            spark.streams.addListener(_watched[session])


def _started(spark: SparkSession, query_id: str, run_id: str) -> None:
    query = spark._jsparkSession.streams().get(query_id).streamingQuery()
    tokens = [token for token in joins_in(query.analyzedPlan().toString()) if token in _joins]
    if not tokens:
        return
    settings = query.sparkSessionForStream().conf()
    joins = [_joins[token] for token in tokens]
    try:
        starts = _begun(query, joins)
    except Exception as error:
        # Spark drops exceptions of listeners, so every failure is passed on here.
        failure = _ours(error, query)
        answer = json.dumps({"error": type(failure).__name__, "message": str(failure)})
        for token in tokens:
            settings.set(_SETTING + token, answer)
        _refuse(spark, query, run_id, failure)
        return
    _unmeasured(settings, joins)
    _in_one_job(settings)
    name_stages(spark, query, joins)
    for join, log in starts:
        settings.set(_SETTING + join.token, json.dumps({"root": str(log.root), "epoch": log.epoch}))
        _running.setdefault(run_id, []).append(RunningJoin(join, log))
        _mergers.add(run_id, Merger(join, log))


def _begun(query: Any, joins: list[Blueprint]) -> list[tuple[Blueprint, WindowLog]]:
    """Register a start in each join's log. Their names differ, because Spark rejects equal names of metrics."""
    if "AsyncProgressTracking" in query.getClass().getSimpleName():
        raise SetupError(_COMMITS_LATER)
    checkpoint = place(query.resolvedCheckpointRoot())
    committed = newest_number(checkpoint / "commits")
    starts = []
    for join in joins:
        root = checkpoint / DIRECTORY / join.name
        _check_spark(checkpoint, root)
        log = WindowLog(root, new_epoch(root, join.description), join)
        starts.append((join, log))
        if join.late is not None:
            _late_output(join.late, log, committed)
    return starts


def _late_output(location: str, log: WindowLog, committed: int) -> None:
    """Write late output that a killed start has left out."""
    try:
        forget_uncommitted(log.root, place(location), committed)
        catch_up(log.root, place(location), committed)
    except (StreamJoinError, OSError) as error:
        _logger.warning("late rows could not be written to %s: %s", location, error)


def _ours(error: Exception, query: Any) -> StreamJoinError:
    if isinstance(error, StreamJoinError):
        return error
    reason = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
    return CheckpointError(f"the window log can't be stored in {query.resolvedCheckpointRoot()}: {reason}")


def _refuse(spark: SparkSession, query: Any, run_id: str, failure: StreamJoinError) -> None:
    """End a query that is about to start, before it plans a batch or writes anything.

    Spark has no call for this: `stop` would wait for the thread that waits for this listener. The query's state is set
    to the one that Spark itself sets when a query fails or is stopped while it starts. If that is not possible, the
    first task fails with the error.
    """
    from py4j.protocol import Py4JError

    jvm: Any = spark._jvm
    text = f"{type(failure).__name__}: {failure}"
    try:
        cause = jvm.java.lang.IllegalStateException(text)
        nothing = getattr(jvm, "scala.collection.immutable.Map$EmptyMap$")
        died = jvm.org.apache.spark.sql.streaming.StreamingQueryException(
            text, cause, "STREAM_FAILED", getattr(nothing, "MODULE$")
        )
        getattr(query, "streamDeathCause_$eq")(died)
        ended = getattr(jvm, "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
        query.state().set(getattr(ended, "MODULE$"))
    except (Py4JError, TypeError) as error:
        _logger.info("the query could not be stopped at its start: %s", error)
        return
    _refused[run_id] = failure


def refused(run_id: str) -> StreamJoinError | None:
    """Why a query was rejected at its start, or None; returned only once."""
    return _refused.pop(run_id, None)


def _unmeasured(settings: Any, joins: list[Blueprint]) -> None:
    """Turn off Spark's size check of an Arrow batch after each row, in the settings of one query.

    If all columns have a fixed width, the limit on rows bounds the bytes as well. Packed parts then need 64-bit
    offsets, because together they may be larger than 2 GB.
    """
    widths = [_row_bytes(join.schema(side)) for join in joins for side in (0, 1)]
    rows = int(settings.get(_MOST_ROWS))
    bounded = rows > 0 and all(width is not None and width * rows <= _FEW_BYTES for width in widths)
    if not bounded or settings.get(_MOST_BYTES) != _USUAL_BYTES:
        return
    settings.set(_MOST_BYTES, _UNLIMITED)
    settings.set(_LARGE, "true")


def _in_one_job(settings: Any) -> None:
    """Make Spark run a batch as one job, in the settings of one query, unless the user set it otherwise.

    Adaptive execution runs a job per shuffle and plans again after each. The join chooses its split points itself, so
    there is nothing to adapt, and a small batch spends most of its time on jobs.
    """
    if not settings.getAll().contains(_ADAPTIVE):
        settings.set(_ADAPTIVE, "false")


def _row_bytes(schema: pa.Schema) -> int | None:
    """The bytes of a row if all columns have a fixed width."""
    try:
        return sum(-(-int(field.type.bit_width) // 8) for field in schema)
    except ValueError:
        return None


def _progressed(run_id: str, batch: int) -> None:
    """Prune the logs and complete the late output after a committed batch."""
    for running in _running.get(run_id, ()):
        late, log = running.join.late, running.log
        if late is not None:
            try:
                # The batch has already written them, unless it failed to.
                catch_up(log.root, place(late), batch, running.late_written)
                running.late_written = batch
            except (StreamJoinError, OSError) as error:
                # The rows stay in the log, and a later batch tries again.
                _logger.warning("late rows could not be written to %s: %s", late, error)
        try:
            log.prune(log.version(batch))
        except (StreamJoinError, OSError) as error:
            # Tasks report files that can't be read; files that can't be removed now are removed after a later batch.
            _logger.info("nothing was removed from the window log in %s: %s", log.root, error)
    _mergers.progressed(run_id, batch)


def logs_of(run_id: str) -> list[WindowLog]:
    """The logs of the joins in a running query."""
    return [running.log for running in _running.get(run_id, ())]


def newest_number(directory: Place) -> int:
    """The newest entry of a log of Spark's or streamjoin's, named by batch; -1 if there is none."""
    return max((int(entry.name) for entry in entries(directory) if entry.name.isdigit()), default=-1)


def _check_spark(checkpoint: Place, root: Place) -> None:
    """Reject a checkpoint without Spark's part: a version is always written after the offsets of its batch."""
    version, offsets = newest_number(root / "versions"), newest_number(checkpoint / "offsets")
    if version > offsets:
        raise CheckpointError(
            f"the checkpoint {checkpoint} is incomplete: the window log holds batch {version}, but Spark's "
            f"offsets end at {offsets if offsets >= 0 else 'nothing'}. Restore it from a copy, or delete the rest too"
        )


def open_log(blueprint: Blueprint) -> tuple[WindowLog, int]:
    """Within a task: the log of this join in the running query, and the batch's number."""
    from pyspark import TaskContext

    import streamjoin.model.errors as errors

    freeze_heap()
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    setting = context.getLocalProperty(_SETTING + blueprint.token) if context else None
    if batch is None or setting is None:
        raise StateError(
            "a join runs only inside a micro-batch of the streaming query that it was started in: not in continuous or "
            "real-time mode, and within foreachBatch only on the thread that calls it"
        )
    answer = json.loads(setting)
    if "error" in answer:
        kind = getattr(errors, answer["error"], CheckpointError)
        raise kind(answer["message"])
    return WindowLog(place(answer["root"]), answer["epoch"], blueprint), int(batch)


def freeze_heap() -> bool:
    """Keep a worker's garbage collection after each task cheap; returns whether this call froze the heap.

    The daemon's heap is frozen before workers are forked. Kernels are loaded later, when a task first calls them. They
    leave a hundred thousand objects, and visiting them would cost every collection tens of milliseconds. A worker
    therefore freezes its heap again at its 2nd, 4th, 8th, ... task, right after a collection.
    """
    number = next(_tasks)
    due = number > 1 and number & (number - 1) == 0
    if due:
        gc.freeze()
    return due
