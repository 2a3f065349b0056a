"""Where a query's rows go: what a sink is, and the sinks that need neither files nor Spark.

A sink is frozen data; `open` gives the writer that takes the rows of one batch after another. A writer raises to refuse
rows: they wait in the spool and are given to it again. A batch may be written a second time after a failure or a crash,
under the same number and with the same rows: a writer that replaces it gives exactly-once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from streamjoin.model.errors import SpecError
from streamjoin.storage.pieces import Block, MappedPiece
from streamjoin.storage.places import place


@dataclass(frozen=True)
class Target:
    """What a writer is opened for: the query, its columns, the engine (by its id), and the session it runs on."""

    query: str
    schema: pa.Schema
    engine: str
    spark: Any = None


@dataclass(frozen=True)
class FiledRows:
    """Rows of a query that lie in files of the checkpoint, as blocks: tasks read them, and this process if it must."""

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
        """The last rows, at most so many; not checked, as they are only shown."""
        batches: list[pa.RecordBatch] = []
        for path, packed in reversed(self.blocks):
            if limit <= 0:
                break
            rows = MappedPiece(place(path)).glimpse(Block(*packed), self.schema)
            batches.insert(0, rows.slice(max(0, rows.num_rows - limit)))
            limit -= batches[0].num_rows
        return pa.Table.from_batches(batches, self.schema)


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

    def table(self) -> pa.Table:
        """The rows."""
        batches = [pa.ipc.read_record_batch(message, self._schema) for message in self._messages]
        return pa.Table.from_batches(batches, self._schema)


class NewestRows:
    """The newest rows of a query, at least `limit` of them if there were as many; `before` were given earlier."""

    def __init__(self, schema: pa.Schema, limit: int, before: int = 0) -> None:
        self._schema = schema
        self._limit = limit
        self._tables: deque[PackedRows] = deque()
        self._held = 0
        self._total = before
        self._changed = threading.Condition()
        self._closed = False

    def write(self, batch: int, rows: pa.Table, count: int | None = None) -> None:  # noqa: ARG002
        """Take the rows of a batch, or the newest of them, where there were `count`."""
        given = rows.num_rows if count is None else count
        packed = PackedRows(rows.slice(max(0, rows.num_rows - self._limit)))
        with self._changed:
            self._total += given
            self._tables.append(packed)
            self._held += packed.count
            while self._tables and self._held - self._tables[0].count >= self._limit:
                self._held -= self._tables.popleft().count
            self._changed.notify_all()

    def newest(self, limit: int) -> pa.Table:
        """The newest rows, oldest first."""
        return self.after(0, limit).table

    def after(self, position: int, limit: int) -> Newest:
        """The newest rows that come after row number `position`; what is missing between is gone."""
        with self._changed:
            tables, total = list(self._tables), self._total
        rows = pa.concat_tables([one.table() for one in tables]) if tables else self._schema.empty_table()
        limit = max(0, min(limit, self._limit, total - position))
        return Newest(total, rows.slice(max(0, rows.num_rows - limit)))

    @property
    def oldest(self) -> int:
        """The number of the row before the oldest that is kept."""
        with self._changed:
            return self._total - self._held

    def wait_after(self, position: int, timeout: float | None = None) -> Newest | None:
        """The newest rows after `position`, once there are some; None if none will come, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._total > position or self._closed, timeout)
            if self._total <= position:
                return None
        return self.after(position, self._limit)

    def close(self) -> None:
        """No more rows will come; what was taken can still be read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class MemorySink:
    """Keeps the newest rows in memory; they are gone with the process."""

    kind: ClassVar[str] = "memory"
    limit: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise SpecError(f"the limit of a MemorySink is a number of rows from 1, not {self.limit!r}")

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
