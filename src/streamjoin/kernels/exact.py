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

import math
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
_U11, _U52, _U64 = np.uint64(11), np.uint64(52), np.uint64(64)
_LOWEST = np.uint64((1 << 11) - 1)
_WORD: Final = 2.0**64
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_INFINITE = np.uint64(0x7FF)
_NOT_A_NUMBER, _MINUS_INFINITY = np.uint64(0x7FF8 << 48), np.uint64(0xFFF0 << 48)
_BLOCK: Final = 256
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
    least, most = span[0], span[1]
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
        most = max(most, high)
        # Only a value that reaches below the others is looked at closely.
        below = np.uint64(min(max(least - (high - 53), 0), 63))
        if (bits[i] & _FRACTION | _HIDDEN) & ((_U1 << below) - _U1) != _U0:
            least = min(least, _odd_part(bits[i])[1])
    span[0], span[1] = least, most


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
def _fixed(bits: Any, first: Any) -> Any:
    """A finite float64, given by its bits, as a number of two words, the place of the lower one, and its sign."""
    exponent = np.int64((bits >> _U52) & _INFINITE)
    whole = bits & _FRACTION
    if exponent == 0:
        exponent = np.int64(1)
    else:
        whole = whole | _HIDDEN
    bit = exponent - 1075 - 64 * first
    if bit < 0:
        # Only zeros are below the first word.
        whole = whole >> np.uint64(min(-bit, 63))
        bit = np.int64(0)
    shift = np.uint64(bit) & _U63
    high = whole >> (_U64 - shift) if shift != _U0 else _U0
    return whole << shift, high, bit >> 6, bits >> _U63 != _U0


@inlined
def _add_float(rows: Array, i: Any, bits: Any, head: Any, first: Any) -> None:
    """Add a float64, given by its bits, to a row."""
    rows[i, _COUNT] += _U1
    if (bits >> _U52) & _INFINITE == _INFINITE:
        place = _NANS if bits & _FRACTION != _U0 else _MINUS if bits >> _U63 != _U0 else _PLUS
        rows[i, place] += _U1
        return
    low, high, word, negative = _fixed(bits, first)
    if low != _U0 or high != _U0:
        _add_at(rows, i, head + word, low, high, negative)


@inlined
def _copy(rows: Array, i: Any, out: Array, j: Any) -> None:
    """Copy a row, or zeros for NONE."""
    for place in range(out.shape[1]):
        out[j, place] = _U0 if i == NONE else rows[i, place]


@inlined
def _row_of_three(rows: Array, i: Any) -> Any:
    """A row of a count and two words; zeros for NONE."""
    if i == NONE:
        return _U0, _U0, _U0
    return rows[i, 0], rows[i, 1], rows[i, 2]


@inlined
def _less(low: Any, high: Any, one: Any, other: Any) -> Any:
    """A number of two words less another one."""
    new = low - one
    return new, high - other - (_U1 if new > low else _U0)


@kernel
def prefix_floats(
    values: Array, present: Array, previous: Array, rows: Array, begin: int, head: int, first: int
) -> None:
    """Fill rows from `begin` on: each is the row at `previous`, or zeros at NONE, and its own value if present."""
    bits = values.view(np.uint64)
    if head > 1 or rows.shape[1] != 3:
        for i in range(values.size):
            _copy(rows, previous[i], rows, begin + i)
            if present[i]:
                _add_float(rows, begin + i, bits[i], head, first)
        return
    # Most columns are numbers of two words, which registers hold.
    for i in range(values.size):
        count, low, high = _row_of_three(rows, previous[i])
        if present[i]:
            count += _U1
            one, other, word, negative = _fixed(bits[i], first)
            if word != 0:
                one, other = _U0, one
            if negative:
                low, high = _less(low, high, one, other)
            else:
                new = low + one
                low, high = new, high + other + (_U1 if new < low else _U0)
        rows[begin + i, 0], rows[begin + i, 1], rows[begin + i, 2] = count, low, high


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
def _product(one: Any, other: Any) -> Any:
    """The product of two words, as two words."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b, c, d = one >> half, one & low, other >> half, other & low
    least, middle = b * d, a * d + ((b * d) >> half)
    further = b * c + (middle & low)
    return (further << half) | (least & low), a * c + (middle >> half) + (further >> half)


@kernel
def add_many_floats(
    values: Array, present: Array, times: Array, into: Array, rows: Array, head: int, first: int
) -> None:  # fmt: skip
    """Add each value that is present to the row at `into`, as many times as `times` says."""
    bits = values.view(np.uint64)
    for i in range(values.size):
        if not present[i]:
            continue
        count, row = np.uint64(times[i]), into[i]
        rows[row, _COUNT] += count
        if (bits[i] >> _U52) & _INFINITE == _INFINITE:
            place = _NANS if bits[i] & _FRACTION != _U0 else _MINUS if bits[i] >> _U63 != _U0 else _PLUS
            rows[row, place] += count
            continue
        low, high, word, negative = _fixed(bits[i], first)
        at = head + word
        for part in (low, high):
            if part != _U0 and count != _U0:
                one, other = _product(part, count)
                _add_at(rows, row, at, one, other, negative)
            at += 1


@kernel
def add_many_wholes(values: Array, present: Array, times: Array, into: Array, rows: Array) -> None:
    """`add_many_floats` for whole numbers, which are rows of words."""
    n = values.shape[1]
    for i in range(values.shape[0]):
        if not present[i]:
            continue
        count, row = np.uint64(times[i]), into[i]
        rows[row, _COUNT] += count
        sign, carry = _U0 - (values[i, n - 1] >> _U63), _U0
        # In two's complement the product of the words is that of the number, as far as the row reaches.
        for place in range(1, rows.shape[1]):
            low, high = _product(values[i, place - 1] if place <= n else sign, count)
            new = low + carry
            carry = high + (_U1 if new < low else _U0)
            old = rows[row, place]
            total = old + new
            carry += _U1 if total < old else _U0
            rows[row, place] = total


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
def accumulate(rows: Array, head: int) -> None:
    """Each row becomes the sum of itself and all rows before it."""
    for i in range(1, rows.shape[0]):
        _combine(rows, i, rows, i - 1, head, False)


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


@inlined
def _float_bits(rows: Array, i: Any, head: Any, first: Any) -> Any:
    """The bits of the float64 nearest to a row's sum; NaN and infinities as IEEE adds them. The row is used up."""
    if head > 1:
        if rows[i, _NANS] != _U0 or (rows[i, _PLUS] != _U0 and rows[i, _MINUS] != _U0):
            return _NOT_A_NUMBER
        if rows[i, _PLUS] != _U0:
            return _INFINITE << _U52
        if rows[i, _MINUS] != _U0:
            return _MINUS_INFINITY
    return _round(rows, i, head, first)


@kernel
def round_floats(rows: Array, head: int, first: int, out: Array) -> None:
    """The sums as the nearest float64; NaN and infinities as IEEE adds them. The rows are used up."""
    bits = out.view(np.uint64)
    for i in range(rows.shape[0]):
        bits[i] = _float_bits(rows, i, head, first)


@inlined
def _nearest(low: Any, high: Any, unit: Any) -> Any:
    """The float64 nearest to a number of two words that counts a power of 2 which keeps it a normal float."""
    negative = high >> _U63 != _U0
    if negative:
        low = ~low + _U1
        high = ~high + (_U1 if low == _U0 else _U0)
    if high == _U0:
        result = np.float64(low) * unit
    elif high < _HIDDEN:
        # Two floats without an error, and a last bit that tells a tie from what is more: the sum is rounded once.
        upper = np.float64(np.int64(high)) * _WORD
        lower = np.float64(np.int64(low >> _U11)) * 2048.0
        total = upper + lower
        result = (total + (lower - (total - upper) + (1024.0 if low & _LOWEST != _U0 else 0.0))) * unit
    else:
        # At least 63 bits from the highest one on: what is below them only tells a tie from what is more.
        shift = np.uint64(max(0, 64 - math.frexp(np.float64(high))[1]))
        top, rest = high, low
        if shift != _U0:
            top, rest = (high << shift) | (low >> (_U64 - shift)), low << shift
        if rest != _U0:
            top = top | _U1
        result = np.float64(top) * (np.float64(_U1 << (_U63 - shift)) * 2.0 * unit)
    return -result if negative else result


@kernel
def rounded_windows(
    rows: Array, first: Array, last: Array, hole: Array, previous: Array, head: int, least: int, counts: Array,
    out: Array,
) -> None:  # fmt: skip
    """The count and the sum of windows of prefix sums: from place `first` to `last`, less the value at `hole`.

    `least` is the layout's first word. Sums are the nearest float64; an empty window has NONE as its places.
    """
    bits, scratch = out.view(np.uint64), np.empty((1, rows.shape[1]), np.uint64)
    short = head == 1 and rows.shape[1] == 3 and -15 <= least <= 13
    unit = math.ldexp(1.0, 64 * least) if short else 0.0
    lows, highs = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for begin in range(0, last.size, _BLOCK):
        end = min(begin + _BLOCK, last.size)
        # Rows are far apart: a loop that only reads them keeps several on their way.
        for i in range(begin, end):
            count, low, high = _U0, _U0, _U0
            if short and last[i] != NONE:
                count, low, high = _row_of_three(rows, last[i])
                own, one, other = _row_of_three(rows, previous[first[i]])
                count -= own
                low, high = _less(low, high, one, other)
                if hole[i] != NONE:
                    own, one, other = _row_of_three(rows, hole[i])
                    count -= own
                    low, high = _less(low, high, one, other)
                    own, one, other = _row_of_three(rows, previous[hole[i]])
                    count += own
                    one, other = _less(_U0, _U0, one, other)
                    low, high = _less(low, high, one, other)
            counts[i], lows[i - begin], highs[i - begin] = np.int64(count), low, high
        for i in range(begin, end):
            out[i] = _nearest(lows[i - begin], highs[i - begin], unit)
        for i in range(begin, end):
            gone = hole[i]
            if short or last[i] == NONE:
                continue
            _copy(rows, last[i], scratch, 0)
            for place in (previous[first[i]], gone):
                if place != NONE:
                    _combine(scratch, 0, rows, place, head, True)
            if gone != NONE and previous[gone] != NONE:
                _combine(scratch, 0, rows, previous[gone], head, False)
            counts[i], bits[i] = np.int64(scratch[0, _COUNT]), _float_bits(scratch, 0, head, least)


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
