"""The steps of a push of both sides, left before right, as single calls: see `joins.engine.direct_push`."""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64
from streamjoin.kernels.memory import load_64
from streamjoin.kernels.positions import FIRST, LEAST, place_tuples
from streamjoin.kernels.rows import NO_COLUMN, RELEASE, read_batch, store_rows


@kernel
def read_batches(left: int, right: int, left_widths: I64, right_widths: I64, inputs: Array) -> None:
    """Fill the tables of both sides' columns from the C structures at two addresses; one that is released is none."""
    if load_64(left + RELEASE) != 0:
        read_batch(left, left_widths, inputs[0])
    if load_64(right + RELEASE) != 0:
        read_batch(right, right_widths, inputs[1])


@kernel
def take_rows(
    inputs: Array,
    words: Array,
    stored_rows: I64,
    left_layout: Array,
    right_layout: Array,
    left_end: int,
    right_end: int,
    left_first: int,
    right_first: int,
    left_least: int,
    right_least: int,
    sides: Array,
    n_left: int,
    index_row: int,
    left_columns: int,
    right_columns: int,
) -> int:
    """Write the rows of both sides behind the stored ones, and fill the rows of a block that say what tuples do.

    Returns NO_COLUMN, or a column that would get its first NULL: then the push needs another way.
    """
    n_right = words.shape[1] - n_left
    column = store_rows(inputs[0], left_columns, words, 0, n_left, stored_rows, left_layout, left_end)
    if column == NO_COLUMN:
        column = store_rows(inputs[1], right_columns, words, n_left, n_right, stored_rows, right_layout, right_end)
    if column == NO_COLUMN:
        sides[0, FIRST], sides[1, FIRST] = left_first, right_first
        sides[0, LEAST], sides[1, LEAST] = left_least, right_least
        none = np.empty(0, np.int64)
        place_tuples(words, np.empty(0, np.bool_), sides, n_left, index_row, none, none)
    return column
