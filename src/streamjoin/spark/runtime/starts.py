"""What is checked and completed when a query starts, by the driver or, over Spark Connect, by the first tasks."""

from __future__ import annotations

import json
import logging

from streamjoin.model.errors import CheckpointError, StreamJoinError
from streamjoin.spark.stages.late_output import catch_up, forget_uncommitted
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import has_log
from streamjoin.storage.pieces import damaged
from streamjoin.storage.places import Place, entries, place

DIRECTORY = "streamjoin"
"""The directory of all logs under a checkpoint."""

_logger = logging.getLogger(__name__)


def newest_number(directory: Place) -> int:
    """The newest entry of a log of Spark's or streamjoin's, named by batch; -1 if there is none."""
    return max((int(entry.name) for entry in entries(directory) if entry.name.isdigit()), default=-1)


def check_offsets(checkpoint: Place, root: Place) -> None:
    """Reject a checkpoint without Spark's part: a version is always written after the offsets of its batch."""
    version, offsets = newest_number(root / "versions"), newest_number(checkpoint / "offsets")
    if version > offsets:
        raise CheckpointError(
            f"the checkpoint {checkpoint} is incomplete: the window log holds batch {version}, but Spark's "
            f"offsets end at {offsets if offsets >= 0 else 'nothing'}. Restore it from a copy, or delete the rest too"
        )


def check_known(checkpoint: Place, name: str, committed: int) -> None:
    """Reject a checkpoint with batches in which the join `name` had no part: it has nothing to continue from."""
    if committed < 0 or has_log(checkpoint / DIRECTORY / name):
        return
    others = sorted(path.name for path in entries(checkpoint / DIRECTORY) if has_log(path))
    joins = f"the state of {' and '.join(map(repr, others))}" if others else "no join's state"
    way = f"use name={others[0]!r} as before" if others else "run the query as it was"
    raise CheckpointError(
        f"the checkpoint {checkpoint} has batches up to {committed} with {joins}, and this join is called {name!r}: "
        f"{way}, or start with a new checkpoint"
    )


def check_owner(checkpoint: Place, query_id: str) -> None:
    """Reject a location that is not the checkpoint of the query: Spark stores the query's id there."""
    path = checkpoint / "metadata"
    try:
        owner = json.loads(path.read_bytes())["id"] if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from error
    if owner != query_id:
        raise CheckpointError(
            f"{checkpoint} is not the checkpoint of the query that runs the join (it "
            f"{'holds no query' if owner is None else 'belongs to another query'}): give checkpointLocation, and "
            "checkpoint= of the join if you use it, as the same whole location with its scheme, such as s3a://bucket/x"
        )


def complete_late_output(join: Blueprint, root: Place, committed: int) -> None:
    """Write late output that a killed start has left out."""
    if join.late is None:
        return
    try:
        forget_uncommitted(root, place(join.late), committed)
        catch_up(root, place(join.late), committed)
    except (StreamJoinError, OSError) as error:
        _logger.warning("late rows could not be written to %s: %s", join.late, error)
