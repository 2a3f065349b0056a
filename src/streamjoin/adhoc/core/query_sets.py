"""Query-sets: for each tuple, the queries whose selection it passes, as bits in words of 64 (AJoin, section 3.1).

A layout says which bit is whose. Bits are given out once and not again, so that a query may come and go without a look
at the tuples that are there: an old tuple has no bit of a newer query, and joins intersect sets, so that it needs
no other test of when a query was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.adhoc.core.selection_tables import BITS, Bits, JointSelections, SelectionTables, words_of
from streamjoin.adhoc.core.stored_stream import BucketRun, StoredStream
from streamjoin.adhoc.core.tuple_columns import TupleArray

Owner = tuple[int, str, str]
"""A query's serial, and two of its aliases: the first two of a path."""
_SERIALS: Final = count()
_SPARE: Final = 32
_TOGETHER: Final = 16
"""Columns of sets that are made together: more would make tables that no cache holds."""


class BitLayout:
    """Who owns which bit."""

    def __init__(self) -> None:
        self._places: dict[Owner, int] = {}

    def place(self, owner: Owner) -> int:
        """The bit of an owner, the next one if it has none yet."""
        return self._places.setdefault(owner, len(self._places))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def words(self) -> int:
        """The words of a set."""
        return words_of(len(self._places))

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._places

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._places)

    def worn(self, living: int) -> bool:
        """Whether so many bits are nobody's that it pays to deal them out anew."""
        return len(self._places) - living > max(_SPARE, living)

    def of(self, owners: Iterable[Owner]) -> Array:
        """The set of these owners."""
        bits = np.zeros(self.words, np.uint64)
        for owner in owners:
            word, bit = divmod(self._places[owner], BITS)
            bits[word] |= np.uint64(1 << bit)
        return bits


class SetColumn:
    """The sets of a stream's tuples, by number, for one place in a join; made when they are asked for."""

    def __init__(self, stream: StoredStream, bits: Bits) -> None:
        self.serial = next(_SERIALS)
        self.stream = stream
        self._tables = SelectionTables(bits, stream.stream.schema)
        self._sets = stream.followed_by(TupleArray(stream.first, np.uint64, self._tables.width))

    @property
    def tables(self) -> SelectionTables:
        """The selections behind the bits."""
        return self._tables

    @property
    def bits(self) -> Bits:
        """What the bits ask of a tuple."""
        return self._tables.bits

    def fits(self, stream: StoredStream, bits: Bits) -> bool:
        """Whether the sets are still right for these bits: some may be gone, and others new behind the old."""
        old = self.bits
        return (
            self.stream is stream
            and len(bits) >= len(old)
            and all(new is None or new == was for was, new in zip(old, bits, strict=False))
        )

    def extend(self, bits: Bits) -> None:
        """Take other bits from the next batch on; the tuples that are there have none of the new ones."""
        if bits != self.bits:
            self._catch_up()
            self._tables = SelectionTables(bits, self.stream.stream.schema)
            self._sets.widen(self._tables.width)

    def of(self, run: BucketRun) -> Array:
        """The sets of a run's tuples."""
        self._catch_up()
        return self._sets.view(run.first, run.end)

    def _catch_up(self) -> None:
        if self._sets.end == self.stream.ticks.end:
            return
        for bucket in self.stream.missing(self._sets.end):
            self._tables.fill(bucket, self._sets.grow(bucket.first, bucket.n))
            if bucket is not self.stream.newest:
                bucket.settle()

    def is_behind(self, bucket: Bucket) -> bool:
        """Whether a bucket is all that is missing."""
        return self._sets.end == bucket.first and self.stream.ticks.end == bucket.end

    def grow(self, bucket: Bucket) -> Array:
        """Room for the sets of a bucket, to be written."""
        return self._sets.grow(bucket.first, bucket.n)

    @property
    def nbytes(self) -> int:
        """The bytes of the sets."""
        return self._sets.nbytes


class JointColumns:
    """The columns of sets of one stream, which are made together for a new bucket."""

    def __init__(self, columns: Sequence[SetColumn]) -> None:
        self._columns = list(columns)
        self._selections = [
            JointSelections([column.tables for column in columns[first : first + _TOGETHER]])
            for first in range(0, len(columns), _TOGETHER)
        ]

    def fits(self, columns: Sequence[SetColumn]) -> bool:
        """Whether these are the columns, with the same bits."""
        parts = [part for selections in self._selections for part in selections.parts]
        return len(columns) == len(parts) and all(
            column.tables is part for column, part in zip(columns, parts, strict=True)
        )

    def fills(self, bucket: Bucket) -> list[Callable[[], None]]:
        """What writes the sets of a bucket, in steps that are independent of each other.

        Columns that miss more than the bucket are left out: they catch up on their own.
        """
        steps: list[Callable[[], None]] = []
        for number, selections in enumerate(self._selections):
            columns = self._columns[number * _TOGETHER : (number + 1) * _TOGETHER]
            if len(columns) > 1 and all(column.is_behind(bucket) for column in columns):
                outs = [column.grow(bucket) for column in columns]
                steps.append(partial(selections.fill, bucket, outs))
        return steps
