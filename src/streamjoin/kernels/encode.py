"""Keys as order-preserving int64 words, and the interval of the other side's words that each key can match.

The invariant: for keys l, r of an exact term, the term holds iff lo(l) <= word(r) <= hi(l), and iff
lo(r) <= word(l) <= hi(r). Intervals are inclusive; an empty one has lo > hi.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel, melted

_MIN = np.int64(-(2**63))
_MAX = np.int64(2**63 - 1)


@kernel
def integer_intervals(
    words: Array,
    own_flip: Any,
    other_flip: Any,
    multiplier: Any,
    down: Any,
    up: Any,
    limits: Array,
    lo: Array,
    hi: Array,
) -> None:
    """Fill lo and hi with multiplier * value - down and multiplier * value + up, held within the other's domain.

    The arithmetic is modulo 2**64, which is exact wherever the true result is in the domain; `limits` are the
    words of this side beyond which it is not: (below limits[0] lo saturates, above limits[1] the interval is
    empty; below limits[2] it is empty, above limits[3] hi saturates), and the other side's smallest and largest word.
    """
    other_min, other_max = limits[4], limits[5]
    for i in range(words.size):
        w = words[i]
        value = np.uint64(w) ^ own_flip
        scaled = value * multiplier
        low = np.int64((scaled - down) ^ other_flip)
        high = np.int64((scaled + up) ^ other_flip)
        if w < limits[0]:
            low = other_min
        if w > limits[3]:
            high = other_max
        if w > limits[1] or w < limits[2]:
            low = np.int64(1)
            high = np.int64(0)
        lo[i] = low
        hi[i] = high


@kernel
def divided_intervals(
    words: Array, divisor: Any, down: Any, up: Any, unsigned_other: bool, lo: Array, hi: Array
) -> None:
    """Fill lo and hi for a coarser other side: ceil((value - down) / divisor), floor((value + up) / divisor).

    Quotients and remainders are taken apart first, so nothing leaves 64 bits. A negative bound on an unsigned
    other side becomes 0, or an empty interval.
    """
    down_q, down_r = down // divisor, down % divisor
    up_q, up_r = up // divisor, up % divisor
    for i in range(words.size):
        q, r = words[i] // divisor, words[i] % divisor
        low = q - down_q + (1 if r > down_r else 0)
        high = q + up_q + (1 if r + up_r >= divisor else 0)
        if unsigned_other:
            if high < 0:
                low, high = np.int64(1), np.int64(0)
            else:
                low = (low if low > 0 else np.int64(0)) ^ _MIN
                high = high ^ _MIN
        lo[i] = low
        hi[i] = high


@melted
def flip64(bits: Any) -> Any:
    """Between the bits of a float64 and a word of the same order; its own inverse."""
    return bits ^ ((bits >> np.int64(63)) & _MAX)


@melted
def flip32(bits: Any) -> Any:
    """Between the bits of a float32 and a word of the same order; its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@kernel
def float64_words(values: Array, words: Array, valid: Array) -> None:
    """Fill `words` from float64 `values`; NaN is cleared in `valid`, and -0.0 becomes 0.0."""
    bits = values.view(np.int64)
    for i in range(values.size):
        if values[i] != values[i]:
            valid[i] = False
        words[i] = np.int64(0) if values[i] == 0.0 else flip64(bits[i])


@kernel
def float32_words(values: Array, words: Array, valid: Array) -> None:
    """Fill `words` from float32 `values`; NaN is cleared in `valid`, and -0.0 becomes 0.0."""
    bits = values.view(np.int32)
    for i in range(values.size):
        if values[i] != values[i]:
            valid[i] = False
        words[i] = np.int64(0) if values[i] == np.float32(0.0) else np.int64(flip32(bits[i]))


@kernel
def _within(difference: Any, bound: Any, strict: bool) -> Any:
    return difference < bound if strict else difference <= bound


# The two searches below differ only in the width of a float: Numba compiles a scalar bit cast only through a
# view of an array, and the array's type must be fixed.


@kernel
def _edge64(value: Any, sign: Any, bound: Any, strict: bool, buffer: Array, bits: Array) -> Any:
    """The word of the float o farthest from `value` towards -sign for which sign * (value - o) is within bound.

    The rounded difference is monotone in o, so the words that pass are one half-line: gallop from the guess
    value - sign * bound until a passing and a failing word are known, then bisect. Mostly two or three steps.
    """
    away = np.int64(-1) if sign > 0 else np.int64(1)
    largest = flip64(np.int64(0x7FEFFFFFFFFFFFFF))
    buffer[0] = value - sign * bound
    w = flip64(bits[0])
    w = min(max(w, -largest - 1), largest)
    bits[0] = flip64(w)
    passes = _within(sign * (value - buffer[0]), bound, strict)
    direction = away if passes else -away
    step = np.int64(1)
    last = w
    while True:
        # Unsigned: the distance between two words can be larger than an int64.
        room = np.uint64(largest - w) if direction > 0 else np.uint64(w) - np.uint64(-largest - 1)
        if room == 0:
            return w if passes else w + direction
        w = w + direction * np.int64(min(np.uint64(step), room))
        bits[0] = flip64(w)
        if _within(sign * (value - buffer[0]), bound, strict) != passes:
            break
        last = w
        step = min(step * 2, np.int64(2**61))
    good, bad = (last, w) if passes else (w, last)
    while np.uint64(max(good, bad)) - np.uint64(min(good, bad)) > 1:
        middle = (good >> 1) + (bad >> 1) + (good & bad & 1)
        bits[0] = flip64(middle)
        if _within(sign * (value - buffer[0]), bound, strict):
            good = middle
        else:
            bad = middle
    return good


@kernel
def float64_intervals(words: Array, down: Any, up: Any, strict: bool, lo: Array, hi: Array) -> None:
    """Fill lo and hi with the floats o for which value - o is at most `down` and o - value at most `up`.

    Differences are rounded as float64 arithmetic rounds them. An infinite value matches nothing.
    """
    buffer = np.empty(1, np.float64)
    bits = buffer.view(np.int64)
    for i in range(words.size):
        bits[0] = flip64(words[i])
        value = buffer[0]
        if value - value != 0.0:
            lo[i], hi[i] = 1, 0
        else:
            lo[i] = _edge64(value, 1.0, down, strict, buffer, bits)
            hi[i] = _edge64(value, -1.0, up, strict, buffer, bits)


@kernel
def _edge32(value: Any, sign: Any, bound: Any, strict: bool, buffer: Array, bits: Array) -> Any:
    """`_edge64` in float32 arithmetic; the search itself runs on int64 words, which can't overflow."""
    away = np.int64(-1) if sign > 0 else np.int64(1)
    largest = np.int64(flip32(np.int32(0x7F7FFFFF)))
    buffer[0] = value - sign * bound
    w = np.int64(flip32(bits[0]))
    w = min(max(w, -largest - 1), largest)
    bits[0] = flip32(np.int32(w))
    passes = _within(sign * (value - buffer[0]), bound, strict)
    direction = away if passes else -away
    step = np.int64(1)
    last = w
    while True:
        room = largest - w if direction > 0 else w + largest + 1
        if room <= 0:
            return w if passes else w + direction
        w = w + direction * min(step, room)
        bits[0] = flip32(np.int32(w))
        if _within(sign * (value - buffer[0]), bound, strict) != passes:
            break
        last = w
        step = step * 2
    good, bad = (last, w) if passes else (w, last)
    while abs(good - bad) > 1:
        middle = (good + bad) >> 1
        bits[0] = flip32(np.int32(middle))
        if _within(sign * (value - buffer[0]), bound, strict):
            good = middle
        else:
            bad = middle
    return good


@kernel
def float32_intervals(words: Array, down: Any, up: Any, strict: bool, lo: Array, hi: Array) -> None:
    """`float64_intervals` in float32 arithmetic."""
    buffer = np.empty(1, np.float32)
    bits = buffer.view(np.int32)
    for i in range(words.size):
        bits[0] = flip32(np.int32(words[i]))
        value = buffer[0]
        if value - value != np.float32(0.0):
            lo[i], hi[i] = 1, 0
        else:
            lo[i] = _edge32(value, np.float32(1.0), down, strict, buffer, bits)
            hi[i] = _edge32(value, np.float32(-1.0), up, strict, buffer, bits)


@melted
def mix(h: Any) -> Any:
    """Spread every bit of h over the whole word: two rounds of multiply and shift."""
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xA0761D6478BD642F)
    return h ^ (h >> np.uint64(32))


@kernel
def hash_bytes(offsets: Array, data: Array, words: Array) -> None:
    """Fill words[i] with a hash of data[offsets[i]:offsets[i + 1]]: the same in every process."""
    for i in range(words.size):
        begin, end = offsets[i], offsets[i + 1]
        h = np.uint64(end - begin) * np.uint64(0x9E3779B97F4A7C15)
        j = begin
        while j < end:
            chunk = np.uint64(0)
            for k in range(min(8, end - j)):
                chunk |= np.uint64(data[j + k]) << np.uint64(8 * k)
            h = mix(h ^ chunk)
            j += 8
        words[i] = np.int64(h)


_LINEAR = np.uint64(1 << 58)
_REACH = np.uint64(1 << 59)
"""A composed word lies at most this far from its key's, which stay as far from both ends of int64."""


@melted
def _base(key: Any) -> Any:
    """Where the words of a key lie: its hash, pressed into the middle of int64, so that nothing beside it wraps."""
    h = mix(np.uint64(key))
    return np.int64((h - (h >> np.uint64(4)) + _REACH) ^ np.uint64(_MIN))


@melted
def _pressed(n: Any) -> Any:
    """`n` as it is up to 2**58, beyond in steps of 64: never decreasing, below 2**59."""
    return np.int64(n) if n < _LINEAR else np.int64(_LINEAR + ((n - _LINEAR) >> np.uint64(6)))


@melted
def _step_of_integer(word: Any, shift: Any, unsigned: bool) -> Any:
    if unsigned:
        return _pressed((np.uint64(word) ^ np.uint64(_MIN)) >> shift)
    step = word >> np.int64(shift)
    return _pressed(np.uint64(step)) if step >= 0 else ~_pressed(np.uint64(~step))


@melted
def _step_of_float(word: Any, scale: Any, end: Any, buffer: Array, bits: Array) -> Any:
    """The float's multiple of 1/scale; from 2**58 of them on, `end` as a word, steps of 32 floats."""
    bits[0] = flip64(word)
    scaled = buffer[0] * scale
    if -(2.0**58) < scaled < 2.0**58:
        return np.int64(np.floor(scaled))
    magnitude = bits[0] & _MAX
    beyond = np.int64(_LINEAR) + ((magnitude - end) >> np.int64(5))
    return beyond if bits[0] >= 0 else ~beyond


@kernel
def compose_integers(
    key: Array,
    word: Array,
    lo: Array,
    hi: Array,
    own: tuple[Any, bool],
    other: tuple[Any, bool],
    out_word: Array,
    out_lo: Array,
    out_hi: Array,
) -> None:
    """One word out of a key and a band: the key's hash plus the band's word in steps of 2**shift.

    `own` and `other` are the (shift, unsigned) of the words of each side: `word` is of this side, `lo` and `hi` are of
    the other. A step never decreases with the word, so an interval only widens: candidates, never misses.
    """
    for i in range(key.size):
        base = _base(key[i])
        out_word[i] = base + _step_of_integer(word[i], own[0], own[1])
        if lo[i] > hi[i]:
            out_lo[i], out_hi[i] = 1, 0
        else:
            out_lo[i] = base + _step_of_integer(lo[i], other[0], other[1])
            out_hi[i] = base + _step_of_integer(hi[i], other[0], other[1])


@kernel
def compose_floats(
    key: Array,
    word: Array,
    lo: Array,
    hi: Array,
    scale: Any,
    out_word: Array,
    out_lo: Array,
    out_hi: Array,
) -> None:
    """`compose_integers` for words of float64, in steps of 1 / scale; `scale` is a power of two."""
    buffer = np.empty(1, np.float64)
    bits = buffer.view(np.int64)
    buffer[0] = 2.0**58 / scale
    end = bits[0]
    for i in range(key.size):
        base = _base(key[i])
        out_word[i] = base + _step_of_float(word[i], scale, end, buffer, bits)
        if lo[i] > hi[i]:
            out_lo[i], out_hi[i] = 1, 0
        else:
            out_lo[i] = base + _step_of_float(lo[i], scale, end, buffer, bits)
            out_hi[i] = base + _step_of_float(hi[i], scale, end, buffer, bits)


@kernel
def float32_to_float64(words: Array, out: Array) -> None:
    """Words of float32 as the words of the same numbers in float64."""
    single = np.empty(1, np.float32)
    single_bits = single.view(np.int32)
    double = np.empty(1, np.float64)
    double_bits = double.view(np.int64)
    for i in range(words.size):
        single_bits[0] = flip32(np.int32(words[i]))
        double[0] = single[0]
        out[i] = flip64(double_bits[0])
