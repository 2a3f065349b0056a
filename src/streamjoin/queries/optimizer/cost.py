"""What joins cost, from measured cardinalities (AJoin, section 4, equations 1 and 2).

Equation 2: indexing both sides, intersecting the key sets, and the pairs. Here every first step has its own share of an
index, the tuples that some query of the group wants, so both sides are counted by the union of the group's selections
(equation 1). A pair looked at costs a part of a tuple probed: it is one comparison in a row of neighbours. What a group
costs besides, the paper has no term for: the query-sets of all tuples, and the calls that a batch takes.

Measured are how many tuples pass which selections, together and apart, and how many keys there are. A sample of the
newest bucket of each stream stands for the stream: for each selection, which of its tuples pass. The cardinality of a
union of selections is counted there: what inclusion and exclusion (AJoin, equation 1) compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.values import Mask
from streamjoin.model.terms import Equality, Term
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.probe_plan import Path, StepKey
from streamjoin.queries.language.join_key import JoinKey
from streamjoin.queries.language.plan import Query

SAMPLE = 2048


@dataclass(frozen=True)
class StreamStatistics:
    """A stream's tuples a batch, who passes of a sample, and the distinct keys of its indexed attributes."""

    rate: float
    held: int
    sample: int
    masks: Mapping[tuple[Expression, ...], Array] = field(default_factory=dict)
    distinct: Mapping[IndexKey, int] = field(default_factory=dict)

    def passing(self, selection: tuple[Expression, ...]) -> Array | None:
        """Which tuples of the sample pass a selection; None for all, also where it was not measured."""
        return self.masks.get(selection) if selection else None

    def share(self, selections: Iterable[tuple[Expression, ...]]) -> float:
        """The share of tuples that pass at least one of the selections."""
        passing: Array | None = None
        for selection in selections:
            if not selection:
                return 1.0
            mask = self.masks.get(selection)
            if mask is None:
                return 1.0
            passing = mask if passing is None else passing | mask
        return float(passing.mean()) if passing is not None and passing.size else 0.0


@dataclass(frozen=True)
class Statistics:
    """By stream; empty before the first batch."""

    streams: Mapping[str, StreamStatistics] = field(default_factory=dict)
    batches: int = 0

    def of(self, stream: str) -> StreamStatistics:
        """A stream's statistics; a stream that sent nothing is taken to send one tuple that passes everything."""
        return self.streams.get(stream, StreamStatistics(1.0, 1, 0))

    def key_count(self, stream: str, column: str) -> int:
        """The distinct values of an attribute, as far as it is indexed; otherwise as many as tuples."""
        measured = self.of(stream)
        counts = [count for (name, _), count in measured.distinct.items() if name == column]
        return max(1, min(counts) if counts else measured.held)


def measure(
    buckets: Mapping[str, tuple[Bucket, ...]],
    selections: Mapping[str, Iterable[tuple[Expression, ...]]],
    before: Statistics,
) -> Statistics:
    """The statistics of what is held, with `selections` by stream."""
    streams = dict(before.streams)
    for stream, held in buckets.items():
        filled = [bucket for bucket in held if bucket.n]
        if filled:
            streams[stream] = _measure_stream(filled, selections.get(stream, ()))
    return Statistics(streams, before.batches + 1)


def _measure_stream(held: list[Bucket], selections: Iterable[tuple[Expression, ...]]) -> StreamStatistics:
    newest = held[-1]
    chosen = np.linspace(0, newest.n - 1, min(SAMPLE, newest.n)).astype(np.int64)
    masks: dict[tuple[Expression, ...], Array] = {}
    for selection in selections:
        if selection and selection not in masks:
            mask = newest.mask(selection[0])[chosen]
            for condition in selection[1:]:
                mask = mask & newest.mask(condition)[chosen]
            masks[selection] = mask
    rows = sum(bucket.n for bucket in held)
    return StreamStatistics(rows / len(held), rows, int(chosen.size), masks, _distinct(held, rows))


def _distinct(held: list[Bucket], rows: int) -> dict[IndexKey, int]:
    """The keys of the bucket with most of them, a lower bound for the window's."""
    distinct: dict[IndexKey, int] = {}
    for bucket in held:
        for key in bucket.index_keys:
            count = bucket.distinct(key)
            distinct[key] = min(rows, max(count, distinct.get(key, 1)))
    return distinct


PAIR: Final = 0.25
"""The cost of a pair looked at beside that of a tuple probed."""
SETS: Final = 0.5
"""The cost of making a tuple's query-set, beside the same; every tuple of a stream gets one in each group."""
BAND_SHARE: Final = 0.05
"""The share of tuples in a band whose width says nothing: statistics hold keys, not distances."""
Selections = tuple[tuple[Expression, ...], ...]
Union = tuple[Mask | None, ...]
"""For each role, which tuples of the sample some query wants; None for all."""


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
    """How many partial results each step of a path is expected to leave for a batch of the driver's stream.

    A path without steps leaves what it selects.
    """
    first = statistics.of(path.driver)
    rows = first.rate * first.share([_selection(query, path.order[0])])
    streams = (path.driver, *(step.stream for step in path.steps))
    expected = [] if path.steps else [rows]
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
