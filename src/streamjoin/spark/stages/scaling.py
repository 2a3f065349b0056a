"""How many ranges the next batch has, and where they are cut.

Both follow from the manifest before the batch alone, so that all its tasks decide alike. The tasks of a query are
fixed when it starts; how many of them get a range is not: a user asks for another number through a file next to the
log, which the first task of a batch reads and the manifest passes on, or the load decides.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from streamjoin.model.errors import CheckpointError, SpecError
from streamjoin.spark.runtime.checkpoints import log_root
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import Place
from streamjoin.storage.ranges import Sample, SplitPoints, shared_split_points, split_points

ROWS_A_TASK = 20_000
"""With partitions="auto" a task more for this many rows of the batch before: fewer cost less than a task's start."""
COMPARISONS_A_TASK = 20_000_000
"""The same for conditions without an index, by the comparisons of that batch with the window."""

_CONTROL = "partitions.json"


def planned(blueprint: Blueprint, before: Manifest, batch: Sample = ()) -> SplitPoints:
    """The cuts of the batch after `before`; `batch` is a sample of its own words, where that is known."""
    ranges = ranges_after(blueprint, before)
    if not blueprint.bound.index:
        return shared_split_points(ranges)
    return split_points([*before.samples, *(batch or before.fresh_sample)], ranges)


def agreed(before: Manifest, points: SplitPoints) -> int:
    """A number, not 0, for what the tasks of the batch after `before` go by: it is the same in all of them."""
    facts = [before.batch, before.epoch, [run.key for run in before.runs], points.to_json()]
    return zlib.crc32(json.dumps(facts).encode()) >> 2 | 1


def ranges_after(blueprint: Blueprint, before: Manifest) -> int:
    """How many ranges the batch after `before` has."""
    most = blueprint.partitions
    if before.wanted is not None:
        return max(1, min(before.wanted, most))
    if blueprint.auto and before.batch >= 0:
        ranges = -(-before.fresh // ROWS_A_TASK)
        if not blueprint.bound.index:
            stored = sum(side.rows for run in before.runs for side in run.statistics)
            ranges = max(ranges, -(-before.fresh * stored // COMPARISONS_A_TASK))
        return max(1, min(ranges, most))
    return min(blueprint.first or most, most)


def rescale(checkpoint: str | Path, partitions: int | None, name: str = "join") -> None:
    """Ask the join under `checkpoint` to run with another number of partitions.

    It takes effect after the batch that runs now or the one after it, moves no state, and holds across restarts. The
    query has as many tasks as it was started with (`most_partitions`): a larger number means all of them.

    Args:
        checkpoint: the `checkpointLocation` of the query.
        partitions: how many; None goes back to what the join was built with.
        name: the name of the join, if it was given one.

    Raises:
        SpecError: the number can't be.
        CheckpointError: there is no such join.
    """
    ask_for(log_root(checkpoint, name), partitions)


def ask_for(root: Place, partitions: int | None) -> None:
    """Ask the join whose log is in `root` for another number of ranges; None takes a wish back."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, or None")
    if not (root / "join.json").exists():
        raise CheckpointError(f"there is no join in {root}; its query must have started once")
    with atomic(root / _CONTROL) as file:
        file.write(json.dumps({"partitions": partitions}).encode())


def asked_for(root: Place) -> int | None:
    """What was asked for; a file that says nothing sensible asks for nothing."""
    path = root / _CONTROL
    try:
        # Looked for first: libhdfs prints a stack trace about each file that is opened and not there.
        partitions = json.loads(path.read_bytes())["partitions"] if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return partitions if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions > 0 else None
