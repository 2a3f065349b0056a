"""`rescale`: another number of partitions for a join that runs."""

from __future__ import annotations

from pathlib import Path

from streamjoin.spark.runtime.checkpoints import log_root
from streamjoin.spark.stages.scaling import ask_for


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
