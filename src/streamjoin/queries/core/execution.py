"""What runs the queries: streams as the joins read them, the first joins made ready, and the outputs.

All of it follows from the buckets, the registry and the plan's choices. A change of those touches what it has to and
leaves the rest, so that one more query costs the same however many there are. The invariant: after `update` the
batch to come is run as if everything had been made from scratch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from streamjoin.model.errors import InputError
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.budgets import EngineBudget, Ledger, Usage
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.outputs import Outputs, QueryClasses
from streamjoin.queries.core.probe_plan import Choice, PathKey
from streamjoin.queries.core.row_lists import ListedRows
from streamjoin.queries.core.running_plan import FirstJoins, Preparer, ReadyFirstJoin, Step, steps_of
from streamjoin.queries.core.selection_tables import JointColumns
from streamjoin.queries.core.shared_join import BatchRun, FirstJoinRun, JoinSide, Scratch, StepCounts
from streamjoin.queries.core.shared_step import Compiler
from streamjoin.queries.core.stored_stream import BucketRun, StoredStream
from streamjoin.queries.language.plan import Stream, query_name
from streamjoin.windows.workers import Workers

T = TypeVar("T")
R = TypeVar("R")
_WORTH_THREADS: Final = 1 << 15
"""New tuples by first joins from which on handing work to threads takes less time than it saves."""
_RECENT_SECONDS: Final = 10.0
_NOTED_EVERY: Final = 0.9
"""Less than a second, so that batches of a second are all noted."""


class StepRates(NamedTuple):
    """What a step did per second, or in all; `load` are seconds of threads."""

    probes: float = 0.0
    candidates: float = 0.0
    pairs: float = 0.0
    load: float = 0.0


NOTHING: Final = StepRates()


def _totals(step: StepCounts) -> StepRates:
    return StepRates(step.probes, step.candidates, step.pairs, step.seconds)


class RecentCounts:
    """The totals of all steps at a few moments of the last ten seconds, about a second apart; `clock` gives seconds.

    Rates are from the end of one batch to the end of another, so they do not depend on when somebody asks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, dict[PathKey, StepRates]]] = deque()

    def note(self, counts: Mapping[PathKey, StepCounts]) -> None:
        """Note the totals as they are after a batch."""
        now = self._clock()
        if self._notes and now - self._notes[-1][0] < _NOTED_EVERY:
            return
        self._notes.append((now, {key: _totals(step) for key, step in counts.items()}))
        # One note before the ten seconds is where they begin.
        while len(self._notes) > 1 and self._notes[1][0] <= now - _RECENT_SECONDS:
            self._notes.popleft()

    def rates(self, key: PathKey) -> StepRates:
        """What a step did per second; nothing where its first batch is too new to tell, or no batch came."""
        notes = list(self._notes)
        if len(notes) < 2 or notes[-1][0] < self._clock() - _RECENT_SECONDS:
            return NOTHING
        begin = 0
        while begin < len(notes) - 2 and key not in notes[begin + 1][1]:
            begin += 1
        before, after = (notes[index][1].get(key, NOTHING) for index in (begin, -1))
        seconds = notes[-1][0] - notes[begin][0]
        # A step that left the plan and came back begins at 0 again.
        return StepRates(*(max(0.0, new - old) / seconds for old, new in zip(before, after, strict=True)))


class Execution:
    """Runs the queries of a plan, and rebuilds only what a change touches."""

    def __init__(
        self,
        streams: Iterable[Stream],
        *,
        merging: bool = True,
        threads: int = 1,
        interrupted: threading.Event | None = None,
        engine_budget: EngineBudget | None = None,
    ) -> None:
        self._merging = merging
        self.streams = {stream.name: StoredStream(stream) for stream in streams}
        self._schemas = {stream.stream.name: stream.stream for stream in self.streams.values()}
        self._first_joins = FirstJoins()
        self._outputs = Outputs()
        self._classes = QueryClasses()
        self.ledger = Ledger(interrupted or threading.Event(), engine_budget)
        self._preparer = Preparer(self.streams, Compiler(self._schemas), self._outputs, self._classes, self.ledger)
        self._ready: dict[PathKey, ReadyFirstJoin] = {}
        self._workers = Workers(threads)
        self._scratches = [Scratch() for _ in range(threads)]
        self._fresh: dict[str, BucketRun] = {}
        self._joint_columns: dict[str, JointColumns] = {}
        self.seconds: dict[str, float] = {}
        """How long the parts of the last run took: sets and indexes, joins, rows."""
        self.at: dict[int, tuple[float, Step]] = {}
        """Since when each thread of the batch is at a first join, and the step that it runs now."""
        self.counts: dict[PathKey, StepCounts] = {}
        """What each step did since it is in the plan."""
        self.recent = RecentCounts()
        self._digests: dict[PathKey, bytes] = {}

    def add_stream(self, stream: Stream) -> None:
        """One more stream."""
        self.streams[stream.name] = StoredStream(stream)
        self._schemas[stream.name] = stream

    @property
    def first_joins(self) -> Sequence[ReadyFirstJoin]:
        """The plan as it runs."""
        return tuple(self._ready.values())

    # Changes ------------------------------------------------------------------------------------------------------

    def update(self, queries: Mapping[str, LiveQuery], choices: Mapping[str, Choice]) -> None:
        """Run these queries by these choices."""
        before, after = self._classes.update(queries, choices)
        for group in before:
            self._first_joins.remove(group.entry, group.choice)
            self._outputs.remove(group.entry)
            self.ledger.close(group.entry.serial)
        for group in after:
            group.entry = replace(group.entry, paused=not group.active)
            self._outputs.add(group)
            self.ledger.open(group.entry.serial, group.entry.budget)
            self._first_joins.add(group.entry, group.choice)
        self._prepare()

    def _prepare(self) -> None:
        touched, self._first_joins.touched = self._first_joins.touched, {}
        held = max((stream.newest.batch for stream in self.streams.values() if stream.newest is not None), default=-1)
        for key, first_join in touched.items():
            ready = self._preparer.ready(first_join, held)
            if ready is None:
                self._first_joins.forget(key)
                self._ready.pop(key, None)
            else:
                self._ready[key] = ready
        if touched:
            keys = {step.key for step in steps_of(self._ready.values())}
            self.counts = {key: counts for key, counts in self.counts.items() if key in keys}
            self._digests = {key: digest for key, digest in self._digests.items() if key in keys}
            self._forget()

    def _forget(self) -> None:
        """Drop indexes and words that no step uses any more."""
        indexes: dict[str, set[IndexKey]] = {name: set() for name in self.streams}
        words: dict[str, set[tuple[object, ...]]] = {name: set() for name in self.streams}
        serials: set[int] = set()
        for step in steps_of(self._ready.values()):
            serials.add(step.sets.serial)
            for term in step.tests.fitted:
                for number, attribute in ((term.role, term.left), (-1, term.right)):
                    stream = step.tests.streams[number]
                    indexes[stream].add(attribute.index_key)
                    words[stream].add(attribute.words_key)
        serials |= {sets.serial for ready in self._ready.values() for sets in (ready.left, ready.forward.sets)}
        for name, stored in self.streams.items():
            stored.forget(indexes[name], words[name], serials)

    def load(self, buckets: Mapping[str, Iterable[Bucket]]) -> None:
        """Take in buckets that were stored."""
        for name, held in buckets.items():
            for bucket in held:
                self.streams[name].append(bucket)
                self._merge(self.streams[name])

    # Batches ------------------------------------------------------------------------------------------------------

    def run(self, buckets: Mapping[str, Bucket]) -> tuple[dict[str, ListedRows], dict[str, InputError]]:
        """The rows that the queries gain by a batch, and those that failed."""
        self.begin(buckets)
        self.at.clear()
        self.ledger.begin()
        self.ledger.check()
        batch = BatchRun(self._fresh, self.streams, self.counts, self.ledger, self.at)
        first_joins = tuple(self._ready.values())
        tuples = sum(run.n for run in self._fresh.values())
        parallel = tuples * len(first_joins) >= _WORTH_THREADS
        marks = [time.perf_counter()]
        sides = [batch.sides(first_join) for first_join in first_joins]
        # First joins share indexes: each is made once, before the sets that each has of its own.
        indexes = {(side.stream, side.attribute.index_key): side for pair in sides for side in pair if side.attribute}
        self._spread(lambda side, _: batch.index(side), list(indexes.values()), parallel)
        self._spread(lambda fill, _: fill(), self._fills(sides), parallel)
        self._spread(lambda pair, _: batch.prepare(pair), sides, parallel)
        marks.append(time.perf_counter())
        numbered = list(enumerate(first_joins))
        self._spread(lambda first_join, scratch: FirstJoinRun(batch, *first_join, scratch).run(), numbered, parallel)
        marks.append(time.perf_counter())
        rows = self._outputs.rows(batch.found, self.streams, self.ledger, self._workers)
        marks.append(time.perf_counter())
        self.at.clear()
        self.seconds = {what: b - a for what, (a, b) in zip(("sets", "joins", "rows"), pairwise(marks), strict=True)}
        return rows

    def _fills(self, sides: Sequence[tuple[JoinSide, JoinSide]]) -> list[Callable[[], None]]:
        """What makes the sets of the new tuples, for all first joins of a stream together."""
        steps: list[Callable[[], None]] = []
        for name, fresh in self._fresh.items():
            columns = list(dict.fromkeys(side.sets for pair in sides for side in pair if side.stream == name))
            joint = self._joint_columns.get(name)
            if columns and (joint is None or not joint.fits(columns)):
                joint = self._joint_columns[name] = JointColumns(columns)
            if columns and joint is not None:
                steps += joint.fills(fresh.buckets[0])
        return steps

    def _spread(self, work: Callable[[T, Scratch], R], items: Sequence[T], parallel: bool) -> list[R]:
        """The work on each item, in their order; where it pays, each thread takes the next one as it is done."""
        if not parallel:
            return [work(item, self._scratches[0]) for item in items]
        queue = iter(enumerate(items))
        done = self._workers.map(
            lambda scratch: [(place, work(item, scratch)) for place, item in queue], self._scratches[: len(items)]
        )
        return [result for _, result in sorted((pair for part in done for pair in part), key=lambda pair: pair[0])]

    def _digest(self, key: PathKey) -> bytes:
        if key not in self._digests:
            self._digests[key] = key.digest()
        return self._digests[key]

    def hand_in_counts(self) -> dict[bytes, StepCounts]:
        """What steps did since this was last asked for, for the process that adds it up."""
        counts, self.counts = self.counts, {}
        return {self._digest(key): count for key, count in counts.items()}

    def usage(self) -> dict[str, Usage]:
        """What each query with a budget took of the last batch."""
        return {name: taken for serial, taken in self.ledger.usage().items() for name in self._classes.active(serial)}

    def take_counts(self, shares: Sequence[Mapping[bytes, StepCounts]]) -> None:
        """Add what the shares of a batch did elsewhere."""
        for step in steps_of(self._ready.values()):
            digest = self._digest(step.key)
            parts = [share[digest] for share in shares if digest in share]
            if parts:
                self.counts.setdefault(step.key, StepCounts()).add(parts)

    def largest(self) -> dict[str, InputError]:
        """The queries whose results take most of the batch, and what to say of them where memory has run out."""
        found = self.ledger.largest()
        return {} if found is None else {query_name(name): found[1] for name in self._classes.active(found[0])}

    def account_of(self, name: str) -> int:
        """The account of a query's budget."""
        return self.ledger.number_of(self._classes.serial_of(name))

    def overdrafts(self) -> dict[str, InputError]:
        """The queries that are over a budget in this batch, and why."""
        exceeded = self.ledger.exceeded.items()
        return {query_name(name): error for serial, error in exceeded for name in self._classes.active(serial)}

    def overdraft_of(self, name: str) -> InputError | None:
        """Why a query is over its budget in this batch, if it is."""
        return self.ledger.exceeded.get(self._classes.serial_of(name))

    def begin(self, buckets: Mapping[str, Bucket]) -> None:
        """Take the batch's buckets in; those of one that was not finished go."""
        if {name: run.buckets[0] for name, run in self._fresh.items()} != dict(buckets):
            for name, run in self._fresh.items():
                self.streams[name].cut(run.first)
            self._fresh = {name: self.streams[name].append(bucket) for name, bucket in buckets.items()}

    def settle(self, buckets: Mapping[str, Bucket], kept: Mapping[str, Sequence[Bucket]]) -> None:
        """The batch is done: forget what it alone needed, let go of what no window reaches, merge small runs."""
        self.begin(buckets)
        self._fresh = {}
        for bucket in buckets.values():
            bucket.settle()
        for name, stream in self.streams.items():
            held = kept.get(name, ())
            stream.drop(held[0].first if held else stream.ticks.end)
            self._merge(stream)

    def _merge(self, stream: StoredStream) -> None:
        if self._merging:
            stream.merge()

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held beside the buckets: columns by number, indexes, query-sets."""
        sizes = {"columns": 0, "indexes": 0, "sets": 0}
        for stream in self.streams.values():
            for what, size in stream.nbytes.items():
                sizes[what] += size
        columns = {c for m in self._ready.values() for c in (m.left, *(step.sets for step in steps_of([m])))}
        sizes["sets"] = sum(column.nbytes for column in columns)
        return sizes
