"""One stream's way into the distributed engine: a Spark query whose tasks write the micro-batches that they read.

The driver gets the names, counts and times of the part files. The invariant is that of every feed: Spark commits a
micro-batch only after the engine's journal lists it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamjoin.adhoc.engine.inbox import Portion
from streamjoin.adhoc.executors.distributed.journal import FiledJournal
from streamjoin.adhoc.executors.distributed.parts import PartFile, PartWriter, PortionFiles
from streamjoin.adhoc.executors.distributed.placement import CellGroups
from streamjoin.adhoc.executors.spark_feed import SparkFeed
from streamjoin.windows.clock import Horizon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PartFeed(SparkFeed):
    """Reads one stream into part files; `horizon` gives how far the stream was before the batch that runs now."""

    def __init__(
        self,
        *arguments: Any,
        journal: FiledJournal,
        horizon: Callable[[str], Horizon],
        groups: Callable[[str], CellGroups | None],
    ) -> None:
        super().__init__(*arguments)
        self._journal, self._horizon, self._groups = journal, horizon, groups
        self._newest: int | None = None
        """The newest time that was handed in: the batch that has it may not be finished yet."""

    def _hand(self, frame: DataFrame, spark_batch: int) -> None:
        name = self.stream.name
        with self._inbox.reading(name):
            directory = self._journal.tuples_directory(name, spark_batch)
            writer = PartWriter(self.stream, self._bound(), directory, self._mark, self._groups(name))
            told = frame.mapInArrow(partial(write_parts, writer), "part STRING").collect()
        parts = sorted((PartFile.unpacked(json.loads(row[0])) for row in told), key=lambda part: part.partition)
        self._inbox.hand(Portion(name, spark_batch, PortionFiles(tuple(parts))))
        times = [part.most for part in parts if part.rows]
        if times:
            self._newest = max(*times, *([] if self._newest is None else [self._newest]), times[0])
        self.position = spark_batch

    def _bound(self) -> int:
        horizon = copy.copy(self._horizon(self.stream.name))
        if self._newest is not None:
            horizon.late(np.array([self._newest], np.int64))
        return horizon.bound


def write_parts(writer: PartWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write a task's rows as a part; the one row that comes of it describes the file."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise AssertionError("a part is written by a task")
    part = writer.write(batches, context.partitionId(), context.taskAttemptId())
    if part.path or part.aside:
        yield pa.RecordBatch.from_pydict({"part": [json.dumps(part.packed())]})
