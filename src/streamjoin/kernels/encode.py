"""Keys as order-preserving int64 words, and the interval of the other side's words that each key can match.

The invariant: for keys l, r of an exact term, the term holds iff lo(l) <= word(r) <= hi(l), and iff
lo(r) <= word(l) <= hi(r). Intervals are inclusive; an empty one has lo > hi.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.kernels.flags import inlined, kernel

Array = np.ndarray[Any, np.dtype[Any]]

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
    empty; below limits[2] it is empty, above limits[3] hi saturates).
    """
    other_min = np.int64(_MIN)
    other_max = np.int64(_MAX)
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


@inlined
def _flip64(bits: Any) -> Any:
    """Between the bits of a float64 and a word of the same order; its own inverse."""
    return bits ^ ((bits >> np.int64(63)) & _MAX)


@inlined
def _flip32(bits: Any) -> Any:
    """Between the bits of a float32 and a word of the same order; its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))


@kernel
def float64_words(values: Array, words: Array, valid: Array) -> None:
    """Fill `words` from float64 `values`; NaN is cleared in `valid`, and -0.0 becomes 0.0."""
    bits = values.view(np.int64)
    for i in range(values.size):
        if values[i] != values[i]:
            valid[i] = False
        words[i] = np.int64(0) if values[i] == 0.0 else _flip64(bits[i])


@kernel
def float32_words(values: Array, words: Array, valid: Array) -> None:
    """Fill `words` from float32 `values`; NaN is cleared in `valid`, and -0.0 becomes 0.0."""
    bits = values.view(np.int32)
    for i in range(values.size):
        if values[i] != values[i]:
            valid[i] = False
        words[i] = np.int64(0) if values[i] == np.float32(0.0) else np.int64(_flip32(bits[i]))


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
    largest = _flip64(np.int64(0x7FEFFFFFFFFFFFFF))
    buffer[0] = value - sign * bound
    w = _flip64(bits[0])
    w = min(max(w, -largest - 1), largest)
    bits[0] = _flip64(w)
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
        bits[0] = _flip64(w)
        if _within(sign * (value - buffer[0]), bound, strict) != passes:
            break
        last = w
        step = min(step * 2, np.int64(2**61))
    good, bad = (last, w) if passes else (w, last)
    while np.uint64(max(good, bad)) - np.uint64(min(good, bad)) > 1:
        middle = (good >> 1) + (bad >> 1) + (good & bad & 1)
        bits[0] = _flip64(middle)
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
        bits[0] = _flip64(words[i])
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
    largest = np.int64(_flip32(np.int32(0x7F7FFFFF)))
    buffer[0] = value - sign * bound
    w = np.int64(_flip32(bits[0]))
    w = min(max(w, -largest - 1), largest)
    bits[0] = _flip32(np.int32(w))
    passes = _within(sign * (value - buffer[0]), bound, strict)
    direction = away if passes else -away
    step = np.int64(1)
    last = w
    while True:
        room = largest - w if direction > 0 else w + largest + 1
        if room <= 0:
            return w if passes else w + direction
        w = w + direction * min(step, room)
        bits[0] = _flip32(np.int32(w))
        if _within(sign * (value - buffer[0]), bound, strict) != passes:
            break
        last = w
        step = step * 2
    good, bad = (last, w) if passes else (w, last)
    while abs(good - bad) > 1:
        middle = (good + bad) >> 1
        bits[0] = _flip32(np.int32(middle))
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
        bits[0] = _flip32(np.int32(words[i]))
        value = buffer[0]
        if value - value != np.float32(0.0):
            lo[i], hi[i] = 1, 0
        else:
            lo[i] = _edge32(value, np.float32(1.0), down, strict, buffer, bits)
            hi[i] = _edge32(value, np.float32(-1.0), up, strict, buffer, bits)


@inlined
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


KEY_BITS = 24


@kernel
def compose(key: Array, word: Array, lo: Array, hi: Array, out_word: Array, out_lo: Array, out_hi: Array) -> None:
    """One word out of a key and a band: 24 bits of the key's hash above the top 40 bits of the band's float word.

    Cutting low bits keeps the order, so the interval only widens: candidates, never misses.
    """
    cut = np.int64(KEY_BITS)
    for i in range(key.size):
        top = np.int64(mix(np.uint64(key[i])) >> np.uint64(64 - KEY_BITS)) << np.int64(64 - KEY_BITS)
        half = np.int64(1) << np.int64(63 - KEY_BITS)
        out_word[i] = top | ((word[i] >> cut) + half)
        if lo[i] > hi[i]:
            out_lo[i], out_hi[i] = 1, 0
        else:
            out_lo[i] = top | ((lo[i] >> cut) + half)
            out_hi[i] = top | ((hi[i] >> cut) + half)
