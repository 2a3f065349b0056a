"""Joins over Spark Connect, which only their tasks know: they register starts, merge runs and complete the late output.

The client has no code on the driver, and may not even reach the checkpoint. Its location comes with the settings that
Spark passes to every task; the id of the run is the job group that Spark gives to all jobs of a query. The tasks of a
batch's first stage register the start, before any task of a later stage begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from streamjoin.model.errors import NotSupportedError, StateError, StreamJoinError
from streamjoin.spark.runtime.end_of_input import planned_end
from streamjoin.spark.runtime.starts import (
    DIRECTORY,
    check_known,
    check_offsets,
    check_owner,
    complete_late_output,
    newest_number,
)
from streamjoin.spark.stages.late_output import catch_up
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.claims import claim_of_run
from streamjoin.storage.log import WindowLog, first_epoch, new_epoch
from streamjoin.storage.places import Place, place, reached

if TYPE_CHECKING:
    from pyspark import TaskContext

CHECKPOINT = "spark.streamjoin.checkpoint"
"""The setting with the location of the query's checkpoint."""
_RUN, _QUERY = "spark.jobGroup.id", "sql.streaming.queryId"

# In a worker: the epochs of runs, and the batch up to which the late output of a run is complete.
_epochs: dict[tuple[str, str], int] = {}
_completed: dict[tuple[str, int], int] = {}
_merging = threading.Lock()
_logger = logging.getLogger(__name__)


def attend(blueprint: Blueprint, context: TaskContext, batch: int) -> WindowLog:
    """The log of the join in the running query; registers the start if no other task has.

    Raises:
        CheckpointError: the checkpoint belongs to another join or query, is incomplete, or can't be written.
        StateError: the query does not run in micro-batches, or the location of its checkpoint is unknown.
    """
    location = context.getLocalProperty(CHECKPOINT) or blueprint.checkpoint
    run, query = context.getLocalProperty(_RUN), context.getLocalProperty(_QUERY)
    if location is None or run is None or query is None:
        raise StateError(
            "over Spark Connect a join runs in the query that starts with writeStream on its result; if the result "
            "goes through a view or SQL, give the location of the query's checkpoint to join(..., checkpoint=...)"
        )
    checkpoint = place(location)
    root = checkpoint / DIRECTORY / blueprint.name
    epoch = _epochs.get((str(root), run))
    if epoch is None:
        reached(location)
        epoch = claim_of_run(root, run) or _registered(blueprint, checkpoint, root, run, query, batch)
        _epochs[str(root), run] = epoch
    return WindowLog(root, epoch, blueprint)


def _registered(blueprint: Blueprint, checkpoint: Place, root: Place, run: str, query: str, batch: int) -> int:
    check_owner(checkpoint, query)
    check_offsets(checkpoint, root)
    committed = newest_number(checkpoint / "commits")
    if committed >= batch:
        raise StateError(f"batch {batch} is committed already: this task is left over from an earlier start")
    check_known(checkpoint, blueprint.name, committed)
    if planned_end(checkpoint, committed) is not None:
        raise NotSupportedError(
            f"batch {batch} is the end of input, which a classic session has planned: let one run it"
        )
    if first_epoch(root):
        # Before the run is registered: the tasks that find it registered rely on this.
        complete_late_output(blueprint, root, committed)
    return new_epoch(root, blueprint.description, run, blueprint.former_description)


def after_task(blueprint: Blueprint, log: WindowLog, batch: int) -> None:
    """What a driver does after a batch, done for the batch before by the first task of each batch."""
    if blueprint.late is not None:
        key = (str(log.root), log.epoch)
        try:
            catch_up(log.root, place(blueprint.late), batch - 1, _completed.get(key, -1))
            _completed[key] = batch - 1
        except (StreamJoinError, OSError) as error:
            # The rows stay in the log, and a later batch tries again.
            _logger.warning("late rows could not be written to %s: %s", blueprint.late, error)
    if batch > 0 and _merging.acquire(blocking=False):
        # A log of its own: the task's may have listed its files before.
        own = WindowLog(log.root, log.epoch, blueprint)
        threading.Thread(target=_merge, args=(blueprint, own, batch - 1), name="streamjoin-merge", daemon=True).start()


def _merge(blueprint: Blueprint, log: WindowLog, batch: int) -> None:
    """Merge the runs that are due, in a thread of the worker; a merge that a killed worker leaves is done again."""
    try:
        with _alone_on_this_host(log.root) as alone:
            if alone:
                merge_due(blueprint, log, batch)
    except (StreamJoinError, OSError) as error:
        _logger.info("a merge of the window log in %s was abandoned: %s", log.root, error)
    finally:
        _merging.release()


@contextlib.contextmanager
def _alone_on_this_host(root: Place) -> Iterator[bool]:
    """Whether no other worker of this host merges the same log; two hosts may, and one of the merges is ignored."""
    name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"streamjoin-merge-{name}"
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
