"""The second stage: one range's share of a batch, joined with the log and then part of it.

The task of a range reads the version before its batch, pairs the new rows with the stored ones and with each
other, and writes its piece of the next version: the new rows it owns, merged with its share of the runs that
are due. The piece is published before the first result leaves, as whoever takes the results may stop early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.spark.arrivals import Arrivals, arrivals
from streamjoin.spark.blueprint import Blueprint
from streamjoin.spark.checkpoints import open_log
from streamjoin.spark.late import late_rows
from streamjoin.spark.log import WindowLog
from streamjoin.spark.merging import horizons
from streamjoin.spark.pairing import Probes, holds, matches
from streamjoin.spark.parts import unpack
from streamjoin.spark.ranges import cuts, range_of, sample
from streamjoin.spark.route import part_schema
from streamjoin.spark.segments import Segment, blocks, merged, stored, stored_schema

Array = np.ndarray[Any, np.dtype[Any]]

_SAMPLE = 64


@dataclass(frozen=True)
class JoinTask:
    """The stage after the shuffle."""

    blueprint: Blueprint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join what was sent to one range."""
        from pyspark import TaskContext

        log, batch = open_log(self.blueprint)
        schemas = part_schema(self.blueprint, 0), part_schema(self.blueprint, 1)
        partition, tables = unpack(batches, schemas)
        if partition is None:
            # Nothing was routed at all: no task follows whose partitions could have been put together.
            context = TaskContext.get()
            partition = context.partitionId() if context else 0
        yield from RangeOfBatch(self.blueprint, log, batch, partition).join(tables)


class RangeOfBatch:
    """One range in one batch."""

    def __init__(self, blueprint: Blueprint, log: WindowLog, batch: int, partition: int) -> None:
        self._blueprint = blueprint
        self._log = log
        self._batch = batch
        self._partition = partition
        self._before = log.version(batch - 1)
        self._span = range_of(cuts(self._before.samples, blueprint.partitions), partition)

    def join(self, tables: tuple[pa.Table, pa.Table]) -> Iterator[pa.RecordBatch]:
        """Publish this range's piece, then yield its results."""
        left, right = (
            arrivals(self._blueprint, side, tables[side], self._before.clocks[side], self._span) for side in (0, 1)
        )
        runs = self._before.runs
        old = [
            [stored(self._log, self._blueprint, self._before, [run], side, self._span) for run in runs]
            for side in (0, 1)
        ]
        self._publish((left, right), old)
        if self._partition == 0:
            self._log.prune(self._before)
        for segment in (*_flat(old[1]), right.owned):
            yield from self._results(left.probes, segment, probes_left=True)
        for segment in _flat(old[0]):
            yield from self._results(right.probes, segment, probes_left=False)

    def _publish(self, new: tuple[Arrivals, Arrivals], old: Sequence[Sequence[Sequence[Segment]]]) -> None:
        plan, before = self._blueprint, self._before
        kept = before.kept(plan.windows, plan.lateness, plan.policy)
        horizon = horizons(before.clocks, plan.windows, plan.lateness)
        runs = []
        for side in (0, 1):
            segments = [*_flat(old[side][kept:]), new[side].owned]
            runs.append(merged([segment.since(horizon[side]) for segment in segments]))
        facts = {
            "base": before.epoch,
            "folded": [run.batch for run in before.runs[kept:]],
            "clocks": [side.clock for side in new],
            "fresh": sum(side.owned.n for side in new),
            "late": {name: n for side in new for name, n in side.late_counts.items() if n},
            "extents": [_extent(run) for run in runs],
            "sample": [entry for run in runs for entry in sample(run.words, _SAMPLE)],
        }
        batches = [blocks(run, stored_schema(plan, side)) for side, run in enumerate(runs)]
        late = [late_rows(plan.bound, self._batch, side.name, side.late) for side in new]
        if any(rows.num_rows for rows in late):
            self._log.write_late(self._batch, self._partition, pa.concat_tables(late))
        self._log.publish(self._batch, self._partition, (batches[0], batches[1]), facts)

    def _results(self, probes: Probes, segment: Segment, *, probes_left: bool) -> Iterator[pa.RecordBatch]:
        bound = self._blueprint.bound
        for probe, place in matches(probes, segment):
            ticks = np.maximum(probes.rows.ticks[probe], segment.ticks[place])
            probing, found = probes.rows.rows.take(pa.array(probe)), segment.rows.take(pa.array(place))
            left, right = (probing, found) if probes_left else (found, probing)
            if bound.residual is not None:
                keep = holds(bound.residual, left, right)
                if not keep.any():
                    continue
                if not keep.all():
                    mask = pa.array(keep)
                    left, right, ticks = left.filter(mask), right.filter(mask), ticks[keep]
            yield from _output(self._blueprint, left, right, ticks)


def _output(blueprint: Blueprint, left: pa.Table, right: pa.Table, ticks: Array) -> Iterator[pa.RecordBatch]:
    bound = blueprint.bound
    columns = [(left if c.side == "left" else right).column(c.source) for c in bound.columns]
    type_ = bound.schema.field(len(bound.schema) - 1).type
    narrow = ticks.astype(f"i{type_.bit_width // 8}", copy=False)
    time = pa.Array.from_buffers(type_, len(narrow), [None, pa.py_buffer(narrow)])
    yield from pa.Table.from_arrays([*columns, time], schema=bound.schema).combine_chunks().to_batches()


def _extent(run: Segment) -> list[int]:
    return [run.n, int(run.ticks.min()), int(run.ticks.max())] if run.n else [0, 0, 0]


def _flat(nested: Sequence[Sequence[Segment]]) -> list[Segment]:
    return [segment for segments in nested for segment in segments]
