"""What joins cost, from measured cardinalities (AJoin, section 4, equations 1 and 2).

Equation 2: indexing both sides, intersecting the key sets, and the pairs. Here every first step has its own share of an
index, the tuples that some query of the group wants, so both sides are counted by the union of the group's selections
(equation 1). A pair looked at costs a part of a tuple probed: it is one comparison in a row of neighbours. What a group
costs besides, the paper has no term for: the query-sets of all tuples, and the calls that a batch takes.

Measured are how many tuples pass which selections, together and apart, how many keys there are, and which share of all
pairs each band holds. A sample of the newest bucket of each stream stands for the stream: for each selection, which of
its tuples pass; for a band, how many of another sample's each reaches. The cardinality of a union of selections is
counted there: what inclusion and exclusion (AJoin, equation 1) compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.expression.values import Mask
from streamjoin.model.keys import fit
from streamjoin.model.terms import BandTerm, Equality, Number, Term
from streamjoin.queries.core.buckets import Bucket, IndexKey, KeyAttribute
from streamjoin.queries.core.probe_plan import Path, StepKey
from streamjoin.queries.core.selection_tables import passing
from streamjoin.queries.language.join_key import JoinKey
from streamjoin.queries.language.plan import Query

SAMPLE = 2048
_BANDS_ANEW: Final = 32
"""Bands that are measured once more at a look, besides those that never were."""
Band = tuple[BandTerm, str, str]
"""A band and the streams of its left and right column."""
BandKey = tuple[tuple[str, str], tuple[str, str], Number, Number, bool, bool]


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
    bands: Mapping[BandKey, float] = field(default_factory=dict)
    """The share of all pairs that a band holds; of those measured the longest ago first."""

    def of(self, stream: str) -> StreamStatistics:
        """A stream's statistics; a stream that sent nothing is taken to send one tuple that passes everything."""
        return self.streams.get(stream, StreamStatistics(1.0, 1, 0))

    def key_count(self, stream: str, column: str) -> int:
        """The distinct values of an attribute, as far as it is indexed; otherwise as many as tuples."""
        measured = self.of(stream)
        counts = [count for (name, _), count in measured.distinct.items() if name == column]
        return max(1, min(counts) if counts else measured.held)

    def band_share(self, band: Band) -> float:
        """The share of the pairs of two streams that a band holds."""
        return self.bands.get(_key_of(band), BAND_SHARE)


def _key_of(band: Band) -> BandKey:
    """What two bands have in common that hold the same pairs, whatever their roles and order."""
    term, left, right = band
    both = ((left, term.left.name), (right, term.right.name), term.below, term.above)
    flipped = (both[1], both[0], term.above, term.below)
    return (*min(both, flipped), term.strict, term.is_duration)


def measure(
    buckets: Mapping[str, tuple[Bucket, ...]],
    selections: Mapping[str, Iterable[tuple[Expression, ...]]],
    bands: Iterable[Band],
    before: Statistics,
) -> Statistics:
    """The statistics of what is held, with `selections` by stream, and the `bands` of all queries."""
    streams = dict(before.streams)
    for stream, held in buckets.items():
        filled = [bucket for bucket in held if bucket.n]
        if filled:
            streams[stream] = _measure_stream(filled, selections.get(stream, ()))
    newest = {stream: next((b for b in reversed(held) if b.n), None) for stream, held in buckets.items()}
    samples = {stream: bucket.table.take(_chosen(bucket)) for stream, bucket in newest.items() if bucket is not None}
    return Statistics(streams, before.batches + 1, _measure_bands(samples, bands, before.bands))


def _measure_bands(
    samples: Mapping[str, pa.Table], bands: Iterable[Band], before: Mapping[BandKey, float]
) -> dict[BandKey, float]:
    """The shares of bands: those that are new, and some that were measured the longest ago."""
    wanted = {_key_of(band): band for band in bands}
    known = [key for key in before if key in wanted]
    shares = {key: before[key] for key in known}
    for key in (*(key for key in wanted if key not in before), *known[:_BANDS_ANEW]):
        term, left, right = wanted[key]
        if left in samples and right in samples:
            # At the end, as the newest.
            shares.pop(key, None)
            shares[key] = _share_of(term, samples[left], samples[right])
    return shares


def _share_of(band: BandTerm, left: pa.Table, right: pa.Table) -> float:
    """The share of the pairs of two samples that a band holds; if it holds none, less than one of them."""
    fitted = fit(band.term, left.schema.field(band.left.name).type, right.schema.field(band.right.name).type)
    lefts = KeyAttribute(fitted, "left").encoder.encode(left)
    rights = KeyAttribute(fitted, "right").encoder.encode(right)
    words = np.sort(rights.terms[0].word if rights.valid is None else rights.terms[0].word[rights.valid])
    lo, hi = lefts.terms[0].lo, lefts.terms[0].hi
    if lefts.valid is not None:
        lo, hi = lo[lefts.valid], hi[lefts.valid]
    met = np.searchsorted(words, hi, side="right") - np.searchsorted(words, lo, side="left")
    pairs: int = left.num_rows * right.num_rows
    return float(max(0.5, np.maximum(met, 0).sum())) / pairs


def _chosen(bucket: Bucket) -> Array:
    """The rows of a bucket that stand for it."""
    return np.linspace(0, bucket.n - 1, min(SAMPLE, bucket.n)).astype(np.int64)


def _measure_stream(held: list[Bucket], selections: Iterable[tuple[Expression, ...]]) -> StreamStatistics:
    newest = held[-1]
    chosen = _chosen(newest)
    masks: dict[tuple[Expression, ...], Array] = {}
    for selection in selections:
        if selection and selection not in masks:
            masks[selection] = reduce(and_, (passing(newest, chosen, condition) for condition in selection))
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
"""The share of pairs that a band holds which was not measured."""
Selections = tuple[tuple[Expression, ...], ...]
Union = tuple[Mask | None, ...]
"""For each role, which tuples of the sample some query wants; None for all."""


def join_cost(rates: tuple[float, float], held: tuple[float, float], keys: tuple[float, float]) -> float:
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
        self._measured = [statistics.of(stream) for stream in key.streams]
        terms: Sequence[Term] = (*key.equalities, *key.bands)
        self._pairs = [(_number(t.left.qualifier), _number(t.right.qualifier), self._keys(t)) for t in terms]

    def _keys(self, term: Term) -> tuple[float, float]:
        left, right = (self._streams[_number(column.qualifier)] for column in (term.left, term.right))
        if isinstance(term, BandTerm):
            # No keys to intersect, and as few pairs as this many keys would leave.
            return 1.0, 1.0 / self._statistics.band_share((term, left, right))
        return self._statistics.key_count(left, term.left.name), self._statistics.key_count(right, term.right.name)

    def union(self, selections: Selections) -> Union:
        """Which tuples of the samples one query wants, by role."""
        sides = zip(self._measured, selections, strict=True)
        return tuple(stream.passing(selection) for stream, selection in sides)

    def of(self, union: Union) -> float:
        """The cost of a batch for the queries that together want these tuples."""
        shares = [1.0 if mask is None else float(np.count_nonzero(mask)) / max(1, mask.size) for mask in union]
        rates = [one.rate * share for one, share in zip(self._measured, shares, strict=True)]
        held = [one.held * share for one, share in zip(self._measured, shares, strict=True)]
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
            share *= statistics.band_share((term, streams[_number(term.left.qualifier)], step.stream))
    return share


def _selection(query: Query, alias: str) -> tuple[Expression, ...]:
    return tuple(predicate.condition for predicate in query.selection(alias))


def _number(qualifier: str) -> int:
    return int(qualifier[1:])
