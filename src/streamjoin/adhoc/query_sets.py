"""Query-sets: for each tuple, the queries whose selection it passes, as bits in words of 64 (AJoin, section 3.1).

A layout says which bit is whose. A bit is set iff the query was in force when the tuple arrived and the tuple passes
its selection; distinct conditions are evaluated once a bucket, however many queries have them. An old tuple has no
bit of a newer query, so a join that intersects sets needs no other test of when a query was created.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from streamjoin.adhoc.buckets import Bucket
from streamjoin.model.expression import Expression

Array = np.ndarray[Any, np.dtype[Any]]
_BITS = 64


@dataclass(frozen=True)
class Selected:
    """What a tuple must be for one query's bit: of the batch `created` or later, and passing all conditions.

    `serial` and `alias` say whose it is; two with the same are the same.
    """

    serial: int
    alias: str
    created: int
    conditions: tuple[Expression, ...] = field(compare=False)


@dataclass(frozen=True, eq=False)
class Wanted:
    """What each bit of a layout asks of a tuple; None leaves it unset. Each is its own key in a cache."""

    bits: tuple[Selected | None, ...]


@dataclass(frozen=True)
class Layout:
    """The queries in the order of their bits."""

    queries: tuple[str, ...]

    @property
    def words(self) -> int:
        """The words of a set."""
        return max(1, -(-len(self.queries) // _BITS))

    def of(self, names: Iterable[str]) -> Array:
        """The set of these queries."""
        found = np.zeros(self.words, np.uint64)
        for name in names:
            word, bit = self.place(name)
            found[word] |= bit
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.queries)}

    def place(self, name: str) -> tuple[int, np.uint64]:
        """The word and the bit of a query."""
        word, bit = divmod(self._places[name], _BITS)
        return word, np.uint64(1 << bit)


def query_sets(bucket: Bucket, wanted: Wanted) -> Array:
    """The set of each tuple of a bucket, one row a tuple."""
    words = max(1, -(-len(wanted.bits) // _BITS))
    found = np.zeros((bucket.n, words), np.uint64)
    made: dict[tuple[Expression, ...], Array | None] = {}
    for word in range(words):
        asked = wanted.bits[word * _BITS : (word + 1) * _BITS]
        bits = np.zeros((-(-len(asked) // 8) * 8, bucket.n), np.bool_)
        for bit, selected in enumerate(asked):
            if selected is not None and selected.created <= bucket.batch:
                if selected.conditions not in made:
                    made[selected.conditions] = _passing(bucket, selected.conditions)
                mask = made[selected.conditions]
                bits[bit] = True if mask is None else mask
        for byte, packed in enumerate(np.packbits(bits, axis=0, bitorder="little")):
            found[:, word] |= packed.astype(np.uint64) << np.uint64(8 * byte)
    return found


def _passing(bucket: Bucket, conditions: tuple[Expression, ...]) -> Array | None:
    """Which tuples pass; None for all."""
    found: Array | None = None
    for condition in conditions:
        mask = bucket.mask(condition)
        found = mask if found is None else found & mask
    return found
