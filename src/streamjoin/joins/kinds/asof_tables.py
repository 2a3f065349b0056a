"""The as-of join of two complete tables by key, where the partner is behind: one pass over both, without stored tuples.

The kernels and the numbers of keys are those of `asof_operator`; what a stream adds, steps and what is undone when one
fails, is left out. Invariant: the rows are those of that operator after one push of everything and the end of input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.base import MISSING
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.keyed_tables import table_keys
from streamjoin.kernels.kinds.asof import NONE, pair_behind
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundSpec
from streamjoin.model.keys import KeyTerm
from streamjoin.windows.clock import to_ticks


def rows_behind(bound: BoundSpec, tables: tuple[pa.Table, pa.Table]) -> tuple[Array, Array]:
    """For each left tuple, in the order of time, its place in its table and that of its partner, MISSING without one.

    Left tuples without a time come last. Texts may be dictionaries.
    """
    time, match = bound.time, bound.match
    if time is None or match is None:
        raise AssertionError("an as-of join without a match")
    numbers, count = _numbers(bound.keys, tables)
    places, ticks, keys, untimed = [], [], [], []
    for side, table in enumerate(tables):
        own, missing = to_ticks(table.column((time.left, time.right)[side]), time.multipliers[side])
        found, order = numbers[side], None
        if missing is not None:
            untimed.append(np.flatnonzero(missing))
            order = np.flatnonzero(~missing)
            own, found = own[order], found[order]
        if bool(np.any(own[1:] < own[:-1])):
            sorting = np.argsort(own, kind="stable")
            order = sorting if order is None else order[sorting]
            own, found = own[sorting], found[sorting]
        places.append(order)
        ticks.append(own)
        keys.append(found)
        if missing is None:
            untimed.append(np.empty(0, np.int64))
    partners, last = np.empty(ticks[0].size, np.int64), np.full(count, NONE, np.int64)
    pair_behind(
        ticks[0], keys[0], ticks[1], keys[1], 0, match.exact, length_word(match.tolerance), last, partners,
        np.empty((0, 3), np.int64), np.zeros(4, np.int64),
    )  # fmt: skip
    left = np.arange(partners.size) if places[0] is None else places[0]
    right = partners
    if places[1] is not None:
        right = np.where(partners == NONE, MISSING, places[1][partners] if places[1].size else MISSING)
    lost = untimed[0]
    return np.concatenate([left, lost]), np.concatenate([right, np.full(lost.size, MISSING, np.int64)])


def _numbers(keys: Sequence[KeyTerm], tables: tuple[pa.Table, pa.Table]) -> tuple[tuple[Array, Array], int]:
    """The keys of both tables as numbers, and their bound."""
    found = table_keys(keys, tables) if keys else None
    if found is not None:
        return found.numbers, found.size
    numbers = KeyNumbers(keys)
    return (numbers.number(0, tables[0]), numbers.number(1, tables[1])), numbers.count
