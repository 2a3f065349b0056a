"""The sources of a file as sources of this process: the same table that Spark reads, without Spark.

`select` and `where` are the expressions of conditions, over one table. A value that can't be computed (a NULL, a
division by zero) is NULL, as in SQL; rows for which `where` is not true are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from streamjoin.config.columns import parse_columns
from streamjoin.config.pipeline import PipelineSource, SourceFile
from streamjoin.model.errors import (
    ExpressionError,
    PipelineFileError,
    SchemaError,
    SetupError,
    SpecError,
    StreamJoinError,
)
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import Values, evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.source_text import SourceText
from streamjoin.model.expression.typing_rules import check, check_condition
from streamjoin.queries.engine.journal import Position
from streamjoin.queries.sources.base import SourceReader, SourceRows, TupleSource, is_behind
from streamjoin.queries.sources.files import FileSource
from streamjoin.queries.sources.kafka import KafkaSource
from streamjoin.queries.sources.rate import RateSource
from streamjoin.storage.places import Place

_ROW = "row"


@dataclass(frozen=True)
class _Item:
    name: str
    expression: Expression
    type: pa.DataType


class RowSelection:
    """The columns of a source after its `where` and `select`."""

    def __init__(self, schema: pa.Schema, select: Sequence[str] = (), where: str | None = None) -> None:
        """Read the texts against the columns of the source.

        Raises:
            ExpressionError: a text can't be read.
            SchemaError: it does not fit the columns.
        """
        self._where = None if where is None else _condition(where, schema)
        self._select = [item for text in select for item in _items(text, schema)]
        names = [item.name for item in self._select]
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(f"select gives more than one column {name!r}; name one of them with AS")
        self.schema = pa.schema([(item.name, item.type) for item in self._select]) if select else schema

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows and columns that are asked for."""
        if self._where is not None:
            columns = _columns(self._where, table)
            mask = truth(evaluate(self._where, columns), (table.num_rows,))
            table = table.filter(pa.array(mask))
        if not self._select:
            return table
        arrays = [
            table.column(item.expression.name)
            if isinstance(item.expression, Column)
            else to_arrow(evaluate(item.expression, _columns(item.expression, table)), item.type, table.num_rows)
            for item in self._select
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _columns(expression: Expression, table: pa.Table) -> dict[Column, Values]:
    return {column: from_arrow(table.column(column.name)) for column in expression.columns}


def _resolve(qualifier: str | None, name: str, quoted: bool) -> Column:  # noqa: ARG001
    if qualifier is not None:
        raise ExpressionError(f"a source has one stream: write {name} instead of {qualifier}.{name}")
    return Column(_ROW, name)


@contextmanager
def _unqualified() -> Iterator[None]:
    """Errors name columns as the file does."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(str(error).replace(f"{_ROW}.", "")) from error


def _scan(text: str) -> Scan:
    scan = Scan.of(SourceText(text.replace("`", '"')))
    if not scan.source.words:
        raise ExpressionError("an expression is empty; write for example 'value % 10 AS k'")
    return scan


def _condition(text: str, schema: pa.Schema) -> Expression:
    scan = _scan(text)
    condition = scan.read(0, len(scan.source.words), _resolve).expression
    with _unqualified():
        check_condition(condition, {_ROW: schema})
    return condition


def _items(text: str, schema: pa.Schema) -> list[_Item]:
    if text.strip() == "*":
        return [_Item(field.name, Column(_ROW, field.name), field.type) for field in schema]
    return [_item(text, schema)]


def _item(text: str, schema: pa.Schema) -> _Item:
    scan = _scan(text)
    words = scan.source.words
    name = None
    end = len(words)
    if end > 2 and words[-2].kind == "ALIAS":
        name = scan.source.text[words[-1].start : words[-1].end].strip('"')
        end -= 2
    expression = scan.read(0, end, _resolve).expression
    if name is None:
        if not isinstance(expression, Column):
            raise ExpressionError(f"select has {text!r}: name it with AS, such as '{text} AS x'")
        name = expression.name
    if isinstance(expression, Column):
        if expression.name not in schema.names:
            raise SchemaError(
                f"select has {text!r}, but there is no column {expression.name!r}; there are: {', '.join(schema.names)}"
            )
        return _Item(name, expression, schema.field(expression.name).type)
    with _unqualified():
        return _Item(name, expression, check(expression, {_ROW: schema}))


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
        found = self._reader.read(position)
        return None if found is None else replace(found, rows=self._selection.apply(found.rows))

    def left(self, position: Position | None) -> float:
        """How much the source has after a position, if it counts that."""
        left = getattr(self._reader, "left", None)
        return 0 if left is None else float(left(position))

    def behind(self) -> bool:
        """Whether the source is."""
        return is_behind(self._reader)

    def close(self) -> None:
        """Close the source."""
        self._reader.close()
