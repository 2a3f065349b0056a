"""Where a query's rows go: what a sink is, and the sinks that need neither files nor Spark.

A sink is frozen data; `open` gives the writer that takes the rows of one batch after another. A writer raises to refuse
rows: they wait in the spool and are given to it again. A batch may be written a second time after a failure or a crash,
under the same number and with the same rows: a writer that replaces or recognises it gives exactly-once.
What else the engine may do with a sink its attributes say (`SinkCapabilities`); a sink needs none of them.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from streamjoin.model.errors import SpecError
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.storage.pieces import Block, MappedPiece
from streamjoin.storage.places import place


@dataclass(frozen=True)
class Target:
    """What a writer is opened for: the query, its columns and text, the engine (by its id), its Spark session."""

    query: str
    schema: pa.Schema
    engine: str
    spark: Any = None
    sql: str = ""


@dataclass(frozen=True)
class FiledRows:
    """Rows of a query that lie in files of the checkpoint, as blocks: tasks read them, and this process if it must."""

    files_go: ClassVar[bool] = True
    """Whether the files are removed after the batch, so that who reads them must be known."""
    schema: pa.Schema
    blocks: tuple[tuple[str, tuple[int, ...]], ...]
    """Paths, each with what `Block.packed` gives."""

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return sum(Block(*block).rows for _, block in self.blocks)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(Block(*block).length for _, block in self.blocks)

    def table(self) -> pa.Table:
        """The rows.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        batches = [MappedPiece(place(path)).batch(Block(*block), self.schema) for path, block in self.blocks]
        return pa.Table.from_batches(batches, self.schema)

    def newest(self, limit: int) -> pa.Table:
        """The last rows, at most `limit`; not checked, as they are only shown."""
        batches: list[pa.RecordBatch] = []
        for path, packed in reversed(self.blocks):
            if limit <= 0:
                break
            rows = MappedPiece(place(path)).glimpse(Block(*packed), self.schema)
            batches.insert(0, rows.slice(max(0, rows.num_rows - limit)))
            limit -= batches[0].num_rows
        return pa.Table.from_batches(batches, self.schema)


@dataclass(frozen=True)
class FileDirectory:
    """A directory that a sink fills with Parquet files; tasks may write them in its place."""

    path: str
    compression: str
    shared: bool
    """Whether other queries may write there too."""

    @property
    def resolved(self) -> str:
        """The path, the same for all sinks that write to it."""
        where = place(self.path)
        return str(where.resolve()) if isinstance(where, Path) else str(where)


@dataclass(frozen=True)
class SinkCapabilities:
    """What the engine may do with a sink, as the sink's attributes of these names say; the defaults fit any sink."""

    gathers: bool = False
    """Its writers have `write_batches`, which gets the rows of several batches at once."""
    together: Any = None
    """Sinks of which this is equal have writers with `write_all`, which gets the rows of all of them."""
    kept_by_engine: bool = False
    """Nothing is written: its rows are the newest ones, which the engine keeps."""
    newest_only: int | None = None
    """It shows only the newest rows, as many; None if it takes all."""
    reads_spool: bool = False
    """Its writers have tasks read the rows from files of the checkpoint."""
    writes_data_files: bool = False
    """Its writers have a `layout` by which tasks write data files, and add these to a table."""
    files: FileDirectory | None = None
    """Where tasks may write Parquet files."""
    lost: str | None = None
    """Why a restart could not bring it back."""


def capabilities(sink: Any) -> SinkCapabilities:
    """What the engine may do with a sink; one that stands for another may have them as `capabilities`."""
    given: SinkCapabilities | None = getattr(sink, "capabilities", None)
    if given is not None:
        return given
    names = (one.name for one in fields(SinkCapabilities))
    return SinkCapabilities(**{name: getattr(sink, name) for name in names if hasattr(sink, name)})


class Writer(Protocol):
    """Takes a query's rows, batch by batch."""

    def write(self, batch: int, rows: pa.Table) -> None:
        """Take the rows of a batch, of which there is at least one."""

    def close(self) -> None:
        """The query is dropped, or the engine stops."""


class Sink(Protocol):
    """Where a query's rows go; `open` gives the writer for one query."""

    kind: ClassVar[str]

    def open(self, target: Target) -> Writer:
        """The writer for a query."""

    def spec(self) -> dict[str, Any] | None:
        """What is kept in the checkpoint to open it again after a restart; None where that can't be."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Newest:
    """The newest rows of a query, oldest first; the last of them is row number `total`."""

    total: int
    table: pa.Table


class PackedRows:
    """Rows in memory of their own: a slice would hold on to the rows of all queries of its batch."""

    def __init__(self, rows: pa.Table) -> None:
        self.count: int = rows.num_rows
        self._schema = rows.schema
        # Messages of Arrow's own format: one call for all columns.
        self._messages = [batch.serialize() for batch in rows.to_batches()]

    @property
    def nbytes(self) -> int:
        """Their bytes in memory, about."""
        return _OVERHEAD + sum(int(message.size) for message in self._messages)

    def table(self) -> pa.Table:
        """The rows."""
        batches = [pa.ipc.read_record_batch(message, self._schema) for message in self._messages]
        return pa.Table.from_batches(batches, self._schema)


def own_rows(rows: pa.Table) -> pa.Table:
    """Rows that hold on to little else: whoever takes them may keep them."""
    held = rows.get_total_buffer_size()
    return rows if held <= _SHARED or held <= 2 * rows.nbytes else PackedRows(rows).table()


_SHARED: Final = 1 << 18
"""Up to so many bytes of the rows of other queries of a batch may be held by those of one."""
_OVERHEAD: Final = 1024
"""Bytes of the objects around the rows of a batch, which count where batches are small."""
PAGE_BYTES: Final = 1 << 20
"""The bytes of rows that a page has at most, unless one row is larger."""


@dataclass(frozen=True)
class _KeptBatch:
    """The newest rows of a batch; the last of them is row number `end`."""

    end: int
    rows: PackedRows
    nbytes: int

    @property
    def begin(self) -> int:
        """The number of the row before the first."""
        return self.end - self.rows.count


@dataclass(frozen=True)
class ReadRows:
    """Rows of a query without a gap among them, the first of them after row number `begin`; `total` came so far."""

    begin: int
    total: int
    table: pa.Table

    @property
    def end(self) -> int:
        """The number of the last row."""
        return self.begin + int(self.table.num_rows)


class KeptBytes:
    """The bytes that the rows of all queries may take in memory: who holds most gives up its oldest.

    Each keeps its newest rows whatever the others hold; those that take no more rows give up theirs first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[NewestRows, int] = {}
        self._ended: deque[NewestRows] = deque()
        self._total = 0

    @property
    def total(self) -> int:
        """What all hold."""
        return self._total

    def add(self, rows: NewestRows, nbytes: int) -> None:
        """Note that one holds more, and make room."""
        with self._lock:
            self._held[rows] = self._held.get(rows, 0) + nbytes
            self._total += nbytes
            while self._total > self._most:
                while self._ended and not self._ended[0].may_give:
                    self._ended.popleft()
                # Without looking at all of them in the usual case: each has an equal share.
                victim: NewestRows | None = self._ended[0] if self._ended else rows
                if not self._ended and (self._held[rows] * len(self._held) < self._most or not rows.may_give):
                    able = (one for one in self._held if one.may_give)
                    victim = max(able, key=self._held.__getitem__, default=None)
                if victim is None:
                    return
                freed = victim.give()
                self._held[victim] -= freed
                self._total -= freed

    def end(self, rows: NewestRows) -> None:
        """One takes no more rows."""
        with self._lock:
            if rows in self._held:
                self._ended.append(rows)

    def remove(self, rows: NewestRows) -> None:
        """The rows of one are no longer read."""
        with self._lock:
            if rows in self._ended:
                self._ended.remove(rows)
            self._total -= self._held.pop(rows, 0)


class NewestRows:
    """The newest rows of a query, at least `limit` of them if there were as many; `before` were given earlier.

    With `kept` it has those before them too, as long as there is room for them.
    """

    def __init__(self, schema: pa.Schema, limit: int, before: int = 0, kept: KeptBytes | None = None) -> None:
        self.before = before
        self.run = uuid.uuid4().hex[:12]
        """Differs after a restart."""
        self._schema = schema
        self._limit = limit
        self._kept = kept
        self._batches: list[_KeptBatch] = []
        self._held = 0
        self._total = before
        self._changed = threading.Condition()
        self.closed = False

    def write(self, batch: int, rows: ListedRows, count: int | None = None) -> None:  # noqa: ARG002
        """Take the rows of a batch, or the newest of them, where there were `count`."""
        given = rows.num_rows if count is None else count
        packed = PackedRows(read(rows if self._kept is not None else rows.slice(max(0, rows.num_rows - self._limit))))
        nbytes = packed.nbytes
        with self._changed:
            self._total += given
            if packed.count:
                self._batches.append(_KeptBatch(self._total, packed, nbytes))
                self._held += packed.count
            while self._kept is None and self.may_give:
                self.give()
            self._changed.notify_all()
        if self._kept is not None and packed.count:
            self._kept.add(self, nbytes)

    @property
    def may_give(self) -> bool:
        """Whether the oldest batch has none of the newest rows."""
        with self._changed:
            return bool(self._batches) and self._held - self._batches[0].rows.count >= self._limit

    def give(self) -> int:
        """Give up the rows of the oldest batch; returns their bytes."""
        with self._changed:
            oldest = self._batches.pop(0)
            self._held -= oldest.rows.count
            return oldest.nbytes

    def newest(self, limit: int) -> pa.Table:
        """The newest rows, oldest first."""
        return self.after(0, limit).table

    def after(self, position: int, limit: int) -> Newest:
        """The newest rows that come after row number `position`; what is missing between is gone."""
        with self._changed:
            total = self._total
            limit = left = max(0, min(limit, self._limit, total - position))
            begin = len(self._batches)
            while left > 0 and begin:
                begin -= 1
                left -= self._batches[begin].rows.count
            batches = self._batches[begin:]
        rows = pa.concat_tables([self._schema.empty_table(), *(one.rows.table() for one in batches)])
        return Newest(total, rows.slice(max(0, rows.num_rows - limit)))

    def read(self, position: int, limit: int, nbytes: int = PAGE_BYTES) -> ReadRows:
        """The oldest rows that come after row number `position` and are kept; what is missing before is gone."""
        with self._changed:
            total = self._total
            if self._kept is None:
                position = max(position, total - self._limit)
            at = bisect_right(self._batches, position, key=lambda one: one.end)
            begin = end = max(position, self._batches[at].begin) if at < len(self._batches) else total
            batches: list[_KeptBatch] = []
            for one in islice(self._batches, at, None):
                first = max(begin, one.begin)
                row_bytes = one.nbytes / one.rows.count
                count = min(one.end - first, limit - (end - begin), max(int(nbytes / row_bytes), not batches))
                if count <= 0 or first != end:
                    break
                batches.append(one)
                end, nbytes = first + count, nbytes - int(count * row_bytes)
                if end != one.end:
                    break
        rows = pa.concat_tables([self._schema.empty_table(), *(one.rows.table() for one in batches)])
        return ReadRows(begin, total, rows.slice(begin - batches[0].begin if batches else 0, end - begin))

    @property
    def oldest(self) -> int:
        """The number of the row before the oldest that is kept."""
        with self._changed:
            return self._total - self._held

    def wait_after(self, position: int, timeout: float | None = None) -> Newest | None:
        """The newest rows after `position`, once there are some; None if none will come, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._total > position or self.closed, timeout)
            if self._total <= position:
                return None
        return self.after(position, self._limit)

    def close(self) -> None:
        """No more rows will come; what was taken can still be read."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._kept is not None:
            self._kept.end(self)

    def forget(self) -> None:
        """The rows will not be read."""
        if self._kept is not None:
            self._kept.remove(self)


@dataclass(frozen=True)
class MemorySink:
    """Keeps the newest rows in memory; they are gone with the process."""

    kind: ClassVar[str] = "memory"
    kept_by_engine: ClassVar[bool] = True
    limit: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise SpecError(f"the limit of a MemorySink is a number of rows from 1, not {self.limit!r}")

    @property
    def newest_only(self) -> int:
        """The limit."""
        return self.limit

    def open(self, target: Target) -> NewestRows:
        """A place for rows."""
        return NewestRows(target.schema, self.limit)

    def spec(self) -> dict[str, Any]:
        """The limit."""
        return {"kind": self.kind, "limit": self.limit}

    def __str__(self) -> str:
        return f"memory, newest {self.limit:,} rows"


@dataclass(frozen=True)
class CallbackSink:
    """Calls `function(batch, rows)` with the number of the batch and a table, on a thread of the sinks.

    At least once: after a crash the newest batch may come again. A function can't be kept in a checkpoint: after a
    restart the query waits until `Engine.attach` gives it one.
    """

    function: Callable[[int, pa.Table], object]
    kind: ClassVar[str] = "callback"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpecError(f"a CallbackSink needs a function of the batch and its rows, not {self.function!r}")

    def open(self, target: Target) -> _Calls:  # noqa: ARG002
        """A writer that calls the function."""
        return _Calls(self.function)

    def spec(self) -> None:
        """There is none."""

    def __str__(self) -> str:
        return f"callback {getattr(self.function, '__name__', type(self.function).__name__)}"


@dataclass
class _Calls:
    function: Callable[[int, pa.Table], object] = field(repr=False)

    def write(self, batch: int, rows: pa.Table) -> None:
        self.function(batch, rows)

    def close(self) -> None:
        pass
