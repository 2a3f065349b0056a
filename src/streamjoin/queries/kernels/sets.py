"""Query-sets as rows of 64-bit words: computed from tables of values, and distributed to the bits' queries."""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import lowest_bit


@kernel
def and_by_value(sets: Array, values: Array, least: int, table: Array) -> None:
    """Clear the bits that a tuple's value does not have in the table.

    The rows of the table stand for `least` and below, `least` + 1, and so on; the last for all above.
    """
    top = table.shape[0] - 1
    most = least + top
    for i in range(values.size):
        # Held within the table before the difference is taken: that of two int64 may not fit.
        row = min(max(values[i], least), most) - least
        for w in range(sets.shape[1]):
            sets[i, w] &= table[row, w]


@kernel
def places_of(values: Array, least: int, top: int, first: int, out: Array) -> None:
    """The row of each value in a table that begins with row `first`, and has rows for `least` to `least` + `top`."""
    most = least + top
    for i in range(values.size):
        # As above: held within the table before the difference is taken.
        out[i] = first + (min(max(values[i], least), most) - least)


@kernel
def and_by_place(places: Array, table: Array, base: Array, out: Array) -> None:
    """Word by word of a set, those of the rows that each tuple has in a table; `base` is what they have at most."""
    for w in range(base.size):
        for i in range(places.shape[1]):
            out[w, i] = base[w]
        # One table after the other for a word: what is read then is small, and steps do not wait for each other.
        for t in range(places.shape[0]):
            for i in range(places.shape[1]):
                out[w, i] &= table[w, np.uint64(places[t, i])]


@kernel
def unpack(packed: Array, shift: np.uint64, mask: np.uint64, out: Array, word: int) -> None:
    """Write some of the bits of packed words as a word of sets."""
    for i in range(packed.size):
        out[i, word] = (packed[i] >> shift) & mask


@kernel
def and_by_row(sets: Array, rows: Array, table: Array) -> None:
    """Clear the bits that a tuple does not have in its row of the table."""
    for i in range(rows.size):
        for w in range(sets.shape[1]):
            sets[i, w] &= table[rows[i], w]


@kernel
def clear_failing(sets: Array, passing: Array, word: int, bits: np.uint64) -> None:
    """Clear bits of one word where a condition does not hold."""
    kept = ~bits
    for i in range(passing.size):
        if not passing[i]:
            sets[i, word] &= kept


@kernel
def live_entries(words: Array, rows: Array, sets: Array, out_words: Array, out_rows: Array) -> int:
    """Write the entries of an index whose tuples are in some query's set; returns their number."""
    count = 0
    for i in range(rows.size):
        row = rows[i]
        common = np.uint64(0)
        for w in range(sets.shape[1]):
            common |= sets[row, w]
        out_words[count], out_rows[count] = words[i], row
        count += common != np.uint64(0)
    return count


@kernel
def rows_between(rows: Array, first: int, end: int) -> Array:
    """The rows from `first` on and before `end`, in their order."""
    out = np.empty(rows.size + 1, np.int64)
    count = 0
    for row in rows:
        out[count] = row
        # Without a branch: which rows these are can't be predicted.
        count += (first <= row) & (row < end)
    return out[:count]


@kernel
def count_live(sets: Array) -> int:
    """The number of rows with at least one bit."""
    count = 0
    for i in range(sets.shape[0]):
        common = np.uint64(0)
        for w in range(sets.shape[1]):
            common |= sets[i, w]
        count += common != np.uint64(0)
    return count


@kernel
def narrow(sets: Array, mask: Array, out: Array, places: Array) -> int:
    """The rows that have a bit of the mask: their sets with these bits, and their places; returns their number."""
    count = 0
    for i in range(sets.shape[0]):
        common = np.uint64(0)
        for w in range(sets.shape[1]):
            out[count, w] = sets[i, w] & mask[w]
            common |= out[count, w]
        places[count] = i
        count += common != np.uint64(0)
    return count


@kernel
def count_bits(sets: Array, mask: Array) -> int:
    """The total number of bits of the mask in all sets."""
    count = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            left = sets[i, w] & mask[w]
            while left != np.uint64(0):
                left &= left - np.uint64(1)
                count += 1
    return count


@kernel
def add_by_bit(sets: Array, weights: Array, mask: Array, out: Array) -> None:
    """Add to `out`, for each bit of the mask, the weights of the sets that have it."""
    for i in range(sets.shape[0]):
        weight = weights[i]
        if weight == 0:
            continue
        for w in range(sets.shape[1]):
            left = sets[i, w] & mask[w]
            while left != np.uint64(0):
                out[64 * w + lowest_bit(np.int64(left))] += weight  # type: ignore[arg-type]
                left &= left - np.uint64(1)


@kernel
def list_owners(sets: Array, mask: Array, owners: Array, out_owner: Array, out_row: Array) -> None:
    """For each set bit of the mask: the owner of the bit, and the row."""
    at = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            left = sets[i, w] & mask[w]
            while left != np.uint64(0):
                out_owner[at] = owners[64 * w + lowest_bit(np.int64(left))]  # type: ignore[arg-type]
                out_row[at] = i
                at += 1
                left &= left - np.uint64(1)


@kernel
def count_by_owner(sets: Array, mask: Array, owners: Array, out: Array) -> None:
    """Add to `out`, for the owner of each bit of the mask, how many sets have it: bit by bit, for all sets at once."""
    for w in range(sets.shape[1]):
        asked = mask[w]
        while asked != np.uint64(0):
            bit = lowest_bit(np.int64(asked))  # type: ignore[arg-type]
            count = np.uint64(0)
            for i in range(sets.shape[0]):
                count += (sets[i, w] >> np.uint64(bit)) & np.uint64(1)
            out[owners[64 * w + bit]] += np.int64(count)
            asked &= asked - np.uint64(1)


@kernel
def deal(sets: Array, mask: Array, owners: Array, base: int, places: Array, out: Array) -> None:
    """For each set bit of the mask: the row, counted from `base`, to the place of the bit's owner, which moves on."""
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            left = sets[i, w] & mask[w]
            while left != np.uint64(0):
                owner = owners[64 * w + lowest_bit(np.int64(left))]  # type: ignore[arg-type]
                out[places[owner]] = base + i
                places[owner] += 1
                left &= left - np.uint64(1)
