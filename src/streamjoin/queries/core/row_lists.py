"""Rows of queries as lists of their tuples, which become columns when they are read (AJoin, section 3.4).

A batch has the results of queries that read the same columns together, and holds the columns as they are. The first
who reads has the results dealt out, query by query. Where the rows are few, they are gathered then for all these
queries, whose rows are slices of that; where they are many, each reader has its own rows gathered, and rows that
are not asked for never are. The invariant: rows are the same whenever they are read, whatever was let go of since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.gather import gather
from streamjoin.queries.core.selection_tables import pack_bits
from streamjoin.queries.core.stored_stream import HeldColumn, allocate, concatenate
from streamjoin.queries.kernels.sets import count_bits, count_by_owner, deal, list_owners, narrow
from streamjoin.windows.workers import Workers

T = TypeVar("T")
R = TypeVar("R")
_TOGETHER: Final = 1 << 21
"""Up to this many values all rows of a batch are gathered at once: then the calls cost more than the values."""
_WORTH_THREADS: Final = 1 << 17
"""Values from which on gathering by threads takes less time than handing it to them."""
_UNSURE: Final = 1 << 28
"""The bytes of rows with texts from which on an array of Arrow may not hold them, so that reading them may fail."""
Kind = tuple[pa.Schema, tuple[int, ...]]
"""What plain outputs look like: their names and types, and which columns they are."""


@dataclass
class EndingResults:
    """Results of one ending: the tuples by source of each row that some query has, and by its set which ones do."""

    sets: Array
    mask: Array
    """The bits of the ending; the sets may have others."""
    owners: Array
    """Whose each bit is."""
    refs: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return sum(array.nbytes for array in (self.sets, *self.refs))

    @property
    def count(self) -> int:
        """How many results there are."""
        return count_bits(self.sets, self.mask)

    def add_counts(self, counts: Array) -> None:
        """Add how many results each query has."""
        count_by_owner(self.sets, self.mask, self.owners, counts)

    def listed(self) -> tuple[Array, Array]:
        """Result by result: whose, and which row."""
        owners, rows = (allocate(self.count, np.int64) for _ in range(2))
        list_owners(self.sets, self.mask, self.owners, owners, rows)
        return owners, rows

    def narrowed(self) -> EndingResults:
        """The same without rows that nobody has, in memory of its own."""
        sets, places = np.empty((len(self.sets) + 1, self.sets.shape[1]), np.uint64), np.empty(len(self.sets) + 1, int)
        n = narrow(self.sets, self.mask, sets, places)
        return replace(self, sets=sets[:n].copy(), refs=tuple(ref[places[:n]] for ref in self.refs))

    def keep(self, kept: Array) -> EndingResults | None:
        """The results of the queries that are chosen; None if these have none."""
        words = self.sets.shape[1]
        owned = pack_bits(kept[self.owners], words)
        results = replace(self, mask=self.mask & owned).narrowed()
        return results if len(results.sets) else None


class DealtRows:
    """The results of a batch, dealt out by query once somebody reads some; `columns` are each of one of the sources."""

    def __init__(
        self, results: Sequence[EndingResults], queries: int, columns: Sequence[tuple[int, HeldColumn]]
    ) -> None:
        self._results, self._columns = results, columns
        counts = np.zeros(queries, np.int64)
        for part in results:
            part.add_counts(counts)
        self.starts: Array = np.concatenate([[0], np.cumsum(counts)])
        """Where the rows of each query begin, by its number, and where the last ones end."""
        self._count = int(self.starts[-1])
        widths = [values.mean_width for _, values in columns if values.plain is None]
        self.sure = int(_UNSURE / max(1.0, *widths)) if widths else self._count
        """This many rows can be gathered at any time, where there is memory."""
        self._lock = threading.RLock()
        self._dealt: tuple[list[Array], Array] | None = None
        self._gathered: list[pa.Array] | None = None
        self._tables: dict[int, pa.Table] = {}
        self._read: WeakValueDictionary[tuple[int, int, int], pa.Table] = WeakValueDictionary()
        """Rows that somebody has: queries that are the same have the same."""

    def _places(self) -> tuple[list[Array], Array]:
        """The tuples of all pairs by source, and by query which pairs are its rows."""
        with self._lock:
            if self._dealt is None:
                results = self._results
                refs = [concatenate(parts) for parts in zip(*(part.refs for part in results), strict=True)]
                dealt, places, base = allocate(self._count, np.int64), self.starts.copy(), 0
                for part in results:
                    deal(part.sets, part.mask, part.owners, base, places, dealt)
                    base += len(part.sets)
                self._dealt, self._results = (refs, dealt), ()
            return self._dealt

    def columns(self, first: int, count: int, workers: Workers | None = None) -> list[pa.Array]:
        """All columns of some rows."""
        if not self._is_small:
            return self._taken(first, count, workers)
        with self._lock:
            whole = self._whole()
        return [column.slice(first, count) for column in whole]

    def table(self, number: int, kind: Kind, first: int, count: int) -> pa.Table:
        """Some rows of a kind; `number` is the kind's."""
        place = number, first, count
        rows = self._read.get(place)
        if rows is None:
            rows = self._read[place] = self._table(number, kind, first, count)
        return rows

    def _table(self, number: int, kind: Kind, first: int, count: int) -> pa.Table:
        schema, picks = kind
        if not self._is_small:
            taken = self._taken(first, count)
            return pa.Table.from_arrays([taken[pick] for pick in picks], schema=schema)
        with self._lock:
            table = self._tables.get(number)
            if table is None:
                whole = self._whole()
                table = self._tables[number] = pa.Table.from_arrays([whole[pick] for pick in picks], schema=schema)
        return table.slice(first, count)

    @property
    def _is_small(self) -> bool:
        return self._count * len(self._columns) <= _TOGETHER

    def _whole(self) -> list[pa.Array]:
        if self._gathered is None:
            self._gathered = self._taken(0, self._count)
        return self._gathered

    def _taken(self, first: int, count: int, workers: Workers | None = None) -> list[pa.Array]:
        refs, dealt = self._places()
        places = dealt[first : first + count]
        parallel = workers is not None and count * len(self._columns) >= _WORTH_THREADS
        spread = workers.spread if parallel and workers is not None else _one_by_one
        chosen = spread(lambda ref: _chosen(ref, places), refs)
        return spread(lambda column: column[1].take(chosen[column[0]]), self._columns)

    def nbytes(self, picks: Sequence[int], count: int) -> int:
        """About how many bytes `count` rows of these columns take."""
        return int(count * sum(self._columns[pick][1].mean_width for pick in picks))


@dataclass(slots=True)
class RowList:
    """The rows of a query, not gathered yet; it does not change."""

    num_rows: int
    _dealt: DealtRows
    _first: int
    _number: int
    _kind: Kind

    @property
    def schema(self) -> pa.Schema:
        """Their columns."""
        return self._kind[0]

    @property
    def nbytes(self) -> int:
        """The bytes that they take once they are read, about."""
        return self._dealt.nbytes(self._kind[1], self.num_rows)

    def slice(self, first: int, count: int | None = None) -> RowList:
        """Some of them."""
        left = max(0, self.num_rows - first)
        return replace(self, _first=self._first + first, num_rows=left if count is None else min(count, left))

    def table(self) -> pa.Table:
        """The rows, gathered."""
        return self._dealt.table(self._number, self._kind, self._first, self.num_rows)


ListedRows: TypeAlias = pa.Table | RowList
"""Rows of a query, gathered or not."""


def read(rows: ListedRows) -> pa.Table:
    """Rows as a table."""
    return rows.table() if isinstance(rows, RowList) else rows


def _one_by_one(step: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [step(item) for item in items]


def _chosen(numbers: Array, places: Array) -> Any:
    chosen = allocate(len(places), numbers.dtype)
    gather(numbers, places, 0, chosen, 0, len(places))
    return chosen
