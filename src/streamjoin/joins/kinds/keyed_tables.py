"""Joins of two complete tables by key, without stored tuples: by equal keys alone, and as-of with the partner behind.

Keys become numbers: differences of words where these are dense, or else the first left row that has the key. Texts are
looked up by a hash, and compared after that. Equal keys need no order; the as-of join is one pass over both tables with
the kernel of `asof_operator`, without what a stream adds: steps, and what is undone when one fails. Invariant: the rows
are those of a stream's join after one push of the left and then the right table, windows that hold everything, and the
end of input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Overflow
from streamjoin.joins.kinds.base import MISSING
from streamjoin.joins.kinds.key_numbers import ExactTerms, KeyNumbers
from streamjoin.kernels.kinds import asof
from streamjoin.kernels.kinds.keyed import (
    NONE,
    add_differences,
    count_pairs,
    first_rows,
    group,
    have_same_bytes,
    pair_rows,
)
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundSpec
from streamjoin.model.keys import KeyTerm, WordKind
from streamjoin.model.plain_types import without_extension
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.encoding import SideEncoder, Texts, flat

Tables = tuple[pa.Table, pa.Table]
Both = tuple[Array, Array]
"""An array for the left table and one for the right one."""

_NO_ROWS: Final = np.empty(0, np.int64)
_SPARSE: Final = 4
"""There may be this many times as many numbers as rows: reading them costs less than a hash table."""


@dataclass(frozen=True)
class TableKeys:
    """The keys of both tables as numbers below `size`; NONE for rows that match nothing."""

    numbers: Both
    size: int
    keyless: Both
    """Masks of the rows whose key is NULL or NaN."""


def rows_by_key(bound: BoundSpec, tables: Tables, most: int | None) -> Both | None:
    """The rows of both tables that make a row of the result, MISSING for none; None if the keys need another way.

    Raises:
        Overflow: the result has more than `most` rows.
    """
    keys = table_keys(bound.keys, tables)
    if keys is None:
        return None
    how, (left, right) = bound.spec.how, keys.numbers
    begins, rows = np.zeros(keys.size + 2, _narrow(left.size)), np.empty(left.size, _narrow(left.size))
    group(left, begins, rows)
    # The last one is that of NONE.
    hit, once = np.zeros(keys.size + 1, np.bool_), how == "semi"
    n = count_pairs(begins, right, once, hit)
    n = 0 if how == "anti" else n
    _check(n, most)
    pairs = np.empty(n, np.int64), np.empty(n, np.int64)
    if n:
        pair_rows(begins, rows, right, once, np.zeros_like(hit), *pairs)
    found = pairs if how in ("inner", "semi") else _with_unmatched(bound.spec.preserved, keys, pairs, hit)
    _check(found[0].size, most)
    return found


def _check(n: int, most: int | None) -> None:
    if most is not None and n > most:
        raise Overflow


def _with_unmatched(preserved: Sequence[str], keys: TableKeys, pairs: Both, hit: Array) -> Both:
    """The pairs and the rows of these sides without one: those without a key at their own place, the others last."""
    matched = hit[keys.numbers[0]], np.zeros(keys.numbers[1].size, np.bool_)
    matched[1][pairs[1]] = True
    keyless, last = [_NO_ROWS, _NO_ROWS], [_NO_ROWS, _NO_ROWS]
    for side, name in enumerate(("left", "right")):
        if name in preserved:
            keyless[side] = np.flatnonzero(keys.keyless[side])
            matched[side][keyless[side]] = True
            last[side] = np.flatnonzero(~matched[side])
    # All left rows come before the first right one.
    places = np.searchsorted(pairs[1], keyless[1])
    left, right = np.insert(pairs[0], places, MISSING), np.insert(pairs[1], places, keyless[1])
    first, lefts, rights = (np.full(rows.size, MISSING, np.int64) for rows in (keyless[0], last[0], last[1]))
    return np.concatenate([keyless[0], left, last[0], rights]), np.concatenate([first, right, lefts, last[1]])


def table_keys(keys: Sequence[KeyTerm], tables: Tables) -> TableKeys | None:
    """The keys of both tables as numbers; None if neither words nor texts decide. Texts may be dictionaries."""
    keyless = _masks(tables)
    absent = _masks(tables)
    columns = []
    for key in keys:
        if key.exact:
            columns.append(_words(key, tables, keyless, absent[0]))
        elif key.kind is WordKind.BYTES and (numbers := _numbered_texts(key, tables, keyless)) is not None:
            columns.append(numbers)
        else:
            return None
    lost = keyless[0] | absent[0], keyless[1]
    room = _SPARSE * (lost[0].size + lost[1].size) + 1
    numbers, size = _differences(columns, lost[0], room) or (
        _first_rows(*(np.stack(words, axis=1) for words in zip(*columns, strict=True))),
        lost[0].size,
    )
    for own, mask in zip(numbers, lost, strict=True):
        own[mask] = NONE
    return TableKeys(numbers, size, keyless)


def _masks(tables: Tables) -> Both:
    return np.zeros(tables[0].num_rows, np.bool_), np.zeros(tables[1].num_rows, np.bool_)


def _words(key: KeyTerm, tables: Tables, keyless: Both, absent: Array) -> Both:
    """The words of the right side's type; `absent` is set where the right side has no such value."""
    terms = []
    encoders = SideEncoder(ExactTerms((key,)), "left"), SideEncoder(ExactTerms((key,)), "right")
    for side, encoder in enumerate(encoders):
        encoded = encoder.encode(tables[side])
        terms.append(encoded.terms[0])
        if encoded.valid is not None:
            keyless[side][~encoded.valid] = True
    left, right = terms
    if left.lo is not left.hi:
        absent[left.lo > left.hi] = True
    return left.lo, right.word


def _numbered_texts(key: KeyTerm, tables: Tables, keyless: Both) -> Both | None:
    """The first left text that is the same; None if two that differ have one hash."""
    texts, places = [], []
    for table, column, mask in zip(tables, (key.left, key.right), keyless, strict=True):
        array, place = table.column(column.name), None
        if array.null_count or pa.types.is_dictionary(array.type):
            mask[array.is_null().to_numpy()] = True
        if pa.types.is_dictionary(array.type):
            encoded = array.unify_dictionaries().combine_chunks()
            array, place = encoded.dictionary, encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        texts.append(Texts.of(without_extension(flat(array))))
        places.append(place)
    known = texts[0]
    found = _first_rows(*(own.hashed().reshape(-1, 1) for own in texts))
    for own, rows in zip(texts, found, strict=True):
        if not have_same_bytes(own.bounds, own.data, rows, known.bounds, known.data):
            return None
    left, right = (
        rows if place is None else np.append(rows, NONE)[place] for rows, place in zip(found, places, strict=True)
    )
    return left, right


def _differences(columns: Sequence[Both], lost: Array, room: int) -> tuple[Both, int] | None:
    """Numbers that count up from the least word of the left side, and their bound; None if it is above `room`."""
    numbers, size = (np.zeros(columns[0][0].size, np.int64), np.zeros(columns[0][1].size, np.int64)), 1
    for left, right in columns:
        used = left[~lost] if lost.any() else left
        least = int(used.min()) if used.size else 0
        n = int(used.max()) - least + 1 if used.size else 0
        if n * size > room:
            return None
        for words, own in ((left, numbers[0]), (right, numbers[1])):
            add_differences(words, np.int64(least), n, own)
        size *= n
    return numbers, size


def _first_rows(left: Array, right: Array) -> Both:
    """For each row of words the first left row that is the same, or NONE."""
    slots = np.full(1 << max(1, 2 * len(left) - 1).bit_length(), NONE, _narrow(len(left)))
    both = np.empty(len(left), np.int64), np.empty(len(right), np.int64)
    first_rows(left, slots, left, True, both[0])
    first_rows(left, slots, right, False, both[1])
    return both


def _narrow(n: int) -> type[np.int32] | type[np.int64]:
    """The type of row numbers below `n`: with half as many bytes, twice as many are in the cache."""
    return np.int32 if n < 2**31 else np.int64


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
    partners, last = np.empty(ticks[0].size, np.int64), np.full(count, asof.NONE, np.int64)
    asof.pair_behind(
        ticks[0], keys[0], ticks[1], keys[1], 0, match.exact, length_word(match.tolerance), last, partners,
        np.empty((0, 3), np.int64), np.zeros(4, np.int64),
    )  # fmt: skip
    left = np.arange(partners.size) if places[0] is None else places[0]
    right = partners
    if places[1] is not None:
        right = np.where(partners == asof.NONE, MISSING, places[1][partners] if places[1].size else MISSING)
    lost = untimed[0]
    return np.concatenate([left, lost]), np.concatenate([right, np.full(lost.size, MISSING, np.int64)])


def _numbers(keys: Sequence[KeyTerm], tables: tuple[pa.Table, pa.Table]) -> tuple[tuple[Array, Array], int]:
    """The keys of both tables as numbers, and their bound."""
    found = table_keys(keys, tables) if keys else None
    if found is not None:
        return found.numbers, found.size
    numbers = KeyNumbers(keys)
    return (numbers.number(0, tables[0]), numbers.number(1, tables[1])), numbers.count
