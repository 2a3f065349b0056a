"""The join's stage: it joins one range's share of a batch with the log, and adds it to the log.

The task of a range reads the previous version, pairs the new rows with the stored rows and with each other, and writes
its piece of the next version: the new rows it owns, merged with its share of the runs that are due. The piece is
published before the first result leaves, because the consumer of the results may stop early.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.types.marks import Places
from streamjoin.model.errors import CheckpointError, InputError, StreamJoinError
from streamjoin.model.large_columns import is_overflow, too_large
from streamjoin.spark.runtime.checkpoints import open_log
from streamjoin.spark.runtime.unattended import after_task
from streamjoin.spark.stages import shared_gate
from streamjoin.spark.stages.arrivals import LATE, NO_TIME, Arrivals, arrivals, stored_probes
from streamjoin.spark.stages.facts import BatchFacts, TaskFacts, facts_in, punctuation_of
from streamjoin.spark.stages.former_gate import held_back, released, version_before
from streamjoin.spark.stages.kind_gate import NO_MARKS, Marks, MarkState
from streamjoin.spark.stages.kind_task import (
    NO_ENTRIES,
    AsOfRange,
    MarkedRange,
    RangeRows,
    RightRows,
    RunMarks,
    unkeyed,
)
from streamjoin.spark.stages.late import late_rows
from streamjoin.spark.stages.late_output import write_batch
from streamjoin.spark.stages.output import TaskRows, bound_to_order, plain, to_order
from streamjoin.spark.stages.parts import Received, Spool, marks, unpack
from streamjoin.spark.stages.punctuation import write_punctuation
from streamjoin.spark.stages.route import ROW_ID, longest_stored, part_schema, with_numbers
from streamjoin.spark.stages.scaling import agreed, asked_for, planned
from streamjoin.spark.stages.shared_gate import SharedGate
from streamjoin.spark.stages.spending import tell
from streamjoin.spark.stages.summary_task import SummaryRange
from streamjoin.spark.stages.task_times import TaskTimes, times_in
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import KEYLESS, MARKS, WAITING, StoredRun
from streamjoin.storage.pieces import BlockRows, MappedPiece
from streamjoin.storage.places import place
from streamjoin.storage.ranges import SplitPoints, WordRange, sample
from streamjoin.storage.segments import Segment, SegmentLayout, block_rows, layout, merged, stored
from streamjoin.windows.encoding import flat, integer_values

T = TypeVar("T")
OldRuns = Sequence[Sequence[Sequence[Segment]]]
"""The stored rows of both sides, by run, in segments."""

_SAMPLE, _LEAST_SAMPLE, _ALL_SAMPLES = 64, 8, 8192

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JoinTask:
    """The stage after the shuffle."""

    blueprint: Blueprint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the rows of one range."""
        from pyspark import TaskContext

        log, batch = open_log(self.blueprint)
        schemas = part_schema(self.blueprint, 0), part_schema(self.blueprint, 1)
        parts = list(batches)
        partition, received = unpack(parts, schemas)
        if partition is None:
            # Nothing was routed, so there is no range to join.
            context = TaskContext.get()
            partition = context.partitionId() if context else 0
        with log.advising(batch), _explaining_overflow():
            share = RangeOfBatch(self.blueprint, log, batch, partition)
            share.check(marks(parts))
            if self.blueprint.shared_gate:
                now = next(
                    (rows.column(5)[0].as_py() for rows in parts if rows.num_columns > 5 and rows.num_rows), None
                )
                received = share.gated(received, times_in(parts), now)
            results = share.join(received, facts_in(parts))
            gate = self.blueprint.gate
            if gate is not None and gate.ordered:
                spool = Spool.of(log, batch)
                yield from to_order(self.blueprint, share.positions, results, partition, spool)
                if gate.punctuated and partition == 0 and share.bound is not None:
                    yield from bound_to_order(self.blueprint, share.bound, share.positions[1])
            else:
                yield from plain(self.blueprint, results)
            tell(log, batch, partition)
        if self.blueprint.unattended and partition == 0:
            after_task(self.blueprint, log, batch)


class RangeOfBatch:
    """One range in one batch."""

    def __init__(self, blueprint: Blueprint, log: WindowLog, batch: int, partition: int) -> None:
        self._blueprint = blueprint
        self._log = log
        self._batch = batch
        self._partition = partition
        # The first range always has a task, and one writer is enough.
        self._before = log.version(batch - 1, keep=partition == 0)
        self._clocks: list[int | None] | None = None
        self._gate: tuple[dict[str, Any], MappedPiece] | None = None
        self._layouts: dict[int, SegmentLayout] = {}
        self._late: dict[str, int] = {}
        self._overflowed = 0
        self.positions = (0, 0)
        """The first and the end gate position of the batch."""
        self.bound: int | None = None
        """The time before which no result follows this batch."""
        self._facts: BatchFacts | None = None
        self._shared: SharedGate | None = None
        self._late_rows: tuple[dict[str, pa.Table], dict[str, pa.Table]] = ({}, {})
        self._rest: tuple[list[BlockRows], list[BlockRows]] = ([], [])
        if blueprint.gate is None or blueprint.shared_gate:
            self._split_points = planned(blueprint, self._before)
        else:
            self._gate = log.gate(batch)
            footer = self._gate[0]
            self._split_points = SplitPoints.from_json(footer["cuts"])
            self._clocks = footer["clocks"]
            self.positions = footer["positions"]
            self.bound = footer["bound"]
            if partition == 0:
                self._late = footer["late"]
        self._longest = longest_stored(blueprint, self._before)
        if self._gate is not None and blueprint.bound.intervals is not None:
            left, right = self._gate[0]["longest"]
            self._longest = left, right

    def check(self, sent: set[int]) -> None:
        """Reject rows that were routed with another version of the log: other ranges may own them."""
        if not sent <= {agreed(self._before, self._split_points)}:
            raise CheckpointError(
                f"tasks of one batch have found different versions of the window log in {self._log.root}: another "
                "query, or a task that Spark had abandoned, wrote to it in the meantime"
            )

    def gated(
        self, received: tuple[Received, Received], told: Sequence[TaskTimes], now_ms: int | None
    ) -> tuple[Received, Received]:
        """Decide as a gate; returns the rows that are ready, with their numbers, in the order of the gate."""
        if self._partition >= self._split_points.ranges:
            # No routing task has told it anything.
            return received
        gate = self._shared = SharedGate(self._blueprint, self._log, self._batch, self._before)
        gate.decide(told, now_ms)
        self._clocks, self.positions, self.bound = gate.clocks, gate.positions, gate.earliest
        if self._partition == 0:
            write_punctuation(self._log.root, self._log.epoch, gate.publish(self._split_points))
        left, right = (self._ready(gate, role, received[role]) for role in (0, 1))
        return left, right

    def _ready(self, gate: SharedGate, role: int, new: Received) -> Received:
        """The rows of one role that are ready; the late ones, and those that go on waiting, are set aside."""
        plan, points, partition, longest = self._blueprint, self._split_points, self._partition, self._longest
        side, schema = (0 if plan.bound.spec.self_join else role), plan.schema(role)
        numbers = gate.numbers(side, integer_values(flat(new.table.column(ROW_ID))))
        rows = [new.table.drop_columns([ROW_ID])]
        found = [(numbers, np.arange(numbers.size) < new.owned, *gate.of_new(side, numbers))]
        if side == role:
            late, own = found[0][2], found[0][1]
            reasons = {LATE: own & (late == shared_gate.LATE), NO_TIME: own & (late == shared_gate.TIMELESS)}
            self._late_rows[role].update({why: rows[0].filter(mask) for why, mask in reasons.items() if mask.any()})
        for batch, waited, at in gate.waited(role, points, partition, longest):
            copies = at.copies[0][at.copies[1] == partition]
            owned = at.owner == partition
            here = owned.copy()
            here[copies] = True
            places = np.flatnonzero(here)
            rows.append(pa.Table.from_batches([batch], schema=schema).take(places))
            found.append((waited[places], owned[places], *gate.of_waited(side, waited[places])))
        table = pa.concat_tables(rows)
        numbers, owned, seqs, upto = (np.concatenate(column) for column in zip(*found, strict=True))
        waits = np.flatnonzero(owned & (seqs == shared_gate.WAITS))
        if waits.size:
            self._rest[role].extend(gate.rest(role, table.take(waits), numbers[waits], points, partition, longest))
        ready = np.flatnonzero(seqs >= 0)
        # The rows that the range owns come first.
        ready = ready[np.lexsort((seqs[ready], ~owned[ready]))]
        columns = [*table.take(ready).columns, pa.array(seqs[ready]), pa.array(upto[ready])]
        out = pa.Table.from_arrays(columns, schema=with_numbers(schema))
        return Received(out, int(np.count_nonzero(owned[ready])))

    def join(self, received: tuple[Received, Received], facts: Sequence[TaskFacts] = ()) -> Iterator[TaskRows]:
        """Publish this range's piece, then yield its results; a task without a range has neither.

        `facts` are those of the routing tasks, in a join whose ranges decide by them.
        """
        if self._partition >= self._split_points.ranges:
            return
        if self._partition == 0:
            self._log.refuse_superseded()
        clocks = self._before.clocks
        if self._blueprint.on_arrival:
            received = self._decide(received, facts)
            clocks = self._decided().before.clocks
        left, right = (
            arrivals(self._blueprint, side, received[side], clocks[side], self._longest, self._facts) for side in (0, 1)
        )
        if self._shared is not None:
            left, right = (replace(new, late=late) for new, late in zip((left, right), self._late_rows, strict=True))
        words = self._split_points.word_range(self._partition)
        old = [[self._stored(run, side, words) for run in self._before.runs] for side in (0, 1)]

        def beside(side: int, least: int, most: int) -> list[Segment]:
            parts = words.beside(least, most)
            return [s for part in parts for run in self._before.runs for s in self._stored(run, side, part)]

        rows = RangeRows(
            self._blueprint, self._split_points, self._partition, (left, right), (_flat(old[0]), _flat(old[1])), beside
        )
        results: Iterator[TaskRows]
        if self._blueprint.bound.match is not None:
            on_arrival = self._blueprint.on_arrival
            results = self._join_as_of_on_arrival(rows, old) if on_arrival else self._join_as_of(rows, old)
        elif self._blueprint.summarises:
            results = self._summarise(rows, old)
        elif self._blueprint.marked:
            results = self._join_marked(rows, old)
        else:
            self._publish((left, right), old)
            results = rows.pairs()
        if self._partition == 0:
            # If other tasks are pruning as well, the driver removes the rest after the commit.
            with contextlib.suppress(OSError):
                self._log.prune(self._before)
        yield from results

    def _decide(self, received: tuple[Received, Received], facts: Sequence[TaskFacts]) -> tuple[Received, Received]:
        """Draw the conclusions from the facts; returns the rows with those that the gate of an earlier version left."""
        plan, log, before = self._blueprint, self._log, self._before
        start = version_before(plan, log, before)
        if before.batch >= 0 and before.counts is None:
            waited = held_back(plan, log, before)
            more, received = released(plan, waited, received, self._split_points, self._partition, self._longest)
            facts = [*facts, *more]
        self._facts = BatchFacts.of(plan, start, facts)
        self._clocks = list(self._facts.clocks)
        if self._partition == 0:
            clocks = self._facts.clocks
            write_punctuation(log.root, log.epoch, punctuation_of(plan, self._batch, clocks))
        return received

    def _decided(self) -> BatchFacts:
        if self._facts is None:
            raise AssertionError("a join on arrival without the facts of its batch")
        return self._facts

    def _stored(self, run: StoredRun, side: int, words: WordRange) -> list[Segment]:
        return self._stored_part(side, [run], words)

    def _join_marked(self, rows: RangeRows, old: OldRuns) -> Iterator[TaskRows]:
        """The rows of an outer, semi or anti join; its marks are published with its piece."""
        if self._blueprint.on_arrival:
            return self._join_on_arrival(rows, old)
        if self._shared is not None:
            return self._join_ready(rows, old, self._shared)
        footer, piece = self._of_gate()
        places = None
        if self._blueprint.places:
            ticks = [piece.array(footer, f"ticks{side}", pa.int64()) for side in (0, 1)]
            firsts = footer["firsts"]
            self_join = self._blueprint.bound.spec.self_join
            places = Places(self.positions[0], (firsts[0], firsts[1]), (ticks[0], ticks[1]), self_join)
        state = MarkState.of_gate(footer, piece)
        marked = MarkedRange(rows, state, state.marks, places)
        self._publish(rows.new, old, marks=marked.matched())
        return marked.rows()

    def _join_ready(self, rows: RangeRows, old: OldRuns, gate: SharedGate) -> Iterator[TaskRows]:
        """The rows of an outer, semi or anti join whose ranges decide as a gate; marks are in its runs."""
        former, state, places = gate.former_marks, gate.state, None
        if self._blueprint.places:
            firsts, ticks = gate.firsts, gate.decided.ticks
            places = Places(self.positions[0], firsts, ticks, self._blueprint.bound.spec.self_join)
        marked = MarkedRange(rows, state, self._marks(former), places)
        self._publish(rows.new, old, more=marked.entries(former, fresh=True))
        return marked.rows()

    def _marks(self, former: tuple[Marks, Marks] | None) -> tuple[RunMarks, RunMarks]:
        """The marks in the runs, and those that a `former` gate had."""
        # The rows of a word that is split are divided otherwise than their marks.
        words = self._split_points.word_range(self._partition).whole_words
        left, right = (
            RunMarks(
                self._stored_part(MARKS + side, self._before.runs, words), None if former is None else former[side]
            )
            for side in (0, 1)
        )
        return left, right

    def _join_on_arrival(self, rows: RangeRows, old: OldRuns) -> Iterator[TaskRows]:
        """The rows of an outer, semi or anti join without a gate; marks and rows without a key are in its runs."""
        facts, words = self._decided(), self._split_points.word_range(self._partition)
        former = facts.before.marks
        left, right = (self._stored_part(KEYLESS + side, self._before.runs, words) for side in (0, 1))
        marked = MarkedRange(rows, self._leaving(), self._marks(former), None, (left, right))
        self._publish(rows.new, old, marked.fresh(), more=[*marked.entries(former), *map(unkeyed, rows.new)])
        return marked.rows()

    def _stored_part(self, part: int, runs: Sequence[StoredRun], words: WordRange) -> list[Segment]:
        if part not in self._layouts:
            self._layouts[part] = layout(self._blueprint, part)
        return stored(self._log, self._blueprint, self._before, runs, part, words, plan=self._layouts[part])

    def _join_as_of(self, rows: RangeRows, old: OldRuns) -> Iterator[TaskRows]:
        """The rows of an as-of join behind a gate; no left row is stored."""
        left, keyless = rows.new[0].owned, rows.new[0].keyless
        as_of = AsOfRange(rows, left, [] if keyless is None else [keyless], self._by_key(rows))
        self._publish(rows.new, *self._needed(rows, old, as_of, left.rows.part(0, 0)))
        return as_of.rows()

    def _join_as_of_on_arrival(self, rows: RangeRows, old: OldRuns) -> Iterator[TaskRows]:
        """The rows of an as-of join without a gate, whose left rows are stored until the facts decide them."""
        state = self._leaving()
        words, new = self._split_points.word_range(self._partition), rows.new[0]
        waiting = self._stored_part(KEYLESS, self._before.runs, words)

        def leaving(stored_rows: Sequence[Segment], fresh: Segment) -> list[Segment]:
            parts = [*((segment, False) for segment in stored_rows), (fresh, True)]
            return [part.take(np.flatnonzero(state.leaving(0, part.ticks, new=is_new))) for part, is_new in parts]

        left = stored_probes(self._blueprint, merged(leaving(rows.old[0], new.owned.rows)))
        as_of = AsOfRange(rows, left, leaving(waiting, unkeyed(new)), self._by_key(rows))
        more = [NO_ENTRIES, NO_ENTRIES, *map(unkeyed, rows.new)]
        self._publish(rows.new, *self._needed(rows, old, as_of, new.owned.rows), more=more)
        return as_of.rows()

    def _by_key(self, rows: RangeRows) -> RightRows | None:
        """The right rows that can be nearest, in an as-of join by key; a range sees all of a key that is divided."""
        plan, before = self._blueprint, self._before
        if not plan.by_key:
            return None
        words, kept = self._split_points.word_range(self._partition), before.kept(plan.horizons, plan.policy)
        whole = [self._stored(run, 1, words.whole_words) for run in before.runs]
        right = RightRows(rows.new[1], words, _flat(whole[kept]), _flat(_folded(whole, kept)))
        return right if plan.supersedes else replace(right, folded=(), kept=_flat(whole))

    def _needed(
        self, rows: RangeRows, old: OldRuns, as_of: AsOfRange, left: Segment
    ) -> tuple[OldRuns, tuple[Segment, Segment]]:
        """The stored runs and the new rows of both sides to publish, without right rows that none can take any more."""
        if not self._blueprint.supersedes:
            return old, (left, rows.new[1].owned.rows)
        low = self._blueprint.earliest_left(self._clocks or self._before.clocks)
        return [old[0], []], (left, as_of.needed(low))

    def _leaving(self) -> MarkState:
        """What leaves in the batch, by its facts."""
        facts = self._decided()
        return replace(
            NO_MARKS,
            gone=self._blueprint.horizons(facts.clocks),
            gone_before=facts.before.gone,
            ended=self._log.end == self._batch,
        )

    def _summarise(self, rows: RangeRows, old: OldRuns) -> Iterator[TaskRows]:
        """The rows of a join with summaries; left rows are stored until their windows are complete."""
        plan, clocks = self._blueprint, self._of_gate()[0]["clocks"]
        ended = self._log.end == self._batch
        share = SummaryRange(rows, plan.horizons(self._before.clocks), None if ended else plan.horizons(clocks))
        self._overflowed = share.overflowed
        if plan.keeps_newest:
            self._publish(rows.new, [[], []], share.kept())
        else:
            self._publish(rows.new, old)
        return share.rows()

    def _of_gate(self) -> tuple[dict[str, Any], MappedPiece]:
        if self._gate is None:
            raise AssertionError("a kind of join without a gate")
        return self._gate

    def _publish(
        self,
        new: tuple[Arrivals, Arrivals],
        old: OldRuns,
        fresh: tuple[Segment, Segment] | None = None,
        marks: Mapping[str, Array] | None = None,
        more: Sequence[Segment] = (),
    ) -> None:
        """Write the rows of folded runs and the new rows, or `fresh` in their place, as this range's piece.

        `more` is what the other parts of the run get, `marks` what the next gate gets.
        """
        plan, before = self._blueprint, self._before
        fresh = fresh or (new[0].owned.rows, new[1].owned.rows)
        ended = self._log.end == self._batch
        if ended:
            fresh, old = (fresh[0].part(0, 0), fresh[1].part(0, 0)), [[], []]
            more = [part.part(0, 0) for part in more]
        # Rows that expire within the batch are not written; a range that has seen later rows drops more.
        words = self._split_points.word_range(self._partition)
        horizon = plan.horizons(self._clocks or [_later(before.clocks[i], side.clock) for i, side in enumerate(new)])
        kept_runs = before.kept(plan.horizons, plan.policy)
        runs = []
        for side, counted in enumerate(plan.counted):
            segments = [*_flat(_folded(old[side], kept_runs)), fresh[side]]
            runs.append(merged([segment.since(horizon[side], counted) for segment in segments]))
        folded = _folded(before.runs, kept_runs)
        for part, own in enumerate(more, 2):
            segments = [*([] if ended else self._stored_part(part, folded, words)), own]
            counted = plan.counted[part % 2]
            runs.append(merged([segment.since(horizon[part % 2], counted) for segment in segments]))
        size = max(_LEAST_SAMPLE, min(_SAMPLE, _ALL_SAMPLES // self._split_points.ranges))
        facts: dict[str, Any] = {
            "base": before.epoch,
            "folded": [run.batch for run in folded],
            "clocks": self._clocks or [side.clock for side in new],
            "fresh": sum(side.owned.rows.n for side in new),
            "fresh_sample": [entry for side in new for entry in sample(side.owned.rows.words, size)],
            **({"overflowed": self._overflowed} if self._overflowed else {}),
            "late": self._late | {name: n for side in new for name, n in side.late_counts.items() if n},
            "extents": [run.statistics(plan.counted[part % 2]).facts for part, run in enumerate(runs)],
            "sample": [entry for run in runs[:2] for entry in sample(run.words, size)],
            "wanted": asked_for(self._log.root) if self._partition == 0 else None,
            "swapped": self._log.merges(before, {run.key for run in folded}) if self._partition == 0 else [],
            **({"ended": True} if ended else {}),
            **({} if self._facts is None else {"facts": self._facts.digest, "counts": self._facts.counts}),
            **({} if self._shared is None else {"facts": self._shared.digest}),
        }
        blocks = [block_rows(run, layout(plan, part)) for part, run in enumerate(runs)]
        if any(self._rest):
            blocks += [*([] for _ in range(len(blocks), WAITING)), *self._rest]
        late = [late_rows(plan.bound, self._batch, side.name, side.late) for side in new]
        if any(rows.num_rows for rows in late):
            self._log.write_late(self._batch, self._partition, pa.concat_tables(late))
        self._log.publish(self._batch, self._partition, self._split_points.ranges, blocks, facts, marks)
        if plan.late is not None:
            try:
                write_batch(self._log, place(plan.late), self._batch, self._split_points.ranges)
            except (StreamJoinError, OSError) as error:
                # The rows are in the log; the driver or the next start of the query writes them.
                _logger.warning("late rows of batch %d are not in %s yet: %s", self._batch, plan.late, error)


@contextlib.contextmanager
def _explaining_overflow() -> Iterator[None]:
    """Raise an error of ours where a range has more text than an array can have; nothing is published then."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if is_overflow(error):
            raise InputError(too_large("a column of one range of this batch")) from error
        raise


def _later(one: int | None, other: int | None) -> int | None:
    return max((clock for clock in (one, other) if clock is not None), default=None)


def _folded(runs: Sequence[T], kept: slice) -> list[T]:
    return [*runs[: kept.start], *runs[kept.stop :]]


def _flat(nested: Sequence[Sequence[Segment]]) -> list[Segment]:
    return [segment for segments in nested for segment in segments]
