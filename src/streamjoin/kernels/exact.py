"""Sums without rounding: rows of 64-bit words that add up to the same bits in any order and any grouping.

A row is the sum of some values of one column: how many they are, for floats with NaN or infinities among them how many
of each of these, and then the sum as one fixed-point number in two's complement, the least word first. All rows of a
column have one `Layout`: its least word counts multiples of 2**(64 * first). A float64 spans at most two words, so
prices and quantities need two, and a column with the smallest and the largest floats 34.

Rows are added, merged and subtracted word by word, so prefix sums and partial sums of groups are exact, and a window is
the difference of two prefix sums. Only `round_floats` rounds, once, to the nearest float64 with ties to even.
Invariant: no sum of up to 2**40 values leaves its row, because a layout has that many values' room above the largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel

NONE: Final = -1
"""The place of a row of zeros."""
_ROOM_BITS: Final = 41
# The places of the counts of a row.
_COUNT, _NANS, _PLUS, _MINUS = 0, 1, 2, 3
# A row is an array and a place: a view of it would count its users, which costs more than adding to it.
_U0, _U1, _U63 = np.uint64(0), np.uint64(1), np.uint64(63)
_U52, _U64 = np.uint64(52), np.uint64(64)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_INFINITE = np.uint64(0x7FF)
_NO_LOW, _NO_HIGH = 1 << 20, -(1 << 20)


@dataclass(frozen=True)
class Layout:
    """What the words of a row are: `first` and `words` of the number, and whether NaN and infinities are counted."""

    first: int = 0
    words: int = 1
    specials: bool = False

    @property
    def head(self) -> int:
        """The place of the number's least word."""
        return 4 if self.specials else 1

    @property
    def width(self) -> int:
        """Words of a row."""
        return self.head + self.words

    def rows(self, n: int) -> Array:
        """`n` sums of nothing."""
        return np.zeros((n, self.width), np.uint64)

    def wide_enough(self, other: Layout) -> Layout:
        """The layout that holds the rows of both."""
        first = min(self.first, other.first)
        end = max(self.first + self.words, other.first + other.words)
        return Layout(first, end - first, self.specials or other.specials)

    def widened(self, rows: Array, wider: Layout) -> Array:
        """Rows of this layout in one that holds them."""
        result = wider.rows(len(rows))
        result[:, _COUNT] = rows[:, _COUNT]
        if self.specials:
            result[:, _NANS : self.head] = rows[:, _NANS : self.head]
        begin = wider.head + self.first - wider.first
        result[:, begin : begin + self.words] = rows[:, self.head :]
        sign = (rows[:, -1].view(np.int64) >> np.int64(63)).view(np.uint64)
        result[:, begin + self.words :] = sign[:, np.newaxis]
        return result


def float_layout(values: Array, present: Array) -> Layout:
    """The smallest layout for sums of these float64 values; only those that are `present` count."""
    span = np.array([_NO_LOW, _NO_HIGH, 0], np.int64)
    _span(values, present, span)
    if span[0] == _NO_LOW:
        return Layout(specials=bool(span[2]))
    first, end = int(span[0]) // 64, (int(span[1]) + _ROOM_BITS + 63) // 64
    return Layout(first, end - first, bool(span[2]))


def whole_layout(bits: int) -> Layout:
    """The layout for sums of whole numbers of up to `bits` bits, sign included."""
    return Layout(0, (bits + _ROOM_BITS + 63) // 64)


@inlined
def _odd_part(value: Any) -> Any:
    """A finite float64 as (whole number, exponent), without the zeros at the whole number's end."""
    bits = np.uint64(value)
    exponent = np.int64((bits >> _U52) & _INFINITE)
    whole = bits & _FRACTION
    if exponent == 0:
        exponent = np.int64(1)
    else:
        whole = whole | _HIDDEN
    exponent = exponent - 1075
    if whole != _U0:
        for step in (32, 16, 8, 4, 2, 1):
            if whole & ((_U1 << np.uint64(step)) - _U1) == _U0:
                whole = whole >> np.uint64(step)
                exponent = exponent + step
    return whole, exponent


@kernel
def _span(values: Array, present: Array, span: Array) -> None:
    """The least and the greatest bit that values have, and whether one of them is no finite number."""
    bits = values.view(np.uint64)
    for i in range(values.size):
        if not present[i]:
            continue
        exponent = np.int64((bits[i] >> _U52) & _INFINITE)
        if exponent == 0x7FF:
            span[2] = 1
            continue
        if bits[i] << _U1 == _U0:
            continue
        high = (exponent if exponent > 0 else np.int64(1)) - 1075 + 53
        if high > span[1]:
            span[1] = high
        # Only a value that reaches below the others is looked at closely.
        if high - 53 < span[0]:
            _, low = _odd_part(bits[i])
            if low < span[0]:
                span[0] = low


@inlined
def _add_at(rows: Array, i: Any, at: Any, low: Any, high: Any, negative: bool) -> None:
    """Add, or take away, a number of two words at the place of a row's word."""
    end = rows.shape[1]
    old = rows[i, at]
    new = old - low if negative else old + low
    carry = _U1 if (new > old if negative else new < old) else _U0
    rows[i, at] = new
    place = at + 1
    if place < end and (high != _U0 or carry != _U0):
        old = rows[i, place]
        if negative:
            new = old - high
            further = new > old
            old = new
            new = new - carry
            further = further or new > old
        else:
            new = old + high
            further = new < old
            old = new
            new = new + carry
            further = further or new < old
        rows[i, place] = new
        place += 1
        while further and place < end:
            old = rows[i, place]
            new = old - _U1 if negative else old + _U1
            rows[i, place] = new
            further = new > old if negative else new < old
            place += 1


@inlined
def _add_float(rows: Array, i: Any, bits: Any, head: Any, first: Any) -> None:
    """Add a float64, given by its bits, to a row."""
    rows[i, _COUNT] += _U1
    exponent = np.int64((bits >> _U52) & _INFINITE)
    whole = bits & _FRACTION
    negative = bits >> _U63 != _U0
    if exponent == 0x7FF:
        place = _NANS if whole != _U0 else _MINUS if negative else _PLUS
        rows[i, place] += _U1
        return
    if exponent == 0:
        exponent = np.int64(1)
    else:
        whole = whole | _HIDDEN
    bit = exponent - 1075 - 64 * first
    if bit < 0:
        # Only zeros are below the first word.
        whole = whole >> np.uint64(min(-bit, 63))
        bit = np.int64(0)
    if whole == _U0:
        return
    shift = np.uint64(bit) & _U63
    low, high = whole << shift, _U0
    if shift != _U0:
        high = whole >> (_U64 - shift)
    _add_at(rows, i, head + (bit >> 6), low, high, negative)


@inlined
def _copy(rows: Array, i: Any, out: Array, j: Any) -> None:
    """Copy a row, or zeros for NONE."""
    for place in range(out.shape[1]):
        out[j, place] = _U0 if i == NONE else rows[i, place]


@kernel
def prefix_floats(
    values: Array, present: Array, previous: Array, rows: Array, begin: int, head: int, first: int
) -> None:
    """Fill rows from `begin` on: each is the row at `previous`, or zeros at NONE, and its own value if present."""
    bits = values.view(np.uint64)
    for i in range(values.size):
        _copy(rows, previous[i], rows, begin + i)
        if present[i]:
            _add_float(rows, begin + i, bits[i], head, first)


@kernel
def add_floats(values: Array, present: Array, into: Array, rows: Array, head: int, first: int) -> None:
    """Add each value that is present to the row at `into`."""
    bits = values.view(np.uint64)
    for i in range(values.size):
        if present[i]:
            _add_float(rows, into[i], bits[i], head, first)


@inlined
def _add_whole(rows: Array, i: Any, words: Array, j: Any) -> None:
    """Add a whole number, in words with its sign in the top one, to a row."""
    rows[i, _COUNT] += _U1
    n = words.shape[1]
    carry, sign = _U0, _U0 - (words[j, n - 1] >> _U63)
    for place in range(1, rows.shape[1]):
        old = rows[i, place]
        own = words[j, place - 1] if place <= n else sign
        new = old + own
        further = new < old
        new = new + carry
        carry = _U1 if further or (carry != _U0 and new == _U0) else _U0
        rows[i, place] = new


@kernel
def prefix_wholes(values: Array, present: Array, previous: Array, rows: Array, begin: int) -> None:
    """`prefix_floats` for whole numbers, which are rows of words."""
    for i in range(values.shape[0]):
        _copy(rows, previous[i], rows, begin + i)
        if present[i]:
            _add_whole(rows, begin + i, values, i)


@kernel
def add_wholes(values: Array, present: Array, into: Array, rows: Array) -> None:
    """`add_floats` for whole numbers, which are rows of words."""
    for i in range(values.shape[0]):
        if present[i]:
            _add_whole(rows, into[i], values, i)


@inlined
def _combine(rows: Array, i: Any, others: Array, j: Any, head: Any, negative: bool) -> None:
    """Add a row of the same layout, or take it away."""
    for place in range(head):
        own = rows[i, place]
        rows[i, place] = own - others[j, place] if negative else own + others[j, place]
    carry = _U0
    for place in range(head, rows.shape[1]):
        old, other = rows[i, place], others[j, place]
        if negative:
            new = old - other
            further = new > old
            own = new - carry
            carry = _U1 if further or own > new else _U0
        else:
            new = old + other
            further = new < old
            own = new + carry
            carry = _U1 if further or own < new else _U0
        rows[i, place] = own


@kernel
def merge(others: Array, into: Array, rows: Array, head: int) -> None:
    """Add each of some rows to the row at `into`."""
    for i in range(into.size):
        _combine(rows, into[i], others, i, head, False)


@kernel
def take_away(others: Array, into: Array, rows: Array, head: int) -> None:
    """Subtract each of some rows from the row at `into`."""
    for i in range(into.size):
        _combine(rows, into[i], others, i, head, True)


@kernel
def differences(rows: Array, until: Array, since: Array, head: int, out: Array) -> None:
    """out[i] becomes row until[i] less row since[i]; at NONE there are zeros."""
    for i in range(until.size):
        _copy(rows, until[i], out, i)
        if since[i] != NONE:
            _combine(out, i, rows, since[i], head, True)


@inlined
def _bits_from(rows: Array, i: Any, head: Any, at: Any) -> Any:
    """The 64 bits of a row's number from bit `at` on."""
    place, shift = head + (at >> 6), np.uint64(at) & _U63
    bits = rows[i, place] >> shift
    if shift != _U0 and place + 1 < rows.shape[1]:
        bits = bits | (rows[i, place + 1] << (_U64 - shift))
    return bits


@inlined
def _any_below(rows: Array, i: Any, head: Any, at: Any) -> bool:
    """Whether a bit of a row's number below bit `at` is set."""
    last = head + (at >> 6)
    for place in range(head, last):
        if rows[i, place] != _U0:
            return True
    return bool(rows[i, last] & ((_U1 << (np.uint64(at) & _U63)) - _U1) != _U0)


@inlined
def _round(rows: Array, i: Any, head: Any, first: Any) -> Any:
    """The bits of the float64 nearest to a row's number, which becomes its absolute value."""
    sign = rows[i, rows.shape[1] - 1] >> _U63
    if sign != _U0:
        carry = _U1
        for place in range(head, rows.shape[1]):
            rows[i, place] = ~rows[i, place] + carry
            carry = _U1 if carry != _U0 and rows[i, place] == _U0 else _U0
    top = rows.shape[1] - 1
    while top >= head and rows[i, top] == _U0:
        top -= 1
    if top < head:
        return _U0
    word, highest = rows[i, top], 64 * (top - head)
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step) != _U0:
            word = word >> np.uint64(step)
            highest += step
    # The least bit that the result keeps.
    least = max(highest + 64 * first - 52, -1074) - 64 * first
    if least <= 0:
        whole = rows[i, head] << np.uint64(min(-least, 63))
    else:
        whole = _bits_from(rows, i, head, least)
        half = _bits_from(rows, i, head, least - 1) & _U1
        if half != _U0 and (whole & _U1 != _U0 or _any_below(rows, i, head, least - 1)):
            whole = whole + _U1
    exponent = least + 64 * first + 1075
    if whole >> _U52 >= np.uint64(2):
        whole, exponent = whole >> _U1, exponent + 1
    if whole < _HIDDEN:
        return (sign << _U63) | whole
    if exponent >= 0x7FF:
        return (sign << _U63) | (_INFINITE << _U52)
    return (sign << _U63) | (np.uint64(exponent) << _U52) | (whole & _FRACTION)


@kernel
def round_floats(rows: Array, head: int, first: int, out: Array) -> None:
    """The sums as the nearest float64; NaN and infinities as IEEE adds them. The rows are used up."""
    bits = out.view(np.uint64)
    for i in range(rows.shape[0]):
        if head > 1:
            if rows[i, _NANS] != _U0 or (rows[i, _PLUS] != _U0 and rows[i, _MINUS] != _U0):
                out[i] = np.nan
                continue
            if rows[i, _PLUS] != _U0 or rows[i, _MINUS] != _U0:
                out[i] = np.inf if rows[i, _PLUS] != _U0 else -np.inf
                continue
        bits[i] = _round(rows, i, head, first)


def whole_numbers(rows: Array, layout: Layout) -> list[int]:
    """The sums of whole numbers, however large."""
    numbers = rows[:, -1].view(np.int64).astype(object)
    for place in range(layout.width - 2, layout.head - 1, -1):
        numbers = numbers * (1 << 64) + rows[:, place].astype(object)
    return list(numbers)


def within_words(rows: Array, layout: Layout, signed: bool) -> Array:
    """Which sums of whole numbers fit one word."""
    upper = rows[:, layout.head + 1 :]
    sign = (rows[:, layout.head].view(np.int64) >> np.int64(63)).view(np.uint64) if signed else np.zeros(1, np.uint64)
    fits: Array = (upper == np.broadcast_to(sign, len(rows))[:, np.newaxis]).all(axis=1)
    return fits
