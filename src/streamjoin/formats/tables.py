"""Exactly-once writes to tables of Delta and Iceberg.

A commit names the writer (a query of one checkpoint) and the batch. Before a batch is committed the table is asked for
the newest batch of this writer, and the commit fails if another one of the same writer came in between. So a batch that
is written again after a crash, also by a process that was thought dead, is in the table once.

Data files are Parquet files that count once a commit lists them. A file gets a name that no other file ever has, so
that a task or a batch that runs again never replaces one that is committed. Files that no commit lists are left to the
clean-up of the table format (VACUUM, removal of orphan files): whether a commit that failed was made after all can't be
known for certain, so nothing here deletes files.

A commit has the least and greatest values of a file's columns, for readers that skip files. These bounds are never
tighter than the values, and each column that has a value has bounds: readers differ in what they make of a file
without them, and some would skip it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.config.lines import from_environment
from streamjoin.config.pipeline import sink_spec
from streamjoin.formats.table_types import as_stored
from streamjoin.model.errors import SpecError, StateError, StreamJoinError
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import place

_LONGEST: Final = 32
_LAST: Final = chr(sys.maxunicode)


class ColumnBounds:
    """What is known of the columns of some tables, part by part."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [column.name for column in schema if _has_bounds(column.type)]
        self._ends: dict[str, tuple[Any, Any]] = {}
        self.nulls: dict[str, int] = dict.fromkeys(self._names, 0)

    def add(self, rows: pa.Table) -> None:
        """Take in rows."""
        for name in self._names:
            column = rows.column(name)
            self.nulls[name] += column.null_count
            least, greatest = pc.min_max(column).as_py().values()
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                # NaN is less and greater than nothing, or greater than all: that depends on the reader.
                least, greatest = -math.inf, math.inf
            if least is not None:
                known = self._ends.get(name, (least, greatest))
                self._ends[name] = min(known[0], least), max(known[1], greatest)

    def ends(self) -> dict[str, tuple[Any, Any]]:
        """The bounds, as JSON has them."""
        return {name: (_below(least), _above(greatest)) for name, (least, greatest) in self._ends.items()}


def _has_bounds(type_: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_string(type_)
    return bool(plain or types.is_date(type_) or types.is_timestamp(type_) or types.is_decimal(type_))


def _below(value: Any) -> Any:
    """A JSON value that is not greater."""
    if isinstance(value, float):
        return max(value, -sys.float_info.max)
    if isinstance(value, Decimal):
        return math.nextafter(float(value), -math.inf)
    return value[:_LONGEST] if isinstance(value, str) else _moment(value)


def _above(value: Any) -> Any:
    """A JSON value that is not less."""
    if isinstance(value, float):
        return min(value, sys.float_info.max)
    if isinstance(value, Decimal):
        return math.nextafter(float(value), math.inf)
    if isinstance(value, str) and len(value) > _LONGEST and value[_LONGEST] != _LAST:
        return value[:_LONGEST] + _LAST
    return _moment(value)


def _moment(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        text = value.isoformat(timespec="microseconds")
        return f"{text.removesuffix('+00:00')}Z" if value.tzinfo is not None else text
    return value.isoformat() if isinstance(value, dt.date) else value


@dataclass(frozen=True)
class DataFile:
    """A data file of a table, with what a commit says of it."""

    location: str
    rows: int
    size: int
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The least and the greatest value of columns, as JSON has them, where the layout asks for them."""
    nulls: Mapping[str, int] = field(default_factory=dict)

    def packed(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class FileLayout:
    """Where the data files of a table are, their columns and how their names begin; tasks get it by value."""

    directory: str
    schema: pa.Schema
    prefix: str
    compression: str
    bounds: bool = False
    """Whether a commit needs the bounds of columns."""

    def write(self, batch: int, rows: Iterable[pa.RecordBatch]) -> DataFile | None:
        """Write rows of a batch as a data file; None without a row.

        Raises:
            InputError: a value does not fit its column.
            OSError: the file can't be written.
        """
        location = f"{self.directory}/{self.prefix}{batch:012}-{uuid.uuid4().hex}.parquet"
        filled = (part for part in rows if part.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        rows_written = 0
        bounds = ColumnBounds(self.schema if self.bounds else pa.schema([]))
        try:
            with atomic(place(location)) as file:
                # Readers of tables have the types from the table, not from Arrow's note in a file.
                options: dict[str, Any] = {"compression": self.compression, "store_schema": False}
                with pq.ParquetWriter(file, self.schema, **options) as writer:
                    for part in itertools.chain([first], filled):
                        table = as_stored(pa.Table.from_batches([part]), self.schema)
                        bounds.add(table)
                        writer.write_table(table)
                        rows_written += table.num_rows
                size = file.tell()
        except StreamJoinError as error:
            if isinstance(error.__cause__, OSError):
                raise OSError(f"no file can be written to {self.directory}: {error.__cause__}") from error
            raise
        return DataFile(location, rows_written, size, bounds.ends(), bounds.nulls)


@dataclass(frozen=True)
class RowsInFiles:
    """Rows of a batch that tasks have written as data files, and that no commit lists yet."""

    schema: pa.Schema
    files: tuple[DataFile, ...]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return sum(file.rows for file in self.files)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(file.size for file in self.files)

    def table(self) -> pa.Table:
        """The rows."""
        tables = [self.schema.empty_table()]
        for written in self.files:
            with place(written.location).open("rb") as file:
                tables.append(pq.read_table(file).select(self.schema.names).cast(self.schema))
        return pa.concat_tables(tables)


_TRIES: Final = 20
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")


class TableConflictError(StateError):
    """Another writer changed the table during a commit."""


class OpenTable(Protocol):
    """A table as a writer uses it."""

    @property
    def directory(self) -> str:
        """Where its data files go."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a data file."""

    @property
    def needs_bounds(self) -> bool:
        """Whether a commit has the bounds of columns."""

    def newest(self, writer: str) -> int:
        """The newest batch that the table has of a writer, asked anew; -1 for none."""

    def commit(self, writer: str, batch: int, files: Sequence[DataFile]) -> None:
        """Add files as a batch of a writer, if nothing else of this writer came since `newest`.

        Raises:
            TableConflictError: something did.
        """


class TableTarget(Protocol):
    """What a writer is opened for, as an ad-hoc engine says it."""

    @property
    def query(self) -> str:
        """The query's name."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def engine(self) -> str:
        """The engine's id."""


class RowsElsewhere(Protocol):
    """Rows that lie in other files than those of the table."""

    def table(self) -> pa.Table:
        """The rows."""


class LakeSink(ABC):
    """A table of Delta or Iceberg as a sink; what derives from it is a frozen dataclass with these two fields."""

    options: Mapping[str, str]
    compression: str
    kind: ClassVar[str]
    writes_data_files: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check what all tables have."""
        if not isinstance(self.options, Mapping):
            raise SpecError(f"the options of {self._title} are a mapping of texts, not {self.options!r}")
        options = {str(name): str(text) for name, text in self.options.items()}
        object.__setattr__(self, "options", MappingProxyType(options))
        checked_compression(self.compression)

    @property
    def _title(self) -> str:
        name = type(self).__name__
        return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"

    @abstractmethod
    def connect(self, schema: pa.Schema) -> OpenTable:
        """The table, which is created with these columns if it does not exist."""

    def open(self, target: TableTarget) -> LakeWriter:
        """A writer for a query.

        Raises:
            SetupError: the table's library, or what it needs for the catalog, is not installed.
            SchemaError: the query's columns do not fit the table.
            NotSupportedError: files can't simply be added to the table.
            StateError: the catalog or the table can't be reached.
        """
        return LakeWriter(self, f"{target.engine}/{target.query}", target.schema)

    def spec(self) -> dict[str, Any] | None:
        """All fields; None with a secret among them."""
        return sink_spec(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple({**vars(self), "options": dict(self.options)}.values())


class LakeWriter:
    """Adds the batches of one writer to a table, each once."""

    takes_files = True

    def __init__(self, sink: LakeSink, writer: str, schema: pa.Schema) -> None:
        self._table = sink.connect(schema)
        self._writer = writer
        prefix = f"{_UNSAFE.sub('_', writer)[:80]}-"
        self.layout: Final = FileLayout(
            self._table.directory, self._table.schema, prefix, sink.compression, self._table.needs_bounds
        )

    def has(self, batch: int) -> bool:
        """Whether the table has the batch."""
        return self._table.newest(self._writer) >= batch

    def write(self, batch: int, rows: pa.Table | RowsInFiles | RowsElsewhere) -> None:
        """Add the rows of a batch, unless the table has them."""
        for _ in range(_TRIES):
            if self.has(batch):
                return
            if not isinstance(rows, RowsInFiles):
                table = rows if isinstance(rows, pa.Table) else rows.table()
                file = self.layout.write(batch, table.to_batches())
                rows = RowsInFiles(table.schema, () if file is None else (file,))
            if not rows.files:
                return
            try:
                self._table.commit(self._writer, batch, rows.files)
                return
            except TableConflictError as error:
                conflict = error
        raise conflict

    def close(self) -> None:
        """Nothing is open between two batches."""


def resolved(options: Mapping[str, str], what: str) -> dict[str, str]:
    """Options with what the environment says for each ${NAME}.

    Raises:
        SpecError: the environment has no such variable.
    """
    return {key: from_environment(text, f"an option of {what}") for key, text in options.items()}


def checked_compression(compression: str) -> None:
    """Refuse a codec that Parquet files can't have.

    Raises:
        SpecError: there is no such codec.
    """
    try:
        if compression == "none" or pa.Codec.is_available(compression):
            return
    except ValueError:
        # Arrow has never heard of it.
        pass
    raise SpecError(f"Parquet files can't be compressed with {compression!r}; try 'zstd', 'snappy' or 'none'")


def first_line(error: BaseException) -> str:
    """What an error of a client says, without the frames that follow."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
