"""Sorted rows of one side in a range: slices of the log where they are mapped, and a batch's own rows.

A stored row is its index word, its ticks, its words of the terms that the index leaves open, and its columns. Rows
are sorted by word; rows of equal words stay in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.kernels.sorting import merge_live
from streamjoin.spark.blueprint import Blueprint
from streamjoin.spark.log import WindowLog
from streamjoin.spark.manifest import Manifest, Run

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_ROWS = 1 << 20
"""Rows of a record batch in a piece: enough to sweep, few enough for the offsets of strings."""

_NEVER = -(1 << 63)


@dataclass(frozen=True)
class Segment:
    """Rows sorted by word; `ids` only where a tuple could meet itself."""

    words: Array
    ticks: Array
    terms: tuple[Array, ...]
    rows: pa.Table
    ids: Array | None = None

    @property
    def n(self) -> int:
        """How many rows."""
        return int(self.words.size)

    def part(self, begin: int, end: int) -> Segment:
        """The rows from `begin` to `end`."""
        return Segment(
            self.words[begin:end],
            self.ticks[begin:end],
            tuple(term[begin:end] for term in self.terms),
            self.rows.slice(begin, end - begin),
            None if self.ids is None else self.ids[begin:end],
        )

    def within(self, first: int, last: int) -> Segment:
        """The rows with words from `first` to `last`, both included."""
        if last < first:
            return self.part(0, 0)
        begin, end = np.searchsorted(self.words, first, "left"), np.searchsorted(self.words, last, "right")
        return self.part(int(begin), int(end))

    def since(self, horizon: int) -> Segment:
        """The rows that are not older than `horizon`."""
        if self.n == 0 or int(self.ticks.min()) >= horizon:
            return self
        return self.take(np.flatnonzero(self.ticks >= horizon))

    def take(self, places: Array) -> Segment:
        """The rows at `places`."""
        return Segment(
            self.words[places],
            self.ticks[places],
            tuple(term[places] for term in self.terms),
            self.rows.take(pa.array(places)),
            None if self.ids is None else self.ids[places],
        )


def stored_schema(blueprint: Blueprint, side: int) -> pa.Schema:
    """The columns of a record batch in a piece."""
    words = [pa.field("#word", pa.int64()), pa.field("#ticks", pa.int64())]
    terms = [pa.field(f"#term{i}", pa.int64()) for i in blueprint.open_terms]
    return pa.schema([*words, *terms, *blueprint.schema(side)])


def stored(
    log: WindowLog, blueprint: Blueprint, manifest: Manifest, runs: Sequence[Run], side: int, span: tuple[int, int]
) -> list[Segment]:
    """The rows of `runs` with words in `span`, oldest run first."""
    schema = stored_schema(blueprint, side)
    found = []
    for run in runs:
        for piece in run.pieces:
            for block in piece.blocks[side]:
                if block.first <= span[1] and block.last >= span[0]:
                    batch = log.piece(manifest, piece.file).batch(block, schema)
                    segment = _mapped(batch, len(blueprint.open_terms)).within(*span)
                    if segment.n:
                        found.append(segment)
    return found


def _mapped(batch: pa.RecordBatch, terms: int) -> Segment:
    words, ticks, *rest = (batch.column(i).to_numpy() for i in range(2 + terms))
    rows = pa.Table.from_batches([batch]).select(range(2 + terms, batch.num_columns))
    return Segment(words, ticks, tuple(rest), rows)


def merged(segments: Sequence[Segment]) -> Segment:
    """All rows of `segments`, of equal words those of earlier segments first."""
    if len(segments) == 1:
        return segments[0]
    columns = zip(*(segment.terms for segment in segments), strict=True)
    rows = pa.concat_tables([segment.rows for segment in segments]).combine_chunks()
    together = Segment(
        np.concatenate([segment.words for segment in segments]),
        np.concatenate([segment.ticks for segment in segments]),
        tuple(np.concatenate(column) for column in columns),
        rows,
    )
    return together.take(_merged_order([segment.words for segment in segments]))


def _merged_order(runs: Sequence[Array]) -> Array:
    """The places in the concatenation of sorted runs, in the order of their words."""
    ends = np.cumsum([run.size for run in runs])
    parts = [(run, np.arange(end - run.size, end, dtype=np.int64)) for run, end in zip(runs, ends, strict=True)]
    # From the newest: they are the small ones, and a large one is then copied once.
    while len(parts) > 1:
        (words, places), (newer_words, newer_places) = parts[-2:]
        n = words.size + newer_words.size
        # The kernel stores one past the end before it knows that an entry is dead.
        out_words, out_places = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
        merge_live(words, places, newer_words, newer_places, _NEVER, out_words, out_places)
        parts[-2:] = [(out_words[:n], out_places[:n])]
    return parts[0][1]


def blocks(segment: Segment, schema: pa.Schema) -> list[pa.RecordBatch]:
    """`segment` as the record batches of a piece."""
    out = []
    for begin in range(0, segment.n, BLOCK_ROWS):
        part = segment.part(begin, min(begin + BLOCK_ROWS, segment.n))
        words = [pa.array(column) for column in (part.words, part.ticks, *part.terms)]
        columns = [
            pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
            for column in part.rows.columns
        ]
        out.append(pa.RecordBatch.from_arrays([*words, *columns], schema=schema))
    return out
