"""Keys as small numbers, the same for both sides: equal keys, and only these, have one number.

A key may be several columns. Integers, times, floats and short decimals are compared by their words; texts, binaries
and long decimals by their values, so no hash decides. Numbers are never taken back, but `shrunk` starts anew with the
keys that are still in use.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.kinds.asof import NONE, identify
from streamjoin.model.binding import BoundSpec
from streamjoin.model.keys import KeyTerm
from streamjoin.model.plain_types import without_extension
from streamjoin.windows.encoding import SideEncoder, flat

_LEAST_TABLE = 4096


class _ExactTerms:
    """The terms whose words decide, in the form that encoding takes."""

    def __init__(self, terms: tuple[KeyTerm, ...]) -> None:
        self.terms = terms
        self.index: tuple[KeyTerm, ...] = ()


class KeyNumbers:
    """Numbers the keys of one join's equalities."""

    def __init__(self, bound: BoundSpec) -> None:
        self._bound = bound
        exact = _ExactTerms(tuple(key for key in bound.keys if key.exact))
        self._encoders = (SideEncoder(exact, "left"), SideEncoder(exact, "right")) if exact.terms else None
        self._valued = [key for key in bound.keys if not key.exact]
        self._values: list[dict[Hashable, int]] = [{} for _ in self._valued]
        self._width = len(bound.keys)
        self._table = np.full(_LEAST_TABLE, NONE, np.int64)
        self._keys = np.empty((_LEAST_TABLE // 4, self._width), np.int64)
        self._count = np.full(1, 0 if self._width else 1, np.int64)

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self._count[0])

    def number(self, side: int, table: pa.Table) -> Array:
        """The number of each tuple's key; NONE for a tuple that can't match."""
        n = table.num_rows
        if not self._width:
            return np.zeros(n, np.int64)
        columns: list[Array] = []
        lost = np.zeros(n, np.bool_)
        if self._encoders is not None:
            encoded = self._encoders[side].encode(table)
            if encoded.valid is not None:
                lost |= ~encoded.valid
            for term in encoded.terms:
                # A left key as a word of the right side; there is none if the right type can't hold it.
                columns.append(term.word if side else term.lo)
                if not side and term.lo is not term.hi:
                    lost |= term.lo > term.hi
        for key, values in zip(self._valued, self._values, strict=True):
            columns.append(_value_numbers(table.column((key.right if side else key.left).name), values, lost))
        words = columns[0].reshape(-1, 1) if len(columns) == 1 else np.stack(columns, axis=1)
        return self._number_words(words, lost)

    def _number_words(self, words: Array, lost: Array) -> Array:
        some_lost = bool(lost.any())
        kept = np.ascontiguousarray(words[~lost] if some_lost else words)
        numbers = np.empty(kept.shape[0], np.int64)
        while not identify(kept, self._table, self._keys, self._count, numbers):
            # The rows before the one without room have numbers, which they get again.
            self._grow()
        if not some_lost:
            return numbers
        result = np.full(lost.size, NONE, np.int64)
        result[~lost] = numbers
        return result

    def _grow(self) -> None:
        """Double the table."""
        n = self.count
        table = np.full(2 * self._table.size, NONE, np.int64)
        keys = np.empty((table.size // 4, self._width), np.int64)
        identify(self._keys[:n], table, keys, np.zeros(1, np.int64), np.empty(n, np.int64))
        self._table, self._keys = table, keys

    def shrunk(self, used: Array) -> KeyNumbers:
        """The keys with the numbers `used`, ascending, numbered 0, 1, ... in that order."""
        fresh = KeyNumbers(self._bound)
        if not self._width:
            return fresh
        fresh._number_words(np.ascontiguousarray(self._keys[used]), np.zeros(used.size, np.bool_))
        first = self._width - len(self._valued)
        for place, values in enumerate(self._values):
            numbers = set(self._keys[used, first + place].tolist())
            # The words of values stay as they are, so new values must not repeat them.
            fresh._values[place] = _Numbered(
                {value: number for value, number in values.items() if number in numbers}, next_number(values)
            )
        return fresh

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._table.nbytes + self._keys.nbytes) + sum(64 * len(values) for values in self._values)


class _Numbered(dict[Hashable, int]):
    """Numbers by value, of which some were dropped; the next one is beyond all that ever were."""

    def __init__(self, numbers: dict[Hashable, int], following: int) -> None:
        super().__init__(numbers)
        self.following = following


def next_number(values: dict[Hashable, int]) -> int:
    """The number of the next new value."""
    return values.following if isinstance(values, _Numbered) else len(values)


def _value_numbers(column: pa.ChunkedArray, values: dict[Hashable, int], lost: Array) -> Array:
    """A number for each value of a column; NULLs are added to `lost`."""
    array = without_extension(flat(column))
    encoded = array.dictionary_encode()
    if array.null_count:
        lost |= array.is_null().to_numpy(zero_copy_only=False)
    numbering = count(next_number(values))
    distinct = encoded.dictionary.to_pylist()
    numbers = np.empty(max(1, len(distinct)), np.int64)
    for place, value in enumerate(distinct):
        known = values.get(value)
        if known is None:
            known = next(numbering)
            if isinstance(values, _Numbered):
                values.following = known + 1
            values[value] = known
        numbers[place] = known
    places: Array = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers[places]
