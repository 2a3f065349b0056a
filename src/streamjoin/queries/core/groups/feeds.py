"""Grouped queries: the rows of their joins kept as partial groups, and which groups come out when.

Queries over the same join with the same keys share a *feed*: the join is run once for all of them, whatever their
windows and aggregates, and its rows are summarised once, by pane (`runs`). A query's window is complete when no
row of it can follow: every row to come has a tuple to come, and that is not before its stream's bound. Then its panes
are merged into groups, of which HAVING and QUALIFY choose, ordered by the window's end and the keys.

A query begins with the first window that begins after everything its streams had sent when it was created (or resumed),
and the reach of its join more. So all tuples of all rows in its windows came while it was in force, and its groups are
those of any older query: that is why they can share. A query that is paused, or fails, loses its open windows.

The invariants: a window is given out once, whole, or not at all; what is open is replaced by each batch and never
changed, so a batch can be computed again; what a query gives does not depend on who shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.joins.kinds.summary_values import computed
from streamjoin.model.errors import BudgetExceededError
from streamjoin.model.expression.evaluation import from_arrow, holds
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.typing_rules import check
from streamjoin.model.window import CountWindow
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.groups.partners import PartnerJoin, PartnerRule, Partners, partner_rule, reason_for_pairs
from streamjoin.queries.core.groups.runs import (
    GroupPart,
    GroupRun,
    Slot,
    common_keys,
    groups_of_windows,
    keys_without_signs,
    merged,
    order_ranks,
    part_of_rows,
    run_of_rows,
    slot_of,
    values_of,
)
from streamjoin.queries.core.kinds import STATE_SCHEMA, KindState, unpacked_states
from streamjoin.queries.core.retention import StreamProgress
from streamjoin.queries.language.grouping import END, KEY, START, VALUE, WINDOW, GroupWindow
from streamjoin.queries.language.plan import Query, query_name
from streamjoin.windows.clock import FOREVER, NEVER, to_ticks

if TYPE_CHECKING:
    from streamjoin.queries.core.buckets import Bucket
    from streamjoin.queries.core.changes import LiveQuery
    from streamjoin.queries.core.stored_stream import StoredStream

_MOST_TOGETHER: Final = 1 << 22
"""Groups by pane that the windows of several queries may read to be computed together."""
_MERGED_AT: Final = 4
"""A run is merged with those before it that have no more groups than it has, times this."""


# When windows are complete ----------------------------------------------------------------------------------------


def _distances(query: Query, start: str) -> dict[str, int]:
    """How far in time the tuples of each alias can be from that of `start`; nothing of those that only ROWS bound."""
    windows = [(p.left, p.right, p.window.length) for p in query.pairs if not isinstance(p.window, CountWindow)]
    reach, rest = {start: 0}, True
    while rest:
        near = [
            (reach[known] + length, new)
            for one, two, length in windows
            for known, new in ((one, two), (two, one))
            if known in reach and new not in reach
        ]
        rest = bool(near)
        if near:
            distance, alias = min(near)
            reach[alias] = distance
    return reach


def reach_of(query: Query) -> int:
    """How far before a row's time its tuples can be."""
    if query.grouping is None or _has_rows(query):
        return 0
    alias = query.grouping.window.alias
    starts = query.aliases if alias is None else (alias,)
    return max(max(_distances(query, start).values()) for start in starts)


def _has_rows(query: Query) -> bool:
    return any(isinstance(step.window, CountWindow) for step in query.steps)


def first_window(query: Query, reached: int) -> int:
    """The start of a query's first window, where its streams had come to `reached` at its create."""
    if query.grouping is None or reached == NEVER:
        return NEVER
    return min(FOREVER, query.grouping.window.first_after(reached + reach_of(query)))


def due_of(query: Query, end: int, lateness: Mapping[str, int]) -> int:
    """The time that all streams of a query must have reached for a window that ends at `end` to be complete."""
    alias = None if query.grouping is None else query.grouping.window.alias
    distances = dict.fromkeys(query.aliases, 0) if alias is None else _distances(query, alias)
    return max(end + distances[source.alias] + lateness[source.stream.name] for source in query.sources)


def bounds_by_stream(query: Query, progress: StreamProgress) -> dict[str, int]:
    """By stream, the time before which no row can follow that has a tuple to come of it."""
    alias = None if query.grouping is None else query.grouping.window.alias
    distances = dict.fromkeys(query.aliases, 0) if alias is None else _distances(query, alias)
    bounds: dict[str, int] = {}
    for source in query.sources:
        name = source.stream.name
        bound = max(NEVER, progress.bounds[name] - distances[source.alias])
        bounds[name] = min(bound, bounds.get(name, bound))
    return bounds


# Feeds ----------------------------------------------------------------------------------------------------------------


class FeedKey:
    """What queries of one feed have in common, compared often."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: object) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeedKey) and self._hash == other._hash and self._parts == other._parts


@dataclass(frozen=True)
class GroupFeed:
    """The rows that some queries group, found once: `live` is what the shared plan runs, by the name of the oldest."""

    key: FeedKey
    members: Mapping[str, LiveQuery]
    live: LiveQuery
    columns: frozenset[Column]

    @property
    def name(self) -> str:
        """Under which its rows come."""
        return self.live.query.name

    @cached_property
    def partners(self) -> PartnerRule | None:
        """How its groups are made without the rows of the join; None where these are found."""
        return next(iter(self.members.values())).member.partners

    @cached_property
    def join(self) -> FeedKey:
        """What feeds of one join have in common."""
        return join_key(self.live.query)


def feed_key(entry: LiveQuery) -> FeedKey:
    """What queries of one feed have in common; by ROWS also since when, as what came before counts."""
    query, grouping = entry.query, entry.query.grouping
    if grouping is None:
        raise AssertionError("a query without groups has no feed")
    since = entry.created if _has_rows(query) else -1
    join = query.sources, query.steps, query.selections, query.residual
    by_ranges = reason_for_pairs(query) is None
    return FeedKey(*join, grouping.keys, grouping.window.alias, entry.budget, since, by_ranges)


def join_key(query: Query) -> FeedKey:
    """What feeds of one join have in common."""
    return FeedKey(query.sources, query.steps, query.selections)


def feeds_of(queries: Mapping[str, LiveQuery], before: Mapping[FeedKey, GroupFeed]) -> dict[FeedKey, GroupFeed]:
    """The feeds of the grouped queries that run; one that can go on as it is stays the same object."""
    members: dict[FeedKey, dict[str, LiveQuery]] = {}
    for name, entry in queries.items():
        if entry.query.grouping is not None and not entry.paused:
            members.setdefault(entry.feed_key, {})[name] = entry
    feeds: dict[FeedKey, GroupFeed] = {}
    for key, own in members.items():
        known = before.get(key)
        if known is not None and own.keys() == known.members.keys():
            same = all(own[name] is known.members[name] for name in own)
            feeds[key] = known if same else replace(known, members=own)
            continue
        feeds[key] = _feed(key, own, known)
    return feeds


def _feed(key: FeedKey, members: Mapping[str, LiveQuery], before: GroupFeed | None) -> GroupFeed:
    oldest = min(members.values(), key=lambda entry: entry.serial)
    feeds = [entry.query.feed for entry in members.values()]
    columns = frozenset(column for feed in feeds for output in feed.outputs for column in output.expression.columns)
    created = min(entry.created for entry in members.values())
    if before is not None:
        # What it reads beyond that is not worth to begin anew for.
        created = min(created, before.live.created)
        columns |= before.columns
    query = replace(oldest.query.fed_with(columns), name=oldest.query.name)
    live = type(oldest).of(oldest.serial, query, created, budget=oldest.budget)
    return GroupFeed(key, members, replace(live, stands_for=tuple(members)), columns)


# State ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupStore:
    """The open groups that queries share, in runs, the oldest and largest first."""

    key: str
    """Tells stores apart in files, and from queries: one that has it, and the batch after which it is that."""
    runs: tuple[GroupRun, ...] = ()

    @property
    def n(self) -> int:
        """How many groups by pane there are."""
        return sum(run.n for run in self.runs)

    @cached_property
    def in_order(self) -> tuple[tuple[pa.Array, ...], list[Array]]:
        """All keys in the order in which groups come out, and which of them each key of each run is."""
        return common_keys(self.runs, ordered=True)

    @cached_property
    def panes(self) -> Array:
        """The panes that there are, ascending."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *(run.marks for run in self.runs)]))

    def groups_of(self, begins: Array, ends: Array, wanted: Collection[str]) -> GroupRun | None:
        """The groups of windows, in the order of these and of keys; their panes are the windows' numbers."""
        return groups_of_windows(self.runs, *self.in_order, (begins, ends), wanted)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(run.nbytes for run in self.runs)

    def joined_by(self, run: GroupRun) -> GroupStore:
        """With more groups; small runs are merged, and keep what the new ones have."""
        if not run.n:
            return self
        runs, last = list(self.runs), [run]
        size = run.n
        while runs and runs[-1].n <= _MERGED_AT * size:
            last.append(runs.pop())
            size += last[-1].n
        return GroupStore(self.key, (*runs, merged(last[::-1], run.parts.keys())))

    def since(self, low: int) -> GroupStore:
        """Without what no window needs any more: the panes before `low`."""
        if all(run.panes[0] >= low for run in self.runs):
            return self
        kept = []
        for run in self.runs:
            dead = int(np.searchsorted(run.panes, low))
            # What is left of it is copied, so it pays only for a part.
            kept += [run] if 2 * dead < run.n else [run.taken(np.arange(dead, run.n))] if dead < run.n else []
        return GroupStore(self.key, tuple(kept))

    def reads(self, begins: Array, ends: Array) -> int:
        """How many groups by pane windows have, each as often as it is in one."""
        return sum(int((np.searchsorted(r.panes, ends) - np.searchsorted(r.panes, begins)).sum()) for r in self.runs)

    @property
    def totals_nbytes(self) -> int:
        """Bytes of what can be made of the runs again."""
        return sum(run.totals.nbytes for run in self.runs if run.has_totals)

    def to_table(self) -> pa.Table:
        """As rows of a table, for a file, one for each run."""
        rows = [{"side": STORE, "alias": self.key, "held": run.packed} for run in self.runs]
        return pa.Table.from_pylist(rows, STATE_SCHEMA)

    def count_since(self, low: int) -> int:
        """How many groups by pane there are from `low` on."""
        return sum(run.n - int(np.searchsorted(run.panes, low)) for run in self.runs)


@dataclass(frozen=True)
class GroupState:
    """What a grouped query waits for: its windows that end after `closed` are open.

    `overflowed` are the sums of the batch before that their type could not hold, which no file has.
    """

    store: GroupStore
    closed: int = NEVER
    overflowed: int = 0

    @property
    def n(self) -> int:
        """How many groups are open, of all queries that share them."""
        return self.store.n

    def to_table(self, name: str) -> pa.Table:
        """As a row of a table, for a file; the groups are rows of their own, those of the store."""
        row = {"query": name, "side": MEMBER, "numbers": [self.closed], "alias": self.store.key}
        return pa.Table.from_pylist([row], STATE_SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, name: str, stores: dict[str, GroupStore]) -> GroupState | None:
        """What `to_table` and the store's gave; `stores` has the groups that were read already."""
        rows = table.filter(pc.equal(table.column("query"), name)).to_pylist()
        if not rows:
            return None
        row = rows[0]
        key = row["alias"]
        if key not in stores:
            runs = table.filter(pc.and_(pc.equal(table.column("side"), STORE), pc.equal(table.column("alias"), key)))
            stores[key] = GroupStore(key, tuple(GroupRun.unpacked(run.as_py()) for run in runs.column("held")))
        return cls(stores[key], row["numbers"][0])


MEMBER, STORE = 3, 4
WaitingState = KindState | GroupState
"""What a query waits for: tuples that may still match, or groups that may still grow."""


def unpacked_waiting(table: pa.Table, query: Query, stores: dict[str, GroupStore] | None = None) -> WaitingState | None:
    """What a query waited for, as its state was stored; None if it had none. `stores` are the groups read already."""
    if query.grouping is None:
        return unpacked_states(table, {query.name: query}).get(query.name)
    return GroupState.from_table(table, query.name, {} if stores is None else stores)


def overflowed_in(states: Mapping[str, WaitingState]) -> dict[str, int]:
    """How many sums of the batch before their type could not hold, by query; of those that have some."""
    sums = Counter[str]()
    for name, state in states.items():
        sums[query_name(name)] += state.overflowed
    return dict(+sums)


def stores_of(states: Mapping[str, WaitingState]) -> list[GroupStore]:
    """The open groups of all states, each store once."""
    return list({id(state.store): state.store for state in states.values() if isinstance(state, GroupState)}.values())


# A batch --------------------------------------------------------------------------------------------------------------


class GroupMember:
    """What is asked of the groups of one query, found once."""

    def __init__(self, entry: LiveQuery) -> None:
        if entry.query.grouping is None:
            raise AssertionError("a query without groups")
        self.query, self.grouping = entry.query, entry.query.grouping
        self.since, self.budget = entry.first_window, entry.budget
        self.window: GroupWindow = self.grouping.window
        slots = (slot_of(aggregate) for aggregate in self.grouping.aggregates)
        self.slots: dict[str, Slot] = {slot.key: slot for slot in slots if slot is not None}
        self.schema, schemas = self.query.schema, self.query.schemas
        aggregates = self.grouping.aggregates
        self._types = [[check(argument, schemas) for argument in one.arguments] for one in aggregates]

    @cached_property
    def partners(self) -> PartnerRule | None:
        """How its groups are made without the rows of the join; None where these are found."""
        return partner_rule(self.query)

    @cached_property
    def empty(self) -> pa.Table:
        """No rows."""
        return self.schema.empty_table()

    def low(self, closed: int) -> int:
        """The earliest start of a window that is open, where those that end by `closed` are not."""
        if closed == NEVER:
            return self.since
        return max(self.since, min(FOREVER, self.window.first_after(closed - self.window.size)))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """At which times windows begin and end: at regular ticks, from one on."""
        slide = self.window.slide
        return tuple(dict.fromkeys([(slide, 0), (slide, self.window.size % slide)]))

    def complete(self, store: GroupStore, closed: int, bound: int) -> GroupRun | None:
        """The groups of the windows that end after `closed` and by `bound`, in panes that are the windows' starts."""
        begins = self.begins(store, closed, bound)
        run = store.groups_of(begins, begins + self.window.size, self.slots)
        return None if run is None else run.at(begins[run.panes])

    def begins(self, store: GroupStore, closed: int, bound: int) -> Array:
        """Where the windows begin that end after `closed` and by `bound`, and may have groups."""
        size, slide = self.window.size, self.window.slide
        first, last = self.low(closed), min((bound - size) // slide * slide, FOREVER)
        if bound == NEVER or first > last or not store.n:
            return np.empty(0, np.int64)
        panes, overlap = store.panes, self.window.overlap
        # Windows that begin before end before the first pane, and later ones begin after the last.
        low = max(first, int(panes[0]) // slide * slide - (overlap - 1) * slide)
        high = min(last, int(panes[-1]))
        if (high - low) // slide < overlap * panes.size:
            return np.arange(low, high + 1, slide)
        begins = np.unique((panes // slide * slide)[:, np.newaxis] - np.arange(overlap) * slide)
        return begins[(begins >= first) & (begins <= last)]

    # Rows ---------------------------------------------------------------------------------------------------------

    @cached_property
    def form(self) -> FeedKey:
        """What members must have in common for their groups to be computed together: all but windows."""
        grouping = self.grouping
        outputs = tuple((output.expression, output.type) for output in self.query.outputs)
        return FeedKey(grouping.aggregates, grouping.having, grouping.top, outputs, self.window.type)

    def rows(self, run: GroupRun) -> tuple[pa.Table, int]:
        """The rows of complete groups, which are in order, and how many sums their type could not hold.

        Raises:
            InputError: a computed number does not fit its column.
        """
        arrays, _, overflowed = self.outputs(run, run.panes + self.window.size, np.zeros(1, np.int64))
        return pa.Table.from_arrays(arrays, schema=self.schema), overflowed

    def outputs(self, run: GroupRun, ends: Array, begins: Array) -> tuple[list[pa.Array], Array, int]:
        """The columns of the rows of complete groups, where `ends` has the ends of their windows.

        The groups are those of several queries that differ in their windows alone. `begins` says where each one's
        begin, and its rows begin where the result says; last comes how many sums their type could not hold.

        Raises:
            InputError: a computed number does not fit its column.
        """
        (columns, overflowed), n = self.values(run, ends), run.n
        if self.grouping.having is not None or self.grouping.top is not None:
            chosen = np.arange(n)
            if self.grouping.having is not None:
                chosen = np.flatnonzero(holds(self.grouping.having, lambda c: from_arrow(columns[c]), n))
            chosen = self._first(run, columns, chosen, begins)
            columns, n, begins = _taken(columns, chosen), chosen.size, np.searchsorted(chosen, begins)
        arrays = [computed(one.expression, one.type, columns, n) for one in self.query.outputs]
        return arrays, begins, overflowed

    def values(self, run: GroupRun, ends: Array) -> tuple[dict[Column, pa.Array], int]:
        """The keys, values and windows of groups, and how many sums their type could not hold."""
        grouping, overflowed = self.grouping, 0
        columns = {Column(KEY, str(number)): key for number, key in enumerate(run.key_columns)}
        described = zip(grouping.aggregates, self._types, grouping.value_types, strict=True)
        for number, (aggregate, types, type_) in enumerate(described):
            values, beyond = values_of(run, aggregate, types, type_)
            overflowed += beyond
            columns[Column(VALUE, str(number))] = values if values.type == type_ else values.cast(type_)
        for name, ticks in ((START, run.panes), (END, ends)):
            columns[Column(WINDOW, name)] = self.time(ticks)
        return columns, overflowed

    def time(self, ticks: Array) -> pa.Array:
        """Ticks as times of the window's type."""
        type_, units = self.window.type, ticks // self.window.tick
        if pa.types.is_date(type_):
            return pa.array(units.astype(np.int32)).view(type_)
        return pa.array(units).view(type_)

    def _first(self, run: GroupRun, columns: Mapping[Column, pa.Array], chosen: Array, begins: Array) -> Array:
        """Of groups in order those that QUALIFY wants, in the same order; each query's begin where `begins` says."""
        top = self.grouping.top
        if top is None or not chosen.size:
            return chosen
        schemas, taken = self.grouping.schemas, _taken(columns, chosen)
        ranks = []
        for expression, descends, nulls_first in top.order:
            values = computed(expression, check(expression, schemas), taken, chosen.size)
            ranks.append(order_ranks(values, descends=descends, nulls_first=nulls_first))
        owners = np.searchsorted(begins, chosen, side="right")
        parts = [owners, run.panes[chosen], *(order_ranks(taken[Column(KEY, str(key))]) for key in top.partition)]
        # Ties are in the order of the keys, which they have already.
        order = np.lexsort([*reversed(ranks), *reversed(parts)])
        first = _run_starts([part[order] for part in parts])
        place = _run_starts([part[order] for part in (*parts, *ranks)]) if top.ties else np.arange(order.size)
        return chosen[np.sort(order[place - first < top.most])]

    def check_budget(self, budget: Budget, store: GroupStore, low: int) -> None:
        """Refuse more open groups than the query may have.

        Raises:
            BudgetExceededError: there are more.
        """
        if budget.rows is None and budget.bytes is None:
            return
        groups = store.count_since(low)
        size = store.nbytes * groups // max(1, store.n)
        for kind, limit, held in (("rows", budget.rows, groups), ("bytes", budget.bytes, size)):
            if limit is not None and held > limit:
                raise BudgetExceededError(kind, limit, held, f"{groups:,} open groups")


@dataclass(frozen=True)
class MemberResult:
    """What a query has after a batch: its state and its rows, or why it failed."""

    state: GroupState | None
    rows: pa.Table
    failure: Exception | None = None


class NewGroups(Protocol):
    """The rows of a feed in one batch, as groups."""

    @property
    def failures(self) -> Mapping[str, Exception]:
        """The members that ask for what can't be computed of these rows."""

    def shared_by(self, name: str) -> object:
        """Members for which this is equal have the same groups."""

    def lifted(self, members: Mapping[str, GroupMember], low: int) -> GroupRun | None:
        """The rows from `low` on as groups of these members, for which `shared_by` is equal; None without any."""


class FeedRows:
    """The rows of a feed, found here; `query` gives them, and `members` group them.

    Nothing is computed for a member of rows before its first window: others may have had them found.
    """

    def __init__(
        self, query: Query, members: Mapping[str, GroupMember], rows: pa.Table, partners: Partners | None = None
    ) -> None:
        one = next(iter(members.values()))
        self._query, self._grouping, self._partners = one.query, one.grouping, partners
        self._names = {
            output.expression: output.name for output in query.outputs if isinstance(output.expression, Column)
        }
        self._take(rows.combine_chunks())
        since = min(member.since for member in members.values())
        if self._rows.num_rows and (early := self._times < since).any():
            self._take(self._rows.filter(pa.array(~early)).combine_chunks())
            if self._partners is not None:
                self._partners = self._partners.taken(np.flatnonzero(~early))
            del self._times
        self._computed: dict[Expression, pa.Array] = {}
        self._apart: dict[str, FeedRows] = {}
        """Those of members for which nothing can be computed of the rows before their own first window."""
        self.failures: dict[str, Exception] = {}
        """The members that ask for what can't be computed of these rows."""
        ready = set[str]()
        for name, member in members.items():
            try:
                self._compute_keys()
                for key, slot in member.slots.items():
                    if key not in ready:
                        self._prepare(slot)
                        ready.add(key)
            except MemoryError:
                raise
            except Exception as error:
                if member.since == since:
                    self.failures[name] = error
                    continue
                self._apart[name] = FeedRows(query, {name: member}, self._rows, self._partners)
                self.failures |= self._apart[name].failures

    def _take(self, rows: pa.Table) -> None:
        self._rows = rows
        there = {*rows.column_names}
        self._columns = {column: _chunk(rows.column(name)) for column, name in self._names.items() if name in there}

    def _prepare(self, slot: Slot) -> None:
        """Compute what a slot is made of."""
        if self._partners is not None and self._partners.rule.of_other(slot):
            self._partners.prepare(slot)
            return
        for argument in slot.arguments:
            self._argument(argument)

    def shared_by(self, name: str) -> object:
        """Nothing that tells members apart, but for those of which rows are computed apart."""
        return name if name in self._apart else None

    def _argument(self, expression: Expression) -> pa.Array:
        if expression not in self._computed:
            type_ = check(expression, self._query.schemas)
            self._computed[expression] = _chunk(computed(expression, type_, self._columns, self._rows.num_rows))
        return self._computed[expression]

    def _compute_keys(self) -> None:
        grouping = self._grouping
        for key, type_ in zip(grouping.keys, grouping.key_types, strict=True):
            if key not in self._computed:
                values = computed(key, type_, self._columns, self._rows.num_rows)
                self._computed[key] = _chunk(values)

    @cached_property
    def _times(self) -> Array:
        """When each row is, in ticks."""
        alias = self._grouping.window.alias
        latest = np.full(self._rows.num_rows, NEVER, np.int64)
        for source in self._query.sources:
            if alias in (None, source.alias):
                column = self._columns[Column(source.alias, source.stream.time)]
                latest = np.maximum(latest, to_ticks(column, source.stream.tick_ns or 1)[0])
        return latest

    def lifted(self, members: Mapping[str, GroupMember], low: int) -> GroupRun | None:
        """The rows from `low` on as a run."""
        apart = self._apart.get(next(iter(members)))
        if apart is not None:
            return apart.lifted(members, low)
        if not self._rows.num_rows:
            return None
        longest = max(member.window.size for member in members.values())
        # At the very ends of time a window would have no start, or no end.
        first, last = max(low, NEVER + 2 * longest), FOREVER - 2 * longest
        times = self._times
        within = (times >= first) & (times < last)
        if not within.any():
            return None
        places = None if within.all() else pa.array(np.flatnonzero(within))

        def chosen(array: pa.Array) -> pa.Array:
            return array if places is None else array.take(places)

        edges = {edge for member in members.values() for edge in member.edges}
        slots = {key: slot for member in members.values() for key, slot in member.slots.items()}
        marks, places_of = pane_starts(times if places is None else times[within], edges)
        keys = [chosen(keys_without_signs(self._computed[key])) for key in self._grouping.keys]
        partners = self._partners
        if partners is not None and places is not None:
            partners = partners.taken(np.flatnonzero(within))
        often = None if partners is None else partners.times

        def part(slot: Slot, ids: Array, n: int) -> GroupPart:
            if partners is not None and partners.rule.of_other(slot):
                return partners.part(slot, ids, n)
            return part_of_rows(slot, [chosen(self._argument(one)) for one in slot.arguments], ids, n, often)

        return run_of_rows(marks, places_of, keys, list(slots.values()), part, often)


class CompleteWindows(NamedTuple):
    """The windows of a member that are complete: where they begin and end, and by when all windows are."""

    closed: int
    begins: Array
    ends: Array


class FeedStep:
    """One batch of one feed: its new groups into those that are open, and the ones that are complete out of them."""

    def __init__(self, feed: GroupFeed, new: NewGroups, progress: StreamProgress, batch: int) -> None:
        self._feed, self._new, self._batch = feed, new, batch
        self._members = {name: entry.member for name, entry in feed.members.items()}
        one = next(iter(feed.members.values())).query
        self._bound = min(bounds_by_stream(one, progress).values())

    def run(self, states: Mapping[str, GroupState]) -> dict[str, MemberResult]:
        """What each member has after the batch, where `states` is what those that are not new had before."""
        failures = self._new.failures
        results = {name: self._failed(name, failures[name]) for name in self._members if name in failures}
        working = {name: member for name, member in self._members.items() if name not in failures}
        known = [states[name].store for name in working if name in states]
        shared = known[0] if known else GroupStore("")
        # Queries may have stores apart, where they were computed one by one: each goes on with its own.
        by_store: dict[tuple[int, object], dict[str, GroupState]] = {}
        for name in working:
            state = states.get(name) or GroupState(shared)
            by_store.setdefault((id(state.store), self._new.shared_by(name)), {})[name] = state
        for own in by_store.values():
            results |= self._advance({name: working[name] for name in own}, own)
        return results

    def _failed(self, name: str, error: Exception) -> MemberResult:
        return MemberResult(None, self._members[name].empty, error)

    # Groups out ---------------------------------------------------------------------------------------------------

    def _advance(self, members: Mapping[str, GroupMember], states: Mapping[str, GroupState]) -> dict[str, MemberResult]:
        """The batch for members that share a store."""
        serial = min(self._feed.members[name].serial for name in members)
        # No query has a name that begins so.
        store = GroupStore(f"\x1f{serial}-{self._batch}", states[next(iter(members))].store.runs)
        low = min(member.low(states[name].closed) for name, member in members.items())
        try:
            lifted = self._new.lifted(members, low)
            if lifted is not None:
                store = store.joined_by(lifted)
        except MemoryError:
            raise
        except Exception as error:
            if len(members) == 1:
                return {name: self._failed(name, error) for name in members}
            # What only some of them ask for may be to blame: from here on each has a store of its own.
            apart = ({name: member} for name, member in members.items())
            return {name: one for own in apart for name, one in self._advance(own, states).items()}
        results: dict[str, MemberResult] = {}
        together: dict[FeedKey, dict[str, CompleteWindows]] = {}
        for name, member in members.items():
            try:
                before = states[name].closed
                member.check_budget(member.budget, store, member.low(before))
                closed = max(self._bound, before)
                begins = member.begins(store, before, closed)
                together.setdefault(member.form, {})[name] = CompleteWindows(
                    closed, begins, begins + member.window.size
                )
            except MemoryError:
                raise
            except Exception as error:
                results[name] = self._failed(name, error)
        for alike in together.values():
            own, reads = dict[str, CompleteWindows](), 0
            for name, windows in alike.items():
                size = store.reads(windows.begins, windows.ends)
                if own and reads + size > _MOST_TOGETHER:
                    results |= self._complete(store, own)
                    own, reads = {}, 0
                own[name], reads = windows, reads + size
            results |= self._complete(store, own)
        open_ = {name: one.state.closed for name, one in results.items() if one.state is not None}
        if not open_:
            return results
        left = store.since(min(members[name].low(closed) for name, closed in open_.items()))
        return {
            name: one if one.state is None else replace(one, state=replace(one.state, store=left))
            for name, one in results.items()
        }

    def _complete(self, store: GroupStore, complete: Mapping[str, CompleteWindows]) -> dict[str, MemberResult]:
        """What members have after the batch that differ in their windows alone."""
        try:
            found = self._rows(store, complete)
        except MemoryError:
            raise
        except Exception as error:
            if len(complete) == 1:
                return {name: self._failed(name, error) for name in complete}
            found = None
        if found is None:
            alone = ({name: windows} for name, windows in complete.items())
            return {name: one for own in alone for name, one in self._complete(store, own).items()}
        return {
            name: MemberResult(GroupState(store, complete[name].closed, overflowed), rows)
            for name, (rows, overflowed) in found.items()
        }

    def _rows(
        self, store: GroupStore, complete: Mapping[str, CompleteWindows]
    ) -> dict[str, tuple[pa.Table, int]] | None:
        """The rows of each member, and how many sums their type could not hold; None if that has to be found apart."""
        begins, ends = (
            np.concatenate([getattr(windows, what) for windows in complete.values()]) for what in ("begins", "ends")
        )
        one = self._members[next(iter(complete))]
        run = store.groups_of(begins, ends, one.slots)
        if run is None:
            return {name: (self._members[name].empty, 0) for name in complete}
        cuts = np.searchsorted(run.panes, np.cumsum([0, *(windows.begins.size for windows in complete.values())]))
        arrays, cuts, overflowed = one.outputs(run.at(begins[run.panes]), ends[run.panes], cuts)
        if overflowed and len(complete) > 1:
            return None
        rows = {}
        for name, (begin, end) in zip(complete, pairwise(cuts.tolist()), strict=True):
            # A copy: what one query holds of its rows must not hold those of all.
            own = [pa.concat_arrays([array.slice(begin, end - begin)]) for array in arrays]
            rows[name] = pa.Table.from_arrays(own, schema=self._members[name].schema), overflowed
        return rows


class PartnerFeeds:
    """The joins whose partners feeds without rows are made of, each found once for all of them."""

    def __init__(self) -> None:
        self._joins: dict[FeedKey, PartnerJoin] = {}

    def keep(self, joins: Collection[FeedKey]) -> None:
        """Forget the joins that no feed has any more."""
        self._joins = {key: join for key, join in self._joins.items() if key in joins}

    def rows(
        self,
        key: FeedKey,
        query: Query,
        members: Mapping[str, GroupMember],
        streams: Mapping[str, StoredStream],
        buckets: Mapping[str, Bucket],
    ) -> FeedRows:
        """The rows of a feed in one batch, whose `buckets` the streams have; `query` is that of its join."""
        rule = next(iter(members.values())).partners
        if rule is None:
            raise AssertionError("the rows of this feed are those of its join")
        if key not in self._joins:
            self._joins[key] = PartnerJoin(query)
        names = {one.expression: one.name for one in query.outputs if isinstance(one.expression, Column)}
        table, partners = self._joins[key].rows(rule, names, streams, buckets)
        return FeedRows(query, members, table, partners)

    def settle(self) -> None:
        """Forget what only the batch needed."""
        for join in self._joins.values():
            join.settle()

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(join.nbytes for join in self._joins.values())


@dataclass(frozen=True)
class PartialGroups:
    """The groups that a cell made of the rows of a feed there, for some of its members."""

    members: tuple[str, ...]
    run: GroupRun


def partial_groups(
    members: Mapping[str, GroupMember], found: FeedRows
) -> tuple[list[PartialGroups], Mapping[str, Exception]]:
    """The rows of a feed as groups that others put together, and the members that ask for what can't be computed."""
    failures, working = dict(found.failures), {n: one for n, one in members.items() if n not in found.failures}
    groups: list[PartialGroups] = []
    together: dict[object, dict[str, GroupMember]] = {}
    for name, member in working.items():
        together.setdefault(found.shared_by(name), {})[name] = member
    pending = list(together.values())
    while pending:
        own = pending.pop()
        try:
            run = found.lifted(own, min(member.since for member in own.values()))
        except MemoryError:
            raise
        except Exception as error:
            if len(own) == 1:
                failures |= dict.fromkeys(own, error)
            else:
                # What only some of them ask for may be to blame.
                pending += [{name: member} for name, member in own.items()]
            continue
        groups += [] if run is None else [PartialGroups(tuple(own), run)]
    return groups, failures


class JoinedGroups:
    """The groups of a feed that cells made."""

    def __init__(self, parts: Sequence[PartialGroups]) -> None:
        self._parts = parts
        self.failures: dict[str, Exception] = {}
        """None: cells have told of theirs."""

    def shared_by(self, name: str) -> tuple[int, ...]:
        """Which of the cells' groups are a member's."""
        return tuple(number for number, part in enumerate(self._parts) if name in part.members)

    def lifted(self, members: Mapping[str, GroupMember], low: int) -> GroupRun | None:  # noqa: ARG002 - lifted there
        """The groups of all cells together."""
        runs = [self._parts[number].run for number in self.shared_by(next(iter(members)))]
        return merged(runs) if runs else None


def pane_starts(times: Array, edges: Iterable[tuple[int, int]]) -> tuple[Array, Array]:
    """The times at which windows begin or end, ascending, and the last one of them at or before each of `times`.

    `edges` are those of `GroupMember`.
    """
    every = sorted(edges)
    low, high = int(times.min()), int(times.max())
    if sum((high - low) // slide + 2 for slide, _ in every) <= max(1024, times.size):
        found = [
            np.arange((low - first) // slide, (high - first) // slide + 1) * slide + first for slide, first in every
        ]
        marks = np.unique(np.concatenate(found))
        if len(every) == 1:
            return marks, (times - marks[0]) // every[0][0]
        return marks, np.searchsorted(marks, times, side="right") - 1
    starts = np.full(times.size, NEVER)
    for slide, first in every:
        starts = np.maximum(starts, (times - first) // slide * slide + first)
    marks, places = np.unique(starts, return_inverse=True)
    return marks, places.reshape(-1)


def _taken(columns: Mapping[Column, pa.Array], places: Array) -> dict[Column, pa.Array]:
    index = pa.array(places)
    return {column: values.take(index) for column, values in columns.items()}


def _run_starts(parts: Sequence[Array]) -> Array:
    """Where, by place, the run of equal values begins that it is in."""
    begins = np.ones(parts[0].size, np.bool_)
    begins[1:] = np.logical_or.reduce([part[1:] != part[:-1] for part in parts])
    starts: Array = np.maximum.accumulate(np.where(begins, np.arange(begins.size), 0))
    return starts


def _chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column
