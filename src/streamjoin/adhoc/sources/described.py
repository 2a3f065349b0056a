"""The sources of a file as sources of this process: the same table that Spark reads, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from streamjoin.adhoc.engine.journal import Position
from streamjoin.adhoc.sources.base import SourceReader, SourceRows, TupleSource, is_behind
from streamjoin.adhoc.sources.files import FileSource
from streamjoin.adhoc.sources.kafka import KafkaSource
from streamjoin.adhoc.sources.rate import RateSource
from streamjoin.adhoc.sources.selecting import RowSelection
from streamjoin.config.columns import parse_columns
from streamjoin.config.pipeline import PipelineSource, SourceFile
from streamjoin.model.errors import PipelineFileError, SetupError, SpecError, StreamJoinError
from streamjoin.storage.places import Place


def described_source(file: SourceFile, name: str) -> SelectedSource:
    """The source of a stream that a file describes.

    Raises:
        PipelineFileError: something in the file is wrong; the message names the line.
    """
    source = file.sides[name]
    with _at_line(file, f"{name}.schema"):
        columns = parse_columns(source.schema) if source.schema is not None else None
    with _at_line(file, name):
        raw = _raw(source, columns)
    with _at_line(file, f"{name}.where"):
        RowSelection(raw.schema, (), source.where)
    with _at_line(file, f"{name}.select"):
        selection = RowSelection(raw.schema, source.select, source.where)
    return SelectedSource(raw, selection)


@contextmanager
def _at_line(file: SourceFile, part: str) -> Iterator[None]:
    try:
        yield
    except SetupError:
        raise
    except StreamJoinError as error:
        raise PipelineFileError(f"{file.file}, line {file.lines.get(part, 1)}: {error}") from error


def _raw(source: PipelineSource, columns: pa.Schema | None) -> TupleSource:
    if source.format == "kafka":
        return KafkaSource(
            source.options, columns, source.decode, source.decode_options, source.metadata, source.registry
        )
    if source.format == "rate":
        return _rate(source)
    return FileSource(source.path or "", source.format, columns, source.options)


def _rate(source: PipelineSource) -> RateSource:
    # The number of partitions says how many tasks make up rows: here it is one thread.
    unknown = source.options.keys() - {"rowsPerSecond", "numPartitions"}
    if unknown:
        raise SpecError(f'the embedded engine has no option {min(unknown)!r} here; engine = "spark" takes Spark\'s')
    text = source.options.get("rowsPerSecond", "1")
    if not text.isdigit():
        raise SpecError(f"rowsPerSecond is a whole number, not {text!r}")
    return RateSource(int(text))


@dataclass(frozen=True)
class SelectedSource:
    """A source after the file's `where` and `select`."""

    raw: TupleSource
    selection: RowSelection

    @property
    def schema(self) -> pa.Schema:
        """The columns after `select`."""
        return self.selection.schema

    @property
    def origin(self) -> str | None:
        """That of the source."""
        return getattr(self.raw, "origin", None)

    def open(self, notes: Place | None) -> SelectedReader:
        """A reader."""
        return SelectedReader(self.raw.open(notes), self.selection)


class SelectedReader:
    """Reads a source and applies its selection."""

    def __init__(self, reader: SourceReader, selection: RowSelection) -> None:
        self._reader, self._selection = reader, selection

    def read(self, position: Position | None) -> SourceRows | None:
        """What the source gives, selected."""
        portion = self._reader.read(position)
        return None if portion is None else replace(portion, rows=self._selection.apply(portion.rows))

    def behind(self) -> bool:
        """Whether the source is."""
        return is_behind(self._reader)

    def close(self) -> None:
        """Close the source."""
        self._reader.close()
