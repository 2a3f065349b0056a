"""What a routing task tells every range of its rows: their times, and what else a gate needs to know of them.

Times are steps from one row to the next, in integers as narrow as they allow: a byte or two for most rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.spark.stages.gating import gate_plan
from streamjoin.spark.stages.parts import TIMES, opened
from streamjoin.storage.blueprint import SIDES, Blueprint
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import flat, integer_values

TIME, POSITION, SOURCE = "time", "position", "source"
_MISSING = "missing"


class TimesOfTask:
    """The facts of the rows of one routing task, which has one source."""

    def __init__(self, blueprint: Blueprint, side: int, source: int) -> None:
        self._blueprint, self._side = blueprint, side
        self.code = TIMES + side + 2 * source
        """What the ranges know it by."""
        self._plan = gate_plan(blueprint).sources[side][source]
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the facts of one input batch."""
        time = self._blueprint.bound.time
        if time is None:
            raise AssertionError("a spec without a time column is refused when the join is built")
        column = rows.column(time.right if self._side else time.left)
        ticks, missing = to_ticks(column, time.multipliers[self._side])
        facts = {
            TIME: pa.array(ticks),
            _MISSING: pa.array(np.zeros(ticks.size, np.bool_) if missing is None else missing),
        }
        if self._plan.position is not None:
            positions = flat(rows.column(self._plan.position))
            if positions.null_count:
                raise InputError(
                    f"source {self._plan.name!r} of the {SIDES[self._side]} side has rows without a "
                    f"{self._plan.position!r}, which orders it: leave them out with a filter"
                )
            facts[POSITION] = pa.array(integer_values(positions))
        if self._plan.by is not None:
            facts[SOURCE] = flat(rows.column(self._plan.by))
        self._batches.append(pa.record_batch(facts))

    def packed(self) -> pa.Buffer:
        """The facts for the shuffle: times as steps from one to the next, in integers as narrow as they allow."""
        table = pa.Table.from_batches(self._batches).combine_chunks()
        ticks = integer_values(flat(table.column(TIME)))
        columns = {TIME: pa.array(_narrow(np.diff(ticks, prepend=ticks[:1])))}
        if pc.any(table.column(_MISSING)).as_py():
            columns[_MISSING] = flat(table.column(_MISSING))
        if POSITION in table.column_names:
            positions = integer_values(flat(table.column(POSITION)))
            columns[POSITION] = pa.array(_narrow(np.diff(positions, prepend=positions[:1])))
        if SOURCE in table.column_names:
            columns[SOURCE] = pc.dictionary_encode(flat(table.column(SOURCE)), null_encoding="encode")
        begins = {TIME: int(ticks[0]), **({POSITION: int(positions[0])} if POSITION in columns else {})}
        batch = pa.record_batch(columns).replace_schema_metadata({"begins": json.dumps(begins)})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return out.getvalue()


def _narrow(steps: Array) -> Array:
    least, most = int(steps.min()), int(steps.max())
    for width in (np.int8, np.int16, np.int32):
        if np.iinfo(width).min <= least and most <= np.iinfo(width).max:
            return steps.astype(width)
    return steps


@dataclass(frozen=True)
class TaskTimes:
    """What a routing task has told: its side, its source, its number, and the facts of its rows."""

    side: int
    source: int
    task: int
    rows: pa.RecordBatch
    checksum: int

    @classmethod
    def unpacked(cls, code: int, task: int, body: pa.Buffer) -> TaskTimes:
        """The facts from what `TimesOfTask.packed` returned."""
        batch = pa.ipc.open_stream(body).read_next_batch()
        return cls((code - TIMES) % 2, (code - TIMES) // 2, task, batch, zlib.crc32(body))

    def summed(self, name: str) -> Array:
        """The values whose steps are in a column."""
        begin = json.loads(self.rows.schema.metadata[b"begins"])[name]
        with np.errstate(over="ignore"):
            return np.cumsum(self.rows.column(name).to_numpy(), dtype=np.int64) + np.int64(begin)

    @property
    def missing(self) -> Array:
        """Which rows have no time."""
        if _MISSING not in self.rows.schema.names:
            return np.zeros(self.rows.num_rows, np.bool_)
        return np.asarray(self.rows.column(_MISSING).to_numpy(zero_copy_only=False))


def times_in(batches: Iterable[pa.RecordBatch]) -> list[TaskTimes]:
    """What all routing tasks told."""
    return [TaskTimes.unpacked(code, task, body) for code, task, _, body in opened(batches, TIMES)[1]]
