"""Rows from tasks to sinks: files that tasks write, and that count once the journal lists them.

A task writes the rows of a query with a `ParquetSink` to a hidden file in the sink's directory. Rows that the driver
has to see (the newest of each query, and all rows of sinks that the driver writes to) go into one spool file of the
cell in the checkpoint, and so do rows that wait for a file where there are many such sinks (`pool`). The journal's
record of a batch's outputs lists all of these. After it is on disk the hidden files are renamed, which can be repeated.
So a batch is computed again only if none of its files has appeared. Data files of Delta and Iceberg tables are written
and listed like that, too; the driver commits them instead of renaming them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.formats.table_files import DataFile, FileLayout
from streamjoin.model.errors import StreamJoinError
from streamjoin.model.large_columns import one_batch
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place, place

HIDDEN: Final = ".+"
"""How the names of hidden files begin; no name of a query's file has a plus."""


@dataclass(frozen=True)
class OutputTarget:
    """Where tasks put a query's rows: Parquet files in `directory`, and up to `spooled` (None: all) for the driver.

    `prefix` begins the names of the query's files. Rows that are `pooled` get a file later, together with those of
    other batches. With `queued` the driver hands what is spooled to the sink: the rows, or with `filed` their places.
    With `layout` rows become data files of a table, which the driver hands to the sink.
    """

    spooled: int | None
    directory: str | None = None
    prefix: str = ""
    compression: str = "zstd"
    pooled: bool = False
    queued: bool = False
    filed: bool = False
    layout: FileLayout | None = None


@dataclass(frozen=True)
class FlushedFile:
    """A file with the pooled rows of a query up to the batch `last`: its hidden name and the one that it gets."""

    hidden: str
    final: str
    rows: int
    last: int


@dataclass(frozen=True)
class WaitingTuples:
    """What waits in a cell of queries with outer, semi, anti or as-of joins: how many tuples by query, and their file.

    `token` names this one writing: a cell that has it in memory needs no file. `pins` has the oldest tuple of each
    stream that must be held, by its id.
    """

    token: str
    queries: Mapping[str, int]
    path: str | None = None
    pins: Mapping[str, int] = field(default_factory=dict)

    def without(self, names: Collection[str]) -> WaitingTuples:
        """Without some queries."""
        return replace(self, queries={name: count for name, count in self.queries.items() if name not in names})


@dataclass(frozen=True)
class CellsWaiting:
    """What waits after a batch in all cells."""

    batch: int = -1
    cells: tuple[WaitingTuples, ...] = ()

    @property
    def count(self) -> int:
        """How many tuples wait."""
        return sum(count for cell in self.cells for count in cell.queries.values())

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [cell.path for cell in self.cells if cell.path is not None]

    def of(self, since: Mapping[str, int]) -> tuple[WaitingTuples, ...]:
        """What waits of some queries, given by the batch since which each is in force."""
        names = {name for cell in self.cells for name in cell.queries}
        others = {name for name in names if name not in since or since[name] > self.batch}
        return tuple(cell.without(others) for cell in self.cells)


@dataclass(frozen=True)
class WrittenRows:
    """What a cell wrote: by query the rows, the hidden file and the name that it gets, or why there is none.

    `pooled` are the blocks of the spool file whose rows wait for a file of their own. `flushed` are files with rows of
    earlier batches, and `unflushed` says why there is none. `data` are data files of tables.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    spool: str | None = None
    pooled: Mapping[str, Sequence[int]] = field(default_factory=dict)
    flushed: Mapping[str, FlushedFile] = field(default_factory=dict)
    unflushed: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, DataFile] = field(default_factory=dict)
    waiting: WaitingTuples | None = None

    def packed(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def unpacked(cls, body: Mapping[str, Any]) -> WrittenRows:
        """What `packed` gave."""
        files = {name: (hidden, final) for name, (hidden, final) in body["files"].items()}
        flushed = {name: FlushedFile(**file) for name, file in body.get("flushed", {}).items()}
        data = {name: DataFile(**file) for name, file in body.get("data", {}).items()}
        waiting = WaitingTuples(**body["waiting"]) if body.get("waiting") else None
        return cls(
            body["counts"], files, body["refused"], body["spool"], body.get("pooled", {}), flushed, data=data,
            waiting=waiting,
        )  # fmt: skip


def write_rows(
    outputs: Mapping[str, pa.Table], targets: Mapping[str, OutputTarget], batch: int, cell: int, spool: str
) -> WrittenRows:
    """Write the rows of a cell; a sink that can't be written to has its rows in the spool."""
    attempt = uuid.uuid4().hex[:8]
    counts, files, refused = {}, {}, {}
    data: dict[str, DataFile] = {}
    spooled: dict[str, pa.Table] = {}
    pooled: dict[str, pa.Table] = {}
    for name, table in outputs.items():
        target = targets[name]
        counts[name] = table.num_rows
        limit = target.spooled
        if target.pooled:
            pooled[name] = table
        elif target.layout is not None:
            try:
                written = target.layout.write(batch, table.to_batches())
                if written is not None:
                    data[name] = written
            except (OSError, StreamJoinError) as error:
                refused[name] = str(error)
                limit = None
        elif target.directory is not None:
            final = f"{target.prefix}{batch:012}-{cell:04}.parquet"
            hidden = place(target.directory) / f"{HIDDEN}{final}.{attempt}"
            try:
                with atomic(hidden) as file:
                    pq.write_table(table, file, compression=target.compression)
                files[name] = str(hidden), final
            except (OSError, StreamJoinError) as error:
                refused[name] = f"no file can be written to {target.directory}: {error.__cause__ or error}"
                limit = None
        if limit is None or limit:
            spooled[name] = table if limit is None or limit >= table.num_rows else table.slice(table.num_rows - limit)
    if not spooled and not pooled:
        return WrittenRows(counts, files, refused, data=data)
    path = place(spool) / f"{batch:012}-{cell:04}-{attempt}"
    sides = [[BlockRows(one_batch(table), 0, 0) for table in tables.values()] for tables in (spooled, pooled)]
    write_piece(path, (sides[0], sides[1]), {"queries": list(spooled)})
    blocks = read_footer(path)["blocks"][1] if pooled else []
    return WrittenRows(counts, files, refused, str(path), dict(zip(pooled, blocks, strict=True)), data=data)


def read_spool(
    path: str, schemas: Mapping[str, pa.Schema], shown: Collection[str] = frozenset()
) -> dict[str, pa.Table]:
    """The rows of a spool file by query, mapped; of the queries whose schemas are given.

    Rows of the queries in `shown` go to no sink: their checksums are not worth the time.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    where = place(path)
    footer = read_footer(where)
    mapped = MappedPiece(where)
    blocks = [Block(*packed) for packed in footer["blocks"][0]]
    return {
        name: pa.Table.from_batches([(mapped.glimpse if name in shown else mapped.batch)(block, schemas[name])])
        for name, block in zip(footer["queries"], blocks, strict=True)
        if name in schemas
    }


def spooled_blocks(path: str, wanted: Collection[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where the rows of some queries lie in a spool file.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    footer = read_footer(place(path))
    blocks = zip(footer["queries"], footer["blocks"][0], strict=True)
    return {name: (path, tuple(block)) for name, block in blocks if name in wanted}


def publish(hidden: str, name: str) -> None:
    """Give a hidden file its name; one that has it already stays.

    Raises:
        OSError: it can't be renamed.
    """
    source = place(hidden)
    target = source.parent / name
    if isinstance(source, Path) and isinstance(target, Path):
        try:
            source.replace(target)
        except FileNotFoundError:
            if not target.exists():
                raise
    elif source.exists():
        move(source, target)
    elif not target.exists():
        raise FileNotFoundError(f"{hidden} is gone")


def move(source: Place, target: Place) -> None:
    """Rename a file, also on a file system that is reached through Arrow."""
    if isinstance(source, Path):
        Path(str(target)).parent.mkdir(parents=True, exist_ok=True)
        source.replace(str(target))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.filesystem.move(source.path, target.path)  # type: ignore[union-attr]


def remove(paths: Iterable[str]) -> None:
    """Remove files, as far as they are there."""
    for path in paths:
        with contextlib.suppress(OSError):
            place(path).unlink(missing_ok=True)
