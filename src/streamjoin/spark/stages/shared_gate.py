"""The gate in every range: each decides by itself, and alike, from the times of all rows.

A gate needs few facts of a row: its side, its source, its time, and its position where the source has one. A routing
task sends them to every range, in narrow integers, when it has sent its rows. The shuffle is the barrier: no range
begins before it has those of all tasks. Then it decides as a gate of one task would (`gating.decide`): which rows are
late, which are ready, and the number of each. A digest of what it knew is in its piece, and a version whose pieces
differ is refused.

A row has the number of its task and its place there, and from them its number among all rows of its side that ever
came, by which it is found again. Rows that are not ready lie in the piece of the range that owned them when they came.
The next batch has other ranges: each reads the blocks with words that reach it, takes the rows that it owns now, and
those that match in it. The first range writes the progress of the gate, with the times of the rows that wait.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.spark.stages.facts import numbered
from streamjoin.spark.stages.gating import (
    Decided,
    Standing,
    UngatedRows,
    beginning,
    codes,
    decide,
    gate_plan,
    sources_in,
    together,
)
from streamjoin.spark.stages.kind_gate import KindGate, Marks, MarkState
from streamjoin.spark.stages.punctuation import Punctuation, progress_of
from streamjoin.spark.stages.route import Longest, Placed, placed, sender
from streamjoin.spark.stages.task_times import POSITION, SOURCE, TIME, TaskTimes
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import WAITING, Manifest
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece
from streamjoin.storage.ranges import SplitPoints, WordRange
from streamjoin.storage.segments import BLOCK_ROWS
from streamjoin.windows.encoding import flat, integer_values

WAITS, LATE, TIMELESS = -1, -2, -3
"""In place of a position: the row is not ready, late, or has no time."""

_NUMBER, _WORD = "#number", "#word"


@dataclass(frozen=True)
class Numbered:
    """Rows of one side before the gate, with their numbers among all that ever came."""

    numbers: Array
    rows: UngatedRows


@dataclass(frozen=True)
class _Outcomes:
    """Of a side, the numbers of all that wait, and (position, others before) of new rows and of those that waited.

    New ones are in the order of their numbers from `first` on, and those that waited in that of `waited`.
    """

    waiting: Array
    first: int
    new: tuple[Array, Array]
    waited: Array
    old: tuple[Array, Array]


_NOTHING = Numbered(np.empty(0, np.int64), UngatedRows(np.empty(0, np.int64), np.empty(0, np.int64), ()))


def _ascends(numbers: Array) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _schema(blueprint: Blueprint, role: int) -> pa.Schema:
    """How rows that wait are stored."""
    head = [pa.field(name, pa.int64()) for name in (_NUMBER, _WORD)]
    return pa.schema([*head, *blueprint.schema(role)])


class SharedGate:
    """The gate in one range and one batch."""

    def __init__(self, blueprint: Blueprint, log: WindowLog, batch: int, before: Manifest) -> None:
        self._blueprint, self._log, self._batch, self._before = blueprint, log, batch, before
        self._sides = (0,) if blueprint.bound.spec.self_join else (0, 1)
        self._ends = log.end == batch
        self._kind = KindGate(blueprint, ends=self._ends)
        self._stood = beginning(blueprint)
        self._waited: list[Numbered] = [_NOTHING for _ in self._sides]
        self._came = [0 for _ in self._sides]
        self._first: dict[tuple[int, int], int] = {}
        self._former: tuple[Mapping[str, Any], MappedPiece] | None = None
        self._resume()

    def _resume(self) -> None:
        before = self._before
        if before.batch < 0:
            return
        footer, piece = self._log.gate(before.batch, before.epoch)
        stood, ended = Standing.from_json(footer["standing"]), footer.get("ended")
        self._came = list(footer.get("came", self._came))
        self._stood = (
            replace(beginning(self._blueprint, by_text=stood.by_text), counts=stood.counts) if ended else stood
        )
        if ended:
            return
        if "came" not in footer:
            # Of a gate of one task, in an earlier version: what waits there came first.
            self._former = footer, piece
            for side in self._sides:
                rows = self._of_former(side)
                names = pc.dictionary_encode(flat(rows.column("#source")))
                waited = UngatedRows(
                    integer_values(flat(rows.column("#ticks"))), codes(names), names.dictionary.to_pylist()
                )
                self._came[side] = rows.num_rows
                self._waited[side] = Numbered(np.arange(rows.num_rows), waited)
            return
        for side in self._sides:
            numbers, ticks, source = (
                piece.array(footer, f"{name}{side}", pa.int64()) for name in ("numbers", "ticks", "sources")
            )
            self._waited[side] = Numbered(numbers, UngatedRows(ticks, source, footer["names"][side]))

    def _of_former(self, side: int) -> pa.Table:
        """The rows that waited in a gate of one task."""
        if self._former is None:
            raise AssertionError("no former gate")
        footer, piece = self._former
        head = [pa.field("#source", pa.string()), pa.field("#ticks", pa.int64())]
        schema = pa.schema([*head, *self._blueprint.schema(side)])
        blocks = Block.unpacked(footer["blocks"][side])
        return pa.Table.from_batches([piece.batch(block, schema) for block in blocks], schema=schema).combine_chunks()

    def decide(self, told: Sequence[TaskTimes], now_ms: int | None) -> None:
        """Draw the conclusions from what all routing tasks told."""
        known = sorted(told, key=lambda own: (own.side, own.source, own.task))
        came = [*self._came]
        for own in known:
            self._first[own.side, self._sender(own)] = came[own.side]
            came[own.side] += own.rows.num_rows
        fresh = [self._fresh(side, [own for own in known if own.side == side]) for side in self._sides]
        waited = [own.rows for own in self._waited]
        new = [own.rows for own in fresh]
        reach = self._kind.reach
        self.decided: Decided = decide(self._blueprint, self._stood, waited, new, now_ms, reach, ends=self._ends)
        after = self.decided.after
        self._kind.advance(self._log, self._before, self._stood.counts, after, self.decided.ticks)
        self._outcomes = [self._outcome(side, fresh[side], came[side]) for side in self._sides]
        self._came_after = came
        facts = [(own.side, own.source, own.task, own.rows.num_rows, own.checksum) for own in known]
        self.digest = zlib.crc32(json.dumps([self._before.batch, self._before.epoch, now_ms, facts]).encode())
        tick = self._tick
        self.clocks = self._kind.clocks(after.counts, tick)
        self.positions = self._kind.positions(self._stood.counts, after.counts)
        self.earliest = self._kind.earliest(tick)

    def _fresh(self, side: int, told: Sequence[TaskTimes]) -> Numbered:
        """The new rows of a side as a gate of one task has them: by source, and there in the order of its rows."""
        all_rows = _NOTHING
        for place, plan in enumerate(gate_plan(self._blueprint).sources[side]):
            own = [task for task in told if task.source == place]
            if not own:
                continue
            ticks = np.concatenate([task.summed(TIME) for task in own])
            numbers = self._first[side, self._sender(own[0])] + np.arange(ticks.size)
            names, source = [plan.name], np.zeros(ticks.size, np.int64)
            if plan.by is not None:
                values = [task.rows.column(SOURCE).dictionary_decode() for task in own]
                names, source = sources_in(plan, pa.concat_arrays(values), by_text=self._stood.by_text)
            source = np.where(np.concatenate([task.missing for task in own]), -1, source)
            if plan.position is not None:
                order = np.argsort(np.concatenate([task.summed(POSITION) for task in own]), kind="stable")
                ticks, source, numbers = ticks[order], source[order], numbers[order]
            strict = frozenset(names if plan.position else ())
            rows = together(all_rows.rows, UngatedRows(ticks, source, names, strict))
            all_rows = Numbered(np.concatenate([all_rows.numbers, numbers]), rows)
        return all_rows

    def _sender(self, told: TaskTimes) -> int:
        return sender(self._blueprint, told.side, told.source, told.task)

    def _outcome(self, side: int, fresh: Numbered, end: int) -> _Outcomes:
        """What became of each row of a side; the numbers of the new ones are from those that came before to `end`."""
        decided, waited, first = self.decided, self._waited[side].numbers, self._came[side]
        late, timeless, order = decided.late[side], decided.timeless[side], decided.orders[side]
        size = decided.waiting[side].ticks.size
        seqs, upto = np.full(size, WAITS), np.zeros(size, np.int64)
        seqs[order], upto[order] = decided.numbers[side]
        on_time = fresh.numbers[~(late | timeless)]
        new = seqs[waited.size :], upto[waited.size :]
        if on_time.size < end - first or not _ascends(on_time):
            new = np.full(end - first, LATE), np.zeros(end - first, np.int64)
            new[0][on_time - first], new[1][on_time - first] = seqs[waited.size :], upto[waited.size :]
            new[0][fresh.numbers[timeless] - first] = TIMELESS
        by_number = np.argsort(waited, kind="stable")
        old = seqs[: waited.size][by_number], upto[: waited.size][by_number]
        return _Outcomes(np.concatenate([waited, on_time]), first, new, waited[by_number], old)

    @property
    def _tick(self) -> int | None:
        """The time of the bound, if there is one."""
        after = self.decided.after
        return None if after.bound == Standing({}).bound else after.bound[0]

    @property
    def state(self) -> MarkState:
        """What has left before and after the batch."""
        return self._kind.state

    @property
    def firsts(self) -> tuple[int, int]:
        """The numbers of the first tuples of both sides that are ready."""
        return self._stood.counts

    @property
    def former_marks(self) -> tuple[Marks, Marks] | None:
        """The marks of stored rows by position, after a version with a gate of one task."""
        return self._kind.former_marks

    def numbers(self, side: int, ids: Array) -> Array:
        """The numbers of new rows, from their tasks and their places there."""
        return numbered({task: first for (of, task), first in self._first.items() if of == side}, ids)

    def of_new(self, side: int, numbers: Array) -> tuple[Array, Array]:
        """The position of each new row in its side, or why it has none, and how many of the other side come before."""
        known = self._outcomes[side]
        seqs, upto = known.new
        return seqs[numbers - known.first], upto[numbers - known.first]

    def of_waited(self, side: int, numbers: Array) -> tuple[Array, Array]:
        """The same of rows that waited."""
        known = self._outcomes[side]
        (seqs, upto), places = known.old, np.searchsorted(known.waited, numbers)
        return seqs[places], upto[places]

    def waited(
        self, role: int, points: SplitPoints, partition: int, longest: Longest
    ) -> Iterator[tuple[pa.RecordBatch, Array, Placed]]:
        """The rows that waited and may reach a range, with their numbers, and where they belong."""
        side, plan = min(role, len(self._sides) - 1), self._blueprint
        if self._former is not None:
            rows = self._of_former(side).drop_columns(["#source", "#ticks"])
            first = 0
            for batch in rows.to_batches(max_chunksize=BLOCK_ROWS):
                numbers = np.arange(first, first + batch.num_rows)
                yield batch, numbers, placed(plan, role, batch, points, first, longest)
                first += batch.num_rows
            return
        words, schema = points.word_range(partition), _schema(plan, role)
        for batch in self._blocks(WAITING + role, words, schema):
            numbers, word = (integer_values(batch.column(place)) for place in (0, 1))
            rows = pa.RecordBatch.from_arrays(batch.columns[2:], schema=plan.schema(role))
            yield rows, numbers, placed(plan, role, rows, points, 0, longest, word)

    def _blocks(self, part: int, words: WordRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not self._before.runs or self._before.runs[-1].batch != self._before.batch:
            return
        for file, block in self._before.runs[-1].overlapping(part, words):
            yield self._log.piece(self._before, file).batch(block, schema)

    def rest(
        self, role: int, rows: pa.Table, numbers: Array, points: SplitPoints, partition: int, longest: Longest
    ) -> list[BlockRows]:
        """The rows of a range that go on waiting, as blocks with the words that they reach."""
        out = []
        begin = points.word_range(partition).first[0]
        first = 0
        for batch in rows.combine_chunks().to_batches(max_chunksize=BLOCK_ROWS):
            own = numbers[first : first + batch.num_rows]
            first += batch.num_rows
            at = placed(self._blueprint, role, batch, points, 0, longest)
            # A row without a key has no word; it stays where it is.
            word = np.where(at.keyed, at.word, begin)
            least, most = int(word.min()), int(word.max())
            reaching = at.lo <= at.hi
            if reaching.any():
                least, most = min(least, int(at.lo[reaching].min())), max(most, int(at.hi[reaching].max()))
            columns = [pa.array(own), pa.array(word), *batch.columns]
            stored = pa.RecordBatch.from_arrays(columns, schema=_schema(self._blueprint, role))
            out.append(BlockRows(stored, least, most))
        return out

    def publish(self, points: SplitPoints) -> Punctuation:
        """Write the progress of the gate; returns what the batch guarantees."""
        decided, after = self.decided, self.decided.after
        arrays: dict[str, Array] = dict(self._kind.arrays or {})
        names = []
        for side in self._sides:
            waits, rows = ~decided.ready[side], decided.waiting[side]
            there, source = np.unique(rows.source[waits], return_inverse=True)
            arrays |= {
                f"numbers{side}": self._outcomes[side].waiting[waits],
                f"ticks{side}": rows.ticks[waits],
                f"sources{side}": source.astype(np.int64),
            }
            names.append([rows.names[place] for place in there])
        facts = {
            "standing": after.to_json(),
            "came": self._came_after,
            "names": names,
            "waiting": list(decided.held.waiting),
            "awaited": decided.held.awaited,
            "clocks": self.clocks,
            "lag": after.lag,
            "bound": self.earliest,
            "cuts": points.to_json(),
            "positions": self.positions,
            **self._kind.facts,
            **({"ended": True} if self._ends else {}),
        }
        self._log.publish_gate(self._batch, ([], []), facts, arrays)
        return progress_of(self._batch, facts)
