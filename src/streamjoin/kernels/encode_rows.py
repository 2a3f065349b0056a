"""Words of a pushed batch straight from its memory: `kernels.encode` for both sides of a push in one call.

The tuples of a push are columns of one block of words: the left ones first, then the right ones. A term takes three
rows of the block (word, lo, hi). `VALID` is a row too: 1 where every key can match. Invariant: the words are
those that `windows.encoding` gives for the same values, since stored words come from either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.encode import (
    compose_floats,
    compose_integers,
    divided_intervals,
    flip32,
    flip64,
    float32_intervals,
    float64_intervals,
    integer_intervals,
    mix,
)
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64
from streamjoin.kernels.memory import load_8, load_16, load_32, load_64
from streamjoin.kernels.rows import ADDRESS, BIT, DATA, STRIDE, VALIDITY, is_set

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

_BYTE, _SHORT, _INT = 0xFF, 0xFFFF, 0xFFFFFFFF


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
