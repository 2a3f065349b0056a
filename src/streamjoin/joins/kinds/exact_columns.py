"""Columns as the numbers that exact sums take, and exact sums as columns.

Invariant: a sum is the exact one, rounded once where the type is a float; one that its type can't hold is NULL, and is
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.exact import (
    Layout,
    add_floats,
    add_many_floats,
    add_many_wholes,
    add_wholes,
    float_layout,
    round_floats,
    slide_floats,
    slide_wholes,
    take_away,
    whole_layout,
    whole_numbers,
    within_words,
)
from streamjoin.windows.encoding import fixed_width, for_kernels

_WORDS_OF_DECIMALS = {128: 2, 256: 4}


@dataclass(frozen=True)
class Numbers:
    """The values of a column: float64, or whole numbers as rows of words; and which are not NULL."""

    values: Array
    present: Array

    @property
    def is_float(self) -> bool:
        """Whether these are floats."""
        return self.values.ndim == 1

    def layout(self) -> Layout:
        """The smallest layout for sums of them."""
        if self.is_float:
            return float_layout(self.values, self.present)
        return whole_layout(64 * self.values.shape[1])

    def take(self, places: Array | slice) -> Numbers:
        """The values at some places."""
        return Numbers(self.values[places], self.present[places])

    def slide(self, steps: tuple[Array, Array, int, int, int, int], table: Array, layout: Layout, out: Array) -> None:
        """The sums of windows that slide over the values; see `kernels.exact`."""
        if self.is_float:
            slide_floats(*steps, self.values, self.present, table, layout.head, layout.first, out)
        else:
            slide_wholes(*steps, self.values, self.present, table, out)

    def add(self, into: Array, rows: Array, layout: Layout) -> None:
        """Add each value to the row at `into`."""
        if self.is_float:
            add_floats(self.values, self.present, into, rows, layout.head, layout.first)
        else:
            add_wholes(self.values, self.present, into, rows)

    def take_away(self, into: Array, rows: Array, layout: Layout) -> None:
        """Take each value from the row at `into`."""
        own = layout.rows(into.size)
        self.add(np.arange(into.size), own, layout)
        take_away(own, into, rows, layout.head)

    def by_group(self, groups: Array, n: int, times: Array | None = None) -> tuple[Array, Layout]:
        """The sum of each of `n` groups; each value counts as often as `times` says, if given."""
        layout = self.layout()
        rows = layout.rows(n)
        if times is None:
            self.add(groups, rows, layout)
        elif self.is_float:
            add_many_floats(self.values, self.present, times, groups, rows, layout.head, layout.first)
        else:
            add_many_wholes(self.values, self.present, times, groups, rows)
        return rows, layout


def numbers_of(array: pa.Array) -> Numbers:
    """The values of a column; those of one that is no number count, and are 0."""
    type_ = array.type
    present: Array = np.ones(len(array), np.bool_)
    if array.null_count:
        present = for_kernels(array.is_valid().to_numpy(zero_copy_only=False))
    if pa.types.is_floating(type_):
        return Numbers(np.ascontiguousarray(for_kernels(fixed_width(array).astype(np.float64, copy=False))), present)
    if pa.types.is_decimal(type_):
        if type_.bit_width not in _WORDS_OF_DECIMALS:
            array = array.cast(pa.decimal128(type_.precision, type_.scale))
        width = _WORDS_OF_DECIMALS[array.type.bit_width]
        words = np.frombuffer(array.buffers()[1], np.uint64)[width * array.offset : width * (array.offset + len(array))]
        return Numbers(for_kernels(words.reshape(-1, width)), present)
    if pa.types.is_integer(type_) or pa.types.is_duration(type_):
        values = fixed_width(array)
        if values.dtype == np.uint64:
            # A word of zeros above: the top one has the sign.
            return Numbers(np.stack([values, np.zeros_like(values)], axis=1), present)
        return Numbers(for_kernels(values.astype(np.int64).view(np.uint64).reshape(-1, 1)), present)
    return Numbers(np.zeros((len(array), 1), np.uint64), present)


def counts_of(rows: Array) -> Array:
    """How many values each sum has."""
    return rows[:, 0].view(np.int64)


def sum_column(rows: Array, layout: Layout, type_: pa.DataType) -> tuple[pa.Array, int]:
    """Sums as a column, NULL where there is no value, and how many the type can't hold. The rows are used up."""
    missing = counts_of(rows) == 0
    if pa.types.is_floating(type_):
        return float_column(_rounded(rows, layout), counts_of(rows), type_), 0
    if pa.types.is_decimal(type_):
        limit = 10**type_.precision
        wholes = whole_numbers(rows, layout)
        over = np.array([abs(whole) >= limit for whole in wholes], np.bool_)
        width = type_.bit_width // 8
        data = b"".join(
            (0 if lost else whole).to_bytes(width, "little", signed=True)
            for whole, lost in zip(wholes, over, strict=True)
        )
        valid = pa.array(~(missing | over)).buffers()[1]
        return pa.Array.from_buffers(type_, len(wholes), [valid, pa.py_buffer(data)]), int(over.sum())
    over = ~within_words(rows, layout, type_ != pa.uint64())
    word = pa.uint64() if type_ == pa.uint64() else pa.int64()
    values = rows[:, layout.head].astype(np.uint64)
    return pa.array(values.view(word.to_pandas_dtype()), word, mask=missing | over).view(type_), int(over.sum())


def float_column(sums: Array, counts: Array, type_: pa.DataType) -> pa.Array:
    """Rounded sums as a column, NULL where there is no value."""
    return pa.array(sums, type_, mask=counts == 0)


def float_averages(sums: Array, counts: Array) -> pa.Array:
    """Rounded sums divided by the numbers of their values."""
    with np.errstate(all="ignore"):
        return float_column(sums / counts, counts, pa.float64())


def average_column(rows: Array, layout: Layout, argument: pa.DataType) -> pa.Array:
    """Each sum, rounded once, divided by the number of its values. The rows are used up."""
    counts = counts_of(rows).copy()
    if pa.types.is_decimal(argument) and argument.scale:
        sums = np.array([_quotient(whole, argument.scale) for whole in whole_numbers(rows, layout)], np.float64)
    else:
        sums = _rounded(rows, layout)
    return float_averages(sums, counts)


def _quotient(whole: int, scale: int) -> float:
    return whole / 10**scale if scale > 0 else float(whole * 10**-scale)


def _rounded(rows: Array, layout: Layout) -> Array:
    out = np.empty(len(rows))
    round_floats(rows, layout.head, layout.first, out)
    return out
