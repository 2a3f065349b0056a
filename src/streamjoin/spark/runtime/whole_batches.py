"""Batches whose tasks did not all run: a function for `foreachBatch` need not read every partition of its DataFrame.

A task stores its range of the window when it runs, and Spark commits the batch whether all tasks ran or not. The next
batch would then have nothing to continue from. So on frames of a join the user's function is followed by a look at the
log, and what is missing runs before the commit. Where the function was set on another frame, such as a view of the
result, the log can't be checked in time: the next start takes the commit back, and Spark runs the batch again.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streamjoin.model.errors import StateError
from streamjoin.spark.runtime.starts import newest_number
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.places import Place, entries, place, remove_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    OfBatch = Callable[[DataFrame, int], None]

SETTING = "spark.streamjoin.log."
"""With the token of a join: the setting of a query's session that has the location of its log."""
_logger = logging.getLogger(__name__)


def reading_all(function: OfBatch, joins: Sequence[Blueprint]) -> OfBatch:
    """`function` for `foreachBatch`, followed by the tasks of the batch that it left out."""

    @functools.wraps(function)
    def whole(frame: DataFrame, batch: int) -> None:
        function(frame, batch)
        if _all_ran(frame, batch, joins):
            return
        # Counting takes every partition and no column.
        frame.count()
        if not _all_ran(frame, batch, joins):
            raise StateError(
                f"batch {batch} can't be committed: Spark runs no task of the join for its rows, as with a filter that "
                "is never true. Write rows that come from the join"
            )

    return whole


def _all_ran(frame: DataFrame, batch: int, joins: Sequence[Blueprint]) -> bool:
    for join in joins:
        answer = json.loads(frame.sparkSession.conf.get(SETTING + join.token, None) or "{}")
        # Without a log, tasks say why there is none.
        if "root" not in answer or not WindowLog(place(answer["root"]), answer["epoch"], join).holds(batch):
            return False
    return True


def take_back(checkpoint: Place, logs: Sequence[WindowLog], committed: int) -> int:
    """Take commits back whose batches the logs do not hold; returns the newest that is left.

    Spark runs the first of these batches again, with the offsets that are written down for it, and plans those after it
    anew: no task of them has run. If the version before is not whole, nothing changes, and tasks say what is missing.
    """
    newest = [newest_number(log.root / "versions") for log in logs]
    least = min(newest)
    whole = least if least >= 0 and all(log.holds(least) for log in logs) else max(least - 1, -1)
    if whole >= committed or max(newest) > whole + 1 or not all(whole < 0 or log.is_whole(whole) for log in logs):
        return committed
    # Later offsets first: without them alone, the next start finds the same.
    for directory, first in (("offsets", whole + 2), ("commits", whole + 1)):
        remove_files([path for path in entries(checkpoint / directory) if _number(path) >= first])
    _logger.warning(
        "batch %d of %s was committed although not all of its tasks had run: it runs again, and a function for "
        "foreachBatch gets it once more. Such a function must read all of its rows, for example by a count",
        whole + 1, checkpoint,
    )  # fmt: skip
    return whole


def _number(path: Place) -> int:
    """The batch of an entry of Spark's logs, or of its checksum."""
    number = path.name.lstrip(".").partition(".")[0]
    return int(number) if number.isdigit() else -1
