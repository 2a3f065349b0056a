"""The number of ranges of the next batch, and their split points.

Both depend only on the previous manifest, so all tasks of a batch decide alike. The number of tasks is fixed when a
query starts; the number of ranges is not. It follows the load, or the number that a user wrote to a file next to the
log; the first task of a batch reads that file, and the manifest passes the number on.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from streamjoin.model.errors import CheckpointError, SpecError
from streamjoin.spark.runtime.checkpoints import log_root
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import has_log
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import Place, read_if_there
from streamjoin.storage.ranges import Sample, SplitPoints, shared_split_points, split_points

ROWS_PER_TASK = 20_000
"""With partitions="auto": rows of the previous batch per task; fewer rows cost less than starting a task."""
COMPARISONS_PER_TASK = 20_000_000
"""The same for conditions without an index: comparisons of the previous batch with the window per task."""

_CONTROL = "partitions.json"


def planned(blueprint: Blueprint, before: Manifest, batch: Sample = ()) -> SplitPoints:
    """The split points of the batch after `before`; `batch` is a sample of its words, if known."""
    ranges = ranges_after(blueprint, before)
    if not blueprint.indexed:
        return shared_split_points(1 if blueprint.summarises else ranges)
    # In an as-of join that looks back, work follows the new rows, however many keys are stored.
    stored, new = before.samples, batch or before.fresh_sample
    points = split_points(new if blueprint.supersedes and new else [*stored, *new], ranges)
    # A key of summaries has one owner, which has all right rows of that key.
    return points.between_words if blueprint.summarises else points


def agreed(before: Manifest, points: SplitPoints) -> int:
    """A nonzero digest of the log version and the split points, which all tasks of a batch must share."""
    facts = [before.batch, before.epoch, [run.key for run in before.runs], points.to_json()]
    return zlib.crc32(json.dumps(facts).encode()) >> 2 | 1


def ranges_after(blueprint: Blueprint, before: Manifest) -> int:
    """The number of ranges of the batch after `before`."""
    most = blueprint.partitions
    if before.wanted is not None:
        return max(1, min(before.wanted, most))
    if blueprint.auto and before.batch >= 0:
        ranges = -(-before.fresh // ROWS_PER_TASK)
        if not blueprint.indexed:
            stored = sum(side.rows for run in before.runs for side in run.statistics)
            ranges = max(ranges, -(-before.fresh * stored // COMPARISONS_PER_TASK))
        return max(1, min(ranges, most))
    return min(blueprint.first or most, most)


def rescale(checkpoint: str | Path, partitions: int | None, name: str = "join") -> None:
    """Ask the join under `checkpoint` to run with another number of partitions.

    It takes effect after the batch that runs now or the one after it, moves no state, and holds across restarts. The
    query has as many tasks as it was started with (`most_partitions`): a larger number means all of them.

    Args:
        checkpoint: the `checkpointLocation` of the query.
        partitions: the new number; None restores the number that the join was built with.
        name: the name of the join, if it has one.

    Raises:
        SpecError: the number is invalid.
        CheckpointError: there is no such join.
    """
    ask_for(log_root(checkpoint, name), partitions)


def ask_for(root: Place, partitions: int | None) -> None:
    """Request another number of ranges for the join whose log is in `root`; None withdraws a request."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, or None")
    if not has_log(root):
        raise CheckpointError(f"there is no join in {root}; its query must have started once")
    with atomic(root / _CONTROL) as file:
        file.write(json.dumps({"partitions": partitions}).encode())


def asked_for(root: Place) -> int | None:
    """The requested number of ranges; None without a request or if the file is invalid."""
    try:
        content = read_if_there(root / _CONTROL)
        partitions = None if content is None else json.loads(content)["partitions"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return partitions if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0 else None
