"""Who computes a batch's rows: the driver itself, or a Spark job of as many tasks as there are shares.

One job a batch, however many queries there are. No state moves: tasks map the bucket files of the engine's log, and
what they are sent of queries and plan is what changed. The invariant: both ways give the same rows.
"""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from streamjoin.model.errors import InputError, SpecError, reason_of
from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.explain import TaskFigures
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.engine.executor import InProcess, Outputs, RowsExecutor, TaskReport, TupleCore
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.queries.executors.replica import Assignment, Delta, ShareRows, run_share, unpacked
from streamjoin.queries.executors.shares import Scaling, fixed, following_load, shares_of
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.spark.runtime.session import MORE_WARMING

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

WARMING: Final = "streamjoin.queries.executors.warming"
_log = logging.getLogger("streamjoin.adhoc")
_DELTAS: Final = 16
"""Changes that are sent along before the whole state is sent anew."""


class Tasks:
    """Computes a batch in Spark tasks; `scaling` sets their number and the bounds of their shares."""

    stores_first = True

    def __init__(self, spark: Any, journal: FileJournal, scaling: Scaling) -> None:
        self._context: SparkContext = spark.sparkContext
        self._journal = journal
        self._scaling = scaling
        self._decided: tuple[str, ...] = ()
        self._tasks: tuple[TaskFigures, ...] = ()
        """What each task of the last batch did; none where the driver did it."""
        self._sent = _Sent(self._context)
        # Spark forks workers of another environment from a process of their own, which loads what is named here.
        self._context.environment[MORE_WARMING] = WARMING

    def report(self) -> TaskReport:
        """How the last batch was computed."""
        told, self._decided = self._decided, ()
        return TaskReport(self._scaling.shares, self._tasks, told)

    def results(self, core: TupleCore, arrived: Arrived) -> Outputs:
        """The rows of a batch, whose tuples are in the log, and what failed."""
        if not isinstance(core, Shared):
            raise AssertionError("tasks run copies of the shared core")
        began = time.perf_counter()
        rows = sum(bucket.n for bucket in arrived.buckets.values())
        if not rows:
            return core.results(arrived)
        work: tuple[float, ...] = ()
        self._tasks = ()
        if not self._scaling.shares:
            results = core.results(arrived)
        elif (parts := self._tried(core, arrived)) is None:
            # The driver finds out which query it is.
            results = core.results(arrived)
        else:
            found, failures = _gathered(parts, core.snapshot().registry.running)
            core.begin_budgets()
            results, work = core.complete(arrived, found, failures), tuple(part.seconds for part in parts)
            core.take_figures([part.figures for part in parts])
            self._tasks = tuple(_figures(part) for part in parts)
            for name, counts in parts[0].distinct.items():
                arrived.buckets[name].note_distinct(counts)
            if any(part.rebuilt for part in parts):
                # Making the state from scratch is no measure of a share's work.
                work = ()
        self._scaling, self._decided = self._scaling.after(time.perf_counter() - began, work, rows)
        return results

    def _tried(self, core: Shared, arrived: Arrived) -> list[ShareRows] | None:
        """What the tasks of a batch give; None if they fail."""
        try:
            return self._run(core, arrived)
        except Exception as error:
            if self._context._jsc.sc().isStopped():
                raise
            _log.error("tasks of batch %d fail, and the driver computes it: %s", arrived.batch, reason_of(error))
            return None

    def _run(self, core: Shared, arrived: Arrived) -> list[ShareRows]:
        state = core.snapshot()
        shares = tuple(shares_of(arrived.buckets, self._scaling.cuts))
        self._sent.note(core.streams, state.registry.running, state.optimizer.plan.choices)
        assignment = Assignment(
            self._sent.run,
            arrived.batch,
            self._sent.base,
            self._sent.deltas,
            {
                stream: tuple((b.batch, str(self._journal.bucket(stream, b.batch))) for b in held)
                for stream, held in state.buckets.items()
            },
            {stream: str(self._journal.bucket(stream, arrived.batch)) for stream in arrived.buckets},
            state.clocks,
            shares,
            core.settings.engine_budget.shared_by(len(shares)),
        )
        job = partial(_task, assignment, self._sent.whole)
        found: list[ShareRows] = self._context.parallelize(range(len(shares)), len(shares)).mapPartitions(job).collect()
        return found


def _task(assignment: Assignment, whole: Broadcast[bytes], numbers: Any) -> list[ShareRows]:
    return [run_share(assignment, lambda: whole.value, number) for number in numbers]


class _Sent:
    """What tasks were sent of queries and plan: a whole state now and then, and what changed since."""

    def __init__(self, context: SparkContext) -> None:
        self.run = uuid.uuid4().hex
        self.base = -1
        self.deltas: tuple[Delta, ...] = ()
        self.whole: Any = None
        self._context = context
        self._streams: dict[str, Stream] = {}
        self._placed: dict[str, tuple[LiveQuery, Choice]] = {}

    def note(
        self, streams: Mapping[str, Stream], queries: Mapping[str, LiveQuery], choices: Mapping[str, Choice]
    ) -> None:
        """Take over the state of a batch."""
        new = tuple(stream for name, stream in streams.items() if name not in self._streams)
        gone = tuple(name for name in self._placed if name not in queries)
        came = {
            name: entry
            for name, entry in queries.items()
            if name not in self._placed or self._placed[name][0] is not entry or self._placed[name][1] != choices[name]
        }
        first = self.whole is None
        if not (new or gone or came or first):
            return
        version = (self.deltas[-1].version if self.deltas else self.base) + 1
        self._streams |= {stream.name: stream for stream in new}
        self._placed = {name: (entry, choices[name]) for name, entry in queries.items()}
        self.deltas = (*self.deltas, Delta(version, new, {name: self._placed[name] for name in came}, gone))
        if first or len(self.deltas) > _DELTAS:
            self._send_whole(version)

    def _send_whole(self, version: int) -> None:
        whole = Delta(version, tuple(self._streams.values()), dict(self._placed), ())
        if self.whole is not None:
            self.whole.unpersist()
        self.whole = self._context.broadcast(pickle.dumps(whole))
        self.base, self.deltas = version, ()


def _figures(part: ShareRows) -> TaskFigures:
    rows = sum(part.counted.values())
    return TaskFigures(rows, part.seconds, dict(part.figures.seconds), part.rebuilt)


def _gathered(parts: list[ShareRows], queries: Mapping[str, LiveQuery]) -> Outputs:
    failures = {query_name(name): InputError(why) for part in parts for name, why in part.failures.items()}
    outputs: dict[str, pa.Table] = {}
    for name, entry in queries.items():
        schema, failed = entry.schema, query_name(name) in failures
        tables = [unpacked(part.rows[name], schema) for part in parts if name in part.rows and not failed]
        outputs[name] = pa.concat_tables(tables) if tables else schema.empty_table()
    return outputs, failures


def executor_for(
    partitions: int | Literal["auto"] | None, spark: Any, journal: FileJournal, threshold: float
) -> RowsExecutor:
    """Who computes rows, as `Engine` is told.

    Raises:
        SpecError: `partitions` is no number from 1, nor "auto", nor None.
    """
    if partitions is None:
        return InProcess()
    if partitions == "auto":
        return Tasks(spark, journal, following_load(spark.sparkContext.defaultParallelism, threshold))
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, 'auto', or None for the driver")
    return Tasks(spark, journal, fixed(partitions))
