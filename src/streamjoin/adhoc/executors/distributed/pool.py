"""Rows of many queries in few files: a batch's rows share a file in the checkpoint, and become Parquet files later.

With many Parquet sinks a file for each query, cell and batch would be thousands of small files. Instead a cell writes
the rows of all queries of a batch as blocks of its one spool file. Some queries per batch, those whose rows have waited
longest, are *flushed*: a task writes what waits of a query as one Parquet file in the sink's directory, under a hidden
name. The record of a batch's outputs lists blocks and flushed files alike, and after it is on disk the files get their
names. The invariants: a row is in the pool or in a listed file, never in both; a record is removed only after those
before it, when nothing of it is in the pool. So a restart finds the pool by reading the records in order.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc.executors.distributed.outputs import HIDDEN, FlushedFile, OutputTarget, WrittenRows
from streamjoin.model.errors import StreamJoinError
from streamjoin.storage.pieces import Block, MappedPiece, atomic
from streamjoin.storage.places import place

_LARGE: Final = 32 << 20
"""The bytes from which on rows get a file at once."""


@dataclass(frozen=True)
class PooledBlock:
    """The rows of a query in one batch and cell: a block of a file."""

    batch: int
    path: str
    block: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.block[2]

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self.block[1]


@dataclass(frozen=True)
class Flush:
    """The rows of a query that become one Parquet file."""

    query: str
    target: OutputTarget
    schema: pa.Schema
    blocks: tuple[PooledBlock, ...]

    def write(self) -> FlushedFile | str:
        """Write the file under a hidden name; or say why that can't be."""
        pieces = {path: MappedPiece(place(path)) for path in dict.fromkeys(block.path for block in self.blocks)}
        batches = [pieces[block.path].batch(Block(*block.block), self.schema) for block in self.blocks]
        first, last = self.blocks[0].batch, self.blocks[-1].batch
        final = f"{self.target.prefix}{first:012}-{last:012}.parquet"
        directory = self.target.directory
        hidden = place(str(directory)) / f"{HIDDEN}{final}.{uuid.uuid4().hex[:8]}"
        try:
            with atomic(hidden) as file:
                pq.write_table(pa.Table.from_batches(batches), file, compression=self.target.compression)
        except (OSError, StreamJoinError) as error:
            return f"no file can be written to {directory}: {error.__cause__ or error}"
        return FlushedFile(str(hidden), final, sum(block.rows for block in self.blocks), last)


def write_flushes(flushes: Iterable[Flush]) -> WrittenRows:
    """Write the files of some queries."""
    written = {flush.query: flush.write() for flush in flushes}
    return WrittenRows(
        flushed={name: file for name, file in written.items() if isinstance(file, FlushedFile)},
        unflushed={name: why for name, why in written.items() if isinstance(why, str)},
    )


class RowPool:
    """What the driver knows of the rows that wait for a file."""

    most_files = 8
    """Files per batch, besides those of queries with many rows; where there are more Parquet sinks, rows are pooled."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[PooledBlock]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """Rows and bytes."""
        self._since: dict[str, float] = {}
        """When the oldest rows of a query came, or when its last flush failed."""

    @property
    def names(self) -> list[str]:
        """The queries that have rows here."""
        return list(self._waiting)

    @property
    def oldest(self) -> int | None:
        """The oldest batch that has rows here."""
        return min((blocks[0].batch for blocks in self._waiting.values()), default=None)

    def sizes(self, name: str) -> tuple[int, int]:
        """The rows of a query that wait, and their bytes."""
        return self._sizes.get(name, (0, 0))

    def add(self, batch: int, cells: Sequence[WrittenRows]) -> None:
        """Take in what a batch wrote, and let go of what it flushed."""
        for cell in cells:
            for name, block in cell.pooled.items():
                if cell.spool is None:
                    raise AssertionError("blocks without their file")
                pooled = PooledBlock(batch, cell.spool, tuple(block))
                self._waiting.setdefault(name, []).append(pooled)
                rows, nbytes = self.sizes(name)
                self._sizes[name] = rows + pooled.rows, nbytes + pooled.nbytes
                self._since.setdefault(name, time.monotonic())
        for cell in cells:
            for name, file in cell.flushed.items():
                self._since[name] = time.monotonic()
                self._keep(name, [block for block in self._waiting.get(name, ()) if block.batch > file.last])
            for name in cell.unflushed:
                self._since[name] = time.monotonic()

    def _keep(self, name: str, blocks: list[PooledBlock]) -> None:
        if blocks:
            self._waiting[name] = blocks
            self._sizes[name] = sum(block.rows for block in blocks), sum(block.nbytes for block in blocks)
        else:
            for held in (self._waiting, self._sizes, self._since):
                held.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """Let go of the rows of queries that are no more."""
        for name in names:
            self._keep(name, [])

    def due(self, seconds: float) -> list[str]:
        """The queries to flush with the next batch: with many rows, or with rows that waited for so long."""
        now = time.monotonic()
        by_age = sorted(self._waiting, key=lambda name: self._since[name])
        waited = [name for name in by_age if now - self._since[name] >= seconds][: self.most_files]
        return list(dict.fromkeys([*waited, *(name for name in by_age if self._sizes[name][1] >= _LARGE)]))

    def flushes(
        self, names: Iterable[str], targets: Mapping[str, OutputTarget], schemas: Mapping[str, pa.Schema]
    ) -> list[Flush]:
        """What tasks have to write for these queries."""
        return [
            Flush(name, targets[name], schemas[name], tuple(self._waiting[name]))
            for name in names
            if name in self._waiting and name in targets
        ]
