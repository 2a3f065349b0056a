"""Columns as a file declares them, in Spark's notation: `ts TIMESTAMP, sym STRING, px DECIMAL(10, 2)`.

The types are those that Spark hands over as Arrow, so that a stream has the same columns whoever reads it.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from streamjoin.model.errors import SchemaError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*)|(\d+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_KNOWN: Final = "BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ"


def parse_columns(text: str) -> pa.Schema:
    """The columns that a text declares.

    >>> parse_columns("ts TIMESTAMP, `a b` ARRAY<INT>").field("a b").type
    ListType(list<element: int32>)

    Raises:
        SchemaError: it can't be read, or names a column twice.
    """
    declaration = _Declaration(text)
    fields = declaration.fields(":", end="")
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"the schema {text!r} has more than one column {name!r}")
    return pa.schema(fields)


class _Declaration:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        place = 0
        while text[place:].strip():
            token = _TOKEN.match(text, place)
            if token is None:
                raise self._error(f"{text[place:].strip()[0]!r} is not expected")
            self._tokens.append(token[0].strip())
            place = token.end()
        self._place = 0

    def _error(self, what: str) -> SchemaError:
        return SchemaError(f"the schema {self._text!r} can't be read: {what}. Write 'ts TIMESTAMP, px DOUBLE'")

    def _next(self, what: str) -> str:
        if self._place >= len(self._tokens):
            raise self._error(f"{what} is missing at the end")
        self._place += 1
        return self._tokens[self._place - 1]

    def _takes(self, *tokens: str) -> bool:
        if self._place < len(self._tokens) and self._tokens[self._place].lower() in tokens:
            self._place += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._error(f"{token!r} is missing")

    def fields(self, colon: str, end: str) -> list[pa.Field]:
        """Fields up to `end`, which is not taken; a colon may follow their names."""
        fields = [self._field(colon)]
        while self._takes(","):
            fields.append(self._field(colon))
        if not end and self._place < len(self._tokens):
            raise self._error(f"{self._tokens[self._place]!r} is not expected")
        return fields

    def _field(self, colon: str) -> pa.Field:
        name = self._next("a column's name")
        if not (name[0] == "`" or name[0].isalpha() or name[0] == "_"):
            raise self._error(f"{name!r} is no column's name")
        name = name[1:-1].replace("``", "`") if name[0] == "`" else name
        self._takes(colon)
        field = pa.field(name, self._type(name))
        # Whoever sends records may break the promise, so a column is nullable all the same.
        if self._takes("not"):
            self._expect("null")
        if self._takes("comment"):
            self._next("a comment")
        return field

    def _type(self, column: str) -> pa.DataType:
        name = self._next(f"the type of column {column!r}").lower()
        if name in _TYPES:
            return _TYPES[name]
        if name in ("decimal", "dec", "numeric"):
            precision, scale = self._numbers((10, 0))
            if not 1 <= precision <= 38 or scale > precision:
                raise self._error(f"DECIMAL({precision}, {scale}) is no type: at most 38 digits, and no larger scale")
            return pa.decimal128(precision, scale)
        if name in ("varchar", "char"):
            self._numbers((0, 0))
            return pa.string()
        if name == "array":
            self._expect("<")
            element = self._type(column)
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if name == "struct":
            self._expect("<")
            fields = self.fields(":", end=">")
            self._expect(">")
            return pa.struct(fields)
        if name == "map":
            self._expect("<")
            key = self._type(column)
            self._expect(",")
            item = self._type(column)
            self._expect(">")
            return pa.map_(key, item)
        raise self._error(f"column {column!r} has the type {name.upper()}, which is not one of {_KNOWN}")

    def _numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        if not self._takes("("):
            return default
        first = self._number()
        second = self._number() if self._takes(",") else 0
        self._expect(")")
        return first, second

    def _number(self) -> int:
        token = self._next("a number")
        if not token.isdigit():
            raise self._error(f"{token!r} is no number")
        return int(token)
