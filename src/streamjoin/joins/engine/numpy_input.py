"""NumPy columns as input: a dict of arrays, or a structured array, which is a record array too.

A batch whose arrays have the types of its side's schema is read where it is (`NumpyBatch`): no Arrow table is made of
it unless a step needs one. Any other becomes an Arrow table, with NULL where an array is masked or a time is NaT.
Invariant: nothing that outlives the call shares memory with the arrays, so the caller may fill them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.windows.store import is_fixed

_NUMBERS: Final = {
    pa.from_numpy_dtype(np.dtype(name)): np.dtype(name)
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}


class NumpyBatch:
    """Arrays that have exactly the types of a schema; read like the Arrow table that `table` makes of them."""

    def __init__(self, schema: pa.Schema, arrays: list[Array], others: dict[int, pa.Array]) -> None:
        self.schema = schema
        self.num_rows = len(arrays[0])
        self.num_columns = len(arrays)
        self._arrays = arrays
        self._others = others
        self._table: pa.Table | None = None

    def describe(self, columns: Array) -> None:
        """Fill the table of the columns: see `kernels.rows`."""
        for place, array in enumerate(self._arrays):
            if place not in self._others:
                columns[place] = array.__array_interface__["data"][0], array.strides[0], 0, 0, 0

    def arrow_column(self, place: int) -> pa.Array:
        """One column as an Arrow array."""
        other = self._others.get(place)
        return pa.array(self._arrays[place].copy(), self.schema.field(place).type) if other is None else other

    def column(self, name: str | int) -> pa.Array:
        """A column by name or place."""
        return self.arrow_column(name if isinstance(name, int) else self.schema.get_field_index(name))

    def table(self) -> pa.Table:
        """All columns as an Arrow table."""
        if self._table is None:
            columns = [self.arrow_column(place) for place in range(self.num_columns)]
            self._table = pa.Table.from_arrays(columns, schema=self.schema)
        return self._table

    def slice(self, begin: int, n: int) -> pa.Table:
        """Some of the rows."""
        return self.table().slice(begin, n)

    def filter(self, mask: pa.Array) -> pa.Table:
        """The rows where `mask` is true."""
        return self.table().filter(mask)

    def select(self, names: list[str]) -> pa.Table:
        """Some of the columns."""
        return self.table().select(names)


def has_columns(data: object) -> bool:
    """Whether `data` is a dict of NumPy arrays, or a NumPy array."""
    if isinstance(data, Mapping):
        return any(isinstance(value, np.ndarray) for value in data.values())
    return isinstance(data, np.ndarray | np.void)


class NumpyReader:
    """Reads the batches of one side that have its columns and types already."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._columns: list[tuple[str, pa.DataType, np.dtype[Any] | None]] = []

    def read(self, data: Any, schema: pa.Schema) -> NumpyBatch | None:
        """`data` as a batch of `schema`, or None."""
        if schema is not self._schema:
            self._columns = [(field.name, field.type, _NUMBERS.get(field.type)) for field in schema]
            self._schema = schema
        names = data if isinstance(data, dict) else data.dtype.names
        if names is None or len(names) != len(self._columns) or not names:
            return None
        arrays: list[Array] = []
        others: dict[int, pa.Array] = {}
        for name, type_, dtype in self._columns:
            if name not in names:
                return None
            array = data[name]
            # Not a subclass: a masked array or a matrix reads differently.
            if type(array) is np.recarray:
                array = array.view(np.ndarray)
            if type(array) is not np.ndarray or array.ndim != 1 or (arrays and array.size != arrays[0].size):
                return None
            if array.dtype != dtype and not _holds_times(array, type_):
                column = None if is_fixed(type_) else _exact_column(array, type_)
                if column is None:
                    return None
                others[len(arrays)] = column
            arrays.append(array)
        return NumpyBatch(schema, arrays, others)


def _holds_times(array: Array, type_: pa.DataType) -> bool:
    """Whether an array has the bits of times or durations of this type, and no NaT, which would be NULL."""
    if array.dtype.kind not in "mM" or not array.dtype.isnative:
        return False
    unit = np.datetime_data(array.dtype)
    same = (pa.types.is_timestamp(type_) and type_.tz is None and array.dtype.kind == "M") or (
        pa.types.is_duration(type_) and array.dtype.kind == "m"
    )
    return bool(same and unit == (type_.unit, 1) and not np.isnat(array).any())


def _exact_column(array: Array, type_: pa.DataType) -> pa.Array | None:
    """An array of booleans or texts in Arrow, if it has this type there."""
    try:
        column = pa.array(array)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return column if column.type.equals(type_) else None


def numpy_table(data: Any, side: str) -> pa.Table:
    """A dict of NumPy arrays, or a structured array, as an Arrow table."""
    columns = dict(data) if isinstance(data, Mapping) else _fields(data, side)
    sizes = {}
    for name, array in columns.items():
        if not isinstance(name, str):
            raise InputError(f"the names of {side}'s columns must be text, not {name!r}")
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"column {name!r} of {side} is a {type(array).__name__} beside NumPy arrays: give every column as a "
                "NumPy array, or push pa.table(columns)"
            )
        if array.ndim != 1:
            raise InputError(f"column {name!r} of {side} has {array.ndim} dimensions; a column has one")
        sizes[name] = array.size
    if len(set(sizes.values())) > 1:
        lengths = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise InputError(f"the columns of {side} are not of one length: {lengths} rows")
    return pa.table({name: _column(array, name, side) for name, array in columns.items()})


def _fields(data: Any, side: str) -> dict[str, Array]:
    """The columns of a structured array."""
    if isinstance(data, np.void) or data.ndim != 1:
        shape = "one record" if isinstance(data, np.void) or not data.ndim else f"{data.ndim} dimensions"
        raise InputError(f"{side} is a NumPy array of {shape}; push an array of records in one dimension")
    names: Collection[str] | None = data.dtype.names
    if names is None:
        raise InputError(
            f"{side} is a NumPy array of {data.dtype} without names: push a dict of arrays, such as {{'k': keys}}, or "
            "a structured array"
        )
    for name in names:
        field = data.dtype[name]
        if field.names is not None or field.shape:
            kind = "fields of its own" if field.names is not None else f"an array of {field.shape}"
            raise InputError(f"field {name!r} of {side} is {kind}: give each column one value per row")
    return {name: data[name] for name in names}


def _column(array: Array, name: str, side: str) -> pa.Array:
    mask = np.ma.getmaskarray(array) if np.ma.isMaskedArray(array) else None
    values = np.array(array, dtype=array.dtype.newbyteorder("="), copy=True, subok=False)
    try:
        return pa.array(values, mask=mask)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = f"which has no Arrow form: {error}. Convert it with array.astype(...)"
        if array.dtype.kind == "c":
            reason = "for which Arrow has no type; push real and imaginary parts as two columns"
        elif isinstance(error, OverflowError):
            reason = "with a whole number beyond 64 bits; make them texts or decimal.Decimal of up to 76 digits"
        raise InputError(f"column {name!r} of {side} is NumPy {array.dtype}, {reason}") from error
