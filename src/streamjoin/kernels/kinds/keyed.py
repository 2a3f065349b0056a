"""The join of two complete tables by equal keys: keys as small numbers, rows grouped by them, and the pairs.

Keys that can't match have the number NONE. A group's rows ascend, and pairs are found right row by right row: both
tables are read in order, and nothing is sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import inlined, kernel

NONE = -1

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@kernel
def add_differences(words: Array, least: Any, size: int, numbers: Array) -> None:
    """numbers[i] = numbers[i] * size + words[i] - least, or NONE if the difference is not below `size`."""
    # Unsigned: only there a difference may wrap around. `least` is an int64, which wraps as well without a compiler.
    base, room = np.uint64(least), np.uint64(size)
    for i in range(words.size):
        added, number = np.uint64(words[i]) - base, numbers[i]
        numbers[i] = number * size + np.int64(added) if added < room and number != NONE else NONE


@inlined
def hash_of(words: Array, i: int) -> np.uint64:
    """A hash of the words of row i."""
    # Unsigned: only there a product may wrap around.
    hashed = np.uint64(words[i, 0]) * _SPREAD
    hashed ^= hashed >> np.uint64(32)
    for c in range(1, words.shape[1]):
        hashed = (hashed ^ np.uint64(words[i, c])) * _SPREAD
        hashed ^= hashed >> np.uint64(32)
    return hashed


@kernel
def first_rows(known: Array, table: Array, words: Array, adds: bool, out: Array) -> None:
    """out[i]: the first row of `known` that has the words of row i of `words`, NONE if there is none.

    `table` is a hash table of row numbers by open addressing, its size a power of two and more than there are rows;
    with `adds` the rows of `words`, which are those of `known`, are entered.
    """
    mask = np.uint64(table.size - 1)
    width = words.shape[1]
    for i in range(words.shape[0]):
        slot = np.int64(hash_of(words, i) & mask)
        found = np.int64(NONE)
        while True:
            row = np.int64(table[slot])
            if row == NONE:
                if adds:
                    table[slot] = i
                    found = np.int64(i)
                break
            same = known[row, 0] == words[i, 0]
            for c in range(1, width):
                same = same and known[row, c] == words[i, c]
            if same:
                found = row
                break
            slot = np.int64(np.uint64(slot + 1) & mask)
        out[i] = found


@kernel
def have_same_bytes(bounds: Array, data: Array, rows: Array, known_bounds: Array, known_data: Array) -> bool:
    """Whether text i is text rows[i] of the known ones, for all that have such a row."""
    itself = bounds is known_bounds
    for i in range(rows.size):
        row = rows[i]
        if row == NONE or (itself and row == i):
            continue
        begin, known = bounds[i], known_bounds[row]
        n = bounds[i + 1] - begin
        if known_bounds[row + 1] - known != n:
            return False
        # Unsigned: no place is counted from the end.
        one, other, differ = np.uint64(begin), np.uint64(known), np.uint8(0)
        for place in range(np.uint64(n)):
            differ |= data[one + place] ^ known_data[other + place]
        if differ:
            return False
    return True


@kernel
def group(numbers: Array, begins: Array, rows: Array) -> None:
    """The rows with number k become rows[begins[k]:begins[k + 1]], ascending; `begins` has two more than numbers."""
    for number in numbers:
        if number != NONE:
            begins[number + 2] += 1
    for k in range(2, begins.size):
        begins[k] += begins[k - 1]
    for i in range(numbers.size):
        number = numbers[i]
        if number != NONE:
            place = begins[number + 1]
            rows[place] = i
            begins[number + 1] = place + 1


@kernel
def count_pairs(begins: Array, numbers: Array, once: bool, hit: Array) -> int:
    """The number of pairs with right rows of these numbers, and which groups they hit; `once`: a group's first only."""
    n = 0
    for number in numbers:
        if number == NONE or (once and hit[number]):
            continue
        found = begins[number + 1] - begins[number]
        if found:
            hit[number] = True
            n += found
    return n


@kernel
def pair_rows(begins: Array, rows: Array, numbers: Array, once: bool, hit: Array, left: Array, right: Array) -> None:
    """The pairs that `count_pairs` counted, in the order of the right rows; `hit` is all False again."""
    n = 0
    for j in range(numbers.size):
        number = numbers[j]
        if number == NONE or (once and hit[number]):
            continue
        hit[number] = True
        for place in range(begins[number], begins[number + 1]):
            left[n], right[n] = rows[place], j
            n += 1
