"""The outputs of all queries, listed once a batch (AJoin, section 3.4: late materialization).

Queries that are the same but for their names are of one class, which has one set of bits and one gathering: two are if
their plans and budgets are equal and they were created in the same batch, so that they gain the same rows as long as
both run. A class keeps its bits while a query is in it. Parts of queries are classes of their own.

Queries that read the same columns of the same streams share more: a batch's results are dealt out by query, once for
all. The invariant: a query that gains nothing costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError
from streamjoin.queries.core.budgets import Budget, Ledger
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.gathering import Read
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.core.row_lists import DealtRows, EndingResults, Kind, ListedRows, RowList
from streamjoin.queries.core.selection_tables import BITS
from streamjoin.queries.core.stored_stream import StoredStream, concatenate
from streamjoin.queries.language.plan import query_name
from streamjoin.windows.workers import Workers

_Key = tuple[object, int, Choice, Budget, str | None]


@dataclass
class QueryClass:
    """Who is in a class; `entry` stands for all of them, with a serial of the class."""

    key: _Key
    entry: LiveQuery
    choice: Choice
    members: dict[str, LiveQuery] = field(default_factory=dict)

    active: tuple[str, ...] = ()
    """Those that are not paused."""

    def add(self, name: str, entry: LiveQuery) -> None:
        """Take a query in."""
        self.members[name] = entry
        self._note_active()

    def remove(self, name: str) -> None:
        """Let a query go."""
        del self.members[name]
        self._note_active()

    def _note_active(self) -> None:
        self.active = tuple(name for name, entry in self.members.items() if not entry.paused)


class QueryClasses:
    """All classes, by what their members have in common."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, QueryClass] = {}
        self._by_name: dict[str, QueryClass] = {}
        self._by_serial: dict[int, QueryClass] = {}
        self._serials = count()

    def update(
        self, queries: Mapping[str, LiveQuery], choices: Mapping[str, Choice]
    ) -> tuple[list[QueryClass], list[QueryClass]]:
        """Put every query where it belongs; only those that are not as before are looked at.

        Returns the classes that are not as before: those there were, and those there are. Some are in both.
        """
        leaving = [
            name
            for name, group in self._by_name.items()
            if queries.get(name) is not group.members[name] or choices[name] != group.choice
        ]
        known = set(self._by_serial)
        touched = {group.entry.serial: group for group in map(self._leave, leaving)}
        for name in [name for name in queries if name not in self._by_name]:
            group = self._join(name, queries[name], choices[name])
            touched[group.entry.serial] = group
        before = [group for serial, group in touched.items() if serial in known]
        for group in before:
            if not group.members:
                del self._by_key[group.key], self._by_serial[group.entry.serial]
        return before, [group for group in touched.values() if group.members]

    def _leave(self, name: str) -> QueryClass:
        group = self._by_name.pop(name)
        group.remove(name)
        return group

    def _join(self, name: str, entry: LiveQuery, choice: Choice) -> QueryClass:
        key = entry.plan, entry.created, choice, entry.budget, None if entry.part is None else name
        group = self._by_key.get(key)
        if group is None:
            group = self._by_key[key] = QueryClass(key, replace(entry, serial=next(self._serials)), choice)
            self._by_serial[group.entry.serial] = group
        group.add(name, entry)
        self._by_name[name] = group
        return group

    def active(self, serial: int) -> tuple[str, ...]:
        """The queries of a class that are not paused."""
        return self._by_serial[serial].active

    def names(self, entries: Iterable[LiveQuery]) -> tuple[str, ...]:
        """The queries that these stand for."""
        members = (live for entry in entries for live in self._by_serial[entry.serial].members.values())
        return tuple(sorted({name for live in members for name in live.names}))

    def serial_of(self, name: str) -> int:
        """The serial of a query's class."""
        return self._by_name[name].entry.serial


RESULT_BYTES: Final = 8
"""What a result of a query takes when it is dealt out, besides its tuples and its set."""
REFERENCE_BYTES: Final = 8
"""What a number of a tuple takes, or a word of a set."""


class FoundResults:
    """The results that a batch has found so far, for whom they are of; several threads may add to them."""

    def __init__(self) -> None:
        self._by_sink: dict[Sink, list[tuple[int, EndingResults]]] = {}
        self._lock = threading.Lock()

    def add(self, first_join: int, sink: Sink, results: EndingResults, ledger: Ledger) -> None:
        """Take results of a first join in; where queries that have lost their rows hold much, that goes first."""
        with self._lock:
            if ledger.takes_room():
                self._forget_lost(ledger)
            self._by_sink.setdefault(sink, []).append((first_join, results))

    def take(self, ledger: Ledger) -> dict[Sink, list[EndingResults]]:
        """The results of the queries that are within all budgets; none is held on to."""
        with self._lock:
            self._forget_lost(ledger)
            found, self._by_sink = self._by_sink, {}
        # Whichever thread was faster: rows have one order.
        return {sink: [part for _, part in sorted(parts, key=itemgetter(0))] for sink, parts in found.items()}

    def charge(self, streams: Mapping[str, StoredStream], ledger: Ledger) -> None:
        """Count the bytes of all rows before one of them is gathered."""
        if not ledger.is_empty:
            for sink, parts in self._by_sink.items():
                if isinstance(sink, OutputClass):
                    sink.charge([part for _, part in parts], streams, ledger)

    def _forget_lost(self, ledger: Ledger) -> None:
        if not ledger.exceeded:
            return
        for sink, parts in list(self._by_sink.items()):
            lost = ledger.over(sink.accounts(ledger))
            if lost.any():
                kept = [(first_join, part.keep(~lost)) for first_join, part in parts]
                self._by_sink[sink] = [(first_join, part) for first_join, part in kept if part is not None]
                if not self._by_sink[sink]:
                    del self._by_sink[sink]
        ledger.freed()


def list_results(
    sets: Array, mask: Array, owners: Array, refs: tuple[Array, ...], roles: tuple[int, ...]
) -> EndingResults | None:
    """What sets of bits say, whose numbers are in `owners`; `roles` says which of `refs` is which source's."""
    results = EndingResults(sets, mask, owners, tuple(refs[role] for role in roles))
    count = results.count
    if not count:
        return None
    # Where most of the tuples are of others' results they need not be held for these.
    return results.narrowed() if 2 * count < len(sets) else results


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

    def account(self, ledger: Ledger) -> int:
        """The account of the query's budget."""
        return ledger.number_of(self._group.entry.serial)

    def accounts(self, ledger: Ledger) -> Array:
        """The same, whoever of the results is asked for: they are all the query's."""
        return np.full(1, self.account(ledger))

    def reduced(self, results: EndingResults) -> EndingResults:
        """What is kept of results: where only the tuples of the core matter, each of them once."""
        if not self._is_once:
            return results
        _, rows = results.listed()
        core = [ref[rows] for ref in results.refs[:-1]]
        if len(core) == 1:
            # Numbers are dense: marking them is much cheaper than sorting.
            least = int(core[0].min())
            marks = np.zeros(int(core[0].max()) - least + 1, np.bool_)
            marks[core[0] - least] = True
            core = [least + np.flatnonzero(marks)]
        else:
            core = list(np.unique(np.stack(core, axis=1), axis=0).T)
        count = len(core[0])
        # In memory of its own: a slice would hold on to all that was found.
        one = np.ones(1, np.uint64)
        sets = np.ones((count, 1), np.uint64)
        return EndingResults(sets, one, np.zeros(BITS, np.int64), (*core, np.zeros(count, np.int64)))

    def rows(
        self,
        results: list[EndingResults],
        streams: Mapping[str, StoredStream],  # noqa: ARG002
        workers: Workers,  # noqa: ARG002
    ) -> Iterator[tuple[str, ListedRows | InputError]]:
        """The tuples of all results, by source."""
        schema = self._group.entry.schema
        rows = [part.listed()[1] for part in results]
        columns = [
            concatenate([part.refs[n][chosen] for part, chosen in zip(results, rows, strict=True)])
            for n in range(len(schema))
        ]
        if self._group.active:
            yield self._name, pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)


class OutputClass:
    """Queries that read the same columns; each has a number."""

    def __init__(self, reads: tuple[Read, ...]) -> None:
        self.reads = reads
        self._members: list[tuple[QueryClass, int | None] | None] = []
        self._kinds: list[Kind] = []
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

    def rows(
        self,
        results: list[EndingResults],
        streams: Mapping[str, StoredStream],
        workers: Workers,
    ) -> Iterator[tuple[str, ListedRows | InputError]]:
        """The rows of every query that gained some, or why it has none; computed ones are gathered here."""
        columns = [(source, streams[stream].column(name).held) for source, stream, name in self.reads]
        listed = DealtRows(results, len(self._members), columns)
        for number, (first, end) in enumerate(pairwise(listed.starts.tolist())):
            if first == end:
                continue
            member = self._members[number]
            if member is None:
                raise AssertionError("rows for a query that is gone")
            (owner, kind), count = member, end - first
            found: ListedRows | InputError
            if kind is not None:
                found = RowList(count, listed, first, kind, self._kinds[kind])
                if count > listed.sure:
                    found = found.table()
            else:
                try:
                    found = owner.entry.gatherer.rows(listed.columns(first, count, workers), count)
                except InputError as error:
                    found = error
            for name in owner.active:
                yield name, found

    def accounts(self, ledger: Ledger) -> Array:
        """The accounts by number."""
        serials = (-1 if member is None else member[0].entry.serial for member in self._members)
        return np.array([ledger.number_of(serial) for serial in serials], np.int64)

    def charge(self, parts: list[EndingResults], streams: Mapping[str, StoredStream], ledger: Ledger) -> None:
        """Count the bytes of the rows of every query."""
        accounts, size = self.accounts(ledger), len(self._members)
        counts, amounts = np.zeros(size, np.int64), np.zeros(size)
        columns = [(source, streams[stream].column(name)) for source, stream, name in self.reads]
        for part in parts:
            part.add_counts(counts)
            varying = [(source, values) for source, values in columns if values.width is None]
            owners, rows = part.listed() if varying else (part.owners, part.owners)
            for source, values in varying:
                amounts += np.bincount(owners, values.sizes(part.refs[source][rows]), minlength=size)
        amounts += counts * sum(values.width or 0 for _, values in columns)
        ledger.charge("bytes", accounts, amounts, f"{int(counts.max()):,} rows of one query")
        ledger.hold(accounts, amounts)


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
                self._classes[key] = OutputClass(entry.gatherer.reads)
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

    def rows(
        self,
        results: FoundResults,
        streams: Mapping[str, StoredStream],
        ledger: Ledger,
        workers: Workers,
    ) -> tuple[dict[str, ListedRows], dict[str, InputError]]:
        """The rows of all queries, and who failed."""
        outputs, failures = dict[str, ListedRows](self.empty), dict[str, InputError]()
        results.charge(streams, ledger)
        found = results.take(ledger)
        while found:
            # Let go of what becomes rows.
            sink, parts = found.popitem()
            for name, rows in sink.rows(parts, streams, workers):
                if isinstance(rows, InputError):
                    failures[name] = rows
                else:
                    outputs[name] = rows
        for serial, error in ledger.exceeded.items():
            sink, number = self._places[serial]
            failures.update(dict.fromkeys(sink.names(number), error))
        return outputs, failures
