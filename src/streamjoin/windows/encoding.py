"""Encode Arrow columns as machine words: the key of each tuple, and the keys that it can match.

Every term gives each tuple a word and an inclusive interval of words of the other side. A tuple with a NULL or
NaN in any key is not `valid`: it has a position in the stream but never matches, and its words are
undefined.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.kernels import encode as kernels
from streamjoin.model.errors import InputError
from streamjoin.model.keys import Comparison, KeyColumn, KeyTerm, WordKind
from streamjoin.model.large_columns import is_overflow
from streamjoin.model.plain_types import plain_array, without_extension
from streamjoin.model.predicates import Equi
from streamjoin.windows.words import TermWords

SideName = Literal["left", "right"]

_SIGN = 1 << 63
# A decimal's float64 image is off by a few units in the last place; this margin covers the error.
_WIDE_SLACK = 2.0**-46


@dataclass(frozen=True)
class Encoded:
    """An encoded batch: `terms` in the order of `BoundSpec.terms`; `index` if candidates can be looked up."""

    n: int
    valid: Array | None
    terms: tuple[TermWords, ...]
    index: TermWords | None

    def part(self, cut: slice) -> Encoded:
        """The tuples from cut.start to cut.stop, as views."""
        if cut.start == 0 and cut.stop == self.n:
            return self
        terms = tuple(term.part(cut) for term in self.terms)
        index = None
        if self.index is not None:
            same = [i for i, term in enumerate(self.terms) if term is self.index]
            index = terms[same[0]] if same else self.index.part(cut)
        return Encoded(cut.stop - cut.start, None if self.valid is None else self.valid[cut], terms, index)


class KeyTerms(Protocol):
    """The terms that encoding needs, for example a `BoundSpec`: all exact terms, and those of the index."""

    @property
    def terms(self) -> tuple[KeyTerm, ...]: ...  # noqa: D102
    @property
    def index(self) -> tuple[KeyTerm, ...]: ...  # noqa: D102


Take = Callable[[int], Array]


def fresh(n: int) -> Array:
    """Newly allocated memory for `n` words."""
    return np.empty(n, np.int64)


class SideEncoder:
    """Encodes one side's batches for the keys of one join."""

    def __init__(self, bound: KeyTerms, side: SideName) -> None:
        self._side: SideName = side
        # Each term once: those of the index may be among the exact ones.
        self._terms = list(bound.terms) + [term for term in bound.index if term not in bound.terms]
        self._n_exact = len(bound.terms)
        self._index = tuple(self._terms.index(term) for term in bound.index)
        # Floats and hashes have no limits of whole numbers, and those of a uint64 do not fit words of floats.
        self._limits = [
            interval_limits(*own_and_other(term, side)) if _is_whole(term) else None for term in self._terms
        ]

    @property
    def columns(self) -> list[str]:
        """The columns that are encoded."""
        return sorted({own_and_other(term, self._side)[0].name for term in self._terms})

    def encode(self, table: pa.Table, take: Take = fresh) -> Encoded:
        """The words of every tuple of `table`; `take` gives the memory of most."""
        n = table.num_rows
        valid = np.ones(n, np.bool_)
        words = [
            self._encode_term(term, limits, table, valid, take)
            for term, limits in zip(self._terms, self._limits, strict=True)
        ]
        return Encoded(n, None if valid.all() else valid, tuple(words[: self._n_exact]), self._index_words(words))

    def _encode_term(self, term: KeyTerm, limits: Array | None, table: pa.Table, valid: Array, take: Take) -> TermWords:
        own, other, down, up = own_and_other(term, self._side)
        array = without_extension(flat(table.column(own.name)))
        if array.null_count:
            valid &= array.is_valid().to_numpy(zero_copy_only=False)
        if isinstance(term.term, Comparison):
            return _one_sided(_compared_words(array, term, own, valid), term.term.operator_of(self._side))
        if limits is not None:
            return _integer_words(array, own, other, int(down), int(up), limits, take)
        if term.kind is WordKind.BYTES:
            word = Texts.of(array).hashed()
            return TermWords(word, word, word)
        return _float_words(array, term, float(down), float(up), valid)

    def _index_words(self, words: list[TermWords]) -> TermWords | None:
        if len(self._index) < 2:
            return words[self._index[0]] if self._index else None
        key, band = self._index
        return _compose(self._terms[key], words[key], self._terms[band], words[band], self._side)


def _is_whole(term: KeyTerm) -> bool:
    return term.kind is WordKind.INTEGER and not isinstance(term.term, Comparison)


def own_and_other(term: KeyTerm, side: SideName) -> tuple[KeyColumn, KeyColumn, int | float, int | float]:
    """This side's column and the other's, and how far the other's value may be below and above."""
    if side == "left":
        return term.left, term.right, term.below, term.above
    return term.right, term.left, term.above, term.below


def flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """`column` as one array of a plain type: dictionaries decoded, views made contiguous."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        try:
            chunks = column.chunks
            array = chunks[0] if len(chunks) == 1 else pa.concat_arrays([pa.array([], column.type), *chunks])
        except pa.ArrowInvalid as error:
            if is_overflow(error):
                raise InputError("a pushed column has more than 2 GiB of text: push the rows in parts") from error
            raise
    return plain_array(array)


def fixed_width(array: pa.Array) -> Array:
    """The values of a primitive array as a NumPy array; NULL slots hold arbitrary values."""
    type_ = array.type
    if pa.types.is_boolean(type_):
        return np.asarray(pc.cast(array, pa.uint8()).fill_null(0))
    if pa.types.is_decimal128(type_):
        pairs = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        return pairs.view(np.dtype("V16"))
    dtype = np.dtype(f"i{type_.bit_width // 8}") if not _is_plain_number(type_) else np.dtype(type_.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def _is_plain_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def integer_values(array: pa.Array) -> Array:
    """Integers, times, booleans and decimals of up to 18 digits as int64 (uint64 by its bits)."""
    if pa.types.is_decimal(array.type):
        if not pa.types.is_decimal128(array.type):
            array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
        # The low word of a two's complement number that fits 64 bits is that number.
        return np.ascontiguousarray(fixed_width(array).view(np.int64)[::2])
    values = fixed_width(array)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def for_kernels(values: Array) -> Array:
    """`values` in aligned, writable memory: for any other, Numba would compile another version of a kernel.

    Files and other libraries return memory that is neither; the copy is cheap compared with the join.
    """
    return np.require(values, requirements=("A", "W"))


def read_only(values: Array) -> Array:
    """A view of `values` that can't be written to: one type for kernels where some memory is mapped and some is not."""
    view = values.view()
    view.flags.writeable = False
    return view


def _integer_words(
    array: pa.Array, own: KeyColumn, other: KeyColumn, down: int, up: int, limits: Array, take: Take
) -> TermWords:
    word = integer_values(array)
    if not (word.flags.aligned and word.flags.writeable):
        # See `for_kernels`.
        word, values = take(word.size), word
        word[:] = values
    if own.unsigned:
        word = word ^ np.int64(-_SIGN)
    if down == up == 0 and own.type == other.type and own.multiplier == other.multiplier:
        # Equal values of one type have equal words.
        return TermWords(word, word, word)
    lo, hi = take(word.size), take(word.size)
    if other.multiplier > 1:
        kernels.divided_intervals(
            word, np.int64(other.multiplier), np.int64(down), np.int64(up), other.unsigned, lo, hi
        )
        return TermWords(word, lo, hi)
    flips = [np.uint64(_SIGN if column.unsigned else 0) for column in (own, other)]
    scale, below, above = (np.uint64(d % (1 << 64)) for d in (own.multiplier, down, up))
    kernels.integer_intervals(word, flips[0], flips[1], scale, below, above, limits, lo, hi)
    return TermWords(word, lo, hi)


def _compared_words(array: pa.Array, term: KeyTerm, own: KeyColumn, valid: Array) -> Array:
    """Words that compare like the values."""
    if term.kind is not WordKind.INTEGER:
        return _float_words(array, replace(term, term=Equi(term.left.name, term.right.name)), 0.0, 0.0, valid).word
    word = for_kernels(integer_values(array))
    return word ^ np.int64(-_SIGN) if own.unsigned else word


def _one_sided(word: Array, operator: str) -> TermWords:
    """The words of the other side for which `word operator other` holds."""
    least, most = np.int64(-_SIGN), np.int64(_SIGN - 1)
    up, strict = operator.startswith("<"), not operator.endswith("=")
    lo, hi = (word, np.full(word.size, most)) if up else (np.full(word.size, least), word)
    if strict:
        end = word == (most if up else least)
        lo, hi = (np.where(end, 1, word + (~end)), hi) if up else (lo, np.where(end, 0, word - (~end)))
        # Beyond the last word there is nothing: an empty interval.
        lo, hi = np.where(end, 1, lo), np.where(end, 0, hi)
    return TermWords(word, lo, hi)


def interval_limits(own: KeyColumn, other: KeyColumn, down: int | float, up: int | float) -> Array:
    """The words of `own` beyond which an end of the interval leaves `other`'s domain, and its ends: see the kernel."""
    down, up = int(down), int(up)
    offset = _SIGN if own.unsigned else 0
    other_least, other_most = _domain(other)
    m = own.multiplier
    values = (
        -((-other_least - down) // m),
        (other_most + down) // m,
        -((-other_least + up) // m),
        (other_most - up) // m,
    )
    ends = [end - (_SIGN if other.unsigned else 0) for end in (other_least, other_most)]
    return np.array([*(min(max(v - offset, -_SIGN), _SIGN - 1) for v in values), *ends], np.int64)


def _domain(column: KeyColumn) -> tuple[int, int]:
    """The least and the largest value of a column: beyond them an interval is empty, also where its words have room."""
    type_ = column.type
    bits = type_.bit_width if pa.types.is_integer(type_) or pa.types.is_date32(type_) else 64
    if pa.types.is_unsigned_integer(type_):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _float_words(array: pa.Array, term: KeyTerm, down: float, up: float, valid: Array) -> TermWords:
    n = len(array)
    word, lo, hi = (np.empty(n, np.int64) for _ in range(3))
    ok = np.ones(n, np.bool_)
    # A difference of infinities is NaN and within no distance; as keys they are equal.
    equality = isinstance(term.term, Equi)
    if term.kind is WordKind.FLOAT32:
        values = for_kernels(fixed_width(array.cast(pa.float32())))
        kernels.float32_words(values, word, ok)
        if not equality:
            kernels.float32_intervals(word, np.float32(down), np.float32(up), term.strict, lo, hi)
    else:
        values = for_kernels(fixed_width(array.cast(pa.float64(), safe=False)))
        kernels.float64_words(values, word, ok)
        if term.kind is WordKind.FLOAT64 and not equality:
            kernels.float64_intervals(word, down, up, term.strict, lo, hi)
        elif term.kind is WordKind.WIDE:
            slack = (np.abs(values) + max(down, up)) * _WIDE_SLACK + 1e-300
            kernels.float64_words(values - down - slack, lo, ok)
            kernels.float64_words(values + up + slack, hi, ok)
    valid &= ok
    return TermWords(word, word, word) if equality and term.exact else TermWords(word, lo, hi)


@dataclass(frozen=True)
class Texts:
    """Texts or binaries as kernels read them: text i is data[bounds[i]:bounds[i + 1]]; NULLs are empty."""

    bounds: Array
    data: Array

    @staticmethod
    def of(array: pa.Array) -> Texts:
        """Those of an array of a plain type."""
        array = array.cast(pa.large_binary())
        if len(array) == 0:
            return Texts(np.zeros(1, np.int64), read_only(np.empty(0, np.uint8)))
        _, offsets, data = array.buffers()
        bounds = for_kernels(np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1])
        # This buffer holds the bytes of all rows of the table, not only of this slice: do not copy it.
        return Texts(bounds, read_only(np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)))

    def hashed(self) -> Array:
        """A word for each text; different texts hardly ever share one."""
        words = np.empty(self.bounds.size - 1, np.int64)
        kernels.hash_bytes(self.bounds, self.data, words)
        return words


# A band is divided into at least this many steps; its ends are at most two steps too wide.
_STEPS_BITS = 6
_SCALES = (-900, 900)


def _compose(key: KeyTerm, keys: TermWords, band: KeyTerm, bands: TermWords, side: SideName) -> TermWords:
    """Combined words of a key and a band; the tuples of a key are adjacent and in the band's order.

    The key's hash takes part with all its bits and is added, so the band keeps a resolution that depends on the
    band's width alone: a band of microseconds is found as well among the times of today as among those of 1970.
    """
    column = key.left if side == "left" else key.right
    canonical = keys.word
    if key.kind is WordKind.INTEGER:
        # Equal values must give equal bits whatever the unit and sign of their columns.
        unflipped = canonical ^ np.int64(-_SIGN) if column.unsigned else canonical
        canonical = (unflipped.view(np.uint64) * np.uint64(column.multiplier)).view(np.int64)
    out = TermWords(*(np.empty(canonical.size, np.int64) for _ in range(3)))
    if band.kind is WordKind.INTEGER:
        own, other = ((composed_shift(band, column), column.unsigned) for column in own_and_other(band, side)[:2])
        kernels.compose_integers(canonical, bands.word, bands.lo, bands.hi, own, other, out.word, out.lo, out.hi)
        return out
    if band.kind is WordKind.FLOAT32:
        single, bands = bands, TermWords(*(np.empty(canonical.size, np.int64) for _ in range(3)))
        for words, doubled in ((single.word, bands.word), (single.lo, bands.lo), (single.hi, bands.hi)):
            kernels.float32_to_float64(words, doubled)
    kernels.compose_floats(canonical, bands.word, bands.lo, bands.hi, composed_scale(band), out.word, out.lo, out.hi)
    return out


def composed_scale(band: KeyTerm) -> float:
    """The steps of a band of floats to one unit of its column: a power of two."""
    width = min(float(band.below) + float(band.above), sys.float_info.max)
    exponent = math.frexp(width)[1] if width else _SCALES[0]
    return math.ldexp(1.0, -min(max(exponent - _STEPS_BITS, _SCALES[0]), _SCALES[1]))


def composed_shift(band: KeyTerm, column: KeyColumn) -> np.uint64:
    """How many low bits of a column's words can be dropped for this band."""
    width = max(0, int(band.below) + int(band.above)) // column.multiplier
    return np.uint64(max(0, width.bit_length() - _STEPS_BITS))
