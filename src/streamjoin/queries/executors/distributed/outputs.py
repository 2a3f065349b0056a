"""Rows from tasks to sinks: files that tasks write, and that count once the journal lists them.

A task writes the rows of a query with a `ParquetSink` to a hidden file in the sink's directory. Rows that the driver
has to see (the newest of each query, and all rows of sinks that the driver writes to) go into one spool file of the
cell in the checkpoint. The journal's record of a batch's outputs lists all of these. After it is on disk the hidden
files are renamed, which can be repeated. So a batch is computed again only if none of its files has appeared. Data
files of Delta and Iceberg tables are written and listed like that, too; the driver commits them instead of renaming.

With many Parquet sinks a file for each query, cell and batch would be thousands of small files. Instead a cell writes
the rows of all queries of a batch as blocks of its one spool file (`RowPool`). Some queries per batch, those whose rows
have waited longest, are *flushed*: a task writes what waits of a query as one Parquet file in the sink's directory,
under a hidden name. The record of a batch's outputs lists blocks and flushed files alike, and after it is on disk the
files get their names. The invariants: a row is in the pool or in a listed file, never in both; a record is removed only
after those before it, when nothing of it is in the pool. So a restart finds the pool by reading the records in order.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from streamjoin.formats.tables import DataFile, FileLayout
from streamjoin.model.errors import InputError, StreamJoinError, reason_of
from streamjoin.model.large_columns import one_batch
from streamjoin.queries.core.groups.feeds import PartialGroups
from streamjoin.queries.core.groups.runs import GroupRun
from streamjoin.queries.core.shared import failure_of
from streamjoin.queries.engine.journal import read_table, write_table
from streamjoin.queries.language.plan import query_name
from streamjoin.queries.sinks.files import write_parquet
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place, place

HIDDEN: Final = ".+"
"""How the names of hidden files begin; no name of a query's file has a plus."""


@dataclass(frozen=True)
class OutputTarget:
    """Where tasks put a query's rows: Parquet files in `directory`, and up to `spooled` (None: all) for the driver.

    `prefix` begins the names of the query's files, and `metadata` says in each which query it is of. Rows that are
    `pooled` get a file later, together with those of other batches. With `queued` the driver hands what is spooled to
    the sink: the rows, or with `filed` their places. With `layout` rows become data files of a table, which the driver
    hands to the sink.
    """

    spooled: int | None
    directory: str | None = None
    prefix: str = ""
    compression: str = "zstd"
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)
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
    stream that must be held, by its id. `overflowed` has the sums of the batch that their type could not hold.
    """

    token: str
    queries: Mapping[str, int]
    path: str | None = None
    pins: Mapping[str, int] = field(default_factory=dict)
    overflowed: Mapping[str, int] = field(default_factory=dict)

    def without(self, names: Collection[str]) -> WaitingTuples:
        """Without some queries, with all of their branches, or some branches."""
        kept = {n: count for n, count in self.queries.items() if n not in names and query_name(n) not in names}
        return replace(self, queries=kept)


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
    groups: str | None = None
    """The file of the groups that the cell made of the rows of feeds."""

    @property
    def spooled(self) -> list[str]:
        """The files of the spool that it wrote."""
        return [path for path in (self.spool, self.groups) if path is not None]

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
            waiting=waiting, groups=body.get("groups"),
        )  # fmt: skip


def write_rows(
    outputs: Mapping[str, pa.Table],
    targets: Mapping[str, OutputTarget],
    batch: int,
    cell: int,
    spool: str,
    failures: dict[str, InputError],
) -> WrittenRows:
    """Write the rows of a cell; a sink that can't be written to has its rows in the spool.

    `failures` gets the queries whose rows can't be written there either.
    """
    attempt = uuid.uuid4().hex[:8]
    counts, files, refused = {}, {}, {}
    data: dict[str, DataFile] = {}
    spooled: dict[str, BlockRows] = {}
    pooled: dict[str, BlockRows] = {}
    for name, table in outputs.items():
        target = targets[name]
        limit = target.spooled
        if target.pooled:
            _into_block(name, table, pooled, failures)
        elif target.layout is not None:
            try:
                written = target.layout.write(batch, table.to_batches())
                if written is not None:
                    data[name] = written
            except Exception as error:
                refused[name] = reason_of(error)
                limit = None
        elif target.directory is not None:
            final = f"{target.prefix}{batch:012}-{cell:04}.parquet"
            hidden = place(target.directory) / f"{HIDDEN}{final}.{attempt}"
            try:
                with atomic(hidden) as file:
                    write_parquet(file, [table], target.compression, target.metadata)
                files[name] = str(hidden), final
            except Exception as error:
                refused[name] = f"no file can be written to {target.directory}: {error.__cause__ or reason_of(error)}"
                limit = None
        if limit is None or limit:
            newest = table if limit is None or limit >= table.num_rows else table.slice(table.num_rows - limit)
            _into_block(name, newest, spooled, failures)
        if name not in failures:
            counts[name] = table.num_rows
    if not spooled and not pooled:
        return WrittenRows(counts, files, refused, data=data)
    path = place(spool) / f"{batch:012}-{cell:04}-{attempt}"
    write_piece(path, (list(spooled.values()), list(pooled.values())), {"queries": list(spooled)})
    blocks = read_footer(path)["blocks"][1] if pooled else []
    return WrittenRows(counts, files, refused, str(path), dict(zip(pooled, blocks, strict=True)), data=data)


def _into_block(name: str, table: pa.Table, blocks: dict[str, BlockRows], failures: dict[str, InputError]) -> None:
    try:
        blocks[name] = BlockRows(one_batch(table), 0, 0)
    except Exception as error:
        failures[name] = failure_of(error)


_GROUPS: Final = pa.schema({"members": pa.list_(pa.string()), "run": pa.large_binary()})


def write_groups(groups: Sequence[PartialGroups], batch: int, cell: int, spool: str) -> str | None:
    """Write the groups of a cell for the driver; their file, if there are any."""
    if not groups:
        return None
    path = f"{spool}/{batch:012}-{cell:04}-{uuid.uuid4().hex[:8]}-groups"
    rows = [{"members": one.members, "run": one.run.packed} for one in groups]
    write_table(place(path), pa.Table.from_pylist(rows, _GROUPS))
    return path


def read_groups(cells: Iterable[WrittenRows]) -> list[PartialGroups]:
    """The groups of all cells."""
    tables = [read_table(place(cell.groups)) for cell in cells if cell.groups is not None]
    rows = (row for table in tables for row in table.to_pylist())
    return [PartialGroups(tuple(row["members"]), GroupRun.unpacked(row["run"])) for row in rows]


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
                rows = pa.Table.from_batches(batches)
                write_parquet(file, [rows], self.target.compression, self.target.metadata)
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
