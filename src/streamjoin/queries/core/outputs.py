"""The outputs of all queries, gathered once a batch (AJoin, section 3.4: late materialization).

Queries that read the same columns of the same streams form a class. A batch's results of a class are dealt out by
query and each column is gathered once for all; a query's rows are a slice of that, without a copy. The invariant:
a query that gains nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.adhoc.core.budgets import Ledger
from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.gathering import Read
from streamjoin.adhoc.core.query_classes import QueryClass
from streamjoin.adhoc.core.stored_stream import StoredStream
from streamjoin.adhoc.core.tuple_columns import allocate, concatenate
from streamjoin.adhoc.language.plan import query_name
from streamjoin.kernels.gather import gather
from streamjoin.kernels.shared_queries.sets import count_bits, deal, list_owners
from streamjoin.model.errors import InputError
from streamjoin.windows.workers import Workers

T = TypeVar("T")
R = TypeVar("R")
_WORTH_THREADS: Final = 1 << 17
"""Values from which on gathering by threads takes less time than handing it to them."""
_Kind = tuple[pa.Schema, tuple[int, ...]]
"""What plain outputs look like: their names and types, and which columns they are."""


@dataclass
class EndingResults:
    """Results of one ending: whose, which row, and the rows' tuples by source."""

    owners: Array
    rows: Array
    refs: tuple[Array, ...]


def list_results(
    sets: Array, mask: Array, owners: Array, refs: tuple[Array, ...], roles: tuple[int, ...]
) -> EndingResults | None:
    """What sets of bits say, whose numbers are in `owners`; `roles` says which of `refs` is which source's."""
    count = count_bits(sets, mask)
    if not count:
        return None
    results = EndingResults(allocate(count, np.int64), allocate(count, np.int64), tuple(refs[role] for role in roles))
    list_owners(sets, mask, owners, 0, results.owners, results.rows)
    return results


class ReferenceOutputs:
    """A part of a query, whose results are numbers of tuples; others make rows of them."""

    def __init__(self, group: QueryClass) -> None:
        self._group = group
        (self._name,) = group.members
        self._is_once = group.entry.part == "once"

    def names(self, number: int) -> tuple[str, ...]:  # noqa: ARG002 - there is one
        """The query, unless it is paused."""
        return tuple(query_name(name) for name in self._group.active)

    def remove(self, number: int) -> None:
        """Nothing is kept."""

    def reduced(self, results: EndingResults) -> EndingResults:
        """What is kept of results: where only the tuples of the core matter, each of them once."""
        if not self._is_once:
            return results
        core = [ref[results.rows] for ref in results.refs[:-1]]
        if len(core) == 1:
            # Numbers are dense: marking them is much cheaper than sorting.
            least = int(core[0].min())
            marks = np.zeros(int(core[0].max()) - least + 1, np.bool_)
            marks[core[0] - least] = True
            core = [least + np.flatnonzero(marks)]
        else:
            core = list(np.unique(np.stack(core, axis=1), axis=0).T)
        count = len(core[0])
        return EndingResults(results.owners[:count], np.arange(count), (*core, np.zeros(count, np.int64)))

    def tables(
        self,
        results: list[EndingResults],
        streams: Mapping[str, StoredStream],  # noqa: ARG002
        ledger: Ledger,  # noqa: ARG002
        workers: Workers,  # noqa: ARG002
    ) -> Iterator[tuple[str, pa.Table | InputError]]:
        """The tuples of all results, by source."""
        schema = self._group.entry.schema
        columns = [concatenate([part.refs[n][part.rows] for part in results]) for n in range(len(schema))]
        if self._group.active:
            yield self._name, pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)


class OutputClass:
    """Queries that read the same columns; each has a number."""

    def __init__(self, reads: tuple[Read, ...], sources: int) -> None:
        self.reads = reads
        self._sources = sources
        self._members: list[tuple[QueryClass, int | None] | None] = []
        self._kinds: list[_Kind] = []
        self._free: list[int] = []

    def add(self, group: QueryClass) -> int:
        """Give a query a number."""
        member = group, self._kind(group.entry)
        if not self._free:
            self._members.append(member)
            return len(self._members) - 1
        number = self._free.pop()
        self._members[number] = member
        return number

    def _kind(self, entry: LiveQuery) -> int | None:
        picks = entry.gatherer.picks
        if picks is None:
            return None
        kind = entry.gatherer.schema, picks
        if kind not in self._kinds:
            self._kinds.append(kind)
        return self._kinds.index(kind)

    def names(self, number: int) -> tuple[str, ...]:
        """The queries that have a number and are not paused."""
        member = self._members[number]
        return () if member is None else member[0].active

    def remove(self, number: int) -> None:
        """Take a number back."""
        self._members[number] = None
        self._free.append(number)

    def tables(
        self, results: list[EndingResults], streams: Mapping[str, StoredStream], ledger: Ledger, workers: Workers
    ) -> Iterator[tuple[str, pa.Table | InputError]]:
        """The rows of every query that gained some, or why it has none."""
        refs = [concatenate([part.refs[source] for part in results]) for source in range(self._sources)]
        shifts = np.cumsum([0, *(len(part.refs[0]) for part in results)])
        for part, shift in zip(results, shifts, strict=False):
            part.rows += shift
        rows = concatenate([part.rows for part in results])
        owners = concatenate([part.owners for part in results])
        starts, dealt = np.zeros(len(self._members) + 1, np.int64), allocate(len(rows), np.int64)
        deal(owners, rows, starts, dealt)
        starts, dealt = self._within_budgets(starts, dealt, refs, streams, ledger)
        columns = [streams[stream].column(name) for _, stream, name in self.reads]
        spread = workers.spread if len(dealt) * len(columns) >= _WORTH_THREADS else _one_by_one
        chosen = spread(lambda ref: _gather(ref, dealt), refs)
        taken = spread(lambda n: columns[n].take(chosen[self.reads[n][0]]), range(len(columns)))
        yield from self._cut(taken, starts)

    def _within_budgets(
        self,
        starts: Array,
        dealt: Array,
        refs: list[Array],
        streams: Mapping[str, StoredStream],
        ledger: Ledger,
    ) -> tuple[Array, Array]:
        """Without the rows of queries that took more of the batch than they may."""
        if ledger.is_empty:
            return starts, dealt
        serials = [-1 if member is None else member[0].entry.serial for member in self._members]
        accounts = np.array([ledger.number_of(serial) for serial in serials])
        counts = np.diff(starts)
        if not accounts[counts > 0].any():
            return starts, dealt
        if ledger.limits("bytes", accounts) < np.inf:
            amounts = np.zeros(len(counts), np.int64)
            for source, stream, column in self.reads:
                values = streams[stream].column(column)
                if values.width is not None:
                    amounts += values.width * counts
                else:
                    sizes = np.cumsum(values.sizes(refs[source][dealt]))
                    amounts += np.diff(np.concatenate([[0], sizes])[starts])
            ledger.charge("bytes", accounts, amounts, f"{int(counts.max()):,} rows of one query")
        is_over = np.array([serial in ledger.exceeded for serial in serials])
        if not (is_over & (counts > 0)).any():
            return starts, dealt
        kept = dealt[~np.repeat(is_over, counts)]
        return np.concatenate([[0], np.cumsum(np.where(is_over, 0, counts))]), kept

    def _cut(self, taken: list[pa.Array], starts: Array) -> Iterator[tuple[str, pa.Table | InputError]]:
        wholes: dict[int, pa.Table] = {}
        for number in np.flatnonzero(np.diff(starts)).tolist():
            member = self._members[number]
            if member is None:
                raise AssertionError("rows for a query that is gone")
            owner, kind = member
            first, count = int(starts[number]), int(starts[number + 1] - starts[number])
            if kind is not None:
                if kind not in wholes:
                    schema, picks = self._kinds[kind]
                    wholes[kind] = pa.Table.from_arrays([taken[pick] for pick in picks], schema=schema)
                rows: pa.Table | InputError = wholes[kind].slice(first, count)
            else:
                try:
                    rows = owner.entry.gatherer.rows([column.slice(first, count) for column in taken], count)
                except InputError as error:
                    rows = error
            yield from ((name, rows) for name in owner.active)


Sink = OutputClass | ReferenceOutputs
"""What takes the results of a path."""


@dataclass
class Outputs:
    """All classes of outputs, and the tables of queries that gain nothing."""

    empty: dict[str, pa.Table] = field(default_factory=dict)
    _classes: dict[tuple[Any, ...], OutputClass] = field(default_factory=dict)
    _places: dict[int, tuple[Sink, int]] = field(default_factory=dict)
    _names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def add(self, group: QueryClass) -> None:
        """Take queries in."""
        entry = group.entry
        if entry.part is not None:
            self._places[entry.serial] = ReferenceOutputs(group), 0
        else:
            sources = tuple(source.stream.name for source in entry.query.sources)
            key = sources, entry.gatherer.reads
            if key not in self._classes:
                self._classes[key] = OutputClass(entry.gatherer.reads, len(sources))
            self._places[entry.serial] = self._classes[key], self._classes[key].add(group)
        self._names[entry.serial] = tuple(group.members)
        nothing = entry.schema.empty_table()
        self.empty.update(dict.fromkeys(group.members, nothing))

    def remove(self, entry: LiveQuery) -> None:
        """Take the queries out that were in a class."""
        sink, number = self._places.pop(entry.serial)
        sink.remove(number)
        for name in self._names.pop(entry.serial):
            del self.empty[name]

    def place_of(self, entry: LiveQuery) -> tuple[Sink, int]:
        """A class's outputs and its number there."""
        return self._places[entry.serial]

    def tables(
        self,
        results: Mapping[Sink, list[EndingResults]],
        streams: Mapping[str, StoredStream],
        ledger: Ledger,
        workers: Workers,
    ) -> tuple[dict[str, pa.Table], dict[str, InputError]]:
        """The rows of all queries, and who failed."""
        outputs, failures = dict(self.empty), dict[str, InputError]()
        for sink, parts in results.items():
            for name, rows in sink.tables(parts, streams, ledger, workers):
                if isinstance(rows, InputError):
                    failures[name] = rows
                else:
                    outputs[name] = rows
        for serial, error in ledger.exceeded.items():
            sink, number = self._places[serial]
            failures.update(dict.fromkeys(sink.names(number), error))
        return outputs, failures


def _one_by_one(step: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [step(item) for item in items]


def _gather(numbers: Array, places: Array) -> Array:
    chosen = allocate(len(places), np.int64)
    gather(numbers, places, 0, chosen, 0, len(places))
    return chosen
