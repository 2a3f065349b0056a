"""Rows of queries as lists of their tuples, which become columns where somebody reads them (AJoin, section 3.4).

A batch lists the results of queries that read the same columns, query by query, and holds the columns as they are.
Where the rows are few, the first who reads has them gathered for all these queries, whose rows are slices of that;
where they are many, each who reads has his own rows gathered, and nobody those that are not asked for. The invariant:
rows are the same whenever they are read, whatever was let go of since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.gather import gather
from streamjoin.queries.core.stored_stream import HeldColumn, allocate
from streamjoin.windows.workers import Workers

T = TypeVar("T")
R = TypeVar("R")
_TOGETHER: Final = 1 << 21
"""Up to so many values all rows of a batch are gathered at once: then the calls cost more than the values."""
_WORTH_THREADS: Final = 1 << 17
"""Values from which on gathering by threads takes less time than handing it to them."""
_UNSURE: Final = 1 << 28
"""The bytes of rows with texts from which on an array of Arrow may not hold them, so that reading them may fail."""
Kind = tuple[pa.Schema, tuple[int, ...]]
"""What plain outputs look like: their names and types, and which columns they are."""


class DealtRows:
    """The results of a batch, query by query: which of the pairs in `refs`, and the source and values of columns."""

    def __init__(self, refs: Sequence[Array], dealt: Array, columns: Sequence[tuple[int, HeldColumn]]) -> None:
        self._refs, self._dealt, self._columns = refs, dealt, columns
        self._lock = threading.Lock()
        self._gathered: list[pa.Array] | None = None
        self._tables: dict[int, pa.Table] = {}
        self._read: WeakValueDictionary[tuple[int, int, int], pa.Table] = WeakValueDictionary()
        """Rows that somebody has: queries that are the same have the same."""

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
        return len(self._dealt) * len(self._columns) <= _TOGETHER

    def _whole(self) -> list[pa.Array]:
        if self._gathered is None:
            self._gathered = self._taken(0, len(self._dealt))
        return self._gathered

    def _taken(self, first: int, count: int, workers: Workers | None = None) -> list[pa.Array]:
        places = self._dealt[first : first + count]
        parallel = workers is not None and count * len(self._columns) >= _WORTH_THREADS
        spread = workers.spread if parallel and workers is not None else _one_by_one
        chosen = spread(lambda ref: _chosen(ref, places), self._refs)
        return spread(lambda column: column[1].take(chosen[column[0]]), self._columns)

    def nbytes(self, picks: Sequence[int], count: int) -> int:
        """What so many rows of these columns take, about."""
        return int(count * sum(self._columns[pick][1].mean_width for pick in picks))

    def is_sure(self, count: int) -> bool:
        """Whether so many rows can be gathered at any time, where there is memory."""
        return all(values.plain is not None or count * values.mean_width < _UNSURE for _, values in self._columns)


@dataclass(frozen=True)
class RowList:
    """The rows of a query, not gathered yet."""

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
