"""Rows by address: from the memory of a pushed batch into the stored columns, and from there into the result.

A batch is a table of its columns (`INPUT_FIELDS` numbers for each): where the first value is, how far apart values
are, the bitmap of those that are not NULL or 0, the first one's bit in it, and the bytes of variable-width values. The
stored columns of a side have such a table too (`SideStore.layout`): the address of row 0, the distance of rows, the
width of a value, and the address of its validity bytes or 0; a width of 0 is a column that stays in Arrow arrays.
Kernels therefore have one version for all column types.

At the end stand the steps of a push of both sides as single calls (`joins.engine.push_plan`).
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.jit.memory import (
    call_at,
    load_8,
    load_16,
    load_32,
    load_64,
    prefetch_at,
    store_8,
    store_16,
    store_32,
    store_64,
)
from streamjoin.kernels.positions import END, place_tuples

INPUT_FIELDS = 5
ADDRESS, STRIDE, VALIDITY, BIT, DATA = range(INPUT_FIELDS)
# Fields of a stored column, after ADDRESS and STRIDE.
WIDTH, VALID = 2, 3

NO_COLUMN = -1
LINE = 64

# The fields of Arrow's C structure of an array, in bytes from its beginning.
_LENGTH, _NULL_COUNT, _OFFSET, _N_BUFFERS, _BUFFERS, _CHILDREN, RELEASE = 0, 8, 16, 24, 40, 48, 64
STRUCT_WORDS = 10

# Where the values of a result column come from: a side, or the later one of both sides' times.
LEFT, RIGHT, LATER = 0, 1, 2
OUTPUT_FIELDS = 4
SOURCE, COLUMN, OTHER, OUT_WIDTH = range(OUTPUT_FIELDS)


@kernel
def read_batch(struct: int, widths: I64, columns: Array) -> int:
    """Fill the table of a batch's columns from Arrow's C structure at address `struct`, and release the structure.

    The addresses are valid as long as the batch is alive. Returns the number of rows.
    """
    children = load_64(struct + _CHILDREN)
    first = load_64(struct + _OFFSET)
    for j in range(widths.size):
        child = load_64(children + 8 * j)
        at = load_64(child + _OFFSET) + first
        n_buffers = load_64(child + _N_BUFFERS)
        buffers = load_64(child + _BUFFERS)
        columns[j, ADDRESS] = load_64(buffers + 8) + at * widths[j] if n_buffers > 1 else 0
        columns[j, STRIDE] = widths[j]
        # An unknown number of NULLs is -1.
        has_nulls = n_buffers > 0 and load_64(child + _NULL_COUNT) != 0
        columns[j, VALIDITY] = load_64(buffers) if has_nulls else 0
        columns[j, BIT] = at
        columns[j, DATA] = load_64(buffers + 16) if n_buffers > 2 else 0
    n = load_64(struct + _LENGTH)
    call_at(load_64(struct + RELEASE), struct)
    return n


@kernel
def is_set(bitmap: int, bit: int) -> int:
    """The bit of an Arrow bitmap, as 0 or 1."""
    return (load_8(bitmap + (bit >> 3)) >> (bit & 7)) & 1


@kernel
def copy_values(source: int, stride: int, target: int, step: int, width: int, n: int) -> None:
    """Copy `n` values of `width` bytes from every `stride` to every `step` bytes."""
    if width == 8:
        for i in range(n):
            store_64(target + i * step, load_64(source + i * stride))
    elif width == 4:
        for i in range(n):
            store_32(target + i * step, load_32(source + i * stride))
    elif width == 2:
        for i in range(n):
            store_16(target + i * step, load_16(source + i * stride))
    else:
        for i in range(n):
            store_8(target + i * step, load_8(source + i * stride))


@kernel
def store_rows(
    columns: Array, n_columns: int, words: Array, begin: int, n: int, rows: I64, layout: Array, end: int
) -> int:
    """Write `n` rows of a batch's first columns to the places from `end` on, and their words from `begin` on.

    `rows` are the rows of `words` that are stored, in the order of the layout. Returns NO_COLUMN, or the number of a
    stored column that has no validity bytes and would get a NULL.
    """
    for j in range(n_columns):
        width = layout[j, WIDTH]
        if width == 0:
            continue
        validity, bit, valid = columns[j, VALIDITY], columns[j, BIT], layout[j, VALID]
        if valid != 0:
            for i in range(n):
                store_8(valid + end + i, is_set(validity, bit + i) if validity != 0 else 1)
        elif validity != 0:
            for i in range(n):
                if is_set(validity, bit + i) == 0:
                    return j
        step = layout[j, STRIDE]
        copy_values(columns[j, ADDRESS], columns[j, STRIDE], layout[j, ADDRESS] + end * step, step, width, n)
    for k in range(rows.size):
        target = layout[n_columns + k, ADDRESS] + 8 * end
        for i in range(n):
            store_64(target + 8 * i, words[rows[k], begin + i])
    return NO_COLUMN


@kernel
def _gather_values(layout: Array, column: int, places: I64, target: int) -> None:
    source, stride, width = layout[column, ADDRESS], layout[column, STRIDE], layout[column, WIDTH]
    if width == 8:
        for i in range(places.size):
            store_64(target + 8 * i, load_64(source + places[i] * stride))
    elif width == 4:
        for i in range(places.size):
            store_32(target + 4 * i, load_32(source + places[i] * stride))
    elif width == 2:
        for i in range(places.size):
            store_16(target + 2 * i, load_16(source + places[i] * stride))
    else:
        for i in range(places.size):
            store_8(target + i, load_8(source + places[i] * stride))


@kernel
def _gather_validity(valid: int, places: I64, target: int) -> int:
    """Fill the bitmap at `target`; returns how many values are NULL."""
    bits, nulls = 0, 0
    for i in range(places.size):
        bit = load_8(valid + places[i])
        nulls += 1 - bit
        bits |= bit << (i & 7)
        if i & 7 == 7:
            store_8(target + (i >> 3), bits)
            bits = 0
    if places.size & 7:
        store_8(target + (places.size >> 3), bits)
    return nulls


@kernel
def _gather_later(left: Array, right: Array, plan: I64, places: Array, target: int) -> None:
    """Fill a column with the later one of two times of the same type and of 4 or 8 bytes."""
    a, step_a = left[plan[COLUMN], ADDRESS], left[plan[COLUMN], STRIDE]
    b, step_b = right[plan[OTHER], ADDRESS], right[plan[OTHER], STRIDE]
    if plan[OUT_WIDTH] == 8:
        for i in range(places.shape[1]):
            store_64(target + 8 * i, max(load_64(a + places[0, i] * step_a), load_64(b + places[1, i] * step_b)))
    else:
        for i in range(places.shape[1]):
            store_32(target + 4 * i, max(load_32(a + places[0, i] * step_a), load_32(b + places[1, i] * step_b)))


# Rows gathered at a time; a multiple of 8, so that bitmaps are written in whole bytes.
_PART = 2048

# Where the numbers of a message are: see `joins.engine.result_rows`.
_ROWS, _BODY_SIZE, _COUNTS, _BUFFERS_OF = 0, 1, 2, 3


@kernel
def _lay_out(left: Array, right: Array, plan: Array, n: int, buffers: int, begins: Array) -> int:
    """Write where each column's bitmap and values are to the message, and to `begins`; returns the body's size."""
    at = 0
    for k in range(plan.shape[0]):
        source, column, width = plan[k, SOURCE], plan[k, COLUMN], plan[k, OUT_WIDTH]
        begins[0, k] = at
        store_64(buffers + 32 * k + 16, at)
        store_64(buffers + 32 * k + 24, width * n)
        at += (width * n + LINE - 1) // LINE * LINE
        begins[1, k] = at
        store_64(buffers + 32 * k, at)
        layout = right if source == RIGHT else left
        has_bitmap = source != LATER and layout[column, VALID] != 0
        # A column without NULLs has a bitmap of no bytes.
        store_64(buffers + 32 * k + 8, (n + 7) // 8 if has_bitmap else 0)
        if has_bitmap:
            at += ((n + 7) // 8 + LINE - 1) // LINE * LINE
    return at


@kernel
def gather_pairs(
    left: Array,
    right: Array,
    probes: I64,
    seqs: I64,
    rights: I64,
    own_seq: I64,
    shift: I64,
    plan: Array,
    header: I64,
    marks: I64,
    message: int,
) -> None:
    """Write the result columns of pairs (probe, seq) as an Arrow message to address `message`.

    `left` and `right` are the sides' layouts, rights[p] is odd where tuple p is the right side's, and shift[s] leads
    from a position of side s to its place. A column's values begin at a multiple of `LINE` bytes, and its bitmap, where
    it has validity bytes, follows them likewise.
    """
    n, n_columns = probes.size, plan.shape[0]
    for i in range(header.size):
        store_64(message + 8 * i, header[i])
    body = message + 8 * header.size
    buffers = message + 8 * marks[_BUFFERS_OF]
    begins = np.empty((2, n_columns), np.int64)
    size = _lay_out(left, right, plan, n, buffers, begins)
    nulls = np.zeros(n_columns, np.int64)
    room = np.empty((2, min(n, _PART)), np.int64)
    # In parts that fit the second-level cache: every column of a row is read while its cache line is there.
    for first in range(0, n, _PART):
        count = min(_PART, n - first)
        places = room[:, :count]
        for i in range(count):
            p = probes[first + i]
            side = rights[p] & 1
            other = seqs[first + i] + shift[1 - side]
            places[side, i] = own_seq[p] + shift[side]
            places[1 - side, i] = other
            # Stored rows are anywhere in the window; the probes' own have just been written.
            layout = left if side else right
            prefetch_at(layout[0, ADDRESS] + other * layout[0, STRIDE])
        for k in range(n_columns):
            target = body + begins[0, k] + plan[k, OUT_WIDTH] * first
            source, column = plan[k, SOURCE], plan[k, COLUMN]
            if source == LATER:
                _gather_later(left, right, plan[k], places, target)
                continue
            layout = right if source == RIGHT else left
            _gather_values(layout, column, places[source], target)
            if layout[column, VALID] != 0:
                bitmap = body + begins[1, k] + (first >> 3)
                nulls[k] += _gather_validity(layout[column, VALID], places[source], bitmap)
    counts = message + 8 * marks[_COUNTS]
    for k in range(n_columns):
        store_64(counts + 16 * k, n)
        store_64(counts + 16 * k + 8, nulls[k])
    store_64(message + 8 * marks[_ROWS], n)
    store_64(message + 8 * marks[_BODY_SIZE], size)


@kernel
def read_batches(left: int, right: int, left_widths: I64, right_widths: I64, inputs: Array) -> None:
    """Fill the tables of both sides' columns from the C structures at two addresses; one that is released is none."""
    if load_64(left + RELEASE) != 0:
        read_batch(left, left_widths, inputs[0])
    if load_64(right + RELEASE) != 0:
        read_batch(right, right_widths, inputs[1])


@kernel
def store_sides(
    inputs: Array, words: Array, stored_rows: I64, left_layout: Array, right_layout: Array, sides: Array, n_left: int
) -> int:
    """Write the rows of both sides behind the stored ones.

    Returns NO_COLUMN, or the number of a column that would get its first NULL, doubled, plus 1 for the right side.
    """
    n_right, n_stored = words.shape[1] - n_left, stored_rows.size
    n_columns = left_layout.shape[0] - n_stored
    column = store_rows(inputs[0], n_columns, words, 0, n_left, stored_rows, left_layout, sides[0, END])
    if column != NO_COLUMN:
        return 2 * column
    n_columns = right_layout.shape[0] - n_stored
    column = store_rows(inputs[1], n_columns, words, n_left, n_right, stored_rows, right_layout, sides[1, END])
    return NO_COLUMN if column == NO_COLUMN else 2 * column + 1


@kernel
def take_rows(
    inputs: Array,
    words: Array,
    stored_rows: I64,
    left_layout: Array,
    right_layout: Array,
    sides: Array,
    n_left: int,
    index_row: int,
) -> int:
    """`store_sides` and `place_tuples` for tuples without times, the left ones first."""
    column = store_sides(inputs, words, stored_rows, left_layout, right_layout, sides, n_left)
    if column == NO_COLUMN:
        none = np.empty(0, np.int64)
        place_tuples(words, np.empty(0, np.bool_), sides, n_left, index_row, none, none)
    return column
