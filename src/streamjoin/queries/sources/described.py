"""`select` and `where` of a source, evaluated in this process: the expressions of conditions, over one table.

A value that can't be computed (a NULL, a division by zero) is NULL, as in SQL; rows for which `where` is not true are
left out, as the file asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.model.errors import ExpressionError, SchemaError
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import Values, evaluate, from_arrow, truth
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.source_text import SourceText
from streamjoin.model.expression.typing_rules import check, check_condition

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
