"""One stream's way into the distributed engine: a Spark query whose tasks write the micro-batches that they read.

The driver gets the names, counts and times of the part files. The invariant is that of every feed: Spark commits a
micro-batch only after the engine's journal lists it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamjoin.adhoc.engine.inbox import Portion
from streamjoin.adhoc.executors.distributed.jobs import map_partitions
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.parts import PartWriter, PortionFiles
from streamjoin.adhoc.executors.distributed.placement import CellGroups
from streamjoin.adhoc.executors.spark_feed import SparkFeed
from streamjoin.windows.clock import NEVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PartFeed(SparkFeed):
    """Reads one stream into part files; `bounds` gives the times that are allowed, by the newest before."""

    def __init__(
        self,
        *arguments: Any,
        journal: FiledJournal,
        bounds: Callable[[str, int], tuple[int, int]],
        groups: Callable[[str], CellGroups | None],
    ) -> None:
        super().__init__(*arguments)
        self._journal, self._bounds, self._groups = journal, bounds, groups
        self._newest = NEVER
        """The newest time that was handed in: the batch that has it may not be finished yet."""

    def _hand(self, frame: DataFrame, spark_batch: int) -> None:
        name, read_at = self.stream.name, time.monotonic()
        with self._inbox.reading(name):
            directory = self._journal.tuples_directory(name, spark_batch)
            bounds = self._bounds(name, self._newest)
            writer = PartWriter(self.stream, *bounds, directory, self._mark, self._groups(name))
            written = map_partitions(frame, writer.write)
        parts = sorted((part for part in written if part.path or part.aside), key=lambda part: part.partition)
        self._inbox.hand(Portion(name, spark_batch, PortionFiles(tuple(parts)), read_at=read_at))
        self._newest = max([self._newest, *(part.most for part in parts if part.rows)])
        self.position = spark_batch
