"""Joins that give a left tuple's row once it is decided: as-of joins by key, and joins with summaries.

Their operators pair nothing, so there is no algorithm besides. Left tuples wait, in the tables in which they came, and
come out in their order; right ones stay as long as a left tuple may need them. What is kept of the right side, and what
decides a left tuple, is each operator's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.kinds.base import Tail
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import BoundSpec
from streamjoin.model.plain_types import retyped
from streamjoin.model.predicates import Equi
from streamjoin.windows.buffer import Buffer, Restore
from streamjoin.windows.clock import FOREVER
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers

_EVERYTHING = Tail(FOREVER, last=True)
# Tables of fewer rows are put together.
_SMALL = 4096


class UndecidedRows:
    """One side's tuples from position `base` to `count`, with the times and the key numbers of each.

    They stay in the Arrow tables in which they came: rows are given out without a copy.
    """

    timed = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.base = 0
        self.count = 0
        self._tables: list[pa.Table] = []
        self._ticks = Buffer(np.int64)
        self._keys = Buffer(np.int64)

    @property
    def ticks(self) -> Array:
        """The times."""
        return self._ticks.values

    def time_at(self, position: int) -> int:
        """The time of the tuple at a position; the largest if it has not come yet."""
        return FOREVER if position >= self.count else int(self.ticks[position - self.base])

    @property
    def keys(self) -> Array:
        """The numbers of the keys."""
        return self._keys.values

    def append(self, table: pa.Table, keys: Array, ticks: Array) -> None:
        """Add tuples in stream order."""
        tail = [table]
        while self._tables and self._tables[-1].num_rows + sum(part.num_rows for part in tail) <= _SMALL:
            tail.insert(0, self._tables.pop())
        self._tables.append(pa.concat_tables(tail).combine_chunks() if len(tail) > 1 else table)
        self._keys.append(keys)
        self._ticks.append(ticks)
        self.count += table.num_rows

    def first(self, n: int) -> pa.Table:
        """The oldest `n` rows."""
        pieces = []
        for table in self._tables:
            if n <= 0:
                break
            pieces.append(table if table.num_rows <= n else table.slice(0, n))
            n -= table.num_rows
        return pieces[0] if len(pieces) == 1 else pa.concat_tables([self.schema.empty_table(), *pieces])

    def forget(self, position: int) -> int:
        """Drop the tuples before a position; returns how many."""
        n = rest = position - self.base
        while self._tables and rest >= self._tables[0].num_rows:
            rest -= self._tables.pop(0).num_rows
        if rest:
            self._tables[0] = self._tables[0].slice(rest)
        self._keys.forget(n)
        self._ticks.forget(n)
        self.base = position
        return n

    def renumber(self, numbers: Array) -> None:
        """Replace the numbers of the keys."""
        # In new memory: a failed call returns to the old numbers.
        self._keys = Buffer(np.int64)
        self._keys.append(numbers)

    def retype(self, schema: pa.Schema) -> None:
        """Adopt a schema that gives types to columns that were all NULL so far."""
        self._tables = [retyped(table, schema) for table in self._tables]
        self.schema = schema

    def saved(self) -> Restore:
        """Return a function that restores these tuples."""
        state = self.base, self.count, self.schema, self._keys
        tables, parts = list(self._tables), [self._keys.saved(), self._ticks.saved()]

        def restore() -> None:
            self.base, self.count, self.schema, self._keys = state
            self._tables = list(tables)
            for part in parts:
                part()

        return restore

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(int(table.nbytes) for table in self._tables) + self._keys.nbytes + self._ticks.nbytes


@dataclass(frozen=True)
class NoAlgorithm:
    """The name in place of an algorithm: the operator does the work."""

    name: str

    def close(self) -> None:
        """Do nothing: there are no threads."""

    @property
    def nbytes(self) -> int:
        """No bytes: the operator holds them."""
        return 0


class LeftOperator(ABC):
    """A running join that decides left tuples."""

    largest_chunk = 1 << 17
    """How many tuples a step takes at the most."""

    def __init__(self, bound: BoundSpec, choice: AlgorithmChoice, workers: Workers, counts: Counts) -> None:
        self.bound = bound
        self.choice = choice
        self.counts = counts
        self.algorithm = NoAlgorithm(choice.name)
        self.no_rows = bound.schema.empty_table()
        self._later: Callable[[], Array] = partial(np.empty, 0, np.int64)
        self._workers = workers
        self._self_join = bound.spec.self_join
        # Nothing that follows in arrival order can change a row.
        self._arrival = bound.spec.order == "arrival"
        self.has_times = not self._arrival
        self._left = UndecidedRows(bound.left_schema)
        self._numbers = KeyNumbers([key for key in bound.keys if isinstance(key.term, Equi)])

    @property
    def later(self) -> Array:
        """For each row of the newest step, the place of the tuple with which it came out."""
        return self._later()

    @property
    @abstractmethod
    def stores(self) -> tuple[UndecidedRows, SideStore]:
        """The stored tuples of both sides."""

    def at_once(self, schemas: object) -> None:  # noqa: B027 - nothing to do
        """None: every push is decided in steps."""

    def begin(self, ordered: Ordered, horizons: tuple[int, int] | None, tail: Tail | None = None) -> Work:
        """Prepare tuples to be joined."""
        return Work(ordered, horizons, tail=_EVERYTHING if self._arrival else tail)

    def step(self, work: Work, limit: int | None, most: int | None = None) -> pa.Table:
        """Join the next chunk of at most `most` tuples; raises Overflow beyond `limit` rows."""
        ordered, n = work.ordered, int(work.ordered.is_right.size)
        if work.ready:
            work.tried = 0
            rows, work.ready = work.ready[0], work.ready[1:]
            self._later = partial(np.zeros, rows.num_rows, np.int64)
            if limit is not None and rows.num_rows > limit:
                raise Overflow
            return rows
        end = min(n, work.begin + min(self.largest_chunk, most or n))
        work.tried = end - work.begin
        is_right = ordered.is_right[work.begin : end]
        rights = work.tried if self._self_join else int(np.count_nonzero(is_right))
        counts = work.tried if self._self_join else work.tried - rights, rights
        with self.counts.step("store"):
            tables = [ordered.tables[side].slice(work.at[side], counts[side]) for side in (0, 1)]
            sides = () if self._arrival else (0, 1)
            ticks = [_cut(ordered.ticks[side], work.at[side], counts[side]) for side in sides]
            newest = self._store(tables, ticks, is_right)
        work.begin, work.at = end, [work.at[0] + counts[0], work.at[1] + counts[1]]
        decided = _EVERYTHING if self._arrival else Tail(newest)
        if end == n:
            # Without a gate's word the newest tuple may still be followed by others of its time.
            decided, work.tail = work.tail or decided, None
        return self._decide(decided, limit, is_right)

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        self._left.retype(bound.left_schema)
        self.bound = bound
        self.no_rows = bound.schema.empty_table()

    @abstractmethod
    def saved(self) -> Restore:
        """Return a function that restores the stored tuples and what is known of them."""

    def earliest(self, tick: int) -> int:
        """The earliest time that a later row can have, in event-time order, if no tuple before `tick` follows."""
        return min(tick, self._left.time_at(self._left.base))

    def counters(self) -> dict[str, int]:
        """The number of keys, and of stored right rows."""
        right = self.stores[1]
        return {"keys": self._numbers.count, "stored": right.count - right.base}

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes held by the stored tuples, and by what is known of keys and windows."""
        return sum(store.nbytes for store in self.stores), self._known_bytes() + self._numbers.nbytes

    @abstractmethod
    def _known_bytes(self) -> int:
        """Bytes of what is known besides the numbers of keys."""

    @abstractmethod
    def _store(self, tables: list[pa.Table], ticks: list[Array], is_right: Array) -> int:
        """Store a chunk's left and right tuples; returns the newest time. In arrival order there are no ticks."""

    @abstractmethod
    def _decide(self, tail: Tail, limit: int | None, is_right: Array) -> pa.Table:
        """The rows of the left tuples that are decided now, with a chunk of these tuples."""


def _cut(ticks: Array | None, begin: int, n: int) -> Array:
    if ticks is None:
        raise AssertionError("event-time order without ticks")
    return ticks[begin : begin + n]
