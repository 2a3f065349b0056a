"""The location of a join's log, which is under the checkpoint of the query that runs the join.

`join` returns a DataFrame; the checkpoint is set later, with `writeStream`. Spark calls listeners when a query starts,
before its first batch, and waits for them. The listener here then knows the checkpoint. It writes the location of the
log and a number for this start into the settings of the query's session, which Spark passes to every task. If the
checkpoint is unusable, the listener ends the query before its first batch; if Spark does not allow that, the reason
goes to the tasks in the same way, and the first task raises it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import CheckpointError, SetupError, SpecError, StateError, StreamJoinError
from streamjoin.model.large_columns import row_bytes
from streamjoin.spark.runtime.driver_classes import name_stages
from streamjoin.spark.runtime.end_of_input import planned_end
from streamjoin.spark.runtime.internals import StartingQuery, plan_of, session_id
from streamjoin.spark.runtime.starts import (
    DIRECTORY,
    check_known,
    check_offsets,
    check_owner,
    complete_late_output,
    newest_number,
)
from streamjoin.spark.runtime.unattended import attend
from streamjoin.spark.runtime.whole_batches import SETTING, take_back
from streamjoin.spark.stages.figures import BatchFigures
from streamjoin.spark.stages.gating import HeldRows
from streamjoin.spark.stages.late_output import catch_up
from streamjoin.storage.background import Merger, Mergers
from streamjoin.storage.blueprint import TASK, Blueprint
from streamjoin.storage.log import WindowLog, has_log, new_epoch
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.places import Place, RemotePath, place, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
_UNION = "spark.sql.unionOutputPartitioning"
_USUAL_BYTES, _UNLIMITED, _FEW_BYTES = "67108864b", str((1 << 31) - 1), 1 << 28
COMMITS_LATER = (
    "with asyncProgressTrackingEnabled Spark commits batches some time after they are done, and a restart would go "
    "back to batches whose window has been removed; remove the option"
)
MANY_WAITING = 1_000_000
"""From how many rows in a gate on a warning says what they wait for; each batch reads and writes them all."""
_tasks = itertools.count(1)
_TASKS = re.compile(TASK + r"_([0-9a-f]{32})\(")


@dataclass
class RunningJoin:
    """A join of a running query, its log, and the batch up to which its late rows are written.

    `checkpoint` is the location of the query's. `warned_of` is how many rows in the gate the last warning told.
    """

    join: Blueprint
    log: WindowLog
    checkpoint: str
    late_written: int = -1
    warned_of: int = 0


_joins: dict[str, Blueprint] = {}
_watched: dict[str, Any] = {}
_lock = threading.Lock()
_logger = logging.getLogger(__name__)
_mergers = Mergers()
_running: dict[str, list[RunningJoin]] = {}
_refused: dict[str, StreamJoinError] = {}
_following: set[str] = set()
"""The tokens of the joins of a run over a backlog that is about to start."""
_followed: dict[str, list[RunningJoin]] = {}
"""The joins of such runs, until their followers ask for them: a run without rows may have ended before."""


def log_root(checkpoint: str | Path, name: str) -> Place:
    """The directory of the log of the join `name`."""
    return place(str(checkpoint)) / DIRECTORY / name


def known_root(checkpoint: str | Path, name: str) -> Place:
    """The directory of a log that is there.

    Raises:
        CheckpointError: there is no such join.
    """
    root = log_root(checkpoint, name)
    if not has_log(root):
        raise CheckpointError(f"there is no join called {name!r} under the checkpoint {checkpoint}")
    return root


def joins_in(plan: str) -> list[str]:
    """The tokens of the joins in a plan that Spark printed."""
    return list(dict.fromkeys(_TASKS.findall(plan)))


def joins_of(frame: DataFrame) -> list[Blueprint]:
    """The joins in the plan of a DataFrame."""
    return [_joins[token] for token in joins_in(plan_of(frame)) if token in _joins]


def expect(spark: SparkSession, blueprint: Blueprint) -> None:
    """Listen for the start of queries with this join on `spark`; over Spark Connect, `result_frame.py` starts them."""
    if blueprint.unattended:
        with _lock:
            _joins[blueprint.token] = blueprint
        return
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Starts(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            _started(spark, str(event.id), str(event.runId))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            run_id, batch = str(event.progress.runId), int(event.progress.batchId)
            for running in _running.get(run_id, ()):
                _warn_of_waiting(running, batch, event.progress.observedMetrics)
            _progressed(run_id, batch)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            _mergers.ended(str(event.runId))
            _running.pop(str(event.runId), None)

    session = session_id(spark)
    with _lock:
        _joins[blueprint.token] = blueprint
        if session not in _watched:
            _watched[session] = Starts()
            spark.streams.addListener(_watched[session])


def _started(spark: SparkSession, query_id: str, run_id: str) -> None:
    query = StartingQuery(spark, query_id)
    tokens = [token for token in joins_in(query.plan) if token in _joins]
    if not tokens:
        return
    settings = query.session.conf()
    joins = [_joins[token] for token in tokens]
    try:
        starts = _begun(query, joins)
    except Exception as error:
        # Spark drops exceptions of listeners, so every failure is passed on here.
        failure = _ours(error, query.checkpoint)
        answer = json.dumps({"error": type(failure).__name__, "message": str(failure)})
        for token in tokens:
            settings.set(SETTING + token, answer)
        _refuse(query, run_id, failure)
        return
    for key, value in query_settings(joins, settings.get, lambda key: bool(settings.getAll().contains(key))).items():
        settings.set(key, value)
    name_stages(spark, query, joins)
    for join, log in starts:
        answer = json.dumps({"root": str(log.root), "epoch": log.epoch, "end": log.end})
        settings.set(SETTING + join.token, answer)
        _running.setdefault(run_id, []).append(RunningJoin(join, log, query.checkpoint))
        _mergers.add(run_id, Merger(join, log))
    if any(token in _following for token in tokens):
        _followed[run_id] = _running[run_id]


def _begun(query: StartingQuery, joins: list[Blueprint]) -> list[tuple[Blueprint, WindowLog]]:
    """Register a start in each join's log. Their names differ, because Spark rejects equal names of metrics."""
    if query.commits_later:
        raise SetupError(COMMITS_LATER)
    if any(join.end_of_input and join.token not in _following for join in joins):
        raise SpecError(
            "end_of_input=True needs the query that writeStream starts on the frame that join returned: not on a view "
            "of it, or SQL over one"
        )
    checkpoint = reached(query.checkpoint)
    committed = newest_number(checkpoint / "commits")
    starts = []
    for join in joins:
        if join.checkpoint is not None:
            check_owner(place(join.checkpoint), query.id)
        root = checkpoint / DIRECTORY / join.name
        check_offsets(checkpoint, root)
        check_known(checkpoint, join.name, committed)
        log = WindowLog(root, new_epoch(root, join.description, former=join.former_description), join)
        starts.append((join, log))
    if query.calls_function:
        committed = take_back(checkpoint, [log for _, log in starts], committed)
    end = planned_end(checkpoint, committed)
    for join, log in starts:
        log.end = end
        complete_late_output(join, log.root, committed)
    return starts


def _ours(error: Exception, checkpoint: str) -> StreamJoinError:
    if isinstance(error, StreamJoinError):
        return error
    reason = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
    return CheckpointError(f"the window log can't be stored in {checkpoint}: {reason}")


def _refuse(query: StartingQuery, run_id: str, failure: StreamJoinError) -> None:
    """End a query that is about to start; if that is not possible, the first task fails with the error."""
    from py4j.protocol import Py4JError

    try:
        query.end(f"{type(failure).__name__}: {failure}")
    except (Py4JError, TypeError) as error:
        _logger.info("the query could not be stopped at its start: %s", error)
        return
    _refused[run_id] = failure


@contextlib.contextmanager
def followed(joins: list[Blueprint]) -> Iterator[None]:
    """Start a run over a backlog, which `backlog.py` follows: only then its input can end."""
    tokens = {join.token for join in joins}
    _following.update(tokens)
    try:
        yield
    finally:
        _following.difference_update(tokens)


def followed_joins(run_id: str) -> list[RunningJoin]:
    """The joins of a run that was started to be followed; returned only once."""
    return _followed.pop(run_id, [])


def running_joins(run_id: str) -> list[RunningJoin]:
    """The joins of a running query."""
    return list(_running.get(run_id, ()))


def refused(run_id: str) -> StreamJoinError | None:
    """Why a query was rejected at its start, or None; returned only once."""
    return _refused.pop(run_id, None)


def query_settings(
    joins: list[Blueprint], get: Callable[[str], str | None], is_set: Callable[[str], bool]
) -> dict[str, str]:
    """Settings for a query with these joins alone, unless the user set them otherwise.

    One job per batch: adaptive execution runs a job per shuffle and plans again after each. A join chooses its split
    points itself, so there is nothing to adapt, and a small batch spends most of its time on jobs.

    A task for each partition of each source: where all have as many partitions, Spark's union would read the first ones
    of all sources in one task, and all rows of sources with one partition.

    No size check of an Arrow batch after each row: if all columns have a fixed width, the limit on rows bounds the
    bytes as well. Packed parts then need 64-bit offsets, because together they may be larger than 2 GB.
    """
    settings = {name: "false" for name in (_ADAPTIVE, _UNION) if not is_set(name)}
    widths = [row_bytes(join.schema(side)) for join in joins for side in (0, 1)]
    rows = int(get(_MOST_ROWS) or 0)
    bounded = rows > 0 and all(width is not None and width * rows <= _FEW_BYTES for width in widths)
    if bounded and get(_MOST_BYTES) == _USUAL_BYTES:
        settings |= {_MOST_BYTES: _UNLIMITED, _LARGE: "true"}
    return settings


def _warn_of_waiting(running: RunningJoin, batch: int, metrics: Mapping[str, Any]) -> None:
    """Say which source a gate waits for when many rows wait there, and again when they are twice as many."""
    figures = BatchFigures.of(metrics, running.join.name)
    if figures is None or figures.waiting is None:
        return
    if figures.waiting < MANY_WAITING // 2:
        running.warned_of = 0
    if figures.waiting < max(MANY_WAITING, 2 * running.warned_of):
        return
    try:
        footer, _ = running.log.gate(batch, running.log.version(batch).epoch)
    except (StreamJoinError, OSError) as error:
        # A later batch says it.
        _logger.info("what the gate of %s waits for can't be read: %s", running.join.name, error)
        return
    running.warned_of = figures.waiting
    _logger.warning(
        "%s: %s. Every batch reads and writes them again. idle= says how long a silent source is waited for",
        running.join.name,
        HeldRows.from_footer(footer),
    )


def _progressed(run_id: str, batch: int) -> None:
    """Prune the logs and complete the late output after a committed batch."""
    prunable: list[tuple[WindowLog, Manifest]] = []
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
        if isinstance(log.root, RemotePath) and log.root.in_store:
            # A task of the next batch does it, with a listing that it needs anyway.
            continue
        try:
            prunable.append((log, log.version(batch)))
        except (StreamJoinError, OSError) as error:
            # Tasks report files that can't be read. The other joins may have to run the batch again with this one.
            _logger.info("nothing was removed from the window log in %s: %s", log.root, error)
            prunable = []
            break
    for log, manifest in prunable:
        try:
            log.prune(manifest)
        except (StreamJoinError, OSError) as error:
            # What can't be removed now is removed after a later batch.
            _logger.info("not all was removed from the window log in %s: %s", log.root, error)
    _mergers.progressed(run_id, batch)


def logs_of(run_id: str) -> list[WindowLog]:
    """The logs of the joins in a running query."""
    return [running.log for running in _running.get(run_id, ())]


def open_log(blueprint: Blueprint) -> tuple[WindowLog, int]:
    """Within a task: the log of this join in the running query, and the batch's number."""
    from pyspark import TaskContext

    import streamjoin.model.errors as errors

    freeze_heap()
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    setting = context.getLocalProperty(SETTING + blueprint.token) if context else None
    if context is not None and batch is not None and setting is None and blueprint.unattended:
        return attend(blueprint, context, int(batch)), int(batch)
    if batch is None or setting is None:
        raise StateError(
            "a join runs only inside a micro-batch of the streaming query that it was started in: not in continuous or "
            "real-time mode, and within foreachBatch only on the thread that calls it"
        )
    answer = json.loads(setting)
    if "error" in answer:
        kind = getattr(errors, answer["error"], CheckpointError)
        raise kind(answer["message"])
    return WindowLog(place(answer["root"]), answer["epoch"], blueprint, answer.get("end")), int(batch)


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
