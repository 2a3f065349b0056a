"""Sums without rounding: rows of 64-bit words that add up to the same bits in any order and any grouping.

A row is the sum of some values of one column: how many they are, for floats with NaN or infinities among them how many
of each of these, and then the sum as one fixed-point number in two's complement, the least word first. All rows of a
column have one `Layout`: its least word counts multiples of 2**(64 * first). A float64 spans at most two words, so
prices and quantities need two, and a column with the smallest and the largest floats 34.

Rows are added, merged and subtracted word by word, so partial sums of groups are exact, and the sum of a window that
slides is what has come in less what has gone out. Only `round_floats` rounds, once, to the nearest float64 with ties to
even.
Invariant: no sum of up to 2**40 values leaves its row, because a layout has that many values' room above the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import prefetch

_ROOM_BITS: Final = 41
NEAR_BYTES: Final = 1 << 18
AHEAD: Final = 16
"""How many steps ahead of windows that slide a row is fetched from a table of more bytes than these."""
# The places of the counts of a row.
_COUNT, _NANS, _PLUS, _MINUS = 0, 1, 2, 3
# A row is an array and a place: a view of it would count its users, which costs more than adding to it.
_U0, _U1, _U2, _U63 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(63)
_U11, _U52, _U64 = np.uint64(11), np.uint64(52), np.uint64(64)
_LOWEST = np.uint64((1 << 11) - 1)
_WORD: Final = 2.0**64
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_INFINITE = np.uint64(0x7FF)
_NOT_A_NUMBER, _MINUS_INFINITY = np.uint64(0x7FF8 << 48), np.uint64(0xFFF0 << 48)
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
    # In two steps, as no word can be shifted by 64.
    return whole << shift, (whole >> _U1) >> (_U63 - shift), bit >> 6, bits >> _U63 != _U0


@inlined
def _add_float(rows: Array, i: Any, bits: Any, head: Any, first: Any, away: bool) -> None:
    """Add a float64, given by its bits, to a row, or take it away."""
    one = _U0 - _U1 if away else _U1
    rows[i, _COUNT] += one
    if (bits >> _U52) & _INFINITE == _INFINITE:
        place = _NANS if bits & _FRACTION != _U0 else _MINUS if bits >> _U63 != _U0 else _PLUS
        rows[i, place] += one
        return
    low, high, word, negative = _fixed(bits, first)
    if low != _U0 or high != _U0:
        _add_at(rows, i, head + word, low, high, negative != away)


@inlined
def _copy(rows: Array, i: Any, out: Array, j: Any) -> None:
    """Copy a row."""
    for place in range(out.shape[1]):
        out[j, place] = rows[i, place]


@inlined
def _slide(
    table: Array, row: Any, low: Any, high: Any, negative: Any, present: Any, enters: Any, leaves: Any, out: Array,
    j: Any,
) -> None:  # fmt: skip
    """A step of a sum of two words; what it is then goes to `out`. Nothing branches."""
    enters, leaves = enters & present, leaves & present
    used = enters | leaves
    negative = (negative ^ leaves) & used
    # Less a number is its complement and one more.
    turned, kept = _U0 - negative, _U0 - used
    count, old = table[row, _U0] + enters - leaves, table[row, _U1]
    new = old + ((low ^ turned) & kept)
    carry = np.uint64(new < old)
    total = new + negative
    upper = table[row, _U2] + ((high ^ turned) & kept) + carry + np.uint64(total < new)
    table[row, _U0], table[row, _U1], table[row, _U2] = count, total, upper
    out[j, _U0], out[j, _U1], out[j, _U2] = count, total, upper


@kernel
def slide_floats(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, values: Array, present: Array, table: Array,
    head: int, first: int, out: Array,
) -> None:  # fmt: skip
    """The sums of windows that slide (`kernels.kinds.summary`), as rows of the layout: a float64 enters or leaves.

    `values` and `present` have one row more than there are tuples, `out` one more than there are left tuples.
    """
    bits, hi, lo, j = values.view(np.uint64), np.uint64(entered), np.uint64(left), np.uint64(asked)
    # Most columns are numbers of two words.
    short = head == 1 and table.shape[1] == 3
    far, words = table.nbytes > NEAR_BYTES, table.reshape(-1)
    for step in range(n):
        i = np.uint64(step)
        if far:
            prefetch(words, np.int64(rows[min(step + AHEAD, n - 1)]) * table.shape[1])
        row, kind = np.uint64(rows[i]), np.uint64(kinds[i])
        enters, leaves = kind & _U1, kind >> _U1
        if short:
            place = hi if enters != _U0 else lo
            low, high, word, negative = _fixed(bits[place], first)
            if word != 0:
                low, high = _U0, low
            _slide(table, row, low, high, np.uint64(negative), np.uint64(present[place]), enters, leaves, out, j)
        elif kind == _U0:
            _copy(table, row, out, j)
        else:
            place = hi if enters != _U0 else lo
            if present[place]:
                _add_float(table, row, bits[place], head, first, leaves != _U0)
        hi, lo, j = hi + enters, lo + leaves, j + (_U1 - enters - leaves)


@kernel
def add_floats(values: Array, present: Array, into: Array, rows: Array, head: int, first: int) -> None:
    """Add each value that is present to the row at `into`."""
    bits = values.view(np.uint64)
    for i in range(values.size):
        if present[i]:
            _add_float(rows, into[i], bits[i], head, first, False)


@inlined
def _add_whole(rows: Array, i: Any, words: Array, j: Any, away: bool) -> None:
    """Add a whole number, in words with its sign in the top one, to a row, or take it away."""
    rows[i, _COUNT] += _U0 - _U1 if away else _U1
    n = words.shape[1]
    # Less a number is its complement and one more.
    turned = _U0 - _U1 if away else _U0
    carry, sign = turned & _U1, (_U0 - (words[j, n - 1] >> _U63)) ^ turned
    for place in range(1, rows.shape[1]):
        old = rows[i, place]
        own = words[j, place - 1] ^ turned if place <= n else sign
        new = old + own
        further = new < old
        new = new + carry
        carry = _U1 if further or (carry != _U0 and new == _U0) else _U0
        rows[i, place] = new


@kernel
def slide_wholes(
    rows: Array, kinds: Array, n: int, entered: int, left: int, asked: int, values: Array, present: Array, table: Array,
    out: Array,
) -> None:  # fmt: skip
    """`slide_floats` for whole numbers, which are rows of words."""
    hi, lo, j = np.uint64(entered), np.uint64(left), np.uint64(asked)
    short = values.shape[1] == 1 and table.shape[1] == 3
    far, words = table.nbytes > NEAR_BYTES, table.reshape(-1)
    for step in range(n):
        i = np.uint64(step)
        if far:
            prefetch(words, np.int64(rows[min(step + AHEAD, n - 1)]) * table.shape[1])
        row, kind = np.uint64(rows[i]), np.uint64(kinds[i])
        enters, leaves = kind & _U1, kind >> _U1
        place = hi if enters != _U0 else lo
        if short:
            low = values[place, _U0]
            _slide(table, row, low, _U0 - (low >> _U63), _U0, np.uint64(present[place]), enters, leaves, out, j)
        elif kind == _U0:
            _copy(table, row, out, j)
        elif present[place]:
            _add_whole(table, row, values, place, leaves != _U0)
        hi, lo, j = hi + enters, lo + leaves, j + (_U1 - enters - leaves)


@kernel
def add_wholes(values: Array, present: Array, into: Array, rows: Array) -> None:
    """`add_floats` for whole numbers, which are rows of words."""
    for i in range(values.shape[0]):
        if present[i]:
            _add_whole(rows, into[i], values, i, False)


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
    """out[i] becomes row until[i] less row since[i]."""
    for i in range(until.size):
        _copy(rows, until[i], out, i)
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
def round_floats(rows: Array, head: int, first: int, out: Array) -> None:
    """The sums as the nearest float64; NaN and infinities as IEEE adds them. The rows are used up."""
    bits = out.view(np.uint64)
    if head == 1 and rows.shape[1] == 3 and -15 <= first <= 13:
        unit = math.ldexp(1.0, 64 * first)
        for i in range(out.size):
            out[i] = _nearest(rows[i, 1], rows[i, 2], unit)
        return
    for i in range(out.size):
        bits[i] = _float_bits(rows, i, head, first)


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
