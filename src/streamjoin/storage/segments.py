"""Sorted rows of one side in a range: mapped slices of the log, or the rows of a batch.

A stored row consists of its columns and of the values that can't be computed from them cheaply: its index word, its
ticks, its words of the terms that the index does not decide, and, after a gate, its position in its side. A 64-bit key
is its own word and is stored once. Rows are sorted by word; rows with equal words keep their order of arrival. In a
join on intervals the word of a row is where its interval begins, and a block holds rows of one class by length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.keys import KeyTerm, WordKind
from streamjoin.model.large_columns import CHUNK_BYTES, take_rows
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import KEYLESS, MARKS, Manifest, StoredRun
from streamjoin.storage.merging import RunStatistics
from streamjoin.storage.pieces import BlockRows
from streamjoin.storage.ranges import WordRange
from streamjoin.windows.encoding import integer_values
from streamjoin.windows.intervals import by_class
from streamjoin.windows.merging import merged_order

BLOCK_ROWS = 1 << 20
"""Rows per record batch of a piece: enough for a fast sweep, few enough for the 32-bit offsets of strings."""

_SAMPLE, _AGES = 1023, 15
_MARKED = ("#word", "#ticks", "#seq")


@dataclass(frozen=True)
class Segment:
    """Rows sorted by word.

    `ids` is set where a tuple could match itself, `seqs` (each row's number: its position in its side after a gate,
    the order of arrival without one in joins that are not inner), `classes` (of the row's interval, by length) in a
    join on intervals.
    """

    words: Array
    ticks: Array
    terms: tuple[Array, ...]
    rows: pa.Table
    ids: Array | None = None
    seqs: Array | None = None
    classes: Array | None = None

    @property
    def n(self) -> int:
        """The number of rows."""
        return int(self.words.size)

    def ages(self, counted: bool) -> Array:
        """The values that the window measures: times, or positions in the stream."""
        if not counted:
            return self.ticks
        if self.seqs is None:
            raise AssertionError("a count window without a gate")
        return self.seqs

    def statistics(self, counted: bool) -> RunStatistics:
        """The number of rows and their ages; those between the oldest and the newest are of a sample."""
        if self.n == 0:
            return RunStatistics(0, 0, 0)
        ages = self.ages(counted)
        sample = np.sort(ages[:: -(-self.n // _SAMPLE)])
        between = sample[np.arange(1, _AGES + 1) * sample.size // (_AGES + 1)]
        return RunStatistics(self.n, int(ages.min()), int(ages.max()), tuple(between.tolist()))

    def part(self, begin: int, end: int) -> Segment:
        """The rows from `begin` to `end`."""
        return self._mapped(lambda column: column[begin:end], self.rows.slice(begin, end - begin))

    def within(self, word_range: WordRange) -> Segment:
        """The rows that belong to `word_range`."""
        return self.part(*word_range.part(self.words))

    def having(self, words: Array) -> Array:
        """The places of the rows with one of the `words`, which ascend and differ."""
        if not words.size:
            return np.empty(0, np.int64)
        if self.n < words.size:
            at = np.minimum(np.searchsorted(words, self.words), words.size - 1)
            return np.flatnonzero(np.asarray(words[at] == self.words))
        begin = np.searchsorted(self.words, words)
        is_there = begin < self.n
        is_there[is_there] = self.words[begin[is_there]] == words[is_there]
        begin, words = begin[is_there], words[is_there]
        counts = np.ones(begin.size, np.int64)
        many = np.flatnonzero(self.words[np.minimum(begin + 1, self.n - 1)] == words)
        counts[many] = np.searchsorted(self.words, words[many], side="right") - begin[many]
        first = np.repeat(begin - (np.cumsum(counts) - counts), counts)
        places: Array = np.arange(first.size) + first
        return places

    def since(self, horizon: int, counted: bool) -> Segment:
        """The rows that are not older than `horizon`."""
        ages = self.ages(counted)
        if self.n == 0 or int(ages.min()) >= horizon:
            return self
        return self.take(np.flatnonzero(ages >= horizon))

    def take(self, places: Array) -> Segment:
        """The rows at `places`."""
        return self._mapped(lambda column: column[places], take_rows(self.rows, places))

    def _mapped(self, change: Any, rows: pa.Table) -> Segment:
        return replace(
            self,
            words=change(self.words),
            ticks=change(self.ticks),
            terms=tuple(change(term) for term in self.terms),
            rows=rows,
            ids=None if self.ids is None else change(self.ids),
            seqs=None if self.seqs is None else change(self.seqs),
            classes=None if self.classes is None else change(self.classes),
        )


@dataclass(frozen=True)
class SegmentLayout:
    """Where each array of a segment is stored: in a column of the rows, or in a column of its own."""

    names: tuple[str, ...]
    own: tuple[str, ...]
    schema: pa.Schema

    def segment(self, batch: pa.RecordBatch, numbered: bool, length_class: int | None = None) -> Segment:
        """The segment of a stored record batch, without a copy."""
        arrays = [integer_values(batch.column(name)) for name in self.names]
        rows = pa.Table.from_batches([batch]).select(range(len(self.own), batch.num_columns))
        terms = arrays[2 : len(arrays) - numbered]
        classes = None if length_class is None else np.broadcast_to(np.uint8(length_class), (batch.num_rows,))
        return Segment(arrays[0], arrays[1], tuple(terms), rows, None, arrays[-1] if numbered else None, classes)


def layout(blueprint: Blueprint, part: int) -> SegmentLayout:
    """How a part of a run is stored; marks are rows without columns, by the word, time and number of what matched."""
    if part in (MARKS, MARKS + 1):
        return SegmentLayout(_MARKED, _MARKED, pa.schema([(name, pa.int64()) for name in _MARKED]))
    bound, side = blueprint.bound, part % 2
    if part >= KEYLESS:
        columns = pa.schema([*((name, pa.int64()) for name in _MARKED), *blueprint.schema(side)])
        return SegmentLayout(_MARKED, _MARKED, columns)
    # By key left rows are stored under the words of their keys on the right side.
    plain = len(bound.index) == 1 and not (blueprint.by_key and side == 0)
    names = [_word_column(bound.index[0], side) if plain else None, _time_column(blueprint, side)]
    names += [_word_column(bound.terms[i], side) for i in blueprint.open_terms]
    own_names = ["#word", "#ticks", *(f"#term{i}" for i in blueprint.open_terms)]
    columns = [name or own for name, own in zip(names, own_names, strict=True)]
    if blueprint.numbered:
        columns.append("#seq")
    own = tuple(name for name in columns if name.startswith("#"))
    schema = pa.schema([*(pa.field(name, pa.int64()) for name in own), *blueprint.schema(side)])
    return SegmentLayout(tuple(columns), own, schema)


def _word_column(term: KeyTerm, side: int) -> str | None:
    """The column whose values are the words of `term`, unchanged."""
    column = term.right if side else term.left
    plain = term.kind is WordKind.INTEGER and not column.unsigned and _is_64_bit(column.type)
    return column.name if plain and not column.name.startswith("#") else None


def _time_column(blueprint: Blueprint, side: int) -> str | None:
    time = blueprint.bound.time
    if time is None or time.multipliers[side] != 1:
        return None
    name = time.right if side else time.left
    return name if _is_64_bit(blueprint.schema(side).field(name).type) and not name.startswith("#") else None


def _is_64_bit(type_: pa.DataType) -> bool:
    return bool(type_ == pa.int64() or pa.types.is_timestamp(type_) or pa.types.is_date64(type_))


def stored(
    log: WindowLog,
    blueprint: Blueprint,
    manifest: Manifest,
    runs: Sequence[StoredRun],
    part: int,
    word_range: WordRange,
    *,
    shared: bool = True,
    plan: SegmentLayout | None = None,
) -> list[Segment]:
    """What belongs to `word_range` in a part of `runs`, oldest run first; see `WindowLog.piece` for `shared`.

    `plan` is the part's `layout`, if the caller has it.
    """
    plan = plan or layout(blueprint, part)
    segments = []
    for run in runs:
        for file, block in run.overlapping(part, word_range):
            batch = log.piece(manifest, file, shared).batch(block, plan.schema)
            segment = plan.segment(batch, blueprint.numbered, block.length_class).within(word_range)
            if segment.n:
                segments.append(segment)
    return segments


MATCHED = -1
"""The number of a stored row that needs no mark, because it matched in the batch that it came in."""


def marks_of(words: Array, ticks: Array, seqs: Array) -> Segment:
    """Marks, by word."""
    order = np.argsort(words, kind="stable")
    return Segment(words[order], ticks[order], (), pa.table({}), None, seqs[order])


def merged(segments: Sequence[Segment]) -> Segment:
    """All rows of `segments`; among equal words, rows of earlier segments come first."""
    if len(segments) == 1:
        return segments[0]
    return concatenated(segments).take(merged_order([segment.words for segment in segments]))


def first_of_each(words: Array) -> Array:
    """The place of the first of each word in sorted words."""
    places: Array = np.flatnonzero(np.diff(words, prepend=words[:1] - 1))
    return places


def concatenated(segments: Sequence[Segment]) -> Segment:
    """The rows of `segments` one after the other, not sorted by word."""
    seqs = [segment.seqs for segment in segments if segment.seqs is not None]
    classes = [segment.classes for segment in segments if segment.classes is not None]
    return Segment(
        np.concatenate([segment.words for segment in segments]),
        np.concatenate([segment.ticks for segment in segments]),
        tuple(np.concatenate(column) for column in zip(*(segment.terms for segment in segments), strict=True)),
        pa.concat_tables([segment.rows for segment in segments]).combine_chunks(),
        seqs=np.concatenate(seqs) if seqs else None,
        classes=np.concatenate(classes) if classes else None,
    )


def _blocks(segment: Segment) -> Iterator[Segment]:
    """Parts of bounded rows and bytes: an array has at most 2 GiB of text."""
    for begin in range(0, segment.n, BLOCK_ROWS):
        part = segment.part(begin, min(begin + BLOCK_ROWS, segment.n))
        pieces = min(part.n, -(-part.rows.nbytes // CHUNK_BYTES))
        if pieces <= 1:
            yield part
            continue
        step = -(-part.n // pieces)
        for first in range(0, part.n, step):
            piece = part.part(first, min(first + step, part.n))
            if piece.rows.nbytes > 2 * CHUNK_BYTES - (1 << 20) and piece.n > 1:
                # Long values among short ones.
                yield from (piece.part(row, row + 1) for row in range(piece.n))
            else:
                yield piece


def block_rows(segment: Segment, plan: SegmentLayout) -> list[BlockRows]:
    """`segment` as the record batches of a piece."""
    if segment.classes is not None:
        return [
            replace(block, length_class=number)
            for number, places in by_class(segment.classes)
            for block in block_rows(replace(_of_class(segment, places), classes=None), plan)
        ]
    out = []
    for part in _blocks(segment):
        arrays = dict(zip(plan.names, (part.words, part.ticks, *part.terms, part.seqs), strict=False))
        columns = [pa.concat_arrays(c.chunks) if c.num_chunks != 1 else c.chunk(0) for c in part.rows.columns]
        batch = pa.RecordBatch.from_arrays(
            [*(pa.array(arrays[name]) for name in plan.own), *columns], schema=plan.schema
        )
        out.append(BlockRows(batch, int(part.words[0]), int(part.words[-1])))
    return out


def _of_class(segment: Segment, places: Array | slice) -> Segment:
    return segment if isinstance(places, slice) else segment.take(places)
