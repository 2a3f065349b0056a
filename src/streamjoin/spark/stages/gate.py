"""The two stages before a join on intervals or a summary that needs one order; others share it (`shared_gate.py`).

*Collect* packs the rows of every source for one task, the *Gate*. The gate adds the rows that waited after the previous
batch, sets late rows aside, numbers the ready rows and sends them to the ranges. The other rows wait in a file of the
log, which is published before the first row leaves and is the same whenever the batch runs again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.spark.runtime.checkpoints import open_log
from streamjoin.spark.stages.arrivals import LATE, NO_TIME
from streamjoin.spark.stages.figures import packed, standing
from streamjoin.spark.stages.gating import (
    Decided,
    HeldRows,
    Standing,
    UngatedRows,
    beginning,
    chosen,
    codes,
    decide,
    sources_in,
    together,
)
from streamjoin.spark.stages.kind_gate import KindGate
from streamjoin.spark.stages.late import late_rows
from streamjoin.spark.stages.parts import Part, Spool, markers, opened
from streamjoin.spark.stages.punctuation import Punctuation, write_punctuation
from streamjoin.spark.stages.route import SEQ, UPTO, Longest, by_range, conformed, index_words, longest_stored
from streamjoin.spark.stages.scaling import agreed, planned
from streamjoin.spark.stages.summary_gate import SummaryGate
from streamjoin.storage.blueprint import SIDES, Blueprint, GatePlan, SourcePlan
from streamjoin.storage.log import WindowLog
from streamjoin.storage.pieces import Block, BlockRows
from streamjoin.storage.ranges import SplitPoints, sample
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import SideEncoder, flat, integer_values
from streamjoin.windows.intervals import ends, length_classes

_SOURCE, _TICKS = "#source", "#ticks"
_SAMPLED = 4096
_PART_ROWS = 1 << 17


@dataclass(frozen=True)
class Collect:
    """The stage of one source, which packs its rows for the gate."""

    blueprint: Blueprint
    side: int
    source: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack every batch as it is."""
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context else 0
        spool = Spool.of(*open_log(self.blueprint))
        yield markers(1)
        for number, batch in enumerate(batches):
            if batch.num_rows:
                yield from self.part(batch, task, number).packed(spool)

    def part(self, batch: pa.RecordBatch, task: int, number: int) -> Part:
        """One input batch as a part."""
        rows = conformed(batch, self.blueprint.schema(self.side))
        return Part(0, self.side + 2 * self.source, task, number, rows)


@dataclass(frozen=True)
class WaitingRows:
    """The rows of one side before the gate, old and new, with their sources."""

    table: pa.Table
    rows: UngatedRows


@dataclass(frozen=True)
class Gate:
    """The stage of the gate."""

    blueprint: Blueprint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the ready rows, in parts."""
        log, batch = open_log(self.blueprint)
        received = list(batches)
        now = next((rows.column(5)[0].as_py() for rows in received if rows.num_columns > 5 and rows.num_rows), None)
        _, parts = opened(received)
        with log.advising(batch):
            gate = GateOfBatch(self.blueprint, log, batch)
            for part in gate.parts(parts, now):
                yield from packed(part, Spool.of(log, batch))
            yield standing(
                self.blueprint.partitions, gate.before, gate.ranges, gate.mark, gate.punctuation, gate.received
            )


class GateOfBatch:
    """The gate in one batch."""

    def __init__(self, blueprint: Blueprint, log: WindowLog, batch: int) -> None:
        if blueprint.gate is None or blueprint.bound.time is None:
            raise AssertionError("a gate's stage in a join without one")
        self._blueprint = blueprint
        self._plan: GatePlan = blueprint.gate
        self._time = blueprint.bound.time
        self._log = log
        self._batch = batch
        self.before = log.version(batch - 1)
        self.punctuation: Punctuation | None = None
        """The punctuation of the batch; available once its parts are complete."""
        self.ranges = self.mark = 0
        self.received = (0, 0)
        """The new rows of each side."""
        self._sides = (0,) if blueprint.bound.spec.self_join else (0, 1)
        self._ends = log.end == batch
        self._kind: KindGate | SummaryGate = KindGate(blueprint, ends=self._ends)
        if blueprint.summarises:
            self._kind = SummaryGate(blueprint, ends=self._ends)

    def parts(self, packed_parts: Sequence[tuple[int, int, int, pa.Buffer]], now_ms: int | None) -> Iterator[Part]:
        """Publish the state of the gate after the batch, then yield the ready rows by range."""
        stood, waited = self._resumed()
        fresh = [self._fresh(side, packed_parts, stood.by_text) for side in self._sides]
        self.received = (fresh[0].table.num_rows, fresh[1].table.num_rows if len(fresh) > 1 else 0)
        waited_rows, fresh_rows = [old.rows for old in waited], [new.rows for new in fresh]
        reach = self._kind.reach
        decided = decide(self._blueprint, stood, waited_rows, fresh_rows, now_ms, reach, ends=self._ends)
        late, waiting = self._on_time(decided, waited, fresh)
        after, ticks, held = decided.after, decided.ticks, decided.held
        tables = [
            _with_numbers(_in_order(side.table, order), *numbers)
            for side, order, numbers in zip(waiting, decided.orders, decided.numbers, strict=True)
        ]
        tables = [tables[0], tables[-1]]
        self._kind.advance(self._log, self.before, stood.counts, after, ticks)
        points = planned(self._blueprint, self.before, self._sample(tables))
        rest = [_chosen(side_rows, ~mask) for side_rows, mask in zip(waiting, decided.ready, strict=True)]
        self.ranges, self.mark = points.ranges, agreed(self.before, points)
        longest = self._longest(tables)
        self._publish(stood, after, rest, late, points, longest, held)
        for role, table in enumerate(tables):
            for number, batch_rows in enumerate(table.to_batches(max_chunksize=_PART_ROWS)):
                first = number * _PART_ROWS
                for target, kind, rows in by_range(self._blueprint, role, batch_rows, points, first, longest):
                    yield Part(target, role + kind, 0, number, rows)

    def _resumed(self) -> tuple[Standing, list[WaitingRows]]:
        """The state of the gate before the batch, and the waiting rows."""
        if self.before.batch < 0:
            return beginning(self._blueprint), [self._nothing(side) for side in self._sides]
        footer, piece = self._log.gate(self.before.batch, self.before.epoch)
        if footer.get("ended"):
            stood = Standing.from_json(footer["standing"])
            begun = beginning(self._blueprint, by_text=stood.by_text)
            return replace(begun, counts=stood.counts), [self._nothing(side) for side in self._sides]
        waited = []
        for side in self._sides:
            blocks = [Block(*block) for block in footer["blocks"][side]]
            parts = [piece.batch(block, self._waiting_schema(side)) for block in blocks]
            table = pa.Table.from_batches(parts, schema=self._waiting_schema(side)).combine_chunks()
            names = pc.dictionary_encode(flat(table.column(_SOURCE)))
            rows = UngatedRows(
                integer_values(flat(table.column(_TICKS))), codes(names), names.dictionary.to_pylist(), frozenset()
            )
            waited.append(WaitingRows(table.drop_columns([_SOURCE, _TICKS]), rows))
        return Standing.from_json(footer["standing"]), waited

    def _nothing(self, side: int) -> WaitingRows:
        empty = np.empty(0, np.int64)
        return WaitingRows(self._blueprint.schema(side).empty_table(), UngatedRows(empty, empty, ()))

    def _waiting_schema(self, side: int) -> pa.Schema:
        head = [pa.field(_SOURCE, pa.string()), pa.field(_TICKS, pa.int64())]
        return pa.schema([*head, *self._blueprint.schema(side)])

    def _fresh(self, side: int, parts: Sequence[tuple[int, int, int, pa.Buffer]], by_text: bool) -> WaitingRows:
        """The new rows of one side, in order within each source; rows without a time have no source."""
        schema = self._blueprint.schema(side)
        together = self._nothing(side)
        for i, plan in enumerate(self._plan.sources[side]):
            batches = [pa.ipc.read_record_batch(body, schema) for code, _, _, body in parts if code == side + 2 * i]
            if batches:
                table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
                together = _together(together, self._from_source(side, plan, table, by_text))
        return together

    def _from_source(self, side: int, plan: SourcePlan, table: pa.Table, by_text: bool) -> WaitingRows:
        if plan.position is not None:
            column = flat(table.column(plan.position))
            if column.null_count:
                raise InputError(
                    f"source {plan.name!r} of the {SIDES[side]} side has rows without a {plan.position!r}, which "
                    "orders it: leave them out with a filter"
                )
            table = table.take(pa.array(np.argsort(integer_values(column), kind="stable")))
        name = self._time.right if side else self._time.left
        ticks, missing = to_ticks(table.column(name), self._time.multipliers[side])
        names, source = [plan.name], np.zeros(table.num_rows, np.int64)
        if plan.by is not None:
            names, source = sources_in(plan, flat(table.column(plan.by)), by_text=by_text)
        if missing is not None:
            source = np.where(missing, -1, source)
        return WaitingRows(table, UngatedRows(ticks, source, names, frozenset(names if plan.position else ())))

    def _on_time(
        self, decided: Decided, waited: Sequence[WaitingRows], fresh: Sequence[WaitingRows]
    ) -> tuple[list[pa.Table], list[WaitingRows]]:
        """The new rows that are late, and all others with those that waited."""
        late, waiting = [], []
        for side, (old, new) in enumerate(zip(waited, fresh, strict=True)):
            masks = {LATE: decided.late[side], NO_TIME: decided.timeless[side]}
            reasons = {reason: new.table.filter(pa.array(mask)) for reason, mask in masks.items() if mask.any()}
            if reasons:
                late.append(late_rows(self._blueprint.bound, self._batch, SIDES[side], reasons))
            on_time = _chosen(new, ~(masks[LATE] | masks[NO_TIME]))
            table = pa.concat_tables([old.table, on_time.table]).combine_chunks()
            waiting.append(WaitingRows(table, decided.waiting[side]))
        return late, waiting

    def _sample(self, tables: Sequence[pa.Table]) -> list[tuple[int, int]]:
        """The distribution of the ready rows' words."""
        if not self._blueprint.indexed:
            return []
        entries = []
        for side, table in enumerate(tables):
            name: Literal["left", "right"] = "right" if side else "left"
            step = max(1, table.num_rows // _SAMPLED)
            some = table.take(pa.array(np.arange(0, table.num_rows, step)))
            encoded = SideEncoder(self._blueprint.bound, name).encode(some)
            words = index_words(self._blueprint, encoded).word
            words = np.sort(words if encoded.valid is None else words[encoded.valid])
            entries += [(word, rows * step) for word, rows in sample(words, 256)]
        return entries

    def _longest(self, tables: Sequence[pa.Table]) -> Longest:
        """The classes of the longest intervals among the stored and the ready rows."""
        left, right = longest_stored(self._blueprint, self.before)
        plan = self._blueprint.bound.intervals
        if plan is None:
            return left, right
        for side, table in enumerate(tables):
            name: Literal["left", "right"] = "right" if side else "left"
            encoded = SideEncoder(self._blueprint.bound, name).encode(table)
            classes = length_classes(*ends(encoded.terms, plan))
            longest = int((classes if encoded.valid is None else classes[encoded.valid]).max(initial=0))
            left, right = (left, max(right, longest)) if side else (max(left, longest), right)
        return left, right

    def _publish(
        self,
        before: Standing,
        after: Standing,
        rest: Sequence[WaitingRows],
        late: Sequence[pa.Table],
        points: SplitPoints,
        longest: Longest,
        held: HeldRows,
    ) -> None:
        if late:
            self._log.write_late(self._batch, 0, pa.concat_tables(late))
        blocks: list[list[BlockRows]] = [[], []]
        for side, side_rows in zip(self._sides, rest, strict=True):
            names = pa.array(side_rows.rows.names, pa.string()).take(pa.array(side_rows.rows.source))
            columns = [names, pa.array(side_rows.rows.ticks), *side_rows.table.columns]
            table = pa.Table.from_arrays(columns, schema=self._waiting_schema(side)).combine_chunks()
            blocks[side] = [BlockRows(batch, 0, 0) for batch in table.to_batches()]
        tick = None if after.bound == Standing({}).bound else after.bound[0]
        positions = self._kind.positions(before.counts, after.counts)
        facts = {
            "standing": after.to_json(),
            "waiting": list(held.waiting),
            "awaited": held.awaited,
            "clocks": self._kind.clocks(after.counts, tick),
            "late": _counted(late),
            "lag": after.lag,
            "bound": self._kind.earliest(tick),
            "cuts": points.to_json(),
            "positions": positions,
            **self._kind.facts,
            **({"ended": True} if self._ends else {}),
            **({} if self._blueprint.bound.intervals is None else {"longest": longest}),
        }
        self._log.publish_gate(self._batch, (blocks[0], blocks[1]), facts, self._kind.arrays)
        self.punctuation = Punctuation(
            self._batch, self._kind.earliest(tick), positions[1], sum(held.waiting), after.lag
        )
        write_punctuation(self._log.root, self._log.epoch, self.punctuation)


def _in_order(table: pa.Table, order: Array) -> pa.Table:
    """The rows at `order`: without a copy if they are adjacent and in their order, as those of most batches are."""
    n = order.size
    if n and int(order[-1] - order[0]) == n - 1 and (order[1:] > order[:-1]).all():
        return table.slice(int(order[0]), n)
    return table.take(pa.array(order))


def _counted(late: Sequence[pa.Table]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for table in late:
        for side, reason in zip(table["side"].to_pylist(), table["reason"].to_pylist(), strict=True):
            counts[f"{side}: {reason}"] = counts.get(f"{side}: {reason}", 0) + 1
    return counts


def _with_numbers(table: pa.Table, seqs: Array, upto: Array) -> pa.Table:
    numbers = (pa.array(seqs.astype(np.int64)), pa.array(upto.astype(np.int64)))
    return table.append_column(SEQ, numbers[0]).append_column(UPTO, numbers[1]).combine_chunks()


def _together(old: WaitingRows, new: WaitingRows) -> WaitingRows:
    """All rows, `old` first."""
    table = pa.concat_tables([old.table, new.table]).combine_chunks()
    return WaitingRows(table, together(old.rows, new.rows))


def _chosen(waiting: WaitingRows, mask: Array) -> WaitingRows:
    if mask.all():
        return waiting
    return WaitingRows(waiting.table.filter(pa.array(mask)), chosen(waiting.rows, mask))
