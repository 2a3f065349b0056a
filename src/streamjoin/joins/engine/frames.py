"""The frames that `join` takes and gives back: what of one becomes Arrow, its columns by row numbers, its result.

A frame of pandas or Polars stays one: columns that no condition needs get no Arrow form, keep their types (categories
too), and are read once, where rows of the result take them. What is given back shares no memory that can be written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.engine.inputs import as_table, check_unique, is_pandas
from streamjoin.joins.engine.numpy_input import has_columns
from streamjoin.kernels.kinds.asof import NONE, identify
from streamjoin.model.large_columns import one_batch, take_or_null
from streamjoin.model.plain_types import plain_table

_FEW_TEXTS: Final = 1 << 15
"""Beyond this number of distinct objects a column of Python texts is not read by their addresses."""


class Frame(Protocol):
    """A table whose rows can be taken."""

    @property
    def schema(self) -> pa.Schema:
        """The names of its columns, with their types where these are Arrow's."""

    def __len__(self) -> int: ...

    def table(self, named: Set[str]) -> pa.Table:
        """The columns `named`, of those that there are, in Arrow; texts may be dictionaries."""

    def taken(self, names: Iterable[str], rows: Array) -> dict[str, Any]:
        """Columns at the given rows; NULL where the number is -1."""

    def columns_of(self, table: pa.Table) -> dict[str, Any]:
        """The columns of an Arrow table as columns of such a frame."""

    def built(self, columns: Mapping[str, Any], schema: pa.Schema, n: int) -> Any:
        """A frame of such columns of `n` rows; `schema` is what the result is in Arrow."""


def frames_of(left: Any, right: Any, named: Sequence[Set[str]]) -> tuple[Frame, Frame]:
    """Both tables as frames of the left one's library; `named` are the columns that the spec names."""
    left, right = (data.collect() if _is_lazy(data) else data for data in (left, right))
    if is_pandas(left):
        other = right if is_pandas(right) else _arrow(right, "right").to_pandas()
        return PandasFrame(left, "left"), PandasFrame(other, "right")
    if _is_polars(left):
        import polars

        return PolarsFrame(left), PolarsFrame(right if _is_polars(right) else polars.from_arrow(_arrow(right, "right")))
    return ArrowFrame(_arrow(left, "left", named[0])), ArrowFrame(_arrow(right, "right", named[1]))


def _arrow(data: Any, side: str, named: Set[str] = frozenset()) -> pa.Table:
    table = as_table(data, side, named)
    check_unique(table.schema.names, side)
    return table


def given_back(rows: Any, given: Any) -> Any:
    """The rows in the form of the table that was given."""
    if _is_lazy(given):
        return rows.lazy()
    if not isinstance(rows, pa.Table):
        return rows
    if isinstance(given, pa.RecordBatch):
        return one_batch(rows)
    if isinstance(given, Mapping) and not has_columns(given):
        return rows.to_pydict()
    if isinstance(given, np.ndarray | Mapping):
        arrays = {name: _as_numpy(rows.column(name)) for name in rows.column_names}
        return arrays if isinstance(given, Mapping) else _structured(arrays, rows.num_rows)
    return rows.to_pylist() if isinstance(given, list | tuple) else rows


class ArrowFrame:
    """An Arrow table, in plain types."""

    def __init__(self, table: pa.Table) -> None:
        self._table = plain_table(table)
        self.schema = self._table.schema

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def table(self, named: Set[str]) -> pa.Table:
        """The columns `named`."""
        return self._table.select([name for name in self._table.column_names if name in named])

    def taken(self, names: Iterable[str], rows: Array) -> dict[str, Any]:
        """Columns at the given rows."""
        columns = {name: self._table.column(name) for name in names}
        if _is_all(rows, len(self)):
            return columns
        return {name: take_or_null(column, rows) for name, column in columns.items()}

    def columns_of(self, table: pa.Table) -> dict[str, Any]:
        """The columns as they are."""
        return dict(zip(table.column_names, table.columns, strict=True))

    def built(self, columns: Mapping[str, Any], schema: pa.Schema, n: int) -> pa.Table:  # noqa: ARG002
        """A table with the fields and the metadata of the result."""
        return pa.Table.from_arrays(list(columns.values()), schema=schema)


class PandasFrame:
    """A pandas frame. Its index is no column."""

    def __init__(self, frame: Any, side: str) -> None:
        self._frame, self._side = frame, side
        self._names = [str(name) for name in frame.columns]
        check_unique(self._names, side)
        self.schema = pa.schema([(name, pa.null()) for name in self._names])

    def __len__(self) -> int:
        return len(self._frame)

    def table(self, named: Set[str]) -> pa.Table:
        """The columns `named` in Arrow."""
        import pandas

        # Selecting columns of a frame copies them.
        columns = {name: self._frame.iloc[:, at] for at, name in enumerate(self._names) if name in named}
        texts = {name: array for name, column in columns.items() if (array := _text_numbers(column)) is not None}
        others = {name: column for name, column in columns.items() if name not in texts}
        frame = pandas.DataFrame(others, index=self._frame.index, copy=False)
        table = as_table(frame, self._side, named - texts.keys(), lasting=False)
        schema = table.schema
        for name, array in texts.items():
            schema = schema.append(pa.field(name, array.type))
        return pa.Table.from_arrays([*table.columns, *texts.values()], schema=schema)

    def taken(self, names: Iterable[str], rows: Array) -> dict[str, Any]:
        """Columns at the given rows, missing values as in `pandas.merge`."""
        from pandas.api.extensions import take

        is_all = _is_all(rows, len(self))
        found = {}
        for name in names:
            column = self._frame.iloc[:, self._names.index(name)]
            is_numpy = isinstance(column.dtype, np.dtype) and column.dtype.kind not in "mM"
            values = column.to_numpy() if is_numpy else column.array
            found[name] = values.copy() if is_all else take(values, rows, allow_fill=True)
        return found

    def columns_of(self, table: pa.Table) -> dict[str, Any]:
        """The columns in the types that they were pushed in."""
        return {name: column.array.copy() for name, column in table.to_pandas().items()}

    def built(self, columns: Mapping[str, Any], schema: pa.Schema, n: int) -> Any:  # noqa: ARG002
        """A pandas frame with a new index."""
        import pandas

        return pandas.DataFrame(dict(columns), index=pandas.RangeIndex(n), copy=False)


def _text_numbers(column: Any) -> pa.DictionaryArray | None:
    """A column of few Python texts as numbers of these, told apart by their addresses: the texts are not read again.

    None for other columns, and where most rows have a text of their own.
    """
    from pandas.api.types import infer_dtype

    if column.dtype != object:
        return None
    values = column.to_numpy()
    words = np.ascontiguousarray(np.asarray(_Addresses(values))).reshape(-1, 1)
    numbers, count = np.empty(values.size, np.int64), np.zeros(1, np.int64)
    table, addresses = np.full(8 * _FEW_TEXTS, NONE, np.int64), np.empty((_FEW_TEXTS, 1), np.int64)
    if not identify(words, table, addresses, count, numbers):
        return None
    first = np.empty(count[0], np.int64)
    first[numbers[::-1]] = np.arange(values.size - 1, -1, -1)
    distinct = values[first]
    if infer_dtype(distinct, skipna=True) != "string":
        return None
    try:
        texts = pa.array(distinct, pa.large_string(), from_pandas=True)
    except UnicodeEncodeError:
        # The conversion of the whole column says what is wrong.
        return None
    missing = texts.is_null().to_numpy(zero_copy_only=False)[numbers] if texts.null_count else None
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=missing), texts.fill_null(""))


class _Addresses:
    """The addresses of the objects of an array, read where they are."""

    def __init__(self, values: Array) -> None:
        # What NumPy takes another array's memory from; the objects live as long as this does. Nothing is written, but
        # kernels would be compiled again for memory that can't be.
        interface = values.__array_interface__
        self.__array_interface__ = interface | {
            "typestr": "<i8",
            "descr": [("", "<i8")],
            "data": (interface["data"][0], False),
        }
        self.values = values


class PolarsFrame:
    """A Polars frame."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.schema = pa.schema([(name, pa.null()) for name in frame.columns])

    def __len__(self) -> int:
        return int(self._frame.height)

    def table(self, named: Set[str]) -> pa.Table:
        """The columns `named` in Arrow."""
        return self._frame.select([name for name in self._frame.columns if name in named]).to_arrow()

    def taken(self, names: Iterable[str], rows: Array) -> dict[str, Any]:
        """Columns at the given rows."""
        import polars

        frame = self._frame.select([self._frame.get_column(name) for name in names])
        if not _is_all(rows, len(self)):
            missing = rows < 0
            places = polars.Series(polars.from_arrow(pa.array(rows, mask=missing)) if missing.any() else rows)
            frame = frame.select(polars.all().gather(places))
        return dict(zip(frame.columns, frame.get_columns(), strict=True))

    def columns_of(self, table: pa.Table) -> dict[str, Any]:
        """The columns as Series."""
        import polars

        return {name: polars.Series(name, polars.from_arrow(table.column(name))) for name in table.column_names}

    def built(self, columns: Mapping[str, Any], schema: pa.Schema, n: int) -> Any:  # noqa: ARG002
        """A Polars frame."""
        import polars

        return polars.DataFrame([column.alias(name) for name, column in columns.items()])


def _is_polars(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "polars" and hasattr(data, "lazy")


def _is_lazy(data: Any) -> bool:
    return _is_polars(data) and hasattr(data, "collect")


def _is_all(rows: Array, n: int) -> bool:
    """Whether row numbers are those of all rows in order."""
    return rows.size == n and bool((rows == np.arange(n)).all())


def _as_numpy(column: pa.ChunkedArray) -> Array:
    """A column as NumPy reads it: masked where numbers and booleans are NULL."""
    types = pa.types
    plain = types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    if not column.null_count or not plain:
        return np.array(column.to_numpy())
    filled = column.fill_null(False if types.is_boolean(column.type) else 0).to_numpy()
    return np.ma.MaskedArray(filled, column.is_null().to_numpy())


def _structured(arrays: Mapping[str, Array], n: int) -> Array:
    """Columns as records; masked if a column is."""
    types = [(name, array.dtype) for name, array in arrays.items()]
    is_masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays.values())
    records: Array = np.ma.empty(n, types) if is_masked else np.empty(n, types)
    for name, array in arrays.items():
        records[name] = array
    return records
