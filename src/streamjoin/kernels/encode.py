"""Keys as order-preserving int64 words, and the interval of the other side's words that each key can match.

The invariant: for keys l, r of an exact term, the term holds iff lo(l) <= word(r) <= hi(l), and iff
lo(r) <= word(l) <= hi(r). Intervals are inclusive; an empty one has lo > hi.

Behind the functions for columns stand those that read a pushed batch straight from its memory, both sides in one call.
The tuples of a push are columns of one block of words: the left ones first, then the right ones. A term takes three
rows of the block (word, lo, hi). `VALID` is a row too: 1 where every key can match. Invariant: the words are those that
`windows.encoding` gives for the same values, since stored words come from either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64
from streamjoin.jit.memory import load_8, load_16, load_32, load_64
from streamjoin.kernels.rows import ADDRESS, BIT, DATA, STRIDE, VALIDITY, is_set

_MIN = np.int64(-(2**63))
_MAX = np.int64(2**63 - 1)
_MAX_32 = np.int64(2**31 - 1)
# The bits, and so the words, of the largest finite floats.
_LARGEST_64 = np.int64(0x7FEFFFFFFFFFFFFF)
_LARGEST_32 = np.int64(0x7F7FFFFF)
_BYTE, _SHORT, _INT = 0xFF, 0xFFFF, 0xFFFFFFFF


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


@inlined
def flip64(bits: Any) -> Any:
    """Between the bits of a float64 and a word of the same order; its own inverse."""
    return bits ^ ((bits >> np.int64(63)) & _MAX)


@inlined
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


@inlined
def _flip(bits: Any, mask: Any) -> Any:
    """`flip64` or `flip32` of a number of 64 bits, by the mask of all bits but the sign."""
    return bits ^ ((bits >> np.int64(63)) & mask)


@kernel
def _edge(value: Any, sign: Any, bound: Any, strict: bool, buffer: Array, bits: Array, mask: Any, largest: Any) -> Any:
    """The word of the float o farthest from `value` towards -sign for which sign * (value - o) is within bound.

    The rounded difference is monotone in o, so the words that pass are one half-line: gallop from the guess
    value - sign * bound until a passing and a failing word are known, then bisect. Mostly two or three steps.
    `bits` is a view of `buffer`, which holds one float: Numba compiles a scalar bit cast only through an array.
    """
    away = np.int64(-1) if sign > 0 else np.int64(1)
    buffer[0] = value - sign * bound
    w = _flip(np.int64(bits[0]), mask)
    w = min(max(w, -largest - 1), largest)
    bits[0] = _flip(w, mask)
    passes = _within(sign * (value - buffer[0]), bound, strict)
    direction = away if passes else -away
    step = np.int64(1)
    last = w
    while True:
        # Unsigned: the distance between two words can be larger than an int64.
        room = np.uint64(largest) - np.uint64(w) if direction > 0 else np.uint64(w) - np.uint64(-largest - 1)
        if room == 0:
            return w if passes else w + direction
        w = w + direction * np.int64(min(np.uint64(step), room))
        bits[0] = _flip(w, mask)
        if _within(sign * (value - buffer[0]), bound, strict) != passes:
            break
        last = w
        step = min(step * 2, np.int64(2**61))
    good, bad = (last, w) if passes else (w, last)
    while np.uint64(max(good, bad)) - np.uint64(min(good, bad)) > 1:
        middle = (good >> 1) + (bad >> 1) + (good & bad & 1)
        bits[0] = _flip(middle, mask)
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
            lo[i] = _edge(value, 1.0, down, strict, buffer, bits, _MAX, _LARGEST_64)
            hi[i] = _edge(value, -1.0, up, strict, buffer, bits, _MAX, _LARGEST_64)


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
            lo[i] = _edge(value, np.float32(1.0), down, strict, buffer, bits, _MAX_32, _LARGEST_32)
            hi[i] = _edge(value, np.float32(-1.0), up, strict, buffer, bits, _MAX_32, _LARGEST_32)


@inlined
def mix(h: Any) -> Any:
    """Spread every bit of h over the whole word: two rounds of multiply and shift."""
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xA0761D6478BD642F)
    return h ^ (h >> np.uint64(32))


@kernel
def hash_bytes(offsets: Array, data: Array, words: Array) -> None:
    """Fill words[i] with a hash of data[offsets[i]:offsets[i + 1]]: the same in every process."""
    address = data.ctypes.data
    for i in range(words.size):
        words[i] = _hash_at(address + offsets[i], offsets[i + 1] - offsets[i])


@kernel
def _hash_at(address: int, size: int) -> Any:
    """`hash_bytes` of the bytes at an address."""
    h = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
    at = 0
    while at + 8 <= size:
        h = mix(h ^ np.uint64(load_64(address + at)))
        at += 8
    if at < size:
        chunk = np.uint64(0)
        for k in range(size - at):
            chunk |= np.uint64(load_8(address + at + k) & _BYTE) << np.uint64(8 * k)
        h = mix(h ^ chunk)
    return np.int64(h)


_LINEAR = np.uint64(1 << 58)
_REACH = np.uint64(1 << 59)
"""A composed word lies at most this far from its key's, which stay as far from both ends of int64."""


@inlined
def _base(key: Any) -> Any:
    """Where the words of a key lie: its hash, pressed into the middle of int64, so that nothing beside it wraps."""
    h = mix(np.uint64(key))
    return np.int64((h - (h >> np.uint64(4)) + _REACH) ^ np.uint64(_MIN))


@inlined
def _pressed(n: Any) -> Any:
    """`n` as it is up to 2**58, beyond in steps of 64: never decreasing, below 2**59."""
    return np.int64(n) if n < _LINEAR else np.int64(_LINEAR + ((n - _LINEAR) >> np.uint64(6)))


@inlined
def _step_of_integer(word: Any, shift: Any, unsigned: bool) -> Any:
    if unsigned:
        return _pressed((np.uint64(word) ^ np.uint64(_MIN)) >> shift)
    step = word >> np.int64(shift)
    return _pressed(np.uint64(step)) if step >= 0 else ~_pressed(np.uint64(~step))


@inlined
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


# Numbers that describe one side's column of a term; a float distance is given by its bits.
TERM_FIELDS = 16
(
    INPUT,  # the batch's column
    VALUE_WIDTH,  # bytes of a value, or of an offset
    SIGNED,
    OWN_FLIP,
    OTHER_FLIP,
    MULTIPLIER,
    DIVISOR,
    DOWN,
    UP,
    STRICT,  # for floats
    LIMITS,  # six numbers: see `integer_intervals`
) = range(11)


@kernel
def _load(address: int, width: int, signed: int) -> int:
    if width == 8:
        return load_64(address)
    if width == 4:
        return load_32(address) if signed else load_32(address) & _INT
    if width == 2:
        return load_16(address) if signed else load_16(address) & _SHORT
    return load_8(address) if signed else load_8(address) & _BYTE


@kernel
def mark_valid(columns: Array, column: int, valid: I64, first: bool) -> int:
    """Clear valid[i] where a key is NULL; `first` sets all others. Returns how many are NULL."""
    validity, bit = columns[column, VALIDITY], columns[column, BIT]
    if first:
        for i in range(valid.size):
            valid[i] = 1
    nulls = 0
    if validity != 0:
        for i in range(valid.size):
            if is_set(validity, bit + i) == 0:
                valid[i] = 0
                nulls += 1
    return nulls


@kernel
def encode_integers(
    inputs: Array, terms: Array, block: Array, row: int, valid_row: int, n_left: int, first: bool
) -> int:
    """Fill the rows of a term over integers or times; returns how many keys are NULL."""
    nulls = 0
    for side in range(2):
        begin, end = (n_left, block.shape[1]) if side else (0, n_left)
        columns, term = inputs[side], terms[side]
        nulls += mark_valid(columns, term[INPUT], block[valid_row][begin:end], first)
        word, lo, hi = block[row][begin:end], block[row + 1][begin:end], block[row + 2][begin:end]
        source, stride = columns[term[INPUT], ADDRESS], columns[term[INPUT], STRIDE]
        for i in range(word.size):
            word[i] = _load(source + i * stride, term[VALUE_WIDTH], term[SIGNED]) ^ term[OWN_FLIP]
        if term[DIVISOR] > 1:
            divided_intervals(word, term[DIVISOR], term[DOWN], term[UP], term[OTHER_FLIP] != 0, lo, hi)
        else:
            integer_intervals(
                word, np.uint64(term[OWN_FLIP]), np.uint64(term[OTHER_FLIP]), np.uint64(term[MULTIPLIER]),
                np.uint64(term[DOWN]), np.uint64(term[UP]), term[LIMITS : LIMITS + 6], lo, hi,
            )  # fmt: skip
    return nulls


@kernel
def encode_floats(
    inputs: Array, terms: Array, block: Array, row: int, valid_row: int, n_left: int, first: bool, equality: bool
) -> int:
    """Fill the rows of a term over float64, or over float32 where the width is 4; returns how many can't match."""
    out = 0
    for side in range(2):
        begin, end = (n_left, block.shape[1]) if side else (0, n_left)
        columns, term = inputs[side], terms[side]
        valid = block[valid_row][begin:end]
        out += mark_valid(columns, term[INPUT], valid, first)
        word, lo, hi = block[row][begin:end], block[row + 1][begin:end], block[row + 2][begin:end]
        source, stride = columns[term[INPUT], ADDRESS], columns[term[INPUT], STRIDE]
        double = term[VALUE_WIDTH] == 8
        for i in range(word.size):
            bits = load_64(source + i * stride) if double else load_32(source + i * stride)
            magnitude = bits & np.int64(0x7FFFFFFFFFFFFFFF) if double else bits & np.int64(0x7FFFFFFF)
            infinity = np.int64(0x7FF0000000000000) if double else np.int64(0x7F800000)
            if magnitude > infinity:
                valid[i] = 0
                out += 1
            if magnitude == 0:
                word[i] = 0
            else:
                word[i] = flip64(bits) if double else np.int64(flip32(np.int32(bits)))
        distances = term[DOWN : UP + 1].view(np.float64)
        if equality:
            for i in range(word.size):
                lo[i] = word[i]
                hi[i] = word[i]
        elif double:
            float64_intervals(word, distances[0], distances[1], term[STRICT] != 0, lo, hi)
        else:
            float32_intervals(word, np.float32(distances[0]), np.float32(distances[1]), term[STRICT] != 0, lo, hi)
    return out


@kernel
def encode_bytes(inputs: Array, terms: Array, block: Array, row: int, valid_row: int, n_left: int, first: bool) -> int:
    """Fill the rows of a term over strings or binaries with their hashes; returns how many keys are NULL."""
    nulls = 0
    for side in range(2):
        begin, end = (n_left, block.shape[1]) if side else (0, n_left)
        columns, term = inputs[side], terms[side]
        valid = block[valid_row][begin:end]
        nulls += mark_valid(columns, term[INPUT], valid, first)
        offsets, data, width = columns[term[INPUT], ADDRESS], columns[term[INPUT], DATA], term[VALUE_WIDTH]
        for i in range(valid.size):
            low = _load(offsets + i * width, width, 1)
            h = _hash_at(data + low, _load(offsets + (i + 1) * width, width, 1) - low)
            block[row, begin + i] = h
            block[row + 1, begin + i] = h
            block[row + 2, begin + i] = h
    return nulls


# Numbers that describe how one side's key and band make one word.
COMPOSED_FIELDS = 7
KEY_FLIP, KEY_MULTIPLIER, OWN_SHIFT, OWN_UNSIGNED, OTHER_SHIFT, OTHER_UNSIGNED, SCALE = range(COMPOSED_FIELDS)


@kernel
def compose_rows(plans: Array, block: Array, key: int, band: int, row: int, n_left: int, floats: bool) -> None:
    """Fill the rows of composed words from those of the key's term and of the band's."""
    for side in range(2):
        begin, end = (n_left, block.shape[1]) if side else (0, n_left)
        plan = plans[side]
        out, out_lo, out_hi = block[row][begin:end], block[row + 1][begin:end], block[row + 2][begin:end]
        word, lo, hi = block[band][begin:end], block[band + 1][begin:end], block[band + 2][begin:end]
        for i in range(out.size):
            # Equal values give equal bits, whatever the unit and sign of their columns.
            canonical = np.uint64(block[key, begin + i] ^ plan[KEY_FLIP]) * np.uint64(plan[KEY_MULTIPLIER])
            out[i] = np.int64(canonical)
        if floats:
            scale = plan[SCALE : SCALE + 1].view(np.float64)[0]
            compose_floats(out, word, lo, hi, scale, out, out_lo, out_hi)
        else:
            own = (np.uint64(plan[OWN_SHIFT]), plan[OWN_UNSIGNED] != 0)
            other = (np.uint64(plan[OTHER_SHIFT]), plan[OTHER_UNSIGNED] != 0)
            compose_integers(out, word, lo, hi, own, other, out, out_lo, out_hi)
