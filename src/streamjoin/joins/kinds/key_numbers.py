"""Keys as small numbers, the same for both sides: equal keys, and only these, have one number.

A key may be several columns. Integers, times, floats and short decimals are compared by their words; texts, binaries
and long decimals by their values, so no hash decides. Numbers are never taken back, but `shrunk` starts anew with the
keys that are still in use.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.kinds.asof import NONE, identify
from streamjoin.model.keys import KeyTerm
from streamjoin.model.plain_types import without_extension
from streamjoin.windows.encoding import SideEncoder, flat

_LEAST_TABLE = 4096


class ExactTerms:
    """The terms whose words decide, in the form that encoding takes."""

    def __init__(self, terms: tuple[KeyTerm, ...]) -> None:
        self.terms = terms
        self.index: tuple[KeyTerm, ...] = ()


class KeyNumbers:
    """Numbers the keys of one join's equalities."""

    def __init__(self, equalities: Sequence[KeyTerm]) -> None:
        self._equalities = equalities
        exact = ExactTerms(tuple(key for key in equalities if key.exact))
        self._encoders = (SideEncoder(exact, "left"), SideEncoder(exact, "right")) if exact.terms else None
        self._values = [_ValueNumbers(key) for key in equalities if not key.exact]
        self._width = len(equalities)
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
        columns += [values.number(side, table, lost) for values in self._values]
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
        fresh = KeyNumbers(self._equalities)
        if not self._width:
            return fresh
        fresh._number_words(np.ascontiguousarray(self._keys[used]), np.zeros(used.size, np.bool_))
        first = self._width - len(self._values)
        fresh._values = [values.kept(self._keys[used, first + place]) for place, values in enumerate(self._values)]
        return fresh

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._table.nbytes + self._keys.nbytes) + sum(64 * len(values.numbers) for values in self._values)


class _ValueNumbers:
    """A number for each value of a key that words do not decide; new ones are beyond all that ever were."""

    def __init__(self, key: KeyTerm, numbers: dict[Hashable, int] | None = None, following: int = 0) -> None:
        self._key = key
        self.numbers = numbers or {}
        self._following = following

    def number(self, side: int, table: pa.Table, lost: Array) -> Array:
        """The number of each tuple's value; NULLs are added to `lost`."""
        encoded = _encoded(table.column((self._key.right if side else self._key.left).name))
        if encoded.null_count:
            lost |= encoded.is_null().to_numpy(zero_copy_only=False)
        distinct = encoded.dictionary.to_pylist()
        numbers = np.empty(max(1, len(distinct)), np.int64)
        for place, value in enumerate(distinct):
            known = self.numbers.get(value)
            if known is None:
                # In this order: an interrupt may lose a number, but gives none twice.
                known, self._following = self._following, self._following + 1
                self.numbers[value] = known
            numbers[place] = known
        places: Array = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return numbers[places]

    def kept(self, used: Array) -> _ValueNumbers:
        """The values with the numbers `used`, which they keep."""
        numbers = set(used.tolist())
        known = {value: number for value, number in self.numbers.items() if number in numbers}
        return _ValueNumbers(self._key, known, self._following)


def _encoded(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """A column as a dictionary of its values and their places there; one that is a dictionary already stays it."""
    if pa.types.is_dictionary(column.type):
        encoded = column.unify_dictionaries().combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if not encoded.dictionary.null_count:
            return encoded
    return without_extension(flat(column)).dictionary_encode()
