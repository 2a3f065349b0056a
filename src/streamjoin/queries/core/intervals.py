"""Intervals as an index of shared steps: `l.t BETWEEN r.lo AND r.hi`, or any two comparisons that face each other.

Of `l.a <= r.d AND l.b >= r.c` the left tuple has the interval from a to b and the right one that from c to d; a pair
matches only if they overlap. Tuples are sorted by where their interval begins, in classes by its length in powers of
two. Within a class an interval that meets another begins at most the length of the class before it, so that each class
is read as a band. The comparisons themselves stay conditions of the step: the index only has to find all candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import IndexKey, OneTerm, SortedIndex
from streamjoin.model.comparisons import word_space
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Column, Compare, Expression
from streamjoin.model.keys import MIRRORED, Comparison, KeyTerm, WordKind, fit
from streamjoin.model.plain_types import plain_type
from streamjoin.model.predicates import Equi
from streamjoin.windows.encoding import Encoded, SideEncoder, SideName
from streamjoin.windows.words import TermWords

_REACHES: Final = np.array([(1 << power) - 1 for power in range(64)], np.uint64)
"""The longest interval of each class."""


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


TypeOf = Callable[[Column], pa.DataType]


def fit_interval(conditions: Sequence[Expression], new: str, type_of: TypeOf) -> tuple[str, KeyTerm, KeyTerm] | None:
    """The first two comparisons with `new` that face each other: the other qualifier, the upper and the lower one."""
    terms = [
        term
        for condition in conditions
        for part in conjuncts(condition)
        if (term := _comparison(part, new, type_of)) is not None
    ]
    for qualifier, upper in terms:
        for other, lower in terms:
            operators = [term.term.operator for term in (upper, lower) if isinstance(term.term, Comparison)]
            faces = qualifier == other and [operator[0] for operator in operators] == ["<", ">"]
            if faces and word_space(upper.left.type) == word_space(lower.left.type):
                return qualifier, upper, lower
    return None


def _comparison(condition: Expression, new: str, type_of: TypeOf) -> tuple[str, KeyTerm] | None:
    """A comparison of a column of another qualifier, which stands left, with one of `new`, of one type."""
    if not isinstance(condition, Compare) or condition.operator not in MIRRORED:
        return None
    one, other, operator = condition.left, condition.right, condition.operator
    if not isinstance(one, Column) or not isinstance(other, Column) or one.qualifier == other.qualifier:
        return None
    if one.qualifier == new:
        one, other, operator = other, one, MIRRORED[operator]
    if other.qualifier != new:
        return None
    types = [plain_type(type_of(column)) for column in (one, other)]
    if word_space(types[0]) is None or word_space(types[0]) != word_space(types[1]):
        return None
    key = fit(Equi(one.name, other.name), *types)
    if key.kind not in (WordKind.INTEGER, WordKind.FLOAT32, WordKind.FLOAT64):
        return None
    return one.qualifier, replace(key, term=Comparison(one.name, operator, other.name))


def split_by_length(index: SortedIndex, ends: Array) -> tuple[tuple[SortedIndex, int], ...]:
    """An index in classes by the length of intervals, with the longest of each; `ends` are the words of ends by row."""
    begins = index.words
    ending = ends[index.rows]
    # Unsigned: the distance of two int64 may not fit an int64.
    lengths = np.where(ending > begins, ending.view(np.uint64) - begins.view(np.uint64), np.uint64(0))
    classes = np.searchsorted(_REACHES, lengths, side="left")
    parts = []
    for number in np.unique(classes).tolist():
        chosen = classes == number
        reach = int(_REACHES[number]) if number < len(_REACHES) else (1 << 64) - 1
        parts.append((SortedIndex(begins[chosen], index.rows[chosen]), reach))
    return tuple(parts)
