"""Part files: the tuples that one task read of a stream's micro-batch, in order of time, and what was set aside.

A part is written once, by the task that read it, and is state: a bucket of the journal lists its parts. A tuple is
late if it is behind what its stream had reached before the micro-batch by more than the lateness. The driver sees
names, counts and times of parts, never a tuple.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin._arrays import Array
from streamjoin.model.errors import CheckpointError
from streamjoin.model.large_columns import one_batch
from streamjoin.queries.core.arrivals import Arrived, Aside
from streamjoin.queries.engine.journal import read_table
from streamjoin.queries.executors.distributed.placement import CellGroups
from streamjoin.queries.executors.spark import split
from streamjoin.queries.language.plan import Stream
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place, place
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import flat

TICK: Final = "#tick"
ROW: Final = "#row"
NOWHERE: Final = -1
"""The group of rows that lie in no cell: they have no key."""
_META: Final = b"streamjoin.parts"
_TIMES: Final = pa.schema([(TICK, pa.int64())])


@dataclass(frozen=True)
class PartFile:
    """What the driver knows of a part: rows and their times, and by kind the rows that were set aside in own files."""

    partition: int
    path: str
    rows: int = 0
    least: int = 0
    most: int = 0
    nbytes: int = 0
    aside: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def packed(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def unpacked(cls, body: Mapping[str, Any]) -> PartFile:
        """What `packed` gave."""
        return cls(**{**body, "aside": {kind: (rows, path) for kind, (rows, path) in body["aside"].items()}})


@dataclass(frozen=True)
class PartWriter:
    """What a task needs to make a part of its rows.

    Tuples before `bound` are late, and those after `latest` are too far in the future; both are in ticks.
    """

    stream: Stream
    bound: int
    latest: int
    directory: str
    mark: str | None = None
    groups: CellGroups | None = None
    """How rows are grouped, so that a task reads those of its cell alone."""

    def write(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> PartFile:
        """Write the part of one task."""
        name = f"{partition:06}-{attempt}"
        table = pa.Table.from_batches(batches) if (batches := list(batches)) else None
        if table is None or not table.num_rows:
            return PartFile(partition, "")
        table, marked = split(table, self.mark)
        aside = {} if marked is None else {"malformed": marked}
        table = table.select(self.stream.schema.names).cast(self.stream.schema)
        ticks, bad = to_ticks(table.column(self.stream.time), self.stream.tick_ns or 1)
        ahead = ticks > self.latest
        if ahead.any():
            bad = ahead if bad is None else bad | ahead
        if bad is not None and bad.any():
            aside["untimed"] = table.filter(pa.array(bad))
            table, ticks = table.filter(pa.array(~bad)), ticks[~bad]
        late = ticks < self.bound
        if late.any():
            aside["late"] = table.filter(pa.array(late))
            table, ticks = table.filter(pa.array(~late)), ticks[~late]
        directory = place(self.directory)
        written = {
            kind: (rows.num_rows, _write_aside(directory / f"{name}-{kind}", rows)) for kind, rows in aside.items()
        }
        if not ticks.size:
            return PartFile(partition, "", aside=written)
        if (np.diff(ticks) < 0).any():
            order = np.argsort(ticks, kind="stable")
            table, ticks = table.take(pa.array(order)), ticks[order]
        path = directory / name
        self._write_piece(path, table, ticks)
        size = table.nbytes + ticks.nbytes
        return PartFile(partition, str(path), len(ticks), int(ticks[0]), int(ticks[-1]), size, written)

    def _write_piece(self, path: Place, table: pa.Table, ticks: Array) -> None:
        times = pa.RecordBatch.from_arrays([pa.array(ticks)], names=[TICK])
        footer: dict[str, Any] = {"groups": [0]}
        starts = [0, ticks.size]
        if self.groups is not None:
            rows, groups = self.groups.split(table)
            left = np.ones(ticks.size, np.bool_)
            left[rows] = False
            rows = np.concatenate([np.flatnonzero(left), rows])
            groups = np.concatenate([np.full(left.sum(), NOWHERE), groups])
            table = table.append_column(ROW, pa.array(np.arange(ticks.size))).append_column(TICK, pa.array(ticks))
            table = table.take(pa.array(rows))
            starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), groups.size]
            footer = {"grouping": self.groups.key, "groups": [int(groups[start]) for start in starts[:-1]]}
        whole = one_batch(table)
        blocks = [BlockRows(whole.slice(a, b - a), 0, 0) for a, b in pairwise(starts)]
        write_piece(path, (blocks, [BlockRows(times, 0, 0)]), footer)


def _write_aside(path: Place, rows: pa.Table) -> str:
    with atomic(path) as file:
        pq.write_table(rows, file)
    return str(path)


@dataclass(frozen=True)
class ReadParts:
    """A micro-batch of a stream as the driver has it: its parts, in order of their partitions."""

    parts: tuple[PartFile, ...]

    def __len__(self) -> int:
        """All rows but malformed ones."""
        aside = self.aside
        return sum(part.rows for part in self.parts) + aside.late + aside.untimed

    @property
    def aside(self) -> Aside:
        """How many rows were set aside."""
        counts = (
            sum(part.aside[kind][0] for part in self.parts if kind in part.aside)
            for kind in ("late", "untimed", "malformed")
        )
        return Aside(*counts)


@dataclass(frozen=True, eq=False)
class FiledBucket:
    """The tuples of a stream in one batch, as the driver has them: where they lie and what retention needs to know."""

    stream: str
    batch: int
    first: int
    seen: Mapping[str, int]
    parts: tuple[PartFile, ...]

    @cached_property
    def n(self) -> int:
        """How many tuples it has."""
        return sum(part.rows for part in self.parts)

    @property
    def end(self) -> int:
        """The number of the tuple after the last."""
        return self.first + self.n

    @cached_property
    def span(self) -> tuple[int, int]:
        """The earliest and the latest time."""
        return min(part.least for part in self.parts), max(part.most for part in self.parts)

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes of the tuples, which lie in files."""
        return {"tuples": sum(part.nbytes for part in self.parts), "indexes": 0}

    # Files --------------------------------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """What the journal keeps of it; `from_table` reads it."""
        about = {"stream": self.stream, "batch": self.batch, "first": self.first, "seen": dict(self.seen)}
        parts = [json.dumps(part.packed()) for part in self.parts]
        return pa.table({"part": parts}).replace_schema_metadata({_META: json.dumps(about)})

    def aligned(self, schema: pa.Schema) -> FiledBucket:  # noqa: ARG002 - as of `Bucket`
        """The columns of a stream do not change here."""
        return self

    @classmethod
    def from_table(cls, table: pa.Table) -> FiledBucket:
        """What `to_table` gave.

        Raises:
            CheckpointError: the table has tuples: another kind of engine wrote it.
        """
        metadata = table.schema.metadata or {}
        if _META not in metadata:
            raise CheckpointError(
                "the checkpoint was written by an engine whose driver holds the tuples: open it with "
                'executor="driver", or begin with a new checkpoint'
            )
        about = json.loads(metadata[_META])
        parts = tuple(PartFile.unpacked(json.loads(part)) for part in table.column("part").to_pylist())
        return cls(about["stream"], about["batch"], about["first"], about["seen"], parts)


def filed_buckets(arrived: Arrived) -> dict[str, FiledBucket]:
    """The buckets of a batch that the driver has lists of."""
    lists: Mapping[str, Any] = arrived.buckets
    return dict(lists)


def read_filed_bucket(path: Place) -> FiledBucket:
    """A bucket's list of parts."""
    return FiledBucket.from_table(read_table(path))


@dataclass(frozen=True)
class PartRows:
    """Tuples of a part in order of time: the rows that they are there, and the bytes that were read for them."""

    table: pa.Table
    ticks: Array
    rows: Array
    read: int


def read_part(
    part: PartFile,
    schema: pa.Schema,
    groups: CellGroups | None = None,
    cell: int = 0,
    whole_parts: dict[str, PartRows] | None = None,
    verify: bool = True,
) -> PartRows:
    """The tuples of a part, mapped; with `groups`, those that a cell needs.

    A part that has to be read as a whole is kept in `whole_parts`, and `read` counts its bytes once. Checksums find
    what has been damaged since a part was written: `verify` is for parts of earlier batches.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    known = None if whole_parts is None else whole_parts.get(part.path)
    if known is not None and groups is not None:
        return _choose(replace(known, read=0), groups, cell)
    path = place(part.path)
    footer = read_footer(path)
    blocks = [Block(*packed) for packed in footer["blocks"][0]]
    grouping = footer.get("grouping")
    if grouping is None:
        tuples = _read_in_order(path, footer, schema, verify)
    else:
        if groups is not None and grouping == groups.key:
            wanted = groups.group_of(cell)
            blocks = [block for block, group in zip(blocks, footer["groups"], strict=True) if group == wanted]
        tuples = _read_grouped(path, blocks, schema, verify)
    if groups is None or grouping == groups.key:
        return tuples
    if whole_parts is not None:
        whole_parts[part.path] = tuples
    return _choose(tuples, groups, cell)


def _read_in_order(path: Place, footer: Mapping[str, Any], schema: pa.Schema, verify: bool) -> PartRows:
    """All tuples of a part that is not grouped."""
    mapped = MappedPiece(path)
    read = mapped.batch if verify else mapped.glimpse
    (rows,), (times,) = ([Block(*packed) for packed in side] for side in footer["blocks"])
    ticks = read(times, _TIMES).column(0).to_numpy()
    return PartRows(
        pa.Table.from_batches([read(rows, schema)]), ticks, np.arange(ticks.size), rows.length + times.length
    )


def _read_grouped(path: Place, blocks: Sequence[Block], schema: pa.Schema, verify: bool) -> PartRows:
    """The tuples of some groups of a part, in order of time, each once."""
    mapped = MappedPiece(path)
    read = mapped.batch if verify else mapped.glimpse
    full = schema.append(pa.field(ROW, pa.int64())).append(pa.field(TICK, pa.int64()))
    table = pa.Table.from_batches([read(block, full) for block in blocks], full)
    # By their places: a stream's own columns may have these names.
    own = len(schema)
    rows = flat(table.column(own)).to_numpy()
    if len(blocks) > 1:
        rows, first = np.unique(rows, return_index=True)
        table = table.take(pa.array(first))
    ticks = flat(table.column(own + 1)).to_numpy()
    return PartRows(table.select(list(range(own))), ticks, rows, sum(block.length for block in blocks))


def _choose(part: PartRows, groups: CellGroups, cell: int) -> PartRows:
    chosen = groups.rows(part.table, cell)
    if chosen.size == part.rows.size:
        return part
    return PartRows(part.table.take(pa.array(chosen)), part.ticks[chosen], part.rows[chosen], part.read)


def read_ticks(part: PartFile) -> Array:
    """The times of all tuples of a part, ascending, mapped."""
    path = place(part.path)
    (block,) = [Block(*packed) for packed in read_footer(path)["blocks"][1]]
    batch = MappedPiece(path).batch(block, _TIMES)
    return np.asarray(batch.column(0).to_numpy())


def ticks_by_stream(buckets: Mapping[str, FiledBucket]) -> dict[str, list[Array]]:
    """The times of each part of a batch."""
    return {name: [read_ticks(part) for part in bucket.parts] for name, bucket in buckets.items()}


def positions(
    bucket: FiledBucket, times: Mapping[str, list[Array]], part: int, rows: Array, streams: Iterable[str]
) -> tuple[Array, dict[str, Array]]:
    """The numbers of a part's chosen tuples in their stream, and how many tuples of other streams came before each.

    Numbers follow the gate order: batch, time, stream name, part, row.
    """
    ticks = times[bucket.stream][part][rows]
    own = rows + bucket.first
    for other, held in enumerate(times[bucket.stream]):
        if other != part:
            own = own + np.searchsorted(held, ticks, side="right" if other < part else "left")
    before: dict[str, Array] = {}
    for name in streams:
        if name != bucket.stream:
            count = np.full(rows.size, bucket.seen.get(name, 0), np.int64)
            for held in times.get(name, ()):
                count += np.searchsorted(held, ticks, side="right" if name < bucket.stream else "left")
            before[name] = count
    return own, before
