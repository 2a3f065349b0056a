"""Exactly-once writes to tables of Delta and Iceberg.

A commit names the writer (a query of one checkpoint) and the batch. Before a batch is committed the table is asked for
the newest batch of this writer, and the commit fails if another one of the same writer came in between. So a batch that
is written again after a crash, also by a process that was thought dead, is in the table once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from streamjoin.config.variables import from_environment
from streamjoin.formats.table_files import DataFile, FileLayout, RowsInFiles
from streamjoin.model.errors import SpecError, StateError

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


class LakeSink(Protocol):
    """A table of Delta or Iceberg as a sink."""

    @property
    def compression(self) -> str:
        """How data files are compressed."""

    def connect(self, schema: pa.Schema) -> OpenTable:
        """The table, which is created with these columns if it does not exist."""


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


def writer_of(target: TableTarget) -> str:
    """How an engine's query is named in a table."""
    return f"{target.engine}/{target.query}"


def resolved(options: Mapping[str, str], what: str) -> dict[str, str]:
    """Options with what the environment says for each ${NAME}.

    Raises:
        SpecError: the environment has no such variable.
    """
    return {key: from_environment(text, f"an option of {what}") for key, text in options.items()}


def checked_options(options: Any, what: str) -> dict[str, str]:
    """Options as texts.

    Raises:
        SpecError: they are no mapping.
    """
    if not isinstance(options, Mapping):
        raise SpecError(f"the options of {what} are a mapping of texts, not {options!r}")
    return {str(name): str(text) for name, text in options.items()}


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
