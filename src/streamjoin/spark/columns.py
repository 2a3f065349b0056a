"""What names and types of columns mean to Spark alone: quoting, case and collations.

The engines compare strings by their bytes and columns by their exact names. Where Spark reads them otherwise, the
functions here say so before a query exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import NotSupportedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BYTES = "UTF8_BINARY"


def quoted(name: str) -> str:
    """A column's name in backticks, so that Spark does not read a dot as a field access.

    >>> quoted("a.b"), quoted("`")
    ('`a.b`', '````')
    """
    return f"`{name.replace('`', '``')}`"


def by_place(frame: DataFrame, names: Iterable[str] | None = None) -> DataFrame:
    """`frame` with the columns `names`, or all; where Spark could not find them by their names, under others.

    Stages take columns by place. `mapInArrow` looks each one up by its name, where a dot is a field access, and two
    names that differ only in case are one.
    """
    columns = frame.columns
    names = columns if names is None else list(names)
    if all(name.isidentifier() for name in columns) and len({*map(str.lower, columns)}) == len(columns):
        return frame if names == columns else frame.select(*names)
    places = [columns.index(name) for name in names]
    return frame.toDF(*(f"c{i}" for i in range(len(columns)))).select(*(f"c{i}" for i in places))


def collation_in(type_: Any) -> str | None:
    """The collation of a Spark type, or of a type within it, that does not compare strings by their bytes."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(type_, StringType):
        collation = str(type_.collation)
        return None if collation == _BYTES else collation
    inner: list[Any] = []
    if isinstance(type_, ArrayType):
        inner = [type_.elementType]
    elif isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    elif isinstance(type_, StructType):
        inner = [field.dataType for field in type_]
    return next((collation for collation in map(collation_in, inner) if collation is not None), None)


def check_collations(what: str, frame: DataFrame, names: Iterable[str] | None = None) -> None:
    """Reject columns of `frame` that are compared, those in `names` or all, if Spark compares them by a collation.

    Raises:
        NotSupportedError: a column has a collation.
    """
    compared = None if names is None else set(names)
    for field in frame.schema:
        collation = collation_in(field.dataType) if compared is None or field.name in compared else None
        if collation is not None:
            name = quoted(field.name)
            raise NotSupportedError(
                f"{what} compares the column {field.name!r}, whose collation is {collation}, and streamjoin compares "
                f"strings by their bytes: it would miss what Spark finds equal. Convert the column before, for example "
                f'with selectExpr("*", "lower({name}) COLLATE {_BYTES} AS folded") and the new column in its place, or '
                f"with {name} COLLATE {_BYTES} if its bytes are meant"
            )
