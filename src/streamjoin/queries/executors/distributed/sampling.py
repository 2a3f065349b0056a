"""Measured costs where tuples are: tasks sample the newest tuples, and the driver plans by what they report.

Every few batches a task for each stream finds which tuples of a sample pass which conditions, and every cell counts the
distinct keys of its indexes. The driver adds that up to the statistics that the optimizer has in the other executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.model.expression.nodes import Expression
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.changes import QueryRegistry
from streamjoin.queries.executors.distributed.parts import FiledBucket, read_part
from streamjoin.queries.executors.distributed.placement import CellRoute, Placement
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.optimizer.cost import SAMPLE, Statistics, StreamStatistics
from streamjoin.queries.optimizer.optimizer import Optimizer

KeyCounts = Mapping[tuple[int, str], Mapping[IndexKey, int]]
"""The distinct keys of a cell's indexes, by placement and stream."""


@dataclass(frozen=True)
class StreamSample:
    """How many tuples of a stream were looked at, and which of them pass each condition."""

    count: int
    passing: Mapping[Expression, Array] = field(default_factory=dict)
    words: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """By key column, the words that many tuples have, and their share of the tuples."""

    def mask(self, selection: Iterable[Expression]) -> Array | None:
        """The tuples that pass all conditions; None if one of them was not measured."""
        masks = [self.passing.get(condition) for condition in selection]
        if not masks or any(mask is None for mask in masks):
            return None
        return np.asarray(np.logical_and.reduce([mask for mask in masks if mask is not None]))


def sample_stream(
    bucket: FiledBucket,
    stream: Stream,
    conditions: Iterable[Expression],
    routes: Iterable[CellRoute] = (),
    least: float = 1.0,
) -> StreamSample:
    """Look at some tuples of a batch, evenly chosen; words by `routes` are counted if this share or more has them."""
    chosen = np.linspace(0, bucket.n - 1, min(SAMPLE, bucket.n)).astype(np.int64)
    tables, before = [], 0
    for part in bucket.parts:
        inside = chosen[(chosen >= before) & (chosen < before + part.rows)] - before
        if inside.size:
            tables.append(read_part(part, stream.schema, verify=False).table.take(pa.array(inside)))
        before += part.rows
    numbers = np.arange(chosen.size)
    sample = Bucket(stream.name, bucket.batch, pa.concat_tables(tables).combine_chunks(), numbers, numbers, 0, {})
    passing = {}
    for condition in dict.fromkeys(conditions):
        try:
            passing[condition] = sample.mask(condition)
        except InputError:
            # Whoever has this condition fails by it; others are planned without.
            continue
    words = {str(route.key_column): _common(route.words(sample.table), chosen.size, least) for route in routes}
    return StreamSample(int(chosen.size), passing, words)


def _common(words: Array, count: int, least: float) -> dict[int, float]:
    values, counts = np.unique(words, return_counts=True)
    chosen = counts >= max(least * count, 2)
    return dict(zip(values[chosen].tolist(), (counts[chosen] / count).tolist(), strict=True))


@dataclass(frozen=True)
class SampledOptimizer(Optimizer):
    """Measures by what tasks report; `samples` and `distinct` are the newest of each stream."""

    samples: Mapping[str, StreamSample] = field(default_factory=dict)
    distinct: Mapping[str, Mapping[IndexKey, int]] = field(default_factory=dict)

    @property
    def is_due(self) -> bool:
        """Whether the plan is looked at after the next batch."""
        return self.settings.replans and (self.statistics.batches + 1) % self.settings.replan_every == 0

    def with_samples(
        self, samples: Mapping[str, StreamSample], distinct: Mapping[str, Mapping[IndexKey, int]]
    ) -> SampledOptimizer:
        """With what the tasks of a batch reported."""
        return replace(self, samples={**self.samples, **samples}, distinct={**self.distinct, **distinct})

    def measured(self, registry: QueryRegistry, buckets: Mapping[str, tuple[Bucket, ...]]) -> Optimizer:
        """With the statistics of what is held."""
        streams = dict(self.statistics.streams)
        selections = registry.selections()
        for name, held in buckets.items():
            rows, sample = sum(bucket.n for bucket in held), self.samples.get(name)
            if not rows or sample is None:
                continue
            masks = {selection: sample.mask(selection) for selection in selections.get(name, ())}
            streams[name] = StreamStatistics(
                rows / sum(bucket.n > 0 for bucket in held),
                rows,
                sample.count,
                {selection: mask for selection, mask in masks.items() if mask is not None},
                {key: min(rows, count) for key, count in self.distinct.get(name, {}).items()},
            )
        return replace(self, statistics=Statistics(streams, self.statistics.batches + 1))


def add_key_counts(cells: Iterable[KeyCounts], placements: Mapping[int, Placement]) -> dict[str, dict[IndexKey, int]]:
    """The distinct keys by stream: of a placement by this key those of all cells, otherwise of the cell with most."""
    sums: dict[tuple[int, str], dict[IndexKey, int]] = {}
    for cell in cells:
        for (number, stream), counts in cell.items():
            total = sums.setdefault((number, stream), {})
            for key, count in counts.items():
                is_divided = placements[number].is_divided_by(stream, key[0])
                total[key] = total.get(key, 0) + count if is_divided else max(total.get(key, 0), count)
    distinct: dict[str, dict[IndexKey, int]] = {}
    for (_, stream), counts in sums.items():
        known = distinct.setdefault(stream, {})
        for key, count in counts.items():
            known[key] = max(known.get(key, 0), count)
    return distinct
