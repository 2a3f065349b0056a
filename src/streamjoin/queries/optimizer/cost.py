"""What joins cost, from measured cardinalities (AJoin, section 4, equations 1 and 2).

Equation 2: indexing both sides, intersecting the key sets, and the pairs. Here every first step has its own share of an
index, the tuples that some query of the group wants, so both sides are counted by the union of the group's selections
(equation 1). A pair looked at costs a part of a tuple probed: it is one comparison in a row of neighbours. What a group
costs besides, the paper has no term for: the query-sets of all tuples, and the calls that a batch takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from streamjoin.adhoc.core.probe_plan import Path, StepKey
from streamjoin.adhoc.language.join_key import JoinKey
from streamjoin.adhoc.language.plan import Query
from streamjoin.adhoc.optimizer.statistics import Statistics
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.values import Mask
from streamjoin.model.terms import Equality, Term

PAIR: Final = 0.25
"""The cost of a pair looked at beside that of a tuple probed."""
SETS: Final = 0.5
"""The cost of making a tuple's query-set, beside the same; every tuple of a stream gets one in each group."""
BAND_SHARE: Final = 0.05
"""The share of tuples in a band whose width says nothing: statistics hold keys, not distances."""
Selections = tuple[tuple[Expression, ...], ...]
Union = tuple[Mask | None, ...]
"""For each role, which tuples of the sample somebody wants; None for all."""


def join_cost(rates: tuple[float, float], held: tuple[float, float], keys: tuple[int, int]) -> float:
    """Equation 2 for a batch: the new tuples of both sides, the keys that meet, and new tuples with those held."""
    pairs = rates[0] * held[1] + rates[1] * held[0]
    return sum(rates) + min(keys) + PAIR * pairs / max(keys)


class GroupCost:
    """The cost of queries with one join key run together: the sum over its joined pairs of roles."""

    def __init__(self, key: JoinKey, statistics: Statistics, overhead: float) -> None:
        """The cost of any queries with this key; a group costs `overhead` whatever it does."""
        self._statistics = statistics
        self._apart = overhead + SETS * sum(statistics.of(stream).rate for stream in key.streams)
        self._streams = key.streams
        terms: Sequence[Term] = (*key.equalities, *key.bands)
        self._pairs = [(_number(t.left.qualifier), _number(t.right.qualifier), self._keys(t)) for t in terms]

    def _keys(self, term: Term) -> tuple[int, int]:
        if not isinstance(term, Equality):
            return round(1 / BAND_SHARE), round(1 / BAND_SHARE)
        left, right = (
            self._statistics.key_count(self._streams[_number(c.qualifier)], c.name) for c in (term.left, term.right)
        )
        return left, right

    def union(self, selections: Selections) -> Union:
        """Which tuples of the samples one query wants, by role."""
        streams = zip(self._streams, selections, strict=True)
        return tuple(self._statistics.of(stream).passing(selection) for stream, selection in streams)

    def of(self, union: Union) -> float:
        """The cost of a batch for the queries that together want these tuples."""
        measured = [self._statistics.of(stream) for stream in self._streams]
        shares = [1.0 if mask is None else float(np.count_nonzero(mask)) / max(1, mask.size) for mask in union]
        rates = [one.rate * share for one, share in zip(measured, shares, strict=True)]
        held = [one.held * share for one, share in zip(measured, shares, strict=True)]
        joins = (join_cost((rates[a], rates[b]), (held[a], held[b]), keys) for a, b, keys in self._pairs)
        return self._apart + sum(joins)


def unite(one: Union, two: Union) -> Union:
    """What either wants."""
    return tuple(None if a is None or b is None else a | b for a, b in zip(one, two, strict=True))


def path_rows(path: Path, query: Query, statistics: Statistics) -> list[float]:
    """How many partial results each step of a path is expected to leave for a batch of the driver's stream."""
    first = statistics.of(path.driver)
    rows = first.rate * first.share([_selection(query, path.order[0])])
    streams = (path.driver, *(step.stream for step in path.steps))
    expected = []
    for alias, step in zip(path.order[1:], path.steps, strict=True):
        measured = statistics.of(step.stream)
        stored = measured.held * measured.share([_selection(query, alias)])
        rows *= stored * _match_share(step, streams, statistics)
        expected.append(rows)
    return expected


def _match_share(step: StepKey, streams: Sequence[str], statistics: Statistics) -> float:
    share = 1.0
    for term in step.terms:
        if isinstance(term, Equality):
            left = statistics.key_count(streams[_number(term.left.qualifier)], term.left.name)
            share /= max(left, statistics.key_count(step.stream, term.right.name))
        else:
            share *= BAND_SHARE
    return share


def _selection(query: Query, alias: str) -> tuple[Expression, ...]:
    return tuple(predicate.condition for predicate in query.selection(alias))


def _number(qualifier: str) -> int:
    return int(qualifier[1:])
