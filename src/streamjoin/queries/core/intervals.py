"""Intervals as an index of shared steps: `l.t BETWEEN r.lo AND r.hi`, or any two comparisons that face each other.

Of `l.a <= r.d AND l.b >= r.c` the left tuple has the interval from a to b and the right one that from c to d; a pair
matches only if they overlap. Tuples are sorted by where their interval begins, in classes by its length in powers of
two. Within a class an interval that meets another begins at most the length of the class before it, so that each class
is read as a band. The comparisons themselves stay conditions of the step: the index only has to find all candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.comparisons import TypeOf, bound_an_interval, comparison
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.keys import KeyTerm
from streamjoin.queries.core.buckets import IndexKey, OneTerm, SortedIndex
from streamjoin.windows.encoding import Encoded, SideEncoder, SideName
from streamjoin.windows.intervals import by_class, length_classes
from streamjoin.windows.words import TermWords


@dataclass(frozen=True, eq=False)
class IntervalAttribute:
    """The interval that one side of a join has: what its ends are encoded for; see `KeyAttribute`."""

    begin: KeyTerm
    end: KeyTerm
    side: SideName

    @cached_property
    def index_key(self) -> IndexKey:
        """The index that serves it."""
        names = [(term.left if self.side == "left" else term.right).name for term in (self.begin, self.end)]
        return " to ".join(names), "interval"

    @property
    def words_key(self) -> tuple[object, ...]:
        """What the words depend on."""
        return self.index_key

    @cached_property
    def encoder(self) -> IntervalEncoder:
        """What makes the words of both ends."""
        return IntervalEncoder(SideEncoder(OneTerm((self.begin, self.end)), self.side))


@dataclass(frozen=True)
class IntervalEncoder:
    """Encodes intervals: the word is where one begins, and it probes for what begins up to its end."""

    ends: SideEncoder

    def encode(self, table: pa.Table) -> Encoded:
        """The words of every tuple."""
        encoded = self.ends.encode(table)
        begin, end = (words.word for words in encoded.terms)
        return Encoded(encoded.n, encoded.valid, (TermWords(begin, begin, end),), None)


@dataclass(frozen=True)
class FittedInterval:
    """The intervals of an earlier role, which probes, and of the new one."""

    role: int
    upper: KeyTerm
    lower: KeyTerm

    @cached_property
    def left(self) -> IntervalAttribute:
        """The earlier role's interval."""
        return IntervalAttribute(self.upper, self.lower, "left")

    @cached_property
    def right(self) -> IntervalAttribute:
        """The new role's interval."""
        return IntervalAttribute(self.lower, self.upper, "right")


def fit_interval(conditions: Sequence[Expression], new: str, type_of: TypeOf) -> tuple[str, KeyTerm, KeyTerm] | None:
    """The first two comparisons with `new` that face each other: the other qualifier, the upper and the lower one."""
    terms = [
        term
        for condition in conditions
        for part in conjuncts(condition)
        if (term := comparison(part, new, type_of)) is not None
    ]
    for qualifier, upper in terms:
        for other, lower in terms:
            if qualifier == other and bound_an_interval(upper, lower):
                return qualifier, upper, lower
    return None


def split_by_length(index: SortedIndex, ends: Array) -> tuple[tuple[SortedIndex, int], ...]:
    """An index in classes by the length of intervals, with the longest of each; `ends` are the words of ends by row."""
    begins = index.words
    # One that ends before it begins counts as a point.
    classes = length_classes(begins, np.maximum(begins, ends[index.rows]))
    return tuple(
        (SortedIndex(begins[places], index.rows[places]), (1 << length_class) - 1)
        for length_class, places in by_class(classes)
    )
