"""Measured cardinalities: how many tuples pass which selections, together and apart, and how many keys there are.

A sample of the newest bucket of each stream stands for the stream: for each selection, which of its tuples pass. The
cardinality of a union of selections is counted there: what inclusion and exclusion (AJoin, equation 1) compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.buckets import Bucket, IndexKey
from streamjoin.model.expression.nodes import Expression

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
