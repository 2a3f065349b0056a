"""The shared plan in a task: a copy of the core that follows the driver's, and runs a share of a batch.

State belongs to files: buckets are mapped from the engine's log, queries and plan come with the task. What a worker
process keeps from task to task (indexes, query-sets, the mapped files) is a cache that can be made again at any time.
The invariant: for a batch the copy has the driver's queries, plan and buckets, whatever batches it has missed.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from streamjoin.model.large_columns import one_batch
from streamjoin.queries.core.arrivals import Arrived, Clocks
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.budgets import ANY_AMOUNT, EngineBudget
from streamjoin.queries.core.changes import LiveQuery, QueryRegistry
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared, ShareFigures, Snapshot
from streamjoin.queries.core.shared_join import Share
from streamjoin.queries.engine.journal import read_bucket
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.optimizer.optimizer import Optimizer
from streamjoin.queries.optimizer.plans import Plan
from streamjoin.storage.places import place


@dataclass(frozen=True)
class Delta:
    """What changed from the version before: streams and queries that came or changed, and queries that went."""

    version: int
    streams: tuple[Stream, ...]
    came: Mapping[str, tuple[LiveQuery, Choice]]
    gone: tuple[str, ...]


@dataclass(frozen=True)
class Assignment:
    """A batch for tasks. `base` is the version of the whole state; `deltas` lead from it to this batch's."""

    run: str
    batch: int
    base: int
    deltas: tuple[Delta, ...]
    held: Mapping[str, tuple[tuple[int, str], ...]]
    """Batches and files of the buckets before this batch, by stream, oldest first."""
    fresh: Mapping[str, str]
    clocks: Clocks
    """Where the streams were before this batch."""
    shares: tuple[Share, ...]
    budget: EngineBudget = ANY_AMOUNT
    """What the queries may hold together in one share."""

    @property
    def version(self) -> int:
        """The version of queries and plan that the batch is run with."""
        return self.deltas[-1].version if self.deltas else self.base


@dataclass(frozen=True)
class ShareRows:
    """What a share gave: rows by query as record batches, failures, seconds, and distinct keys of fresh buckets."""

    rows: Mapping[str, bytes]
    counted: Mapping[str, int]
    failures: Mapping[str, str]
    seconds: float
    distinct: Mapping[str, Mapping[IndexKey, int]]
    rebuilt: bool
    figures: ShareFigures


_replicas: dict[str, Replica] = {}


def run_share(assignment: Assignment, whole: Any, number: int, replicas: dict[str, Replica] = _replicas) -> ShareRows:
    """Run one share in this process, with what it keeps in `replicas`.

    `whole` gives the whole state at the assignment's base, pickled, when called.
    """
    replica = replicas.get(assignment.run)
    if replica is None:
        # Another run of the engine has replaced the one before.
        replicas.clear()
        replica = replicas[assignment.run] = Replica(assignment.budget)
    elif assignment.batch < replica.batch:
        # A straggler, whose rows are no longer awaited: a copy can't go back.
        return Replica(assignment.budget).run(assignment, whole, number)
    try:
        return replica.run(assignment, whole, number)
    except BaseException:
        # It may have taken in a part of what it follows; the next try begins from the files.
        replicas.clear()
        raise


class Replica:
    """A copy of the core in a worker process, which computes the shares that tasks send it."""

    # Spark runs as many tasks as there are cores.
    SETTINGS: ClassVar = Settings(sharing="everything", threads=1)
    """A copy decides nothing: it runs by the plan that it is sent."""

    def __init__(self, budget: EngineBudget = ANY_AMOUNT) -> None:
        self._core = Shared([], replace(self.SETTINGS, engine_rows=budget.rows, engine_bytes=budget.bytes))
        self._streams: dict[str, Stream] = {}
        self._queries: dict[str, LiveQuery] = {}
        self._choices: dict[str, Choice] = {}
        self._version = -1
        self._batch = -1
        self._arrived: Arrived | None = None
        self._newest: dict[str, int] = {}

    @property
    def batch(self) -> int:
        """The newest batch that it had a share of."""
        return self._batch

    def run(self, assignment: Assignment, whole: Any, number: int) -> ShareRows:
        """The rows of a share."""
        began = time.perf_counter()
        rebuilt = self._follow(assignment, whole)
        if self._arrived is None:
            raise AssertionError("a batch without its tuples")
        self._core.limit(assignment.budget)
        outputs, failures = self._core.results(self._arrived, assignment.shares[number])
        counted = {name: table.num_rows for name, table in outputs.items() if table.num_rows}
        rows = {name: _packed(outputs[name]) for name in counted}
        reasons = {name: str(error) for name, error in failures.items()}
        distinct = self._distinct() if not number else {}
        figures = self._core.share_figures()
        return ShareRows(rows, counted, reasons, time.perf_counter() - began, distinct, rebuilt, figures)

    def _distinct(self) -> dict[str, dict[IndexKey, int]]:
        buckets = self._arrived.buckets if self._arrived is not None else {}
        return {name: {key: bucket.distinct(key) for key in bucket.index_keys} for name, bucket in buckets.items()}

    # Following ----------------------------------------------------------------------------------------------------

    def _follow(self, assignment: Assignment, whole: Any) -> bool:
        """Come to the state before a batch; returns whether that was made from scratch."""
        if self._batch == assignment.batch:
            return False
        rebuild = self._version < assignment.base
        if rebuild:
            self._queries, self._choices = {}, {}
            self._change(pickle.loads(whole()))  # noqa: S301 - written by the driver of this very run
        for delta in assignment.deltas:
            if delta.version > self._version:
                self._change(delta)
        if rebuild:
            self._rebuild(assignment)
        else:
            self._core.follow(QueryRegistry(dict(self._queries)), Plan(dict(self._choices)))
            self._catch_up(assignment)
        buckets = {stream: read_bucket(place(file)) for stream, file in assignment.fresh.items()}
        self._arrived = Arrived(buckets, {}, {}, assignment.clocks, assignment.batch)
        self._newest |= dict.fromkeys(buckets, assignment.batch)
        self._batch = assignment.batch
        return rebuild

    def _change(self, delta: Delta) -> None:
        for stream in delta.streams:
            if stream.name not in self._streams:
                self._streams[stream.name] = stream
                self._core.add_stream(stream, 0)
        for name in delta.gone:
            self._queries.pop(name, None)
            self._choices.pop(name, None)
        for name, (query, choice) in delta.came.items():
            self._queries[name] = query
            self._choices[name] = choice
        self._version = delta.version

    def _rebuild(self, assignment: Assignment) -> None:
        held = assignment.held
        buckets = {stream: tuple(read_bucket(place(file)) for _, file in files) for stream, files in held.items()}
        optimizer = replace(Optimizer(self._core.settings), plan=Plan(dict(self._choices)))
        registry = QueryRegistry(dict(self._queries))
        self._core.restore(Snapshot(assignment.batch - 1, registry, buckets, assignment.clocks, optimizer))
        self._newest = {stream: files[-1][0] for stream, files in held.items() if files}

    def _catch_up(self, assignment: Assignment) -> None:
        """Take in the batch that this process had a share of last, and those that it had none of.

        What the core holds is kept, and nothing else: what a batch needs can't be told before all later ones are there.
        """
        oldest = {stream: files[0][0] for stream, files in assignment.held.items() if files}
        if self._arrived is not None:
            self._core.finish(replace(self._arrived, clocks=assignment.clocks), {}, oldest)
        missed: dict[int, dict[str, Bucket]] = {}
        for stream, files in assignment.held.items():
            for batch, file in files:
                if batch > self._newest.get(stream, -1):
                    missed.setdefault(batch, {})[stream] = read_bucket(place(file))
        for batch in sorted(missed):
            self._core.finish(Arrived(missed[batch], {}, {}, assignment.clocks, batch), {}, oldest)
            self._newest |= dict.fromkeys(missed[batch], batch)


def _packed(table: pa.Table) -> bytes:
    message: bytes = one_batch(table).serialize().to_pybytes()
    return message


def unpacked(data: bytes, schema: pa.Schema) -> pa.Table:
    """Rows of a share."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), schema)], schema)
